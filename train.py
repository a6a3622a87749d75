"""Trains a network: parse, plan, report, build, restore, loop, validate.

python train.py --config quickstart
python train.py --dataset imagenet --data-dir DIR --model-size 50
python train.py --help
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import early

    early.begin("train.py")

import functools
import itertools
import json
import os
import secrets
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from platform import node
from typing import TYPE_CHECKING, Any

import validation
from base.errors import OptionError
from base.process.signals import Signals, StopRequest
from base.storage import locks
from base.storage.tables import Due
from emulator.plan.record import PhaseEnd
from harness.checkpoints import find, fit, read, run_record, saved_state, write
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.checkpoints.write import SaveError, Writer
from harness.commands import cli, entry
from harness.options.sections import RECORDED
from harness.processes import folders
from harness.processes.team import Team, introduction
from harness.programs import executables
from harness.reports import compilation, mlperf, profile
from harness.reports.compilation import Compilation, FirstUpdates
from harness.run import cluster as clusters
from harness.run.arguments import CALLS, CLASSES, RUN_ID, arguments
from harness.run.length import LENGTH_OPTIONS, TrainingLength
from harness.run.run import Run
from harness.training.loop import Start, TrainingLoop, Values
from harness.training.meter import Meter, state_of_rows
from log import RunLog, wandb_run

if TYPE_CHECKING:
    from ipu_utils import TrainingProgram, WorkerGroup


def main(argv: list[str]) -> int:
    """A new run; with --restore-path, the same as restore.py. A signal says how to make the call again."""
    with entry.repeatable("train", argv, "Nothing was saved.", "Begin again"):
        path = entry.restore_path(argv, "train")
        if path is None:
            return _begin(argv)
    with entry.going_on("train", argv):
        return resume(argv, path, "train")


def _begin(argv: list[str]) -> int:
    """A new run."""
    parsed = entry.parse(argv, "train")
    run = entry.prepare_or_describe(parsed, refuse=_refuse_beginning) if parsed else None
    if run is None:
        return 0
    if run.options.device.compile_only:
        return compile_only(run)
    profile.refuse_bad_target(run.options.device, os.environ)
    with Team(run.cluster, run.options.training.worker_timeout) as team:
        run = replace(run, seed=team.meet(run))
        run = replace(run, run_id=team.broadcast_text(_new_id()))
        run, folder = folders.begin(run, team)
        return train(run, team, folder, None, {})


def _refuse_beginning(run: Run) -> None:
    """Weights to begin with that are not there or do not fit, and a folder that cannot be this run's; before one is made."""
    given = run.options.training.init_path
    if run.cluster.instance:
        return
    if given:
        fit.require_beginning(run, Path(given))
        run_record.arguments(find.run_folder(Path(given)))  # which is asked how they were trained
    folders.refuse(run)


def resume(argv: list[str], path: str, script: str) -> int:
    """Goes on with the run in the folder `path`."""
    if not clusters.follows(os.environ):
        find.of_run(Path(path))  # without them there is no run, whatever else is there
    recorded = entry.recorded_options(Path(path), argv, script)
    parsed = entry.parse(argv, script, recorded, Path(path))
    if parsed is None:
        return 0
    if parsed.options.device.seed is None:
        raise OptionError(
            f"{run_record.file(Path(path))} does not tell the run's seed, which everything random follows from: put it "
            "back as the run wrote it, or give --seed"
        )
    newest, damaged, missing = _latest(Path(path))
    parsed = replace(parsed, notes=(*parsed.notes, *_unnamed(Path(path)), *damaged))
    done = newest.iteration if newest else 0
    refuse = partial(_refuse_going_on, recorded=recorded, newest=newest)
    replicas = recorded.get("total_replicas")
    run = entry.prepare_or_describe(parsed, total_replicas=replicas, done=done, refuse=refuse, recorded=recorded)
    if run is None:
        return 0
    if missing and run.cluster.instance == 0:
        raise missing
    if run.options.device.compile_only:
        return compile_only(run)
    profile.refuse_bad_target(run.options.device, os.environ)
    values: Values = {}
    if run.cluster.instance == 0:
        executables.import_tensorflow(run)
        newest, values, damaged = read.newest(Path(path), verified=newest)
        run = replace(run, notes=(*run.notes, *(line for line in damaged if line not in run.notes)))
    with Team(run.cluster, run.options.training.worker_timeout, f"{script}.py") as team:
        run = replace(run, seed=team.meet(run))
        run = replace(run, run_id=team.broadcast_text((run_record.run_id(Path(path)) if team.first else "") or _new_id()))
        iteration = int(team.broadcast_text(str(newest.iteration) if team.first else ""))
        newest = newest if team.first else Checkpoint.at(Path(path), iteration)
        run, folder = folders.resume(run, team, Path(path))
        return train(run, team, folder, newest, values, entry.command(script, *argv))


