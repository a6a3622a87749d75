"""Train a network with many combinations of option values, from a grid or at random, and rank the trials.

cnn sweep sweep.yml                        run the file's only sweep
cnn sweep sweep.yml rates --dry-run        check and list the trials
cnn sweep sweep.yml rates --jobs 2 --epochs 3 --metric loss

Example of sweep.yml:

rates:                          # name of the sweep
  config: quickstart            # options of all trials
  epochs: 2
  grid:                         # all combinations
    momentum: [0.8, 0.9]
    base-learning-rate-exponent: [-9, -10]
  # random:                     # or random values
  #   trials: 8
  #   abs-learning-rate: {low: 0.01, high: 1, scale: log}
  #   momentum: [0.8, 0.9, 0.95]

To resume a sweep that was stopped or killed, repeat the call. To add trials, add values to the file and repeat the call.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnn_harness.base import keys, plugins
from cnn_harness.base.errors import DataError, OptionError, parts
from cnn_harness.base.fields import at_least, decimal_number, opt, short, whole_number
from cnn_harness.base.process import command_line, jobs
from cnn_harness.base.process.signals import Signals, StopRequest
from cnn_harness.base.storage import files, locks, tables
from cnn_harness.emulator.plan.plan import PlanError
from cnn_harness.harness.commands import answers, hints
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.configs import ConfigFile, Entry
from cnn_harness.harness.options.sections import flag
from cnn_harness.harness.run import as_configuration, membership, validations
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run
from cnn_harness.tools.planning.costs import PlannedOptions

MAX_TRIALS = 1000
SEED = 1  # every trial has this seed by default, so that trials differ only in the options that vary
RESERVED = ("logs_path", "log_dir", "name_suffix", "autoresume", "restore_path", "distributed")  # options set by the sweep
PRINTING = ("help", "version", "explain", "summary", "list_configs", "dry_run", "compile_only", "dataset_benchmark")
METRICS = {  # name: (table, column, factor that makes lower values better)
    "validation-accuracy": ("validation.csv", "val_acc", -1),
    "validation-loss": ("validation.csv", "loss", 1),
    "training-loss": ("training.csv", "loss_avg", 1),
}
ALIASES = {"accuracy": "validation-accuracy", "loss": "validation-loss"}
COMPLETE, FAILED, STOPPED, WAITING, LEFT_OUT = "complete", "failed", "stopped", "waiting", "left out"
_EVERY = 0.2  # seconds between checks whether a trial is still running
_LONGEST_NAME = 120  # characters in the name of a trial's directory


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A training. `values` maps the options that vary to their values. `call` has all options, except those of its place."""

    name: str
    values: Mapping[str, Any]
    call: Call
    folder: Path
    output: Path

    @property
    def words(self) -> list[str]:
        """The arguments for train.py."""
        return [*self.call.words, "--logs-path", command_line.as_value(self.folder), "--autoresume"]


@dataclass(frozen=True)
class Range:
    """Random values between two limits. They are log-uniform if `log` is true, else uniform."""

    low: float
    high: float
    log: bool

    def at(self, fraction: float) -> float:
        """Return the value at a fraction of the range. If both limits are integers, the value is one, too."""
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        end = self.high + whole  # `high` must be as likely as the other integers
        value = self.low * (end / self.low) ** fraction if self.log else self.low + fraction * (end - self.low)
        return min(math.floor(value), self.high) if whole else min(max(float(f"{value:.4g}"), self.low), self.high)


@dataclass
class Result:
    """A trial's state and metric. `row` is its best row in validation.csv, or its last row in training.csv."""

    state: str = WAITING
    reason: str = ""
    value: float = math.nan
    row: Mapping[str, str] | None = None


PLACES = {"FILE": "YAML file with sweeps", "NAME": "name of a sweep in FILE, if it has several"}


