"""The log of a run: console lines, log.txt, CSV rows, a progress bar, and trackers.

If a tracker fails, the log reports it once and the run continues.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from base.fields import escaped
from base.storage import files, locks
from base.storage.run_files import ARGUMENTS
from base.storage.tables import TABLES, TRAINING_TAGS, VALIDATION_TAGS, Row, run_table

THROUGHPUT = "top-1 accuracy: {train_acc_avg:6.3f}%, img/sec: {img_per_sec:6.2f}"  # this part differs between releases
TRAINING_LINE = (
    "step: {step:6d}, iteration: {iteration:6d}, epoch: {epoch:6.2f}, lr: {lr:6.4g}, loss: {loss_avg:6.3f}, "
    "THROUGHPUT, time: {it_time:8.6f}, total_time: {total_time:8.1f}"
)
VALIDATION_LINE = (
    "Validation top-1 accuracy [{name}] (iteration: {iteration:6d}, epoch: {epoch:6.2f}, img/sec: {img_per_sec:6.2f}, "
    "time: {val_time:8.6f}, latency (ms): {latency:8.4f}): {val_acc:6.3f}%"
)

FIRST_LINES, ROUTINE_SECONDS = (
    20,
    6.0,
)  # after FIRST_LINES lines, the console shows at most one routine line per ROUTINE_SECONDS
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # characters that control a terminal


class Tracker(Protocol):
    """A service that receives a run's measures, such as TensorBoard."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Store values by tag, measured after `step` updates."""

    def close(self, complete: bool) -> None:
        """Close the tracker. `complete`: the run did not end early."""


