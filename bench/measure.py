"""Measure what training costs: speed of networks, number formats and layouts, norms, memory, start-up, several hosts.

python -m bench.measure [WORD ...] [--rounds 7] [--hosts 4]     measure the rows whose name contains all words

Two ways to train take turns, and a ratio compares neighbouring rounds. The rows `links` need Linux, root, `ip` and `tc`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bench import _paired
from bench._paired import ROOT, Instances, Worker, ours, spread, turns
from cnn_harness.harness.distributed import launch
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run

Measure = Callable[[int], Iterator[str]]  # yields the lines of a result, measured in a number of rounds


def resolved(words: str) -> Run:
    """Return the run of one instance with these options of train.py."""
    return prepare(cli.parse(words.split(), "train", environ={}).options, {}).run


def arrow(one: float, other: float, places: int = 0) -> str:
    """Return the measurements of two ways to train as text."""
    return f"{one:.{places}f} -> {other:.{places}f}"


def pair(both: str, one: str, other: str, least: float | None, rounds: int) -> Iterator[str]:
    """Compare the speed of the options `both` `other` with `both` `one`. `least` is the required speed-up."""
    workers = [Worker(ours(f"{both} {words}".split())) for words in (one, other)]
    for worker in workers:
        worker.round()
    speeds = turns([worker.round for worker in workers], rounds)
    peaks = [worker.peak() for worker in workers]
    for worker in workers:
        worker.end()
    required = f", at least {least}" if least else ""
    ratio = spread([b / a for a, b in zip(*speeds)])
    yield f"speed-up {ratio}{required}; {arrow(*map(statistics.median, speeds), 1)} img/s; {arrow(*peaks)} MB"


@dataclass(frozen=True)
class Memory:
    """Peak MB of the process, peak MB of live tensors in one weight update, and the seconds to build the program."""

    process: float
    tensors: float
    built: float


def memory_of(words: str) -> Memory:
    """Measure one way to train by itself."""
    worker = Worker(ours(words.split()))
    for _ in range(2):
        worker.round()
    process = worker.peak()  # read it first, because recording live tensors takes memory, too
    tensors = worker.alive()
    worker.end()
    return Memory(process, tensors, worker.about["built"])


def memory(both: str, one: str, other: str, _rounds: int) -> Iterator[str]:
    """Compare the memory and build time of two ways to train that should take the same."""
    few, many = (memory_of(f"{both} {words}") for words in (one, other))
    for what, a, b in (("process", few.process, many.process), ("live tensors", few.tensors, many.tensors)):
        yield f"{what} {arrow(a, b)} MB, {100 * (b / a - 1):+.1f} %, must be below 5 %"
    yield f"{arrow(few.built, many.built, 1)} s to build"


def recomputation(both: str, few: int, many: int, _rounds: int) -> Iterator[str]:
    """Compare the memory of each further image in a micro-batch. It takes memory for activations only."""
    kept, again = (
        [memory_of(f"{both} --batch-size {batch} {more}") for batch in (few, many)]
        for more in ("", "--enable-recomputation")
    )
    for what in ("process", "tensors"):
        whole = [getattr(measured[1], what) for measured in (kept, again)]
        each = [(getattr(large, what) - getattr(small, what)) / (many - few) for small, large in (kept, again)]
        yield f"{what} {arrow(*whole)} MB; for each image {arrow(*each)}, ratio {each[1] / each[0]:.2f}"
    yield "the ratio of tensors must be at most 0.50"


def startup(words: str, rounds: int) -> Iterator[str]:
    """Measure the seconds to the first training line. Ratios to TensorFlow's import differ less between machines."""
    bare, first, again = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as programs:
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", "import tensorflow"], check=True)
            bare.append(time.perf_counter() - begun)
            first.append(_first_line(words, Path(programs)))
            again.append(_first_line(words, Path(programs)))
    for name, taken in (("without", first), ("with", again)):
        relative = statistics.median(taken) / statistics.median(bare)
        yield f"{spread(taken)} s {name} a cached program, {relative:.1f} times `import tensorflow`"


