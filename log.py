"""The log of a run: console, log.txt, CSV rows, progress bar, and trackers such as TensorBoard.

If a tracker fails, the log reports it once and stops using it. The run continues.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO

from cnn_harness.base.fields import escaped
from cnn_harness.base.storage import files, locks
from cnn_harness.base.storage.run_files import ARGUMENTS
from cnn_harness.base.storage.tables import TABLES, TRAINING_TAGS, VALIDATION_TAGS, Row, run_table

THROUGHPUT = "top-1 accuracy: {train_acc_avg:6.3f}%, img/sec: {img_per_sec:6.2f}"  # this text differs by release
TRAINING_LINE = (
    "step: {step:6d}, iteration: {iteration:6d}, epoch: {epoch:6.2f}, lr: {lr:6.4g}, loss: {loss_avg:6.3f}, "
    "THROUGHPUT, time: {it_time:8.6f}, total_time: {total_time:8.1f}"
)
TERMINAL_LINE = (  # at most 80 characters
    "epoch {epoch:6.2f}  loss {loss_avg:6.3f}  top-1 {train_acc_avg:5.1f}%  lr {lr:<7.2g}  {img_per_sec:6,.0f} img/s  {left}"
)
VALIDATION_LINE = (
    "Validation top-1 accuracy [{name}] (iteration: {iteration:6d}, epoch: {epoch:6.2f}, img/sec: {img_per_sec:6.2f}, "
    "time: {val_time:8.6f}, latency (ms): {latency:8.4f}): {val_acc:6.3f}%"
)

FIRST_LINES, ROUTINE_SECONDS = 20, 6.0  # after 20 lines, the console shows at most one routine line in 6 seconds
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # characters that control a terminal


class Tracker(Protocol):
    """A service that records a run's metrics."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record values (tag -> number) after `step` weight updates."""

    def close(self, complete: bool) -> None:
        """Close the tracker. `complete` is False if the run ended early."""


