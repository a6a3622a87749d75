"""Start a new run, or resume one from the newest checkpoint of its run directory."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import ONE_CALL
from cnn_harness.harness.checkpoints import find, read, run_record
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from cnn_harness.harness.checkpoints.read import Tensors
from cnn_harness.harness.commands import entry
from cnn_harness.harness.distributed import folders
from cnn_harness.harness.distributed.team import Team
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.releases import vintage
from cnn_harness.harness.options.sections import RunOptions, with_trait
from cnn_harness.harness.run import membership
from cnn_harness.harness.run.cluster import Cluster, Execution
from cnn_harness.harness.run.data import recorded_places
from cnn_harness.harness.run.recorded_arguments import ARITHMETIC, RUN_ID, changed_data, ends_untrained
from cnn_harness.harness.run.resolve import Origin, Prepared, learning_rate
from cnn_harness.harness.run.run import Run

NEW_RUN_OPTIONS = ("log_dir", "logs_path", "name_suffix")


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint to resume from.

    `values` contains the checkpoint's tensors, converted for the run. In instances other than 0, `values` is not used.
    `notes` contains lines for the log.
    """

    checkpoint: Checkpoint
    values: Tensors
    notes: Sequence[str]

    @property
    def updates(self) -> int:
        """Number of finished updates."""
        return self.checkpoint.updates


class FreshStart(Origin):
    """The start of a new run, with random weights or the weights of --init-path."""

    def check_source(self, options: RunOptions) -> list[str]:
        """Raise CheckpointError if --init-path names no weights.

        This check comes first, because the values of other options may depend on these weights.
        """
        given = options.training.init_path
        if given and not membership.is_later_instance(os.environ, options.training.distributed):
            find.init_checkpoint(Path(given))
        return []

    def check_run(self, run: Run, cluster: Cluster) -> list[str]:
        """Reject initial weights that do not fit, and a run directory that cannot be used. Return lines for the log."""
        given, logging = run.options.training.init_path, run.options.logging
        if logging.autoresume and not logging.logs:
            raise OptionError("--autoresume needs logs, so it cannot be combined with --no-logs; leave one of the two out")
        if cluster.instance:
            return []
        if given:
            from cnn_harness.harness.checkpoints import conversion

            conversion.check_initial(run, Path(given))
            conversion.check_fitting(run)
            run_record.arguments(find.run_folder(Path(given)))  # Raise CheckpointError if arguments.json is damaged.
        folders.check(run, cluster)
        return self._unsaved_notes(run, cluster)

    def completion_report(self, prepared: Prepared) -> str | None:
        """Return the text to print if --autoresume finds a complete run without checkpoints; None otherwise."""
        run = prepared.run
        folder = _repeated_folder(run)
        if folder is None or _unsaved_end(folder) is None:
            return None
        end = f"{run.length.iterations} updates, no checkpoint"
        longer = "To train longer, give another --logs-path."
        return _completion(folder, end, override_notes(run, run_record.options(folder)), longer)

    def join(self, prepared: Prepared, team: Team) -> tuple[Execution, None]:
        """Meet the other instances. Return the execution, whose id is the same in all instances and whose folder is new."""
        run, cluster, notes = prepared
        seed, run_id = team.rendezvous(run), team.broadcast_text(_new_id())
        notes = (*notes, *self._unsaved_notes(run, cluster))
        return _execution(seed, cluster, notes, run_id, folders.begin(run, team)), None

    def _unsaved_notes(self, run: Run, cluster: Cluster) -> list[str]:
        """Return a line for the log if --autoresume restarts an unfinished run that saved no checkpoint.

        Raise OptionError if that run is complete, but has another length.
        """
        folder = _repeated_folder(run)
        if folder is None or cluster.instance or not folders.unsaved_run(folder):
            return []
        end = _unsaved_end(folder)
        if end is None:
            return [f"restarting the run in {folder}, because it saved no checkpoint"]
        if end != run.length.iterations:
            raise OptionError(
                f"--logs-path {folder} contains a complete run of {end} updates without checkpoints, so the run cannot be "
                f"extended to {run.length.iterations} updates. Give another --logs-path, or delete this folder"
            )
        return []


