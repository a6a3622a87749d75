"""Notices that all instances of a job have ended while mpirun still waits for a host that it cannot reach: mpirun has no
time of its own for that, and the network's own is a quarter of an hour and more."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

_EVERY = 2.0  # seconds from one connection to the next
_REACHED = 1.0  # seconds in which a host answers that is there, whether something listens or not
_GONE_AFTER = 30.0  # seconds: the processes of an instance that has closed its server may still be ending


class ServerProbe:
    """Context manager that asks again and again whether one of the instances' servers takes a connection."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """`addresses`: host:port of each instance."""
        self._addresses = [(host.strip("[]"), int(port)) for host, _, port in (each.rpartition(":") for each in addresses)]
        self._answered: float | None = None  # when one answered last
        self._over = threading.Event()

    def __enter__(self) -> ServerProbe:
        threading.Thread(target=self._probe, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def all_gone(self) -> bool:
        """True if there were servers, and there are none any more."""
        return self._answered is not None and time.monotonic() - self._answered > _GONE_AFTER

    def _probe(self) -> None:
        while not self._over.is_set():
            if any(_answers(address) for address in self._addresses):
                self._answered = time.monotonic()
            self._over.wait(_EVERY)


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _REACHED).close()
    except (OSError, ValueError):
        return False
    return True