@dataclass(frozen=True, kw_only=True)
class SweepOptions(PlannedOptions):
    """The options of cnn sweep that train.py does not have, or that mean something else there."""

    logs_path: str = opt("logs/sweep", "folder in which every sweep has a folder for its runs", metavar="DIR")
    jobs: int = opt(1, "number of parallel trials", check=at_least(1))
    metric: str = opt("validation-accuracy", "rank trials by this metric", choices=(*METRICS, *ALIASES))
    dry_run: bool = opt(False, "check and list the trials, then stop")


def main(call: Call) -> int:
    """Check every trial, train the trials that are not complete, and compare them; return the exit code, 1 if a trial
    failed."""
    given, path, name, shared = _parsed(call)
    metric = ALIASES.get(given.metric, given.metric)
    if membership.under_poprun(os.environ):
        raise OptionError("cnn sweep starts its own process for each trial; start it without poprun")
    file = ConfigFile(path)
    name = name or _only_sweep(file)
    entries = file.block(name, 2)
    top = Path(given.logs_path) / name
    made = (_trial(values, entries, shared, top) for values in _value_sets(name, entries))
    trials = list({trial.name: trial for trial in made}.values())  # drop duplicates
    if file_there := [each for each in (top, *top.parents) if each.exists() and not each.is_dir()]:
        raise OptionError(f"--logs-path {given.logs_path}: {file_there[0]} is not a folder; give another one")
    runs, found = zip(*(_checked(trial, f"{path}: {name}", metric) for trial in trials))
    costs, allowed = given.planned([run.workload() for run in runs])
    left_out = [trial for trial, kept in zip(trials, allowed) if not kept and not trial.folder.exists()]  # begun: keep it
    notes = [*itertools.chain(*found), *costs, *(f"left out, over the budget: {trial.name}" for trial in left_out)]
    count = "1 trial" if len(trials) == 1 else f"{len(trials)} trials"
    print(f"{name}: {count} in {top}, {given.jobs} at a time", *dict.fromkeys(notes), sep="\n", flush=True)
    if given.dry_run:
        print(*(trial.name for trial in trials), sep="\n")
        return 0
    top.mkdir(parents=True, exist_ok=True)
    with locks.lock_folder(top, "the sweep"):
        _check_unchanged(top, trials)
        sweep = Sweep(trials, metric, top / "sweep.csv", left_out)
        try:
            sweep.run(given.jobs)
        except StopRequest:
            print(f"Resume with:     {hints.command('sweep', *call.words)}")
            raise
    print(f"\n{sweep.table()}\n\nTable:           {sweep.target}")
    complete = [str(trial.folder) for trial, result in sweep.ordered() if result.state == COMPLETE][:16]
    if complete:
        best = sweep.write_best(name)
        again = hints.command("train", "--config-path", command_line.as_value(best), "--config", f"{name}_best")
        print(f"Best trial:      {best}\nTrain it again:  {again}")
        print(f"Compare with:    {hints.command('report', *complete, '--html', str(top / 'sweep.html'))}")
    return int(any(result.state == FAILED for result in sweep.results.values()))


def _parsed(call: Call) -> tuple[SweepOptions, str, str | None, Call]:
    """Return the sweep's own options, its file, its name in the file, and the options of train.py that all trials share."""
    own, places, shared = answers.own_options(
        SweepOptions, call, "cnn sweep FILE [NAME] [options]", __doc__, PLACES,
        "All other options of train.py are accepted, too. They apply to all trials and override the sweep's file.",
    )  # fmt: skip
    if not 1 <= len(places) <= 2:
        raise OptionError("give the file first, then the name of a sweep in it, for example: cnn sweep sweep.yml rates")
    cores = len(os.sched_getaffinity(0))
    if own.jobs > cores:
        number = f"{cores} cores" if cores > 1 else "1 core"
        raise OptionError(f"--jobs {own.jobs}: every trial needs its own core, and this machine has {number}")
    return own, places[0], places[1] if len(places) > 1 else None, shared


def _only_sweep(file: ConfigFile) -> str:
    contents = {name: file.content(name) for name in file.names}
    names = [name for name, entries in contents.items() if isinstance(entries, dict) and {"grid", "random"} & entries.keys()]
    if len(names) != 1:
        found = (
            f"{len(names)} sweeps: {', '.join(map(short, names))}; give the name of one"
            if names
            else "no block with grid: or random:"
        )
        raise OptionError(f"{file.path} has {found}")
    return names[0]


