"""Measure the time of weight updates of several hosts over networks of different speeds.

The times are compared with the estimate of docs/distributed.md. Each emulated host has a network namespace on a virtual
switch, and a token bucket limits its sending rate. The benchmark needs Linux, root, `ip` and `tc`.

python -m bench.links [--instances 4] [--rounds 7]
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from bench import _paired
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

RN50 = "--model-size 50 --dataset imagenet --synthetic-data --group-norm --batch-size 4"
COMMON = "--precision 32.32 --optimiser momentum --seed 1"
ROWS = {  # name: (options of train.py, bytes of one gradient on the network)
    "accumulation 1": ("", 4),
    "accumulation 1, --all-reduce-format fp16": ("--all-reduce-format fp16", 2),
    "accumulation 4": ("--gradient-accumulation-count 4", 4),
}
LINKS = (None, 10.0, 1.0)  # Gbit/s; None for no limit
PORT = 2222


class Switch:
    """A virtual switch with hosts 10.79.0.1, 10.79.0.2, ... in network namespaces. This host is 10.79.0.254."""

    def __init__(self, hosts: int) -> None:
        self.hosts = [f"links{os.getpid()}h{k}" for k in range(hosts)]
        self._bridge = f"lb{os.getpid()}"

    def connect(self) -> None:
        """Create the hosts and their links."""
        _ip(f"link add {self._bridge} type bridge")
        _ip(f"addr add {self.address(254)}/24 dev {self._bridge}")
        _ip(f"link set {self._bridge} up")
        for k, host in enumerate(self.hosts):
            _ip(f"netns add {host}")
            _ip(f"link add eth0 netns {host} type veth peer name {self._bridge}p{k}")
            _ip(f"link set {self._bridge}p{k} master {self._bridge} up")
            _ip(f"-n {host} addr add {self.address(k + 1)}/24 dev eth0")
            for device in ("eth0", "lo"):
                _ip(f"-n {host} link set {device} up")

    @staticmethod
    def address(number: int) -> str:
        """Return the address of a host, counted from 1."""
        return f"10.79.0.{number}"

    def limit(self, gigabits: float | None) -> None:
        """Limit the sending rate of each host to `gigabits` per second. None removes the limit."""
        for host in self.hosts:
            subprocess.run(["tc", "-n", host, "qdisc", "del", "dev", "eth0", "root"], stderr=subprocess.DEVNULL, check=False)
            if gigabits:  # the token bucket holds a millisecond of traffic
                burst = max(int(gigabits * 1e9 / 8 / 1000), 65536 * 2)
                words = f"-n {host} qdisc add dev eth0 root tbf rate {gigabits:g}gbit burst {burst} latency 50ms"
                subprocess.run(["tc", *words.split()], check=True)

    def remove(self) -> None:
        """Remove the hosts and the switch. Ignore those that do not exist."""
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], stderr=subprocess.DEVNULL, check=False)


@contextmanager
def switched(hosts: int) -> Iterator[Switch]:
    """Provide a switch with hosts, and remove it afterwards."""
    switch = Switch(hosts)
    try:
        switch.connect()
        yield switch
    finally:
        switch.remove()


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def measure(name: str, switch: Switch, rounds: int) -> None:
    """Print the results of one row for each link speed. The speeds take turns."""
    options, gradient_bytes = ROWS[name]
    words = f"{COMMON} {RN50} {options}".split()
    run = prepare(cli.parse(words, "train", environ={}).options, {}).run
    size = len(switch.hosts)
    addresses = [f"{switch.address(k + 1)}:{PORT}" for k in range(size)]
    cores = sorted(os.sched_getaffinity(0))
    places = [
        ["ip", "netns", "exec", host, "taskset", "-c", str(cores[k % len(cores)])] for k, host in enumerate(switch.hosts)
    ]
    instances = _paired.Instances([*words, "--replicas", "1"], 1, addresses, places)
    instances.round()

    def of_update(link: float | None) -> float:
        switch.limit(link)
        return size * run.plan.global_batch / instances.round()  # `run` describes one instance of `size`

    seconds = dict(zip(LINKS, _paired.turns([partial(of_update, link) for link in LINKS], rounds)))
    instances.end()
    free = seconds[None]
    for link in LINKS[1:]:
        sent = 2 * (size - 1) / size * gradient_bytes * run.network.trainable_parameters
        estimate = sent * 8 / (link * 1e9)
        shares = [a / b for a, b in zip(free, seconds[link])]
        c, t = statistics.median(free), statistics.median(seconds[link])
        print(
            f"{name:<42} {link:>6g} {estimate:>7.2f} {c:>8.2f} {t:>9.2f} {c + estimate:>6.2f} "
            f"{c / (c + estimate):>9.2f}  {_paired.spread(shares)}", flush=True,
        )  # fmt: skip


def main() -> None:
    """Run all measurements."""
    given = _paired.arguments(__doc__, rounds=7, instances=4)
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        raise SystemExit("Network namespaces need root and the programs ip and tc; run as root and install iproute2")
    print(f"{given.instances} instances, ResNet-50 with group norm, 224 px, micro-batch 4")
    print(f"{'':<42} Gbit/s formula     free  measured  c + t  at least  efficiency")
    with switched(given.instances) as switch:
        for name in ROWS:
            measure(name, switch, given.rounds)


if __name__ == "__main__":
    main()
