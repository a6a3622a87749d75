"""The limit on unusable records that a run passes over (--skip-bad-records)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from base.errors import DataError
from base.fields import escaped

REMEDY = "mend or remove it, or pass over some with --skip-bad-records NUMBER"


class Tolerance:
    """Counts the places passed over, each once, from any thread; with `most` 0 the first is an error."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._places: set[str] = set()
        self._warnings: list[str] = []
        self._warn: Callable[[str], None] = self._print
        self._lock = threading.Lock()

    def add(self, place: str, reason: str) -> None:
        """Count a place, and warn of it; DataError beyond `most` places."""
        with self._lock:
            if place in self._places:
                return
            self._places.add(place)
            count = len(self._places)
        if count > self.most:
            beyond = f"; that makes {count}, and --skip-bad-records is {self.most}" if self.most else f"; {REMEDY}"
            raise DataError(f"{place} cannot be used: {reason}{beyond}")
        warning = escaped(f"warning: {place} is skipped: {reason} ({count} of at most {self.most})")
        with self._lock:
            self._warn(warning)

    def follow(self, keep: Callable[[str], None], warn: Callable[[str], None]) -> None:
        """Hand the warnings so far, which were printed on standard error, to `keep`, and each later one to `warn`, from the
        thread that finds the place."""
        with self._lock:
            for warning in self._warnings:
                keep(warning)
            self._warn = warn

    def _print(self, warning: str) -> None:
        self._warnings.append(warning)
        print(warning, file=sys.stderr, flush=True)

    def known(self, place: str) -> bool:
        """Return whether the place is counted already."""
        return place in self._places
