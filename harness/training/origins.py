"""The start of a training: a new run, or one that was saved."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from base.errors import OptionError
from base.fields import ONE_CALL
from harness.checkpoints import find, read, run_record
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.checkpoints.read import LoadedCheckpoint
from harness.cluster import membership
from harness.commands import entry, hints
from harness.evaluation import inference_record
from harness.options.sections import RunOptions, with_trait
from harness.processes import folders
from harness.processes.team import Team
from harness.run.data import recorded_places
from harness.run.origin import TrainingOrigin
from harness.run.recorded_arguments import ARITHMETIC, RUN_ID, changed_data
from harness.run.run import PARTS, Run

NEW_RUN_OPTIONS = ("log_dir", "logs_path", "name_suffix")
IN_ITS_FOLDER = "a resumed run goes on in its own folder"


class NewRun(TrainingOrigin):
    """Initial weights, or those of --init-path."""

    def check_source(self, options: RunOptions) -> list[str]:
        """CheckpointError for weights that are not there, before an option is refused that suits their network."""
        given = options.training.init_path
        if given and not membership.is_later_instance(os.environ, options.training.distributed):
            find.init_checkpoint(Path(given))
        return []

    def read_checkpoint(self, run: Run) -> tuple[Run, None]:
        """Read nothing: --init-path is read when the program is there."""
        return run, None

    def join(self, run: Run, team: Team, checkpoint: None) -> tuple[Run, Path, None]:
        """The run as all instances name it, and this one's folder for it, which is made."""
        run = replace(run, run_id=team.broadcast_text(_new_id()), notes=(*run.notes, *self._notes_on_unsaved(run)))
        return *folders.begin(run, team), checkpoint

    def check_run(self, run: Run) -> list[str]:
        """Weights to begin with that are not there or do not fit, and a folder that cannot be this run's."""
        given, logging = run.options.training.init_path, run.options.logging
        if logging.autoresume and not logging.logs:
            raise OptionError("--no-logs: --autoresume goes on in the folder of --logs-path; leave one of the two out")
        if run.cluster.instance:
            return []
        if given:
            from harness.checkpoints import conversion

            conversion.check_initial(run, Path(given))
            run_record.arguments(find.run_folder(Path(given)))  # which is asked how they were trained
        folders.check(run)
        return self._notes_on_unsaved(run)

    def completion_report(self, run: Run) -> str | None:
        """The options that differ from the recorded ones, and the end of the run, of a repeated call that has nothing to do:
        the run in its folder is complete, and was to save nothing."""
        folder = _repeated_folder(run)
        if folder is None or _unsaved_end(folder) is None:
            return None
        differing = override_notes(run, run_record.options(folder))
        end = f"{run.length.iterations} updates, and saved no checkpoint"
        return _completion(folder, end, [], differing, "a longer one needs another folder")

    def _notes_on_unsaved(self, run: Run) -> list[str]:
        """A line, for the instance that begins the run, where an unfinished one that saved nothing gives way to it;
        OptionError for one that is complete and not as long."""
        folder = _repeated_folder(run)
        if folder is None or run.cluster.instance or not folders.unsaved_run(folder):
            return []
        end = _unsaved_end(folder)
        if end is None:
            return [f"the run in {folder} has saved nothing: it is begun anew"]
        if end != run.length.iterations:
            raise OptionError(
                f"--logs-path {folder} holds a complete run of {end} updates that saved no checkpoint, so that none of "
                f"{run.length.iterations} goes on from it: give another folder, or delete it"
            )
        return []


