"""The heartbeat of a run's instances: each asks the others for their status over gRPC, again and again.

TensorFlow's server answers by itself, however busy training keeps the process; only a process that has ended, one that is
stopped, or a network that is cut does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import grpc

from harness.run.cluster import Cluster

_STATUS = "/tensorflow.WorkerService/GetStatus"
_TRIES = 3  # in a row, of a peer that has been there: a connection may break once
_PATIENCE = 0.7  # of the timeout: the others notice a little later, and are to name the same instance
_STOPPED = 2.0  # seconds that asking everyone never takes beyond its timeouts
_DIRECT = (("grpc.enable_http_proxy", 0),)


class WorkerError(Exception):
    """Another instance never came, ended or does not answer."""


class Heartbeat:
    """Asks all others every so often. `lost` is called once, in a thread of its own, with what happened."""

    def __init__(self, cluster: Cluster, timeout: float, lost: Callable[[str], None]) -> None:
        self._cluster, self._timeout, self._lost = cluster, timeout, lost
        self._peers = [k for k in range(cluster.size) if k != cluster.instance]
        channels = {k: grpc.insecure_channel(cluster.addresses[k], _DIRECT) for k in self._peers}
        self._ask = {k: channel.unary_unary(_STATUS) for k, channel in channels.items()}
        self._every = min(2.0, timeout / 15)
        self._over = threading.Event()

    def gather(self) -> None:
        """Waits until every instance has answered; WorkerError if the time is over."""
        end, missing = time.monotonic() + self._timeout, list(self._peers)
        while missing:
            missing = sorted({*missing} - {*self.answering(missing)})
            if missing and time.monotonic() > end:
                names = " and ".join(self._cluster.named(k) for k in missing)
                raise WorkerError(
                    f"{names} did not come within {self._timeout:g} s (--worker-timeout): start {_them(missing)}, or "
                    "correct the addresses"
                )
            time.sleep(0.05 if missing else 0)

    def watch(self) -> None:
        """Begins to watch."""
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """Ends the watch."""
        self._over.set()

    def answering(self, instances: Sequence[int] | None = None) -> list[int]:
        """Return the others, or those of `instances`, that answer now."""
        calls = self._calls(self._peers if instances is None else instances)
        return [k for k, call in calls.items() if call.exception() is None]

    def _calls(self, instances: Sequence[int]) -> dict[int, grpc.Future]:
        """Ask each once; return the pending answers."""
        return {k: self._ask[k].future(b"", timeout=max(self._every, 0.5)) for k in instances}

    def _watch(self) -> None:
        heard = dict.fromkeys(self._peers, time.monotonic())
        failed, looked = dict.fromkeys(self._peers, 0), time.monotonic()
        while not self._over.wait(self._every):
            for k, call in self._calls(self._peers).items():
                error, now = call.exception(), time.monotonic()
                if now - looked > _STOPPED + 4 * self._every:  # this process was stopped meanwhile, and nobody was asked
                    heard, failed = dict.fromkeys(self._peers, now), dict.fromkeys(self._peers, 0)
                    break
                if error is None:
                    heard[k], failed[k] = now, 0
                    continue
                failed[k] += error.code() == grpc.StatusCode.UNAVAILABLE
                gone = failed[k] >= _TRIES
                if gone or now - heard[k] > _PATIENCE * self._timeout:
                    what = (
                        "has ended, or its host cannot be reached"
                        if gone
                        else f"has not answered for {now - heard[k]:.0f} s"
                    )
                    if not self._over.is_set():
                        self._lost(f"{self._cluster.named(k)} {what}")
                    return
            looked = time.monotonic()


def _them(missing: list[int]) -> str:
    return "it" if len(missing) == 1 else "them"
