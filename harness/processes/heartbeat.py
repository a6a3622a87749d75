"""The heartbeat of a run's instances: each asks the others for their status over gRPC, again and again.

TensorFlow's server answers by itself, however busy training keeps the process; only a process that has ended, one that is
stopped, or a network that is cut does not. The answer names the devices with the random numbers that the server gave them as
it began, so that the same answer comes from the same process only.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Sequence

import grpc

from base.errors import Failure, OptionError
from harness.cluster.cluster import Cluster

_STATUS = "/tensorflow.WorkerService/GetStatus"
_MAX_FAILURES = 3  # in a row, of a peer that has been there: a connection may break once
_TIMEOUT_SHARE = 0.7  # of the timeout: the others notice a little later, and are to name the same instance
_OWN_PAUSE = 2.0  # seconds that asking everyone never takes beyond its timeouts
_PLACE = re.compile(rb"/job:(\w+)/replica:0/task:(\d+)/")  # of a server's devices, in its answer
_DIRECT = (("grpc.enable_http_proxy", 0),)


class PeerError(Failure):
    """Another instance never came, ended or does not answer."""


class Heartbeat:
    """Asks all others every so often. `lost` is called once, in a thread of its own, with what happened; `after_round`
    after each round in which none was."""

    def __init__(
        self,
        cluster: Cluster,
        timeout: float,
        lost: Callable[[str], None],
        after_round: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster, self._timeout, self._on_peer_lost, self._after_round = cluster, timeout, lost, after_round
        self._peers = [k for k in range(cluster.size) if k != cluster.instance]
        addresses = dict(enumerate(cluster.addresses))
        own = addresses[cluster.instance].rpartition(":")[2]
        addresses[cluster.instance] = f"localhost:{own}"  # the others' name for this host need not be known here
        channels = {k: grpc.insecure_channel(address, _DIRECT) for k, address in addresses.items()}
        self._ask = {k: channel.unary_unary(_STATUS) for k, channel in channels.items()}
        self._interval = min(2.0, timeout / 15)
        self._stopped = threading.Event()
        self._first_replies: dict[int, bytes] = {}  # each instance's answer when it came

    def wait_for_all(self) -> str:
        """Wait until every instance has answered; return a digest of the processes that did. PeerError if the time is
        over, OptionError if a server is at another place of its own run than the address has here."""
        end, missing = time.monotonic() + self._timeout, list(range(self._cluster.size))
        while missing:
            self._first_replies |= self._replies(missing)
            for k in missing:
                self._check_place(k)
            missing = [k for k in missing if k not in self._first_replies]
            if missing and time.monotonic() > end:
                names = " and ".join(self._cluster.name_of(k) for k in missing)
                raise PeerError(
                    f"{names} did not come within {self._timeout:g} s (--worker-timeout): start all instances, or correct "
                    "the addresses"
                )
            time.sleep(0.05 if missing else 0)
        return hashlib.blake2b(repr(sorted(self._first_replies.items())).encode(), digest_size=8).hexdigest()

    def _check_place(self, instance: int) -> None:
        place = _PLACE.search(self._first_replies.get(instance, b""))
        if place and place.groups() != (b"worker", b"%d" % instance):
            job, task = (part.decode() for part in place.groups())
            raise foreign_run_error(self._cluster, instance, f"it is {job} {task} there")

    def watch(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()

    def responsive(self, instances: Sequence[int] | None = None) -> list[int]:
        """Return the others, or those of `instances`, that answer now."""
        return list(self._replies(self._peers if instances is None else instances))

    def _replies(self, instances: Sequence[int]) -> dict[int, bytes]:
        """Return the answers of those that give one now."""
        return {k: call.result() for k, call in self._calls(instances).items() if call.exception() is None}

    def _calls(self, instances: Sequence[int]) -> dict[int, grpc.Future]:
        """Ask each once; return the pending answers."""
        return {k: self._ask[k].future(b"", timeout=max(self._interval, 0.5)) for k in instances}

    def _watch(self) -> None:
        last_reply = dict.fromkeys(self._peers, time.monotonic())
        failed, last_round = dict.fromkeys(self._peers, 0), time.monotonic()
        while not self._stopped.wait(self._interval):
            for k, call in self._calls(self._peers).items():
                error, now = call.exception(), time.monotonic()
                # this process was stopped meanwhile, and nobody was asked
                if now - last_round > _OWN_PAUSE + 4 * self._interval:
                    last_reply, failed = dict.fromkeys(self._peers, now), dict.fromkeys(self._peers, 0)
                    break
                replaced = error is None and k in self._first_replies and call.result() != self._first_replies[k]
                if error is None and not replaced:
                    last_reply[k], failed[k] = now, 0
                    continue
                failed[k] += replaced or error.code() == grpc.StatusCode.UNAVAILABLE
                gone = replaced or failed[k] >= _MAX_FAILURES
                if gone or now - last_reply[k] > _TIMEOUT_SHARE * self._timeout:
                    what = (
                        "has ended, or its host cannot be reached"
                        if gone
                        else f"has not answered for {now - last_reply[k]:.0f} s"
                    )
                    if not self._stopped.is_set():
                        self._on_peer_lost(f"{self._cluster.name_of(k)} {what}")
                    return
            else:
                self._after_round()
            last_round = time.monotonic()


def foreign_run_error(cluster: Cluster, instance: int, what: str) -> OptionError:
    """Return the error about an address where a process of another run listens."""
    return OptionError(
        f"{cluster.name_of(instance)} belongs to another run, which goes on undisturbed: {what}; correct the addresses, or "
        "wait for the end of that run"
    )
