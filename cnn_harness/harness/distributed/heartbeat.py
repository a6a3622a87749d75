"""Detect lost instances (processes) of a run: every instance repeatedly asks the TensorFlow servers of the others for their
status, over gRPC.

A server answers even while training keeps the process busy. If a server does not answer, the process has ended or is
suspended, or the network is down. An answer contains random numbers that the server draws when it starts. If these numbers
change, another process has replaced the instance.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Sequence

import grpc

from cnn_harness.base.errors import Failure, OptionError
from cnn_harness.harness.run.cluster import Cluster

_STATUS = "/tensorflow.WorkerService/GetStatus"
_MAX_FAILURES = 3  # An instance is lost after this number of failed requests in a row, because a connection may break once.
_TIMEOUT_SHARE = 0.7  # Report an instance as lost after this share of the timeout, before other instances end because of it.
_OWN_PAUSE = 2.0  # If a round of requests takes this many seconds longer than its timeouts, this process was suspended.
_PLACE = re.compile(rb"/job:(\w+)/replica:0/task:(\d+)/")  # The device names in a server's answer contain job and task.
_DIRECT = (("grpc.enable_http_proxy", 0),)


class PeerError(Failure):
    """Raised if another instance did not start, has ended or does not answer."""


class Heartbeat:
    """Watches the other instances in a thread.

    If an instance is lost, the thread calls `lost` with the reason and ends. Otherwise it calls `after_round` whenever all
    other instances have been asked.
    """

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
        addresses[cluster.instance] = f"localhost:{own}"  # A host may be unable to resolve its own public name.
        channels = {k: grpc.insecure_channel(address, _DIRECT) for k, address in addresses.items()}
        self._ask = {k: channel.unary_unary(_STATUS) for k, channel in channels.items()}
        self._interval = min(2.0, timeout / 15)
        self._stopped = threading.Event()
        self._first_replies: dict[int, bytes] = {}  # the first answer of each instance

    def wait_for_all(self) -> str:
        """Wait until all instances have answered. Return a digest of their answers, which identifies this set of processes.

        Raise PeerError after the timeout, or OptionError if an address belongs to another instance or run.
        """
        end, missing = time.monotonic() + self._timeout, list(range(self._cluster.size))
        while missing:
            self._first_replies |= self._replies(missing)
            for k in missing:
                self._check_place(k)
            missing = [k for k in missing if k not in self._first_replies]
            if missing and time.monotonic() > end:
                names = " and ".join(self._cluster.name_of(k) for k in missing)
                raise PeerError(
                    f"{names} did not answer within {self._timeout:g} s. Start all instances, correct the addresses, or "
                    "give a larger --worker-timeout"
                )
            time.sleep(0.05 if missing else 0)
        return hashlib.blake2b(repr(sorted(self._first_replies.items())).encode(), digest_size=8).hexdigest()

    def _check_place(self, instance: int) -> None:
        place = _PLACE.search(self._first_replies.get(instance, b""))
        if place and place.groups() != (b"worker", b"%d" % instance):
            job, task = (part.decode() for part in place.groups())
            raise foreign_run_error(self._cluster, instance, f"the process there is {job} {task}")

    def watch(self) -> None:
        """Start to watch the other instances in a thread."""
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def responsive(self) -> list[int]:
        """Return the indices of the other instances that answer now."""
        return list(self._replies(self._peers))

    def _replies(self, instances: Sequence[int]) -> dict[int, bytes]:
        """Return the answer of each instance that answers now, by index."""
        return {k: call.result() for k, call in self._calls(instances).items() if call.exception() is None}

    def _calls(self, instances: Sequence[int]) -> dict[int, grpc.Future]:
        """Send a request to each instance. Return the pending answers by index."""
        return {k: self._ask[k].future(b"", timeout=max(self._interval, 0.5)) for k in instances}

    def _watch(self) -> None:
        last_reply = dict.fromkeys(self._peers, time.monotonic())
        failed, last_round = dict.fromkeys(self._peers, 0), time.monotonic()
        while not self._stopped.wait(self._interval):
            for k, call in self._calls(self._peers).items():
                error, now = call.exception(), time.monotonic()
                # This process was suspended, so the time since the last answers means nothing. Measure it from now.
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
    """Return the error to raise if a process of another run uses an instance's address. `what` describes that process."""
    return OptionError(
        f"the address of {cluster.name_of(instance)} is used by another run ({what}). Correct the addresses, or wait until "
        "that run ends"
    )