class RunLog:
    """The log of a run.

    `folder`: the run directory; None: no files. `console`: False prints nothing.
    `brief`: the console shows only warnings, one line per validation, and notes with `always`.
    `locked`: take the folder's lock, and raise OptionError if another process holds it.
    `throughput`: format of that part of training lines. `named`: see `run_table`.
    """

    def __init__(
        self, folder: Path | None, console: bool = True, locked: bool = False, throughput: str = THROUGHPUT,
        named: bool = True, brief: bool = False,
    ) -> None:  # fmt: skip
        self.folder, self._console, self._brief = folder, console, brief
        self._last_row: Mapping[str, Any] | None = None
        self._hold = ExitStack()
        if folder and locked:
            self._hold.enter_context(locks.lock_folder(folder))
        self._text = io.TextIOWrapper(files.append(folder / "log.txt"), encoding="utf-8") if folder else None
        self._training_line = TRAINING_LINE.replace("THROUGHPUT", throughput)
        self._tables = {name: run_table(folder, name, named) for name in TABLES} if folder else {}
        self._trackers: dict[str, Tracker] = {}
        self._bar = _Bar()
        self._ending = False
        self._printed, self._routine_at = 0, -math.inf  # lines on the console; the time of its last routine line
        self._one = threading.RLock()

    def note(self, text: str = "", always: bool = False, routine: bool = False) -> None:
        """Write a line to the console and to log.txt, from any thread; control characters become escapes.

        `always`: a brief log shows the line, too. `routine`: the console may skip the line, to stay readable.
        """
        text = _CONTROL.sub(lambda found: escaped(found[0]), text)
        with self._one:
            self._bar.clear()
            try:
                if always or text.startswith("warning") or not (self._brief or (routine and self._is_crowded())):
                    self._print(text)
                    self._routine_at = time.monotonic() if routine else self._routine_at
            finally:  # log.txt says why the run ends, even if nobody reads the console any more
                self.file_only(text)

    def detail(self, text: str) -> None:
        """Write a line for developers to log.txt, or to the console if there is no log.txt."""
        if self.folder:
            self.file_only(text)
        else:
            self.note(text)

    def _is_crowded(self) -> bool:
        """Return whether the console shows too much for a routine line, which log.txt has anyway."""
        recent = time.monotonic() - self._routine_at < ROUTINE_SECONDS
        return self.folder is not None and self._printed >= FIRST_LINES and recent

    def warn(self, text: str) -> None:
        """Write a line to standard error, even without `console`, and to log.txt; from any thread."""
        with self._one:
            self._bar.clear()
            with suppress(OSError):  # a run must not end because nobody reads its output
                print(text, file=sys.stderr, flush=True)
            self.file_only(text)

    def ending(self) -> None:
        """Note that the run ends early: from now on, ignore errors when writing to the console or to log.txt."""
        self._ending = True

    def file_only(self, text: str) -> None:
        """Write a line to log.txt only, from any thread.

        If this fails, later lines go to the console only; raise OSError unless the run is `ending`.
        """
        with self._one:
            if not self._text:
                return
            try:
                with files.naming(self.folder / "log.txt"):
                    self._text.write(text + "\n")
                    self._text.flush()
            except OSError:
                self._end_text()
                if self._ending:
                    return
                raise

    def _print(self, text: str) -> None:
        if self._console:
            self._printed += 1
            try:
                with files.naming(Path("standard output")):
                    print(text, flush=True)
            except OSError:
                if not self._ending:
                    raise

    def training_row(self, row: Mapping[str, Any], left: str = "") -> None:
        """Write a row of training.csv and its log lines. `left`: the remaining time, as text."""
        self._last_row = row
        self.note(self._training_line.format(**row), routine=True)
        if left:
            self.detail(f"  ETA: {left}")
        if self._tables:
            self._tables["training.csv"].append(row)
        self._publish({tag: row[name] for tag, name in TRAINING_TAGS.items()}, row)

    def validation_row(self, row: Mapping[str, Any]) -> None:
        """Write a row of validation.csv and its log lines."""
        if self._brief and self._console:
            self._print(self._brief_line(row))
        self.note(VALIDATION_LINE.format(**row))
        if row["loss"] != "":
            self.detail(f"  top-5 accuracy: {row['top5_acc']:6.3f}%, loss: {row['loss']:6.4f}, {row['val_size']} images")
        if self._tables:
            self._tables["validation.csv"].append(row)
        shown = {tag: row[name] for tag, name in VALIDATION_TAGS.items() if row[name] != ""}
        if row["iteration"] >= 0:
            self._publish(shown, row)

    def _brief_line(self, row: Mapping[str, Any]) -> str:
        """Return a validation as one line, with the last training loss except for the initial weights."""
        loss = f", loss {row['loss']:.3f}" if row["loss"] != "" else ""
        trained = f"  training loss {self._last_row['loss_avg']:.3f}," if self._last_row and row["iteration"] else ""
        name = f"epoch {row['epoch']:5.2f}:" if row["iteration"] >= 0 else f"{row['name']}:"
        return f"{name}{trained}  validation {row['val_acc']:.1f}% of {row['val_size']}{loss}"

    def progress(self, done: int, total: int, text: str) -> None:
        """Show a progress bar, on a terminal only."""
        if self._console:
            self._bar.show(done, total, text)

    def resume_after(self, updates: int) -> None:
        """Remove the CSV rows after `updates`, and those of averages; the run writes them again."""
        for table in self._tables.values():
            table.rewind(updates)

    def rows(self, name: str) -> list[Row]:
        """Return the rows of training.csv or validation.csv so far."""
        return self._tables[name].read() if self.folder else []

    def sync(self) -> None:
        """Sync the CSV files to disk."""
        for table in self._tables.values():
            table.sync()

    def follow(self, name: str, start: Callable[[], Tracker]) -> None:
        """Start a tracker, which then receives all rows until it fails. `name`: its name in the message about a failure."""

        def begin() -> None:
            self._trackers[name] = start()

        self._outlives(name, begin)

    def close(self) -> None:
        """Close files and trackers; later lines go to the console only."""
        self._bar.clear()
        complete, self._ending = not self._ending, True
        for name, tracker in self._trackers.items():
            self._outlives(name, partial(tracker.close, complete))
        self._trackers = {}
        self._end_text()
        self._hold.close()

    def _end_text(self) -> None:
        text, self._text = self._text, None
        if text:
            with suppress(OSError):  # an earlier error has reported the buffered text
                text.close()

    def _publish(self, values: Mapping[str, float], row: Mapping[str, Any]) -> None:
        for name, tracker in list(self._trackers.items()):
            if not self._outlives(name, partial(tracker.log, values, row["iteration"])):
                del self._trackers[name]

    def _outlives(self, name: str, action: Callable[[], None]) -> bool:
        """Perform a tracker's action; return whether it succeeded, and report it if not."""
        try:
            action()
        except Exception as error:  # whatever a third party's package may raise must not end a run
            reason = (str(error).splitlines() or [""])[0]
            self.note(f"{name} is off for the rest of this run: {type(error).__name__}: {reason}")
            return False
        return True


def write_arguments(folder: Path, values: Mapping[str, Any], restored: bool = False) -> None:
    """Write the options of a call into a run directory; resumed calls use a separate file."""
    path = folder / ARGUMENTS[restored]
    files.write_atomically(path, json.dumps(values, sort_keys=True, indent=4, separators=(",", ": ")) + "\n")


class _Bar:
    """A progress bar on standard error, shown only on a terminal."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._shown = False

    def show(self, done: int, total: int, text: str) -> None:
        if self._on:
            filled = int(24 * done / max(total, 1))
            print(
                f"\r\x1b[2K[{'#' * filled}{'.' * (24 - filled)}] {done}/{total} {text}",
                end="",
                file=sys.stderr,
                flush=True,
            )
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._shown = False
