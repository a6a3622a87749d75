"""The state that a training loop begins with: that of a new run, or of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from platform import node
from typing import TYPE_CHECKING, Any

from base.storage.run_files import ARGUMENTS
from harness.checkpoints import find, read, run_record
from harness.checkpoints.checkpoint import Checkpoint
from harness.checkpoints.read import LoadedCheckpoint, Tensors
from harness.commands.run_log import command_line
from harness.options.sections import flag
from harness.processes import folders
from harness.run.recorded_arguments import ARITHMETIC, CLASSES, RUN_ID, arguments, other_class_names
from harness.run.run import Run
from harness.training.context import TrainingContext
from harness.training.meter import Meter
from harness.training.origins import changed_arithmetic_notes, changed_data_warnings, override_notes

if TYPE_CHECKING:
    from ipu_utils import TrainingProgram


@dataclass(frozen=True)
class InitialState:
    """The state that a training loop starts from, besides the program's variables.

    `recorded`: what checkpoints hold of this call. For a resumed run there are also the checkpoint, its tensors, and the
    rows of validation.csv by name."""

    meter: Meter
    recorded: Mapping[str, Any]
    checkpoint: Checkpoint | None = None
    values: Tensors = field(default_factory=dict)
    validated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        """The number of updates that are done."""
        return self.checkpoint.updates if self.checkpoint else 0


def initial_state(context: TrainingContext, program: TrainingProgram, saved: LoadedCheckpoint | None) -> InitialState:
    """Load the program's variables in every instance; return the rest of the state."""
    return _restored(context, program, saved) if saved else _new_state(context, program)


def recorded_values(run: Run, folder: Path, resumed: Checkpoint | None) -> dict[str, Any]:
    """Return the record of this call, for checkpoints and arguments.json: the options, and its circumstances."""
    circumstances = {
        "checkpoint_path": str(folder / "ckpt"),
        "datetime": datetime.now().astimezone().isoformat(timespec="seconds"),
        "hostname": node(),
        "logs_path": str(folder),
        "restoring": resumed is not None,
        "restored_from": resumed.name if resumed else None,
        RUN_ID: run.run_id,
        ARITHMETIC: run.arithmetic,
        **known_names(folder, resumed),
    }
    return arguments(run, command_line(), circumstances)


def known_names(folder: Path, resumed: Checkpoint | None) -> dict[str, Any]:
    """The digest of the classes' names that the weights of a resumed run know, if that has been recorded."""
    digest = run_record.arguments(folder).get(CLASSES) if resumed else None
    return {CLASSES: digest} if digest else {}


def _new_state(context: TrainingContext, program: TrainingProgram) -> InitialState:
    """The initial weights, or those of --init-path."""
    run, team = context.run, context.team
    if run.options.training.init_path and team.is_first:
        _load_init_path(context, program)
    if team.group:
        program.load(team.broadcast(program.values() if team.is_first else None))
    recorded = recorded_values(run, context.folder, None)
    return InitialState(Meter(run.length, run.step_increment, run.learning_rate, {}), recorded)


def _load_init_path(context: TrainingContext, program: TrainingProgram) -> None:
    """The weights of --init-path; a classifier of another number of classes begins anew."""
    run, log = context.run, context.log
    source, values, damaged = read.load_init_path(Path(run.options.training.init_path))
    for warning in damaged:
        log.note(warning)
    from harness.checkpoints import conversion

    tensors, lines = conversion.initial_tensors(run, source, values)
    program.load_initial(tensors)
    log.note(f"Begun with the weights of {source.prefix}")
    for line in lines:
        log.note(line)
    for warning in _preprocessing_mismatches(run, run_record.arguments(find.run_folder(Path(source.prefix)))):
        log.note(f"warning: {warning}")


def _preprocessing_mismatches(run: Run, recorded: Mapping[str, Any]) -> list[str]:
    """Return lines on the ways in which the weights were trained otherwise that cost accuracy."""
    lines = []
    used = vars(run.options.dataset)
    for name in ("symmetric_input", "normalise_input"):
        if recorded.get(name) not in (None, used[name]):
            word = flag(name if recorded[name] else f"no_{name}")
            lines.append(f"those weights were trained on pictures that were normalised with {word}")
    for name in ("image_mean", "image_std"):
        if recorded.get(name) and tuple(recorded[name]) != used[name]:
            lines.append(f"the weights were trained with {flag(name)} {' '.join(map(str, recorded[name]))}")
    if other_class_names(recorded, run.data_source.spec):
        lines.append("the classes have other names, or another order, than in the training of those weights")
    size, stride = recorded.get("image_size"), run.trace.stride
    if size and size % stride != run.image_size % stride:
        lines.append(
            f"those weights were trained at {size} px and go on at {run.image_size} px, which differ modulo {stride}, the "
            "network's stride; SAME padding falls on other sides then, and accuracy suffers"
        )
    return lines


def _restored(context: TrainingContext, program: TrainingProgram, saved: LoadedCheckpoint) -> InitialState:
    """The weights, rows and averages of a checkpoint."""
    run, team, log, checkpoint = context.run, context.team, context.log, saved.checkpoint
    log.note(f"Restoring training from latest checkpoint: {checkpoint.prefix}")
    goes_on = checkpoint.updates < run.length.iterations
    for line in (
        *override_notes(run, run_record.options(context.folder)),
        *changed_data_warnings(run, run_record.arguments(context.folder)),
        *(changed_arithmetic_notes(run, checkpoint) if goes_on and team.is_first else ()),
    ):
        log.note(line)
    if not goes_on:
        log.note(f"All {checkpoint.updates} updates are done; a larger --epochs or --iterations extends the run")
    values = _load(context, program, saved)
    state = team.broadcast_json(run_record.state(checkpoint) if team.is_first else None)
    from harness.checkpoints import averages

    pending = averages.requested_averages(run.options.training) if run.options.checkpoint.validation else []
    log.tell_of_averages([name for name, _ in pending])
    log.resume_after(checkpoint.updates)
    meter = Meter(run.length, run.step_increment, run.learning_rate, state)
    # recorded after everything that may stop a resume
    later = any((context.folder / name).exists() for name in ARGUMENTS)  # not where an instance begins to write now
    recorded = recorded_values(run, context.folder, checkpoint)
    log.arguments(recorded, restored=later)
    if not log.recorded:
        folders.keep_options(run, context.folder, recorded, restored=later)
    rows = team.broadcast_json({row["name"]: row for row in log.rows("validation.csv")})
    return InitialState(meter, recorded, checkpoint, values, rows)


def _load(context: TrainingContext, program: TrainingProgram, saved: LoadedCheckpoint) -> Tensors:
    """A checkpoint's tensors, which instance 0 has read, in every instance."""
    tensors: Tensors = {}
    if context.team.is_first:
        from harness.checkpoints import conversion

        tensors, lines = conversion.resumed_tensors(context.run, saved.checkpoint, saved.values)
        for line in lines:
            context.log.note(line)
    saved.values.clear()
    values = context.team.broadcast(tensors if context.team.is_first else None)
    program.load(values)
    return values