class Resume(Origin):
    """The start of a run that resumes from the newest intact checkpoint in its run directory."""

    def __init__(self, folder: Path, call: Call, repeated: bool = False) -> None:
        """Raise CheckpointError if the folder contains no run.

        `repeated` is True if --autoresume found the run: then the call is the same one that started the run.
        """
        self._is_later = membership.call_is_of_later_instance(call)
        if not self._is_later:
            find.run_checkpoints(folder)
        self.folder, self._repeated = folder, repeated
        self.recorded = entry.recorded_options(folder, call)
        self.total_replicas = self.recorded.get("total_replicas")
        self._values: Tensors = {}
        self._notes: list[str] = []

    @cached_property
    def _latest(self) -> tuple[Checkpoint | None, list[str], CheckpointError | None]:
        """The newest intact checkpoint, a warning for each newer checkpoint that is damaged, and None.

        In instances other than 0, the checkpoint may be missing. Then the values are None, no warnings and the error.
        """
        try:
            latest, warnings = read.find_latest(self.folder)
            if not run_record.state(latest):
                raise CheckpointError(
                    f"cannot resume from checkpoint {latest.prefix}, because {latest.state_path.name} is missing. To start "
                    f"a new run with these weights, use train.py --init-path {latest.prefix}"
                )
            return latest, warnings, None
        except CheckpointError as error:
            if not self._is_later:
                raise
            return None, [], error

    @property
    def updates(self) -> int:
        """Number of finished updates."""
        latest = self._latest[0]
        return latest.updates if latest else 0

    def check_source(self, options: RunOptions) -> list[str]:
        """Return log lines about ignored options and damaged checkpoints."""
        if options.given("init_path") and not self._repeated:
            raise OptionError("--init-path is not possible, because a resumed run loads its newest checkpoint; leave it out")
        ignored = [name for name in NEW_RUN_OPTIONS if options.given(name)] if not self._repeated else []
        lines = [f"{options.words(name)} has no effect, because a resumed run keeps its run directory" for name in ignored]
        if options.given("init_path") and options.training.init_path != self.recorded.get("init_path"):
            lines.append(f"{options.words('init_path')} has no effect, because a resumed run loads its newest checkpoint")
        return [*lines, *self._latest[1]]

    def options(self, options: RunOptions) -> RunOptions:
        """Return the options with the recorded --init-path, because a resumed run loads its newest checkpoint."""
        return replace(options, training=replace(options.training, init_path=self.recorded.get("init_path")))

    def check_run(self, run: Run, cluster: Cluster) -> list[str]:
        """Load the checkpoint. Reject options with which the run cannot resume. Return log lines about changed options."""
        if not run.options.logging.logs:
            raise OptionError("--no-logs is not possible, because a resumed run logs to its run directory; leave it out")
        self._check_network(run)
        self._check_repeated(run)
        latest, _, read_error = self._latest
        trains = not self._is_complete(run)
        changes = self._change_notes(run, trains)
        if latest:
            from cnn_harness.harness.checkpoints import conversion

            values, converted = conversion.resumed_tensors(run, latest, read.tensors(latest, verify=False))
            if cluster.instance == 0:
                self._values, self._notes = values, [*changes, *converted]
        if trains:
            last_update(run, self.updates)
        if read_error and cluster.instance == 0:
            raise read_error
        return changes

    def _change_notes(self, run: Run, trains: bool) -> list[str]:
        """Return a log line about each difference between this call and the recorded options, data and arithmetic."""
        lines = [*override_notes(run, self.recorded), *self._raised_rate(run)]
        changed = changed_data(run.data_source, self.recorded)
        if changed:
            lines.append(
                f"warning: the data have changed since the run started ({', '.join(changed)}). The order of the images, the "
                "length of an epoch and the learning rates may change. To avoid this, restore the earlier data"
            )
        latest = self._latest[0] if trains else None
        before = run_record.state(latest).get(run_record.RECORDED, {}).get(ARITHMETIC) if latest else None
        if before not in (None, run.arithmetic):
            lines.append(
                f"{latest.name} was computed with {_parts_not_in(run.arithmetic, before)}, but this call computes with "
                f"{_parts_not_in(before, run.arithmetic)}. From now on, the last digits of results may differ from an "
                "uninterrupted run"
            )
        return lines

    def _raised_rate(self, run: Run) -> list[str]:
        """Return a warning if the run is extended and the learning rate rises as a result: the schedule is stretched to the
        new length."""
        done, before, options = self.updates, self.recorded.get("total_iterations") or 0, run.options
        decided = ("lr_schedule", "abs_learning_rate", "base_learning_rate_exponent", *vars(options.schedule))
        if not 0 < done <= before < run.length.iterations or any(map(options.given, decided)):
            return []
        length = replace(run.length, iterations=before, epochs=run.length.epoch(before))
        last, now = learning_rate(options, length, run.peak_rate)(done - 1), run.learning_rate(done)
        if now <= 2 * last:
            return []
        return [
            f"warning: the learning rate rises from {last:.3g} to {now:.3g}, because the {options.main.lr_schedule} "
            f"schedule now covers {run.length.iterations} updates. For a lower rate, give --abs-learning-rate X; for a "
            "constant rate, add --lr-schedule stepped --learning-rate-schedule 1 --warmup-epochs 0"
        ]

    def _check_network(self, run: Run) -> None:
        """Raise OptionError if the number of classes, the global batch or the network has changed since the run started."""
        instead = f"or start a new run with these weights: train.py --init-path {self.folder}"
        for name, now, what, remedy in (
            ("num_classes", run.data_source.spec.num_classes, "number of classes", f"Restore the earlier data, {instead}"),
            (
                "total_batch_size",
                run.plan.global_batch,
                "global batch",
                "Keep the global batch, because the position in the data is counted in batches",
            ),
            ("parameters", run.network.parameters, "number of parameters", f"Keep the model's options, {instead}"),
        ):
            before = self.recorded.get(name)
            if before not in (None, now):
                raise OptionError(f"the {what} of the run is {before:,}, but this call gives {now:,}. {remedy}")

    def _check_repeated(self, run: Run) -> None:
        """Raise OptionError if --autoresume finds a run with other data, and the data folder differs or the run is complete.

        An incomplete run may resume with changed data in the same folder, because damaged images may have been repaired.
        """
        changed = changed_data(run.data_source, self.recorded)
        elsewhere = self.recorded.get("data_dir") not in (None, run.data_dir)
        if self._repeated and changed and (elsewhere or self._is_complete(run)):
            raise OptionError(
                f"the run in {self.folder} used other data ({', '.join(changed)}). To train on the new data, give another "
                "--logs-path. To resume the run, restore the earlier data"
            )

    def _is_complete(self, run: Run) -> bool:
        """Return whether --autoresume finds a complete run."""
        if not self._repeated or self._latest[0] is None:
            return False
        from cnn_harness.harness.commands import autoresume

        return autoresume.is_complete(run, self.folder, self.updates, ends_untrained(run, self.recorded))

    def completion_report(self, prepared: Prepared) -> str | None:
        """Return the text to print if --autoresume finds a complete run; None otherwise."""
        run = prepared.run
        if not self._is_complete(run):
            return None
        lines = [line for line in prepared.notes if line.startswith("warning")] + override_notes(run, self.recorded)
        length = "epochs" if run.options.training.iterations is None else "iterations"
        stop_after = run.options.training.stop_after
        limit = "stop-after" if stop_after is not None and self.updates >= stop_after else "patience"
        larger = length if self.updates == run.length.iterations else limit
        extend = f"To extend it, give a larger --{larger}."
        if ends_untrained(run, self.recorded):
            extend = f"In its trial, training did not help. To train nevertheless, give --epochs {run.length.epochs:g}."
        return _completion(self.folder, f"{self.updates} updates", lines, extend)

    def join(self, prepared: Prepared, team: Team) -> tuple[Execution, LoadedCheckpoint]:
        """Meet the other instances. Return the execution, whose id is the same in all instances, and the checkpoint."""
        run, cluster, notes = prepared
        seed = team.rendezvous(run)
        run_id = team.broadcast_text(self.recorded.get(RUN_ID) or _new_id() if team.is_first else "")
        checkpoint = Checkpoint.at(self.folder, team.broadcast_json(self.updates if team.is_first else None))
        execution = _execution(seed, cluster, notes, run_id, folders.resume(run.options, team, self.folder, run_id))
        return execution, LoadedCheckpoint(checkpoint, self._values, self._notes)