def _latest(folder: Path) -> tuple[Checkpoint | None, list[str], CheckpointError | None]:
    """The newest whole checkpoint of a run and a line on each newer one; or, where another instance may have them, why there
    is none here."""
    try:
        return *read.latest(folder), None
    except CheckpointError as error:
        if not clusters.follows(os.environ):
            raise
        return None, [], error


def _unnamed(folder: Path) -> list[str]:
    """A line where the options do not tell which run they are of, and its states do."""
    told = run_record.run_id(folder)
    if not told or run_record.arguments(folder).get(RUN_ID):
        return []
    return [f"warning: {run_record.file(folder)} does not tell the run's {RUN_ID}: {told}, as in its states"]


def _new_id() -> str:
    """For a run that has none yet: a new one, or one that an older version began."""
    return secrets.token_hex(8)


def _refuse_going_on(run: Run, recorded: Mapping[str, Any], newest: Checkpoint | None) -> None:
    """What a run cannot go on with from its newest checkpoint, which another instance may have."""
    if not run.options.logging.logs:
        raise OptionError("--no-logs: a resumed run goes on in its own folder; leave the option out")
    trained_with = recorded.get("total_batch_size")
    if trained_with not in (None, run.plan.global_batch):
        raise OptionError(
            f"the run's global batch is {trained_with}, that of this call {run.plan.global_batch}: its place in the data is "
            "counted in global batches; keep the batch, or begin a new run"
        )
    before, now = recorded.get("parameters"), run.trace.parameters
    if before is not None and before != now:
        raise OptionError(
            f"the run's network has {before:,} parameters, that of this call {now:,}: leave the options of the model as "
            "they were, or begin a new run, which --init-path can give weights to"
        )
    if newest:
        _refuse_another_seed(run, newest)
        fit.require_saved(run, newest)
    _stop(run, newest.iteration if newest else 0)


def _refuse_another_seed(run: Run, newest: Checkpoint) -> None:
    """One that the record tells, and the states do not: nobody asked for it."""
    saved = run_record.seeds(Path(newest.prefix).parent, newest)
    source = run.options.sources.get("seed", "")
    if saved and run.seed not in saved and source.startswith(RECORDED):
        raise OptionError(
            f"{source}: the seed is {run.seed}, but {saved[0]} in the run's states: put the record back as the run wrote "
            f"it, or give --seed {saved[0]}"
        )


def compile_only(run: Run) -> int:
    """Builds the programs, says what they are, and stops; writes nothing."""
    log = RunLog(None)
    _head(run, log)
    program = _compiled(run, log, 0)
    if run.options.device.profile_compilation:
        for line in Compilation(program.phase_ends, compilation.target(None, os.environ)).report():
            log.note(line)
    megabytes = sum(value.nbytes for value in program.values().values()) / 1e6
    log.note(
        f"The training graph was successfully compiled: {len(program.graph.get_operations()):,} operations, "
        f"{megabytes:,.1f} MB of weights and optimiser state."
    )
    program.close()
    if run.options.checkpoint.validation and run.source.spec.validation_images:
        validation.report_compiled(validation.build(run, log), log)
    log.close()
    return 0


def train(run: Run, team: Team, folder: Path, newest: Checkpoint | None, values: Values, call: str = "") -> int:
    """One run in its folder, from the beginning or from its newest checkpoint, whose tensors instance 0 has read. `call`:
    the command line that goes on with it, as long as its options are not recorded."""
    start = newest.iteration if newest else 0
    stop = _stop(run, start)
    wanted = profile.requested(run.options.device, folder, os.environ) if team.first else None
    printed = profile.copied_output(wanted)
    held = locks.held(folder) if folders.writes(run) else nullcontext()
    with held, Signals() as signals, Writer(newest.name if newest else None) as writer, printed:
        write.sweep(folder)
        log = _open_log(run, team, folder, newest)
        leave = partial(_leave, run, folder, log, writer, call)
        team.before_exit = leave
        events = mlperf.Events(run, log)
        try:
            events.begun()
            loop = _start(run, team, folder, log, newest, values, signals, writer, events)
            events.built(start)
            for first, end in _isolate(run.length.steps(start, stop), loop.isolated_updates):
                loop.advance(first, end)
            loop.finish(stop)
            team.part()
        except (StopRequest, FloatingPointError, SaveError, OSError) as error:
            log.ending()
            events.ended("aborted")
            # the same call would end at the same update again
            gentler = ["--abs-learning-rate", f"{run.peak_rate / 2:.3g}"] * isinstance(error, FloatingPointError)
            leave(str(error), *getattr(error, "gentler", gentler))
            if isinstance(error, StopRequest):
                error.told = bool(writer.newest)
            raise
        finally:
            log.close()
            if team.first and not run.options.logging.logs:
                locks.remove_if_empty(folder)
    return 0