def _first_line(words: str, programs: Path) -> float:
    """Return the seconds from the start of train.py to its first training line."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "train.py"), *words.split(), "--no-validation", "--seed", "1"]
        command += ["--logs-path", f"{folder}/run", "--executable-cache-path", str(programs)]
        begun = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            seconds = next((time.perf_counter() - begun for line in process.stdout if line.startswith("step:")), None)
            process.terminate()
        if seconds is None:
            raise SystemExit(f"train.py printed no training line: {words}")
        return seconds


def norms(shape: tuple[int, ...], rounds: int) -> Iterator[str]:
    """Compare norms with their activation, forward and backward, on one tensor: batch norm and TensorFlow's swish, group
    norm and swish, proxy norm without the scaling (a gate follows) and with it."""
    import tensorflow.compat.v1 as tf

    from cnn_harness.emulator.layers.proxy_norm import initial
    from cnn_harness.emulator.lowering.lists import prepared
    from cnn_harness.emulator.lowering.policy import PrecisionPolicy
    from cnn_harness.emulator.network.recorder import record_layers
    from cnn_harness.emulator.plan.precision import SINGLE
    from cnn_harness.emulator.program.runtime import new_graph, session_config
    from cnn_harness.Models._layers import ProxyRule
    from cnn_harness.Models._norms import BatchNorm, GroupNorm

    group, rule = GroupNorm(groups=4, epsilon=1e-3, two_pass=True), ProxyRule("swish", 0.03)
    networks = (
        lambda layers, x: layers.norm(x, BatchNorm(epsilon=1e-3)),
        lambda layers, x: layers.norm_activation(x, group, "swish"),
        lambda layers, x: layers.proxy_norm_activation(x, group, rule, scaled=False)[0],
        lambda layers, x: layers.proxy_norm_activation(x, group, rule, scaled=True)[0],
    )
    policy = PrecisionPolicy(SINGLE)
    target = policy.target("/cpu:0")

    def variable(value: tf.Tensor) -> tf.Tensor:
        """Return the value of a new variable. TensorFlow would fold operations on a constant."""
        name = f"v{len(tf.global_variables())}"
        return tf.get_variable(name, initializer=value, use_resource=True).read_value()

    def gradients(which: int) -> list[tf.Tensor]:
        """Return all gradients of a pass. TensorFlow skips operations without a fetch."""
        x, dy = (variable(tf.random.stateless_normal(shape, [seed, 1])) for seed in (0, 1))
        held = {f"{scope}/gamma": variable(tf.ones(shape[-1:])) for scope in ("batch_norm", "GroupNorm")}
        held |= {f"{scope}/beta": variable(tf.zeros(shape[-1:])) for scope in ("batch_norm", "GroupNorm")}
        held["act/proxy"] = variable(initial(rule, shape[-1], tf.float32))
        y = policy.lowering(held, target).run(prepared(record_layers(networks[which], shape[1:]), SINGLE, target), x)
        y = tf.nn.silu(y) if which == 0 else y
        return [value for value in tf.gradients(y, [x, *held.values()], dy) if value is not None]

    def seconds(session: tf.Session, fetched: list[tf.Tensor]) -> float:
        started = time.perf_counter()
        for _ in range(5):
            session.run(fetched)
        return (time.perf_counter() - started) / 5

    with new_graph().as_default(), tf.Session(config=session_config()) as session:
        steps = [gradients(which) for which in range(len(networks))]
        session.run(tf.global_variables_initializer())
        times = [[seconds(session, fetched) for fetched in steps] for _ in range(rounds + 1)][1:]
    yield f"batch norm {1000 * statistics.median(row[0] for row in times):.1f} ms"
    for what, k, base, most in (("group / batch", 1, 0, 1.4), ("proxy / group", 2, 1, 1.3), ("scaled / group", 3, 1, 1.3)):
        yield f"{what} {spread([row[k] / row[base] for row in times])}, at most {most}"


def two_instances(words: str, updates: int) -> Instances:
    """Start two instances that train one network together, on free ports."""
    return Instances(words.split(), updates, [f"localhost:{port}" for port in launch.free_ports(2)])


def instances(words: str, updates: int, rounds: int) -> Iterator[str]:
    """Compare two instances of one replica each with one instance of two replicas: speed, bytes sent and start-up. In a
    ring, each of n instances sends at least 2 (n - 1) / n times the bytes of the gradients."""
    begun = time.perf_counter()
    one = Worker(ours([*words.split(), "--replicas", "2"], updates))
    one.round()
    alone = time.perf_counter() - begun
    both = two_instances(words, updates)
    both.round()
    sent = []
    together = time.perf_counter() - begun - alone

    def counted() -> float:
        before = _received()
        speed = both.round()
        sent.append(_received() - before)
        return speed

    speeds = turns([one.round, counted], rounds)
    one.end()
    both.end()
    each, best = sum(sent) / (rounds * updates), 2 * 4 * resolved(words).network.trainable_parameters
    yield f"speed-up {spread([b / a for a, b in zip(*speeds)])}; {arrow(*map(statistics.median, speeds), 1)} img/s"
    yield f"{each / 1e6:.2f} MB for each update, {each / best:.2f} of the least; first round {arrow(alone, together, 1)} s"


def _received() -> int:
    """Return the bytes that this host has received over loopback."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


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


