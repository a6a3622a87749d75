"""The limit on unusable records that a run skips (--skip-bad-records)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from cnn_harness.base.errors import DataError
from cnn_harness.base.fields import escaped

REMEDY = "repair or remove it, or skip bad records with --skip-bad-records NUMBER"


class Tolerance:
    """Counts skipped records, each once, from any thread. Up to `most` are skipped; the next one is an error.

    A `place` is the name of a record or of a damaged position in a file.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._places: set[str] = set()
        self._warnings: list[str] = []
        self._warn: Callable[[str], None] = self._print
        self._lock = threading.Lock()

    def add(self, place: str, reason: str) -> None:
        """Count a place and warn that it is skipped; raise DataError for more than `most` places."""
        with self._lock:
            if place in self._places:
                return
            self._places.add(place)
            count = len(self._places)
        if count > self.most:
            beyond = f"; it is bad record {count}, but --skip-bad-records is {self.most}" if self.most else f"; {REMEDY}"
            raise DataError(f"{place} cannot be used: {reason}{beyond}")
        warning = escaped(f"warning: {place} is skipped: {reason} ({count} of at most {self.most})")
        with self._lock:
            self._warn(warning)

    def follow(self, keep: Callable[[str], None], warn: Callable[[str], None]) -> None:
        """Pass each later warning to `warn`, in the thread that finds the bad record.

        Earlier warnings were printed on standard error; pass them to `keep`, which writes them to the log only.
        """
        with self._lock:
            for warning in self._warnings:
                keep(warning)
            self._warn = warn

    def _print(self, warning: str) -> None:
        self._warnings.append(warning)
        print(warning, file=sys.stderr, flush=True)

    def known(self, place: str) -> bool:
        """Return whether the place has already been counted."""
        return place in self._places