def _execution(seed: int, cluster: Cluster, notes: tuple[str, ...], run_id: str, found: folders.Folders) -> Execution:
    return Execution(
        seed=seed, cluster=cluster, notes=notes, run_id=run_id, folder=found.own, folders=found.listed,
        all_log=found.all_log,
    )  # fmt: skip


def last_update(run: Run, done: int) -> int:
    """Return the number of finished updates at which this call ends; the run has finished `done` updates so far.

    Raise OptionError if the call would end before `done`.
    """
    total, stop_after = run.length.iterations, run.options.training.stop_after
    if done > total:
        raise OptionError(
            f"the run has finished {done} updates, but this call asks for {total}; give larger --epochs or --iterations"
        )
    # An earlier call may have been killed after its last update, before it validated. So allow a call without updates.
    completes = run.options.logging.autoresume and stop_after == done
    if stop_after is not None and stop_after <= done and done and not completes:
        raise OptionError(f"--stop-after {stop_after} is too small: the run has finished {done} updates already")
    if vintage(run.options.main.release).profiles_one_step and run.options.device.profile:
        total = run.length.host_step_end(done)
    return min(total, stop_after or total)


def override_notes(run: Run, recorded: Mapping[str, Any]) -> list[str]:
    """Return a log line about each given option that differs from the recorded value. Skip options that are not recorded."""
    values, excluded = run.options.values(), {*with_trait(ONE_CALL), *NEW_RUN_OPTIONS, "init_path"}
    if recorded.get("data_dir") == run.data_dir:  # The option may name the same folder by another path.
        excluded.add("data_dir")
    excluded |= {name for name, place in recorded_places(run.options.dataset).items() if recorded.get(name) == place}
    as_recorded = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return [
        f"overridden: {name} = {values[name]}"
        for name in run.options.sources
        if run.options.given(name) and name not in excluded and recorded.get(name) != as_recorded[name]
    ]


def _repeated_folder(run: Run) -> Path | None:
    """Return the run directory that --autoresume looks at, or None if --autoresume or --logs-path is not given."""
    logging = run.options.logging
    return Path(logging.logs_path) if logging.autoresume and logging.logs_path else None


def _completion(folder: Path, end: str, notes: Sequence[str], longer: str) -> str:
    unused = " The options above have no effect." if any(line.startswith("overridden") for line in notes) else ""
    return "\n".join([*notes, f"The run in {folder} is complete ({end}).{unused} {longer}\n"])


def _parts_not_in(other: str, arithmetic: str) -> str:
    return ", ".join(part for part in arithmetic.split(", ") if part not in other.split(", ")) or "the defaults"


def _unsaved_end(folder: Path) -> int | None:
    from cnn_harness.harness.commands import autoresume

    return autoresume.unsaved_end(folder)


def _new_id() -> str:
    return secrets.token_hex(8)