def _leave(run: Run, folder: Path, log: RunLog, writer: Writer, call: str, reason: str, *changed: str) -> None:
    """What is left to do and to say when a run ends early. `call`: as for `train`; `changed`: options with which going on
    is no repetition."""
    log.note(f"Stopped: {reason}")
    try:
        writer.settle()
    except SaveError as error:
        log.note(f"warning: {error}")
    if not run.options.logging.logs or run.cluster.instance:
        return
    if writer.newest:
        log.note(f"The newest checkpoint is {writer.newest}.")
        recorded = entry.command("restore", *entry.resuming(run, folder), *changed)
        log.note(f"Go on:           {recorded if log.recorded else call}")
    else:
        delete = "; delete it before the same call" if run.options.logging.logs_path else ""
        log.note(f"There is no checkpoint in {folder}{delete}")


def _isolate(pieces: Iterable[tuple[int, int]], updates: Collection[int]) -> Iterator[tuple[int, int]]:
    """The pieces, with some updates in pieces of their own."""
    cuts = sorted({cut for update in updates for cut in (update, update + 1)})
    for first, end in pieces:
        inside = [cut for cut in cuts if first < cut < end]
        yield from itertools.pairwise([first, *inside, end])


def _stop(run: Run, start: int) -> int:
    """The update to end after."""
    total = run.length.iterations
    if start > total:
        raise OptionError(f"the run has done {start} updates, and the length asked for is only {total}; give a larger one")
    stop_after = run.options.training.stop_after
    if stop_after is not None and stop_after <= start and start:
        raise OptionError(f"--stop-after {stop_after}: the run has done {start} updates already; give a larger number")
    return min(total, stop_after or total)


def _open_log(run: Run, team: Team, folder: Path, newest: Checkpoint | None) -> RunLog:
    """The log with its head: command, notes, summary, variables."""
    options = run.options
    command = " ".join(sys.argv)
    values = _values(run, folder, newest)
    tells = team.first or options.logging.log_all_instances
    wandb = (
        wandb_run(options.logging.wandb_project, folder.name, values, options.logging.wandb_id)
        if options.logging.wandb and team.first
        else None
    )
    log = RunLog(folder if options.logging.logs and tells else None, wandb, console=tells)
    log.file_only(f"Command line: {command}")
    if options.logging.logs:
        log.note(f" Saving to {folder}")
    for line in introduction(run.cluster):
        log.note(line)
    if newest is None:
        log.arguments(values, restored=False)
        folders.keep_options(run, folder, values)
    log.file_only(f"Options:\n{cli.explain(options)}")
    _head(run, log)
    return log


def _head(run: Run, log: RunLog) -> None:
    """What is about to run: notes, summary, variables."""
    for note in run.notes:
        log.note(note)
    log.note(run.summary())
    names = " ".join(v.name for v in run.trace.variables if v.trainable and run.trained(v.name))
    log.note("Trainable Variables:\n" + textwrap.fill(names, 118, initial_indent="  ", subsequent_indent="  "))
    log.note(f"Total Parameters:{run.trace.parameters}")


def _values(run: Run, folder: Path, newest: Checkpoint | None) -> dict[str, Any]:
    """What arguments.json records of this call."""
    return arguments(run, " ".join(sys.argv), _circumstances(run, folder, newest))


def _circumstances(run: Run, folder: Path, newest: Checkpoint | None) -> dict[str, Any]:
    """What arguments.json says of this call beyond the options."""
    return {
        "checkpoint_path": str(folder / "ckpt"),
        "datetime": datetime.now().astimezone().isoformat(timespec="seconds"),
        "hostname": node(),
        "logs_path": str(folder),
        "restoring": newest is not None,
        "restored_from": newest.name if newest else None,
        RUN_ID: run.run_id,
        **_known_names(folder, newest),
    }


def _known_names(folder: Path, newest: Checkpoint | None) -> dict[str, Any]:
    """The digest of the classes' names that the weights of a run which goes on know, if that has been recorded."""
    known = run_record.arguments(folder).get(CLASSES) if newest else None
    return {CLASSES: known} if known else {}