def links(words: str, gradient_bytes: int, hosts: int, rounds: int) -> Iterator[str]:
    """Compare the time of an update of several hosts over slow links with the estimate of docs/distributed.md. Each host has
    a network namespace on a virtual switch, and a token bucket limits its sending rate."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        raise SystemExit("Network namespaces need root and the programs ip and tc; run as root and install iproute2")
    run, speeds = resolved(words), (None, 10.0, 1.0)  # Gbit/s; None for no limit
    cores = sorted(os.sched_getaffinity(0))
    with switched(hosts) as switch, ExitStack() as stack:
        addresses = [f"{switch.address(k + 1)}:2222" for k in range(hosts)]
        places = [
            ["ip", "netns", "exec", host, "taskset", "-c", str(cores[k % len(cores)])] for k, host in enumerate(switch.hosts)
        ]
        workers = Instances([*words.split(), "--replicas", "1"], 1, addresses, places)
        stack.callback(workers.end)
        workers.round()

        def update(limit: float | None) -> float:
            switch.limit(limit)
            return hosts * run.plan.global_batch / workers.round()  # `run` describes one instance of `hosts`

        seconds = dict(zip(speeds, turns([partial(update, limit) for limit in speeds], rounds)))
    free = statistics.median(seconds[None])
    for limit in speeds[1:]:
        estimate = 2 * (hosts - 1) / hosts * gradient_bytes * run.network.trainable_parameters * 8 / (limit * 1e9)
        taken = statistics.median(seconds[limit])
        efficiency = spread([a / b for a, b in zip(seconds[None], seconds[limit])])
        yield (
            f"{limit:g} Gbit/s: t by formula {estimate:.2f} s; c {free:.2f}, measured {taken:.2f}, "
            f"c + t {free + estimate:.2f} s; efficiency at least {free / (free + estimate):.2f}, measured {efficiency}"
        )


def rows(hosts: int) -> Iterator[tuple[str, Measure]]:
    """Yield the name of every row, and the function that measures it. `hosts` share each emulated network."""
    data, single, half = "--dataset imagenet --synthetic-data --optimiser momentum", "--precision 32.32", "--precision 16.16"
    emulated, units = (f"--precision bf16.32 --{no}native-arithmetic" for no in ("no-", ""))
    g16, efficientnet, rn50 = "--group-dim 16 --expand-ratio 4", "--model efficientnet", "--model resnet --model-size 50"

    base = f"{data} {single} {efficientnet} --fold 1 --batch-size 16"
    grouped = f"{base} --group-norm {g16}"
    for name, both, one, other in (
        ("groups of 16, expansion 4, against depthwise, group norm", f"{base} --group-norm", "", g16),
        ("the same with batch norm", f"{base} --batch-norm", "", g16),
        ("group norm against batch norm", base, "--batch-norm", "--group-norm"),
        ("layer norm and proxy norm against group norm, groups of 16", grouped, "", "--groups 1 --proxy-norm"),
        ("fine-tuning Top and block7 against all, groups of 16", grouped, "", "--variable-filter Top block7"),
    ):
        yield f"network: {name}", partial(pair, both, one, other, None)

    base = f"{data} --fold 1 --batch-size 16 --gradient-accumulation-count 2"
    b0, resnet = f"{base} {efficientnet} --group-norm {g16}", f"{base} {rn50} --batch-norm"
    for name, both, one, other, least in (
        ("EfficientNet-B0 G16, group norm: 16.16 against 32.32", b0, single, half, 0.8),
        ("ResNet-50, batch norm: 16.16 against 32.32", resnet, single, half, 0.8),
        ("EfficientNet-B0 G16, group norm: 8.16 against 16.16", b0, half, "--precision 8.16", 0.77),
        ("EfficientNet-B0 G16: bf16.32 native against emulated", b0, emulated, units, 1.0),
        ("EfficientNet-B0 G16: bf16.32 native against 32.32", b0, single, units, 1.0),
        ("ResNet-50: random against nearest", f"{resnet} {half}", "--no-stochastic-rounding", "", 0.97),
    ):
        yield f"format: {name}", partial(pair, both, one, other, least)

    base = f"{data} {single} {efficientnet} --model-size B0 --group-norm --seed 1"
    counted, one = "--gradient-accumulation-count", "--gradient-accumulation-count 32 --fold 1"
    staged = f"{counted} 8 --replicas 4 --fold 1 --shards 4 --pipeline --pipeline-splits block2b block4a block6a"
    for name, batch, first, other, least in (
        ("4 stages x 4 replicas x accumulation 8, micro-batch 4", 4, one, f"{staged} --pipeline-schedule Interleaved", 0.95),
        ("the same, Grouped", 4, one, f"{staged} --pipeline-schedule Grouped", 0.95),
        ("--fold auto, micro-batch 2", 2, one, f"{counted} 32 --fold auto", 1.25),
        ("--fold auto, micro-batch 4", 4, one, f"{counted} 32 --fold auto", 1.05),
        ("--enable-recomputation, micro-batch 16", 16, f"{counted} 2", f"{counted} 2 --enable-recomputation", None),
    ):
        yield f"layout: {name}", partial(pair, f"{base} --batch-size {batch}", first, other, least)

    base += " --fold 1"
    small = f"{base} --batch-size 4 {counted}"
    yield "memory: accumulation 2 -> 64", partial(memory, small, "2", "64")
    yield "memory: replicas 1 -> 16", partial(memory, small, "4", "4 --replicas 16")
    yield "memory: recomputation, micro-batches 16 and 32", partial(recomputation, f"{base} {counted} 2", 16, 32)

    short = f"{single} {counted}"
    b0 = f"{efficientnet} --model-size B0 --dataset imagenet --generated-data {short} 2 --micro-batch-size 4 --iterations 2"
    plain = f"--model-size 14 --dataset fashion-mnist {short} 16 --micro-batch-size 8 --group-norm --fold 1 --iterations 2"
    for name, words in (
        ("EfficientNet-B0, groups of 16, group norm", f"{b0} --log-freq 1 {g16} --group-norm"),
        ("EfficientNet-B0, batch norm", f"{b0} --log-freq 1 --batch-norm"),
        ("quickstart", "--config quickstart"),
        ("ResNet-14, group norm", f"{plain} --log-freq 1"),
        ("the same, pipelined over four stages", f"{plain} --log-freq 1 --shards 4 --pipeline --pipeline-splits auto"),
    ):
        yield f"startup: {name}", partial(startup, words)

    for shape in ((16, 56, 56, 96), (4, 112, 112, 96), (4, 14, 14, 480)):
        yield f"norms: {shape}", partial(norms, shape)

    data += f" {single} --seed 1"
    resnet = f"{data} {rn50} --group-norm --batch-size 4"
    resnet8 = f"{single} --seed 1 --optimiser momentum --model-size 8 --dataset cifar-10 --synthetic-data --batch-norm"
    b0 = f"{data} {efficientnet} --model-size B0 {g16} --group-norm --batch-size 4 {counted} 8"
    for name, words, updates in (
        ("EfficientNet-B0 G16, group norm, accumulation 8", b0, 1),
        ("ResNet-50, group norm, accumulation 4", f"{resnet} {counted} 4", 1),
        ("ResNet-8 on CIFAR, micro-batch 32, no accumulation", f"{resnet8} --batch-size 32", 40),
        ("the same, accumulation 16", f"{resnet8} --batch-size 32 {counted} 16", 4),
    ):
        yield f"instances: {name}", partial(instances, words, updates)

    for name, more, size in (
        ("accumulation 1", "", 4),
        ("accumulation 1, --all-reduce-format fp16", "--all-reduce-format fp16", 2),
        ("accumulation 4", f"{counted} 4", 4),
    ):
        yield f"links: ResNet-50, {name}, {hosts} hosts", partial(links, f"{resnet} {more}", size, hosts)


def main(words: Sequence[str], rounds: int, hosts: int) -> None:
    """Measure the requested rows."""
    for name, measure in rows(hosts):
        if all(word in name for word in words):
            print(name, flush=True)
            for line in measure(rounds):
                print(f"    {line}", flush=True)


if __name__ == "__main__":
    asked = _paired.arguments(__doc__, rounds=7, words=True, hosts=4)
    main(asked.words, asked.rounds, asked.hosts)
