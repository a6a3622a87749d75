"""How many records that cannot be used a run puts up with."""

from __future__ import annotations

import sys
import threading

from base.errors import DataError


class Tolerance:
    """Counts what is passed over, each place once, from any thread; with `most` 0 the first one is an error."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._found: set[str] = set()
        self._one = threading.Lock()

    def add(self, place: str, reason: str) -> None:
        """Tells of a place that is passed over; DataError if it is one too many."""
        with self._one:
            if place in self._found:
                return
            self._found.add(place)
            count = len(self._found)
        if count > self.most:
            beyond = f"; that makes {count}, and --skip-bad-records is {self.most}" if self.most else ""
            raise DataError(f"{place} cannot be used: {reason}{beyond}")
        print(f"warning: {place} is skipped: {reason} ({count} of at most {self.most})", file=sys.stderr, flush=True)

    def known(self, place: str) -> bool:
        """Whether it was told of."""
        return place in self._found