# --- Trials ------------------------------------------------------------------------------------------------------


def _value_sets(name: str, entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """Return the option values of each trial: all combinations of a grid, or random values."""
    kinds = [kind for kind in ("grid", "random") if kind in entries]
    if len(kinds) != 1 or not isinstance(entries[kinds[0]].value, dict):
        raise OptionError(f"sweep {short(name)} needs either grid: or random:, with the options that vary and their values")
    if not re.fullmatch(r"\w[\w-]*", name):
        raise OptionError(f"'{short(name)}' is no valid name for a sweep; use only letters, digits, - and _")
    kind, where, given = kinds[0], entries[kinds[0]].where, dict(entries[kinds[0]].value)
    own = {key: _number(given.pop(key).value) for key in ("trials", "seed") if kind == "random" and key in given}
    axes = {key: _axis(key, entry, kind) for key, entry in given.items()}
    if not axes:
        raise OptionError(f"{where}: no option varies; add one, for example momentum: [0.8, 0.9]")
    if kind == "grid":
        total = math.prod(map(len, axes.values()))
        if total > MAX_TRIALS:
            raise OptionError(f"{where}: the grid has {total:,} trials; at most {MAX_TRIALS:,} are allowed")
        return [dict(zip(axes, chosen)) for chosen in itertools.product(*axes.values())]
    count, seed = own.get("trials"), own.get("seed", 0)
    if not (_is_whole(count, 1, MAX_TRIALS) and _is_whole(seed, 0, 2**63)):
        raise OptionError(f"{where}: random: needs trials: N, from 1 to {MAX_TRIALS}; seed: must be an integer >= 0")

    def drawn(key: str, axis: list[Any] | Range, trial: int) -> Any:  # it must not depend on the number of trials
        fraction = keys.fraction(seed, f"sweep/{key.replace('-', '_')}/{trial}")
        return axis.at(fraction) if isinstance(axis, Range) else axis[int(fraction * len(axis))]

    return [{key: drawn(key, axis, trial) for key, axis in axes.items()} for trial in range(count)]


def _number(value: Any) -> Any:
    """Convert text that is a number; return any other value unchanged."""
    for read in (whole_number, decimal_number):
        with suppress(ValueError, TypeError):
            return read(value)
    return value


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _axis(key: str, entry: Entry, kind: str) -> list[Any] | Range:
    """Return the values of an option that varies: a list, or for random values also a range. Raise OptionError for
    others."""
    if key.replace("-", "_") in (*RESERVED, *PRINTING):
        raise OptionError(f"{entry.where}: {key} cannot vary in a sweep; remove it")
    if isinstance(entry.value, list) and entry.value and None not in entry.value:
        return entry.value
    if kind == "grid" or not isinstance(entry.value, dict):
        ranges = "" if kind == "grid" else ", or a range such as {low: 0.01, high: 1, scale: log}"
        raise OptionError(f"{entry.where}: {key} needs a list of values{ranges}")
    given = {"scale": "linear"} | {name: _number(bound.value) for name, bound in entry.value.items()}
    low, high, scale = given.get("low"), given.get("high"), given["scale"]
    numbers = all(isinstance(bound, (int, float)) and not isinstance(bound, bool) for bound in (low, high))
    if len(given) > 3 or not numbers or scale not in ("linear", "log") or not 0 <= high - low < math.inf:
        raise OptionError(f"{entry.where}: {key}: a range needs numbers low <= high; scale must be linear or log")
    if scale == "log" and low <= 0:
        raise OptionError(f"{entry.where}: {key}: a range with scale: log needs low above 0")
    return Range(low, high, scale == "log")


def _trial(values: Mapping[str, Any], entries: Mapping[str, Entry], call: Call, top: Path) -> Trial:
    shared = {key: entry.value for key, entry in entries.items() if key not in ("grid", "random")}
    name = ",".join(f"{key.replace('_', '-')}={_text(value)}" for key, value in sorted(values.items()))
    safe = re.sub(r"[^\w.+=,@-]", "_", name, flags=re.ASCII)
    if safe != name or len(name) > _LONGEST_NAME:
        safe = f"{safe[: _LONGEST_NAME - 9]}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"
    given = Call.of_values(shared, "train") + call + Call.of_values(values, "train")
    return Trial(name=safe, values=values, call=given, folder=top / safe, output=top / "output" / f"{safe}.txt")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return "+".join(map(_text, value)) or "none"
    value = _number(value)
    return f"{value + 0.0:.12g}" if isinstance(value, (int, float)) else str(value)


def _checked(trial: Trial, where: str, metric: str) -> tuple[Run, list[str]]:
    """Return the run of a trial, and warnings about it. Raise OptionError if the sweep or train.py would reject its
    options."""
    if own := [name for name in RESERVED if name in trial.call]:
        raise OptionError(f"{where}: the sweep sets {flag(own[0])} for each trial; leave it out")
    try:
        parsed = answers.resolve(trial.call)
        run, _, notes = prepare(parsed.options, os.environ, parsed.notes)
    except (OptionError, PlanError, DataError) as error:
        message, listed = parts(error)
        raise OptionError(f"{where}: trial {trial.name}: {message}", listed) from None
    printing = [name for name in PRINTING if parsed.options.values().get(name)]
    if printing:
        raise OptionError(f"{where}: {flag(printing[0])} prevents training; remove it")
    if metric != "training-loss" and not (run.options.checkpoint.validation and run.data_source.spec.validation_images):
        raise OptionError(f"{where}: trial {trial.name} has no validation to rank it by; give --metric training-loss")
    return run, [note for note in notes if note.startswith("warning")]


def _check_unchanged(top: Path, trials: Sequence[Trial]) -> None:
    """Raise OptionError if trials in the folder were started with other options; record the options of new trials."""
    record = top / "sweep.json"
    begun = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    for trial in trials:
        if begun.get(trial.name, trial.words) != trial.words:
            raise OptionError(
                f"{trial.folder} was started with other options; delete it and {record}, or give another --logs-path"
            )
    now = {trial.name: trial.words for trial in trials}
    files.write_atomically(record, json.dumps(begun | now, indent=1))


# --- Training ----------------------------------------------------------------------------------------------------


class Sweep:
    """Trains all trials and ranks them. Each trial has a process with its own share of the cores."""

    def __init__(self, trials: Sequence[Trial], metric: str, target: Path, left_out: Sequence[Trial] = ()) -> None:
        """Prepare a sweep. `metric` is a key of METRICS, `target` the path of the table. Trials that are left out have a
        row there, but are not trained."""
        self.trials, self.metric, self.target = trials, metric, target
        self.results = {trial.name: Result(LEFT_OUT if trial in left_out else WAITING) for trial in trials}
        self._children = jobs.Children()
        self._writing = threading.Lock()  # for the table

    def run(self, count: int) -> None:
        """Train all trials, `count` at a time. After a signal, let running trials save and end, then raise StopRequest."""
        (self.target.parent / "output").mkdir(exist_ok=True)
        cores = sorted(os.sched_getaffinity(0))
        waiting = [trial for trial in self.trials if self.results[trial.name].state == WAITING]
        with Signals() as signals, signals.deferred(self._children.stop), self._children:
            for _ in self._children.run_on_cores(self._train, waiting, [cores[k::count] for k in range(count)]):
                pass
        files.write_atomically(self.target, self._csv())

    def _train(self, trial: Trial, cores: Sequence[int]) -> None:
        """Train a trial, and record its result."""
        while locks.is_locked(trial.folder) and not self._children.sent:  # it still runs if its sweep was killed
            time.sleep(_EVERY)
        if self._children.sent:  # do not empty the output of a trial that will not start
            return
        words = [*trial.words, *[f"--seed={SEED}"] * ("seed" not in trial.call)]
        with files.append(trial.output) as output:
            output.truncate(0)
            process = self._children.start(
                trial.name, [sys.executable, str(plugins.ROOT / "train.py"), *words], os.environ, cores,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        if process is None:
            return
        self._print(trial, "starts")
        code = process.wait()
        state = COMPLETE if code == 0 else STOPPED if self._children.sent and (code < 0 or code > 128) else FAILED
        result = self._read(trial, state)
        result.reason = _reason(trial.output, code) if state == FAILED else ""
        self._print(trial, f"{state}{': ' * bool(result.reason)}{result.reason}  {self._measure(result)}")
        with self._writing:
            self.results[trial.name] = result
            files.write_atomically(self.target, self._csv())

    def _read(self, trial: Trial, state: str) -> Result:
        table, column, sign = METRICS[self.metric]
        try:
            rows = tables.run_table(trial.folder, table).read()
        except OSError:
            rows = []
        if table == "validation.csv":
            rows = validations.ranked(rows, cost=lambda row: sign * float(row[column]))[:1]
        row = rows[-1] if rows else None
        return Result(state=state, row=row, value=float(row[column]) if row else math.nan)

    def ordered(self) -> list[tuple[Trial, Result]]:
        """Return the trials ranked by the metric. Trials that are not complete come last."""
        sign = METRICS[self.metric][2]

        def place(pair: tuple[Trial, Result]) -> tuple[bool, float]:
            result = pair[1]
            ranked = result.state == COMPLETE and math.isfinite(result.value)
            return not ranked, sign * result.value if ranked else 0

        return sorted(((trial, self.results[trial.name]) for trial in self.trials), key=place)

    def table(self) -> str:
        """Return a text table with a line for each trial. The best trial comes first and is marked."""
        rows = [("", self.metric.replace("-", " "), *_short_names(list(self.trials[0].values)), "state")]
        best = self._best()
        for trial, result in self.ordered():
            why = short(f"{result.state}: {result.reason}") if result.reason else result.state
            rows.append(("best" if trial is best else "", self._measure(result), *map(_text, trial.values.values()), why))
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)

    def _best(self) -> Trial | None:
        return next((trial for trial, result in self.ordered() if result.state == COMPLETE), None)

    def write_best(self, name: str) -> Path:
        """Write the best trial to best.yml, as the configuration <name>_best. Return the path."""
        trial = self._best()
        result = self.results[trial.name]
        values = {"seed": SEED} | as_configuration.given_values(answers.resolve(trial.call).options)
        comment = f"# The best of {len(self.trials)} trials: {self.metric.replace('-', ' ')} {self._measure(result)}\n"
        target = self.target.with_name("best.yml")
        files.write_atomically(target, comment + as_configuration.block(f"{name}_best", values))
        return target

    def _measure(self, result: Result) -> str:
        if not math.isfinite(result.value):
            return ""
        return f"{result.value:.2f} %" if self.metric.endswith("accuracy") else f"{result.value:.4g}"

    def _csv(self) -> str:
        out = io.StringIO(newline="")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("trial", *self.trials[0].values, self.metric, "checkpoint", "state", "reason", "folder"))
        for trial, result in self.ordered():
            value, name = f"{result.value:.6g}" if math.isfinite(result.value) else "", (result.row or {}).get("name", "")
            cells = (*map(_text, trial.values.values()), value, name, result.state, result.reason, trial.folder)
            writer.writerow((trial.name, *cells))
        return out.getvalue()

    def _print(self, trial: Trial, text: str) -> None:
        print(f"[{self.trials.index(trial) + 1}/{len(self.trials)}] {trial.name}  {text.rstrip()}", flush=True)


def _short_names(names: Sequence[str]) -> list[str]:
    """Return the last two words of each option, or the whole name if two options end alike."""
    ends = ["-".join(name.replace("_", "-").split("-")[-2:]) for name in names]
    return [end if ends.count(end) == 1 else name for name, end in zip(names, ends)]


def _reason(output: Path, code: int) -> str:
    """Return why a trial failed: its error message, signal or exit code."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.partition("error: ")[2] for line in lines if line.startswith("train.py: error: ")]
    return errors[-1] if errors else f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    sys.exit(answers.run_command("sweep", main, None))
