"""The trials of a sweep, each with its options parsed and its run prepared, before the first of them starts. No TensorFlow,
no files written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from base import host_limits
from base.errors import DataError, OptionError, parts
from base.fields import ONE_CALL, PER_INSTANCE
from base.process import command_line
from base.process.progress import Progress
from base.storage.run_files import ARGUMENTS
from emulator.plan import process_memory
from emulator.plan.plan import PlanError
from emulator.plan.process_memory import gigabytes
from harness.checkpoints import find, run_record
from harness.checkpoints.checkpoint import CheckpointError
from harness.commands import autoresume, cli
from harness.options import sources
from harness.options.sections import COMMAND_LINE, flag, with_trait
from harness.processes.folders import FolderError
from harness.run import host_memory
from harness.run.recorded_arguments import ASKED, RECORDS, arguments
from harness.run.resolve import prepare
from harness.run.run import Run
from harness.sweeping import trials
from harness.sweeping.block import Setting, Sweep
from harness.sweeping.results import Metric
from harness.sweeping.sweep_options import SweepRequest
from harness.sweeping.trials import Trial
from harness.training.origins import NewRun

SEED = 1  # of trials that nobody gives one: they are to differ by what varies alone
_SEED_SOURCE = f"{COMMAND_LINE}: {flag('seed')}"  # as cli.parse tells it
_OF_COMMAND_LINE = re.compile(r"command line: (--[\w-]+)(: )?(.*)", re.DOTALL)
_FLAG = re.compile(r"--[\w-]+")
# compared with an earlier call's besides options: weights to begin with, and data
_ALSO = frozenset(("init_path", RECORDS, "train_images", "validation_images"))
_UNTOLD = "and nothing else tells the trial's options: put it back, delete the folder, or give --logs-path another one"
_REFUSALS = (OptionError, PlanError, DataError, CheckpointError, FolderError)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A trial that can start. `words`: of train.py; `seeded`: the sweep gives it a seed, as nobody else does."""

    trial: Trial
    folder: Path
    words: tuple[str, ...]
    run: Run
    seeded: bool

    @property
    def updates(self) -> int | None:
        """The updates of the newest checkpoint that is in the folder now; None without one."""
        return max((checkpoint.updates for checkpoint in find.numbered(self.folder)), default=None)

    @property
    def is_complete(self) -> bool:
        """True if there is nothing left to train, as the folder is now."""
        if self.updates is not None:
            return autoresume.is_complete(self.run, self.folder, self.updates)
        with suppress(FolderError):  # which the trial itself is refused for
            return autoresume.unsaved_end(self.folder) == self.run.length.iterations
        return False


def of(sweep: Sweep, drawn: Sequence[Trial], request: SweepRequest, top: Path) -> list[Planned]:
    """Every trial of a sweep, in the folder `top`; OptionError with file, line and trial where one cannot be."""
    given = request.words
    for axis in sweep.axes:
        if axis.option.name in given:
            raise OptionError(
                f"command line: {given[axis.option.name][0]}: {axis.key} varies in {sweep.name} ({axis.where})"
            )
    shared = tuple(setting for setting in sweep.shared if setting.name not in given)
    words = [*trials.words(shared), *(word for each in given.values() for word in each)]
    planner = _Planner(words, shared, sweep, top, request.jobs, request.metric)
    ready = []
    with Progress("trials checked", len(drawn)) as progress:  # a thousand take half a minute
        for trial in drawn:
            ready.append(planner.planned(trial))
            progress.advance()
    return ready


def notes(planned: Sequence[Planned]) -> Iterator[str]:
    """Each warning about the runs once, and each note on what varies, as that it changes nothing; with the trials that have
    it unless all have."""
    trials_by_note: dict[str, list[str]] = {}
    for each in planned:
        varied = {flag(setting.name) for setting in each.trial.settings}
        for note in dict.fromkeys(each.run.notes):
            if note.startswith("warning") or varied & set(_FLAG.findall(note)):
                trials_by_note.setdefault(note, []).append(each.trial.name)
    for note, names in trials_by_note.items():
        yield note if len(names) == len(planned) else f"{note} ({_some(names)})"


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