class SavedRun(TrainingOrigin):
    """The newest whole checkpoint of the run in a folder."""

    def __init__(
        self, folder: Path, argv: list[str], script: str, repeated: bool = False, extended_by_restore: bool = False
    ) -> None:
        """CheckpointError if there is no run in the folder. `repeated`: the call is that which began the run, made again.
        `extended_by_restore`: as of `train.main`."""
        self._follows = membership.call_is_of_later_instance(argv, script)
        if not self._follows:
            find.run_checkpoints(folder)  # a folder without checkpoints is no run
        self.folder, self._repeated, self._extended_by_restore = folder, repeated, extended_by_restore
        self.recorded = entry.recorded_options(folder, argv, script)
        self.total_replicas = self.recorded.get("total_replicas")

    @cached_property
    def _latest(self) -> tuple[Checkpoint | None, list[str], CheckpointError | None]:
        """The newest whole checkpoint and a line on each newer one; or, where another instance may have them, why there is
        none here."""
        try:
            latest, warnings = read.find_latest(self.folder)
            if not run_record.state(latest):
                raise CheckpointError(
                    f"checkpoint {latest.prefix} has no {latest.state_path.name}, so no run can resume from it: begin a new "
                    f"run with its weights: --init-path {latest.prefix}"
                )
            return latest, warnings, None
        except CheckpointError as error:
            if not self._follows:
                raise
            return None, [], error

    @property
    def latest(self) -> Checkpoint | None:
        """The checkpoint; None if another instance has it."""
        return self._latest[0]

    @property
    def updates(self) -> int:
        """The number of updates that are done."""
        return self.latest.updates if self.latest else 0

    def check_source(self, options: RunOptions) -> list[str]:
        """Lines on options without effect and on damaged checkpoints."""
        ignored = [name for name in NEW_RUN_OPTIONS if options.given(name)] if not self._repeated else []
        lines = [f"{options.words(name)} changes nothing: {IN_ITS_FOLDER}" for name in ignored]
        if options.given("init_path") and options.training.init_path != self.recorded.get("init_path"):
            lines.append(f"{options.words('init_path')} changes nothing: a run that goes on has weights of its own")
        return [*lines, *self._latest[1]]

    def _is_complete(self, run: Run) -> bool:
        """Return whether a repeated call has nothing to do."""
        if not self._repeated or self.latest is None:
            return False
        from harness.commands import autoresume

        return autoresume.is_complete(run, self.folder, self.updates)

    def completion_report(self, run: Run) -> str | None:
        """Warnings, the options that differ from the recorded ones, and the end of the run, of a repeated call."""
        if not self._is_complete(run):
            return None
        warnings = [line for line in run.notes if line.startswith("warning")]
        differing = override_notes(run, self.recorded)
        length = "epochs" if run.options.training.iterations is None else "iterations"  # the two exclude each other
        stop_after = run.options.training.stop_after
        limit = "stop-after" if stop_after is not None and self.updates >= stop_after else "patience"
        larger = length if self.updates == run.length.iterations else limit
        longer = f"a larger --{larger}"
        if self._extended_by_restore:
            longer = hints.command("restore", *hints.restoring(self.folder), f"--{larger}", "NUMBER")
        return _completion(self.folder, f"{self.updates} updates", warnings, differing, f"{longer} extends it")

    def check_run(self, run: Run) -> list[str]:
        """Raise an OptionError for options that the run cannot resume with; return the lines of `override_notes`."""
        if not run.options.logging.logs:
            raise OptionError("--no-logs: a resumed run goes on in its own folder; leave the option out")
        if run.options.given("init_path") and not self._repeated:
            raise OptionError("--init-path: a resumed run goes on with its own weights; leave the option out")
        recorded = run_record.arguments(self.folder)
        _check_classes(run, recorded)
        inference_record.check_names(run, self.folder, recorded)
        self._check_repeated(run, recorded)
        batch = self.recorded.get("total_batch_size")
        if batch not in (None, run.plan.global_batch):
            raise OptionError(
                f"the run's global batch is {batch}, that of this call {run.plan.global_batch}: its place in the data is "
                "counted in global batches; keep the batch, or begin a new run"
            )
        before, now = self.recorded.get("parameters"), run.trace.parameters
        if before is not None and before != now:
            raise OptionError(
                f"the run's network has {before:,} parameters, that of this call {now:,}: leave the options of the model "
                "as they were, or begin a new run, which --init-path can give weights to"
            )
        latest, _, read_error = self._latest
        if latest:
            from harness.checkpoints import conversion

            conversion.resumed_tensors(run, latest, read.tensors(latest, verify=False))
        if not self._is_complete(run):
            last_update(run, self.updates)
        if read_error and run.cluster.instance == 0:
            raise read_error
        elsewhere = changed_arithmetic_notes(run, latest) if latest and not self._is_complete(run) else []
        return [*override_notes(run, self.recorded), *changed_data_warnings(run, recorded), *elsewhere]

    def _check_repeated(self, run: Run, recorded: Mapping[str, Any]) -> None:
        """OptionError for a repeated call with other data, if they are of another folder, or the run is complete: whoever
        gives them wants a training on them. In the midst of a run pictures may have been mended."""
        data = run.data_source
        changed = changed_data(data, recorded)
        elsewhere = recorded.get("data_dir") not in (None, run.data_dir)
        if self._repeated and changed and (elsewhere or self._is_complete(run)):
            raise OptionError(
                f"the run in {self.folder} is of other data than these ({', '.join(changed)}): give --logs-path another "
                "folder to train on these, or put the earlier data back"
            )

    def read_checkpoint(self, run: Run) -> tuple[Run, LoadedCheckpoint | None]:
        """Return the run with lines on checkpoints that turn out damaged only now, and the newest sound one with its tensors
        (instance 0 only; None on the others)."""
        if run.cluster.instance:
            return run, None
        checkpoint, values, damaged = read.load_latest(self.folder, verified=self.latest)
        lines = [line for line in damaged if line not in run.notes]
        return replace(run, notes=(*run.notes, *lines)), LoadedCheckpoint(checkpoint, values)

    def join(self, run: Run, team: Team, checkpoint: LoadedCheckpoint | None) -> tuple[Run, Path, LoadedCheckpoint]:
        """The run as all instances name it, this one's folder of it, and the checkpoint of instance 0."""
        began_with = self.recorded.get("init_path")
        training = replace(run.options.training, init_path=began_with)  # whatever a repeated call gives now
        run = replace(run, options=replace(run.options, training=training))
        run = replace(run, run_id=team.broadcast_text(self.recorded.get(RUN_ID) or _new_id() if team.is_first else ""))
        updates = team.broadcast_json(checkpoint.updates if checkpoint else None)
        checkpoint = checkpoint or LoadedCheckpoint(Checkpoint.at(self.folder, updates), {})  # tensors come from instance 0
        return *folders.resume(run, team, self.folder), checkpoint