def _start(
    run: Run,
    team: Team,
    folder: Path,
    log: RunLog,
    newest: Checkpoint | None,
    values: Values,
    signals: Signals,
    writer: Writer,
    events: mlperf.Events,
) -> TrainingLoop:
    """Builds the program and begins the loop over the updates that are left."""
    begin = newest.iteration if newest else 0
    wanted = profile.requested(run.options.device, folder, os.environ) if team.first else None
    recorded = bool(team.broadcast_text("yes" if wanted else ""))  # the instances cut their host steps alike
    program = _compiled(run, log, begin, wanted is not None, team.group)
    score = _scorer(run, team, log)
    start = _restored(run, team, folder, log, program, newest, values) if newest else _fresh(run, team, log, program)
    timed = None
    if run.options.device.profile_compilation:
        trace = compilation.target(folder, os.environ) if team.first else None
        timed = FirstUpdates(Compilation(program.phase_ends, trace), begin)
    profiled = -1
    if recorded:
        # the first update of a call warms caches up
        profiled = begin + 1 if begin + 1 < _stop(run, begin) else begin
    loop = TrainingLoop(run, team, folder, log, program, signals, writer, score, events, start, wanted, profiled, timed)
    loop.begin(start)
    return loop


def _fresh(run: Run, team: Team, log: RunLog, program: TrainingProgram) -> Start:
    """The initial weights, or those of --init-path, in every instance."""
    calls = _calls(team, {}, 0)
    if run.options.training.init_path and team.first:
        _begin_with(run, program, log)
    if team.group:
        program.load(team.broadcast(program.values() if team.first else None))
    return Start(Meter(run.length, run.step_increment, run.rate, {}), calls)


def _restored(
    run: Run, team: Team, folder: Path, log: RunLog, program: TrainingProgram, newest: Checkpoint, values: Values
) -> Start:
    """The weights, rows and averages of a checkpoint."""
    restored = _restore(run, team, log, program, newest, values)
    meter, calls = _meter(run, team, folder, log, newest)
    # not before it is known that the run can go on
    log.arguments({**_values(run, folder, newest), CALLS: calls}, restored=True)
    rows = json.loads(team.broadcast_text(json.dumps({row["name"]: row for row in log.rows("validation.csv")})))
    return Start(meter, calls, newest, restored, rows)


def _restore(run: Run, team: Team, log: RunLog, program: TrainingProgram, newest: Checkpoint, values: Values) -> Values:
    """Loads a checkpoint's tensors, which instance 0 has read and which leave `values`; they, in every instance."""
    log.note(f"Restoring training from latest checkpoint: {newest.prefix}")
    _report_overrides(run, log)
    if newest.iteration == run.length.iterations:
        log.note(f"All {newest.iteration} updates are done; a larger --epochs or --iterations extends the run")
    if team.first:
        fit.require(fit.of_values(values), fit.saved(run), newest)
        fit.refuse_faulty(run, values, newest, going_on=True)
    restored = team.broadcast(values if team.first else None)
    values.clear()
    program.load(restored)
    return restored


def _meter(run: Run, team: Team, folder: Path, log: RunLog, newest: Checkpoint) -> tuple[Meter, list[saved_state.Call]]:
    """Rows and averages as they were at the checkpoint, and the calls up to this one."""
    state = json.loads(team.broadcast_text(json.dumps(saved_state.read(newest)) if team.first else ""))
    calls = _calls(team, state, newest.iteration)
    if not run.options.checkpoint.validation:
        log.tell_of_averages()
    states, stays = saved_state.way_to(folder, newest), not state.get(saved_state.ROLLING)
    log.go_on_after(newest.iteration, states, stays, _rows_before(run, folder))
    if team.first:
        state = _averages(run, newest, state, log)
    return Meter(run.length, run.step_increment, run.rate, json.loads(team.broadcast_text(json.dumps(state)))), calls


def _rows_before(run: Run, folder: Path) -> dict[str, Callable[[], Due]]:
    """The updates after which the run has rows by table, as the options of its first and of its last call tell."""
    recorded = run_record.arguments(folder)
    begun = [since for _, since in saved_state.calls(recorded)] or [0]
    first = run_record.first(folder) if begun[0] == 0 and len(begun) > 1 else {}
    unknown = (begun[1] if first else 0, begun[-1])
    earlier, last = _points(run, first), _points(run, recorded)
    return {name: partial(_due, earlier[name], last[name], unknown) for name in last}


def _due(earlier: Callable[[], list[int]], last: Callable[[], list[int]], unknown: tuple[int, int]) -> Due:
    """The rows of a run's first call, and of its last one: those of the calls between them are `unknown`."""
    before, begun = unknown
    points = [point for point in earlier() if point <= before] if before else []
    return Due(points + [point for point in last() if point > begun], unknown)