@dataclass(frozen=True)
class _Planner:
    """The words, the folder and the measure that all trials of a sweep have in common."""

    words: Sequence[str]
    shared: tuple[Setting, ...]
    sweep: Sweep
    top: Path
    jobs: int
    metric: Metric

    def planned(self, trial: Trial) -> Planned:
        folder = self.top / trial.name
        try:
            return self._prepared(trial, folder)
        except _REFUSALS as error:
            message, listed = parts(error)
            raise OptionError(self._placed(trial, message), listed) from None

    def _prepared(self, trial: Trial, folder: Path) -> Planned:
        words = [*self.words, *trials.words(trial.settings), "--logs-path", command_line.as_value(folder), "--autoresume"]
        parsed = cli.parse(words, "train")
        options, seeded = parsed.options, parsed.options.device.seed is None
        if seeded:
            words += (flag("seed"), str(SEED))
            options = replace(
                options, device=replace(options.device, seed=SEED), sources={**options.sources, "seed": _SEED_SOURCE}
            )
        notes = (*parsed.notes, *NewRun().check_source(options))
        run = prepare(options, os.environ, notes)
        planned = Planned(trial=trial, folder=folder, words=tuple(words), run=run, seeded=seeded)
        self._check_measured(run)
        _check_memory(run, self.jobs)
        if planned.updates is not None or planned.is_complete:
            _check_unchanged(run, folder)
        elif not (folder / ARGUMENTS[0]).exists():
            NewRun().check_run(run)
        return planned

    def _check_measured(self, run: Run) -> None:
        if self.metric.of_validation and not (run.options.checkpoint.validation and run.data_source.spec.validation_images):
            raise OptionError("nothing is validated: --metric training-loss compares without")

    def _placed(self, trial: Trial, message: str) -> str:
        """A refusal with the line of the file that it is about: that of the option, or of all that varies."""
        option = _OF_COMMAND_LINE.match(message)
        for setting in (*trial.settings, *self.shared):
            if option and option[1] in (f"--{setting.key}", f"--no-{setting.key}", f"--{setting.key.removeprefix('no-')}"):
                without_subject = option[3].startswith(("takes ", "needs "))  # which the flag before the colon was
                text = option[3] if option[2] and not without_subject else f"{setting.key} {option[3].lstrip()}"
                whose = "" if setting in self.shared else f" (trial {trial.name})"
                return f"{setting.where}: {text}{whose}"
        return f"{self.sweep.where}: trial {trial.name}: {message}"


def _check_memory(run: Run, jobs: int) -> None:
    """OptionError where a trial, or as many as are to run at once, certainly need more memory than there is."""
    limits = host_limits.limits()
    host_memory.check(run, limits, True)
    limit, hopeless = process_memory.find_exceeded_limit(run.memory, limits, jobs)
    if hopeless and run.options.device.memory_check:
        need = gigabytes(run.memory.of_kind(limit.kind))
        raise OptionError(
            f"--jobs {jobs} takes about {need} GB each, and {limit.source} {gigabytes(limit.bytes)} GB: give fewer"
        )


def _check_unchanged(run: Run, folder: Path) -> None:
    """OptionError for a folder whose run began with other options, or other data: it would stand beside the other trials as
    if it had these, or one that nothing tells the options of."""
    recorded, now = run_record.options(folder), arguments(run, "", {})
    if not recorded:
        raise OptionError(f"{run_record.arguments_file(folder)} is missing or empty, {_UNTOLD}")
    now |= now[ASKED]
    own = {option.name for option in sources.every_option("train")} - with_trait(ONE_CALL) - with_trait(PER_INSTANCE)
    recorded["init_path"] = run_record.first_arguments(folder).get("init_path")  # a resumed run has weights of its own
    names = [name for name in now if name in own | _ALSO and name in recorded]
    other = next((name for name in names if recorded[name] != now[name]), None)
    if other:
        raise OptionError(
            f"{folder} is of a trial with {_told(other, recorded[other])}, not {_told(other, now[other])}: delete it, or "
            "give --logs-path another folder"
        )


def _told(name: str, value: object) -> str:
    known = {option.name for option in sources.every_option("train")}
    return f"{flag(name)} {value}" if name in known else f"{name.replace('_', ' ')} {value}"