def last_update(run: Run, done: int) -> int:
    """The update that this call ends after, of a run that has `done`; OptionError if it has done that many already."""
    total, stop_after = run.length.iterations, run.options.training.stop_after
    if done > total:
        raise OptionError(f"the run has done {done} updates, and the length asked for is only {total}; give a larger one")
    mends = run.options.logging.autoresume and stop_after == done  # what a killed call has left undone there
    if stop_after is not None and stop_after <= done and done and not mends:
        raise OptionError(f"--stop-after {stop_after}: the run has done {done} updates already; give a larger number")
    return min(total, stop_after or total)


def changed_data_warnings(run: Run, recorded: Mapping[str, Any]) -> list[str]:
    """A warning where the data are not those that the run recorded: order, length and rates follow from their number."""
    changed = changed_data(run.data_source, recorded)
    if not changed:
        return []
    return [
        f"warning: the data are not those that the run recorded ({', '.join(changed)}): order, length and rates follow from "
        "them, so the run does not go on as it would have"
    ]


def _check_classes(run: Run, recorded: Mapping[str, Any]) -> None:
    """OptionError where the data have more or fewer classes than the run's network."""
    before, now = recorded.get("num_classes"), run.data_source.spec.num_classes
    if before not in (None, now):
        raise OptionError(
            f"the run's network tells {before:,} classes apart, and the data have {now:,}: put the earlier data back, or "
            "begin a new run, which --init-path can give weights to"
        )


def _repeated_folder(run: Run) -> Path | None:
    """Return the folder that --autoresume repeats a call in, which is instance 0's; None without the option."""
    logging = run.options.logging
    return Path(logging.logs_path) if logging.autoresume and logging.logs_path else None


def _completion(folder: Path, end: str, warnings: Sequence[str], differing: Sequence[str], further: str) -> str:
    """The lines of a repeated call that has nothing to do. `end`: how far the run came; `differing`: a line on each option
    that is not as recorded; `further`: how a longer run is had."""
    unused = "; the options above change nothing" if differing else ""
    return "\n".join([*warnings, *differing, f"The run in {folder} is complete, after {end}{unused}; {further}\n"])


def override_notes(run: Run, recorded: Mapping[str, Any]) -> list[str]:
    """A line on each option that was given, and is not as the run recorded it; of one call's own there is no record."""
    values, besides = run.options.values(), {*with_trait(ONE_CALL), *NEW_RUN_OPTIONS, "init_path"}
    if recorded.get("data_dir") == run.data_dir:  # the same folder, whatever path was given
        besides.add("data_dir")
    besides |= {name for name, place in recorded_places(run.options.dataset).items() if recorded.get(name) == place}
    as_recorded = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return [
        f"overridden: {name} = {values[name]}"
        for name in run.options.sources
        if run.options.given(name) and name not in besides and recorded.get(name) != as_recorded[name]
    ]


def changed_arithmetic_notes(run: Run, latest: Checkpoint) -> list[str]:
    """A line where a checkpoint was computed in another way than this call computes."""
    recorded = run_record.state(latest).get(run_record.RECORDED, {}).get(ARITHMETIC)
    if recorded in (None, run.arithmetic):
        return []
    before, now = recorded.split(PARTS), run.arithmetic.split(PARTS)
    was = PARTS.join(part for part in before if part not in now)
    here = PARTS.join(part for part in now if part not in before)
    then, now = (f"with {own}" if own else f"without {other}" for own, other in ((was, here), (here, was)))
    return [
        f"{latest.name} was computed {then}, this call computes {now}: from here on the last places of sums may differ "
        "from those of a run that was not stopped"
    ]


def _new_id() -> str:
    """Return a random name for a new run."""
    return secrets.token_hex(8)


def _unsaved_end(folder: Path) -> int | None:
    from harness.commands import autoresume

    return autoresume.unsaved_end(folder)