class RunLog:
    """The log of a run. Methods that write text may be called from any thread.

    `folder` is the run directory; None writes to the console only. If `console` is false, the log prints nothing.
    `brief` limits the console to validations, warnings, and notes with `always`. Without a progress bar, it shows training
    rows, too.
    `locked` locks the folder; OptionError is raised if another process holds the lock.
    `throughput` is the part of TRAINING_LINE that differs by release. `named` is passed to `run_table`.
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
        self._by_column: set[str] = set()  # the trackers that get columns instead of tags
        self._bar = _Bar()
        self._ending = False
        self._printed, self._routine_at = 0, -math.inf  # number of printed lines, and time of the last routine line
        self._one = threading.RLock()

    def note(self, text: str = "", always: bool = False, routine: bool = False, shown: str = "") -> None:
        """Write a line to the console and to log.txt. Control characters are escaped.

        `always` shows the line in a brief log too. `routine` lets the console skip the line to stay readable. The console
        shows `shown` instead, if it is given.
        """
        text = _CONTROL.sub(lambda found: escaped(found[0]), text)
        with self._one:
            self._bar.clear()
            try:
                skipped = (self._brief and not always) or (routine and self._is_crowded())
                if text.startswith("warning") or not skipped:
                    self._print(shown or text)
                    self._routine_at = time.monotonic() if routine else self._routine_at
            finally:  # log.txt must have the line even if writing to the console fails
                self.file_only(text)

    def detail(self, text: str) -> None:
        """Write a line for developers to log.txt, or to the console if there is no log.txt."""
        if self.folder:
            self.file_only(text)
        else:
            self.note(text)

    def _is_crowded(self) -> bool:
        """Return whether the console should skip a routine line. Without a log.txt, every line is shown."""
        recent = time.monotonic() - self._routine_at < ROUTINE_SECONDS
        return self.folder is not None and self._printed >= FIRST_LINES and recent

    def warn(self, text: str) -> None:
        """Write a line to log.txt, and to standard error even if `console` is false."""
        with self._one:
            self._bar.clear()
            with suppress(OSError):  # a closed standard error must not end the run
                print(_marked(text, sys.stderr), file=sys.stderr, flush=True)
            self.file_only(text)

    def ending(self) -> None:
        """Ignore write errors from now on, because the run is ending early."""
        self._ending = True

    def file_only(self, text: str) -> None:
        """Write a line to log.txt only. On failure, close log.txt and raise OSError, unless `ending` was called."""
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
                    print(_marked(text, sys.stdout), flush=True)
            except OSError:
                if not self._ending:
                    raise

    def training_row(self, row: Mapping[str, Any], left: str = "") -> None:
        """Write a row of training.csv and its log lines. `left` is the remaining time, as text."""
        self._last_row = row
        line = self._training_line.format(**row)
        noise = "" if math.isnan(row["noise_scale"]) else f", gradient noise scale: {row['noise_scale']:,.0f}"
        rest = f"  waiting for data: {100 * row['input_share']:.1f}%{noise}{left and f', ETA: {left}'}"
        if sys.stdout.isatty() or self._brief:
            shown = TERMINAL_LINE.format(**row, left=left and f"ETA {left}").rstrip()
        else:
            shown = f"{line}\n{rest}"
        self.note(line, always=not self._bar.on, routine=True, shown=shown)
        self.file_only(rest)
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
        """Return a validation's line for a brief log. Initial weights have no training loss."""
        loss = f", loss {row['loss']:.3f}" if row["loss"] != "" else ""
        trained = f"  training loss {self._last_row['loss_avg']:.3f}," if self._last_row and row["iteration"] else ""
        name = f"epoch {row['epoch']:.2f}:".replace(".00:", ":") if row["iteration"] >= 0 else f"{row['name']}:"
        return f"{name}{trained}  validation {row['val_acc']:.1f}% of {row['val_size']}{loss}"

    def progress(self, done: int, total: int, text: str) -> None:
        """Show a progress bar, if standard error is a terminal."""
        if self._console:
            self._bar.show(done, total, text)

    def resume_after(self, updates: int) -> None:
        """Delete the CSV rows that the resumed run will write again: rows of later updates, and rows of averages."""
        for table in self._tables.values():
            table.rewind(updates)

    def rows(self, name: str) -> list[Row]:
        """Return the rows of training.csv or validation.csv so far."""
        return self._tables[name].read() if self.folder else []

    def sync(self) -> None:
        """Flush the CSV files to the disk."""
        for table in self._tables.values():
            table.sync()

    def follow(self, name: str, start: Callable[[], Tracker], by_column: bool = False) -> None:
        """Send all further rows to a tracker until it fails. `name` is the tracker's name in the line about a failure.

        If `by_column` is true, send every number of a row by the name of its column, otherwise the numbers that have tags.
        """
        self._by_column |= {name} if by_column else set()

        def begin() -> None:
            self._trackers[name] = start()

        self._succeeds(name, begin)

    def close(self) -> None:
        """Close log.txt and the trackers. Further lines go to the console only."""
        self._bar.clear()
        complete, self._ending = not self._ending, True
        for name, tracker in self._trackers.items():
            self._succeeds(name, partial(tracker.close, complete))
        self._trackers = {}
        self._end_text()
        self._hold.close()

    def _end_text(self) -> None:
        text, self._text = self._text, None
        if text:
            with suppress(OSError):  # the failed write was reported before
                text.close()

    def _publish(self, values: Mapping[str, float], row: Mapping[str, Any]) -> None:
        columns = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        for name, tracker in list(self._trackers.items()):
            sent = columns if name in self._by_column else values
            if not self._succeeds(name, partial(tracker.log, sent, row["iteration"])):
                del self._trackers[name]

    def _succeeds(self, name: str, action: Callable[[], None]) -> bool:
        """Run a tracker's action; log an error. Return whether the action succeeded."""
        try:
            action()
        except Exception as error:  # an error in a third-party package must not end the run
            reason = (str(error).splitlines() or [""])[0]
            self.note(f"{name} is disabled for the rest of this run: {type(error).__name__}: {reason}")
            return False
        return True


def _marked(text: str, stream: TextIO) -> str:
    """Return a line as a terminal shows it: a warning is yellow, unless the user wants no colours (no-color.org)."""
    coloured = text.startswith("warning") and stream.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[33m{text}\x1b[0m" if coloured else text


def write_arguments(folder: Path, values: Mapping[str, Any], restored: bool = False) -> None:
    """Write the options of a command to arguments.json in a run directory, or to arguments_restore.json if `restored`."""
    path = folder / ARGUMENTS[restored]
    files.write_atomically(path, json.dumps(values, sort_keys=True, indent=4, separators=(",", ": ")) + "\n")


class _Bar:
    """A progress bar on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self.on = sys.stderr.isatty()
        self._shown = False

    def show(self, done: int, total: int, text: str) -> None:
        if self.on:
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