def _points(run: Run, recorded: Mapping[str, Any]) -> dict[str, Callable[[], list[int]]]:
    """The updates after which a call has rows by table, as its options tell."""
    given = {name: recorded[name] for name in LENGTH_OPTIONS if recorded.get(name) is not None}
    try:
        length = TrainingLength.of(images=run.source.spec.train_images, global_batch=run.plan.global_batch, **given)
    except ValueError:  # an instance that has recorded none
        length = run.length
    validated = recorded.get("validation", run.options.checkpoint.validation) and run.source.spec.validation_images
    return {"training.csv": length.log_points, "validation.csv": length.checkpoint_points if validated else list}


def _calls(team: Team, state: Mapping[str, Any], begun: int) -> list[saved_state.Call]:
    """The calls of the run up to this one, which all instances name alike."""
    return saved_state.calls({CALLS: json.loads(team.broadcast_text(json.dumps(saved_state.calls(state, begun))))})


def _begin_with(run: Run, program: TrainingProgram, log: RunLog) -> None:
    """Takes over the weights of --init-path; a classifier of another number of classes begins anew."""
    chosen, values, damaged = read.initial(Path(run.options.training.init_path))
    for warning in damaged:
        log.note(warning)
    left = fit.left_out(fit.of_values(values), run, chosen)
    taken = fit.without(values, left)
    fit.refuse_faulty(run, taken, chosen)
    program.begin_with(taken)
    log.note(f"Begun with the weights of {chosen.prefix}")
    if left:
        log.note(f"{fit.classifier(run)} begins anew: it has another number of classes there")
    recorded = run_record.arguments(find.run_folder(Path(chosen.prefix)))
    for name in ("symmetric_input", "normalise_input"):
        if recorded.get(name) not in (None, getattr(run.options.dataset, name)):
            flag = ("--" if recorded[name] else "--no-") + name.replace("_", "-")
            log.note(f"warning: those weights were trained on pictures that were normalised with {flag}")
    trained_at = recorded.get("image_size")
    stride = run.trace.stride
    if trained_at and trained_at % stride != run.image_size % stride:
        log.note(
            f"warning: those weights were trained at {trained_at} px and go on at {run.image_size} px, which differ modulo "
            f"{stride}, the network's stride; SAME padding falls on other sides then, and accuracy suffers"
        )


def _compiled(
    run: Run, log: RunLog, begin: int, recording: bool = False, group: WorkerGroup | None = None
) -> TrainingProgram:
    """The training program, its data beginning at update `begin`."""
    prepared = PhaseEnd(compilation.PREPARED, time.perf_counter())
    executables.import_tensorflow(run)
    from harness.programs.build import training_program

    started = time.perf_counter()
    store = executables.store(run, "training", recording=recording)
    program = training_program(run, begin, recording, group, store)
    program.compile()
    program.phase_ends[:0] = [prepared, PhaseEnd(compilation.IMPORTED, started)]
    log.note(f"Compilation time: {time.perf_counter() - started:.1f}s.")
    for line in store.told() if store else ():
        log.note(line)
    return program


def _averages(run: Run, newest: Checkpoint, state: dict[str, Any], log: RunLog) -> dict[str, Any]:
    """The state of the averages at the checkpoint; if it is lost, or may be anything, what the rows tell of it."""
    if state and not saved_state.unproved(newest):
        return state
    sound = f"anything that vouches for its {newest.state_path.name}" if state else f"a sound {newest.state_path.name}"
    log.note(f"warning: {newest.name} comes without {sound}: steps and averages go on from the rows of training.csv")
    return state_of_rows(log.rows("training.csv"), run.length, run.step_increment, newest.iteration)


def _scorer(run: Run, team: Team, log: RunLog) -> Callable[[Checkpoint, Values], Mapping[str, Any]]:
    """Validates checkpoints; the program for it is built when the first one comes."""
    program = functools.cache(lambda: validation.build(run, log))

    def score(saved: Checkpoint, values: Values) -> Mapping[str, Any]:
        return validation.validate(run, program(), saved, values, run.plan.global_batch, log, team)

    return score


def _report_overrides(run: Run, log: RunLog) -> None:
    """Which options differ from what the run recorded."""
    values = run.options.values()
    for name, source in run.options.sources.items():
        if source.startswith("command line") and name != "restore_path":
            log.note(f"overridden: {name} = {values[name]}")


if __name__ == "__main__":
    sys.exit(entry.run_command("train", main, None))
