"""The edges of a command: help and questions about options answered, errors turned into one line and an exit
code (2: wrong input, 1: failure at run time, 128 + the signal's number: stopped by one)."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from base import host_limits, plugins
from base.errors import DataError, OptionError
from base.process import command_line
from base.process.signals import StopRequest
from base.storage.files import NotRegular
from emulator.plan import schedules
from emulator.plan.plan import ExecutionPlan, PlanError
from harness.checkpoints import archives, checkpoints
from harness.checkpoints.checkpoints import CheckpointError
from harness.checkpoints.saving import SaveError
from harness.commands import cli
from harness.commands.cli import Parsed
from harness.evaluation import input_benchmark
from harness.options import sources
from harness.processes.heartbeat import WorkerError
from harness.reports import plot
from harness.run import host_memory
from harness.run.cluster import TF_CONFIG, follows, under_poprun
from harness.run.records import CLASSES
from harness.run.run import Run, names_digest, prepare
from harness.run.summary import layer_table
from log import LogError

WRONG_INPUT = (OptionError, DataError, CheckpointError, LogError, PlanError, NotRegular)
# recorded with a run, but a matter of one call only
NOT_RECORDED = (
    "config", "config_path", "release", "restore_path", "logs_path", "explain", "dry_run", "summary", "help", "stop_after",
    "repeat", "inference", "latency", "num_inference_thread", "force_recompile", "tmp_execs", "predict",
    "dataset_benchmark", "compile_only", "profile", "gc_profile", "profile_compilation", "distributed",
    "memory_check",
)  # fmt: skip


TELLING = ("config", "model", "dataset", "data_dir")  # options of which one at least is given by whoever gives them all
MOST_DRAWN = 1024  # passes that a timeline is laid out for


def run_command(script: str, main: Callable[[list[str]], int], argv: list[str] | None) -> int:
    """main(argv) with every foreseeable error as one line on standard error."""
    return command_line.run(f"{script}.py", main, argv, WRONG_INPUT, (FloatingPointError, SaveError, WorkerError))


def parse(
    argv: list[str], script: str, recorded: Mapping[str, Any] | None = None, folder: Path | None = None
) -> Parsed | None:
    """The options, or None when the call only asked for help or an explanation (which is printed). `folder`: that of the
    run, or the weights, with the `recorded` ones; CheckpointError if a run is to go on with those of an earlier call than
    its last one."""
    lost = checkpoints.lost_record(folder) if folder else None
    if lost and script in ("train", "restore"):
        file = shlex.quote(str(folder / "arguments"))
        raise CheckpointError(
            f"{lost}, whose options may be others: put that call's arguments_restore.json back, or, if those of the "
            f"beginning are to count, cp {file}.json {file}_restore.json"
        )
    parsed = cli.parse(argv, script, recorded, record=checkpoints.record(folder) if folder else None)
    if parsed.options.main.help:
        print(cli.help_text(parsed, f"{script}.py", INTRODUCTIONS[script]), end="")
        return None
    if parsed.options.main.explain:
        print(cli.explain(parsed.options))
        return None
    doubts = checkpoints.doubts_of_record(folder, lost) if folder else []
    return dataclasses.replace(parsed, notes=(*parsed.notes, *doubts))


def prepare_or_describe(
    parsed: Parsed, training: bool = True, *, total_replicas: int | None = None, done: int = 0,
    refuse: Callable[[Run], list[str] | None] | None = None, recorded: Mapping[str, Any] | None = None,
) -> Run | None:  # fmt: skip
    """The run, or None after --dry-run or --summary has printed it, or --dataset-benchmark measured its input.

    `total_replicas`: of a run that goes on, which its instances divide anew; `done`: the weight updates that it has;
    `refuse`: what else would stop it, which a description must not hide; it may give lines for the description alone.
    `recorded`: what the run, or that of the weights, has recorded.
    """
    run = prepare(parsed.options, os.environ, parsed.notes, training=training, total_replicas=total_replicas)
    run = dataclasses.replace(run, notes=(*run.notes, *_other_names(run, recorded or {})))
    warned = (refuse(run) if refuse else None) or []
    asked = parsed.options.main
    if run.options.dataset.dataset_benchmark:
        input_benchmark.report(run, training)
        return None
    describing = asked.dry_run or asked.summary
    run = _checked(run, training, refusing=not describing and not run.options.device.compile_only)
    if not describing:
        return run
    if asked.dry_run:
        for note in (*run.notes, *warned):
            print(note)
        print(describe(run, done) if training else run.summary())
    if asked.summary:
        print(layer_table(run.trace, run.plan))
    return None


def _other_names(run: Run, recorded: Mapping[str, Any]) -> list[str]:
    """A line where the classes are called otherwise, or come in another order, than those that the weights know."""
    before, now = recorded.get(CLASSES), names_digest(run.source.spec)
    if None in (before, now) or before == now or recorded.get("num_classes") != run.source.spec.num_classes:
        return []
    return [
        "warning: the classes have other names, or another order, than in the training: what was learnt is of the others"
    ]


def _checked(run: Run, training: bool, refusing: bool) -> Run:
    """The run, with a warning where it may need more memory than there is; refused where it certainly does and is to run."""
    try:
        warned = host_memory.check(run, host_limits.limits(), training)
    except OptionError as error:
        if refusing:
            raise
        warned = [f"warning: {error}"]
    return dataclasses.replace(run, notes=(*run.notes, *warned))


def describe(run: Run, done: int = 0) -> str:
    """The resolved run as text: summary, learning-rate curve, log and checkpoint points. `done`: updates that it has."""
    horizon = run.horizon
    points = [end for first, end in horizon.steps() if horizon.checkpoints(first, end)] if horizon.iterations < 10**6 else []
    shown = ", ".join(map(str, points[:8])) + (f", ... {points[-1]}" if len(points) > 8 else "")
    every = f"one every {horizon.iterations_per_ckpt} updates" if horizon.iterations_per_ckpt else "none"
    return "\n".join(
        [
            run.summary(),
            *[f"Done: {done} of {horizon.iterations} updates, {horizon.iterations - done} are left"] * (done > 0),
            f"Host steps of {horizon.iterations_per_step} updates; a log line "
            + (f"every {horizon.log_interval}" if horizon.log_interval else "at the first and the last"),
            f"Checkpoints after the initial one: {shown or every}",
            *_timeline(run.plan),
            "Learning rate:",
            plot.text_curve(run.rate, horizon.iterations, horizon.epochs),
        ]
    )


def _timeline(plan: ExecutionPlan) -> list[str]:
    """The schedule of one update as a drawing: stages as rows, clocks as columns."""
    if len(plan.stages) == 1:
        return []
    shown = min(plan.passes_per_update, MOST_DRAWN)
    cut = "" if shown == plan.passes_per_update else f" (its first {shown} of {plan.passes_per_update} passes)"
    idle = 100 * schedules.idle_share(plan.schedule, len(plan.stages), plan.passes_per_update)
    timeline = schedules.build(plan.schedule, len(plan.stages), shown)
    return [f"{plan.schedule} schedule of one update{cut}, {idle:.0f} % idle:", schedules.render(timeline, most=14)]


def recorded_options(folder: Path, argv: list[str], script: str) -> dict[str, Any]:
    """The recorded options of a run folder, less those that belong to one call. CheckpointError if they are lost, and this
    call says nothing of the network either, as nobody means all defaults."""
    recorded = checkpoints.recorded_options(folder)
    if not recorded and not archives.located(folder):
        _refuse_lost(checkpoints.record(folder), argv, script)
    return {k: v for k, v in recorded.items() if k not in NOT_RECORDED}


def _refuse_lost(file: Path, argv: list[str], script: str) -> None:
    lost = f"{file} is missing or empty, and nothing else tells the options of that training: put it back, or"
    if script in ("train", "restore"):
        raise CheckpointError(f"{lost} begin a new run with its weights: --init-path {file.parent}")
    if not any(value_of(argv, name, script) for name in TELLING):
        raise CheckpointError(f"{lost} give them again, as --model, --dataset and --config")


def value_of(argv: list[str], option: str, script: str) -> str | None:
    """The value of one option on the command line, before the others are known."""
    return sources.value_of(argv, option, script)


def restore_path(argv: list[str], script: str) -> str | None:
    """The value of --restore-path."""
    return value_of(argv, "restore_path", script)


def wants_help(argv: list[str]) -> bool:
    """Whether the call asks for help."""
    return any(word == "-h" or (len(word) > 2 and "--help".startswith(word)) for word in argv)


def restoring(folder: Path) -> list[str]:
    """The words that name a run to any command."""
    return ["--restore-path", command_line.as_value(folder)]


def resuming(run: Run, folder: Path) -> list[str]:
    """The words of restore.py that go on with a run."""
    return [*restoring(folder), *["--distributed"] * (run.cluster.source == TF_CONFIG)]


@contextmanager
def repeatable(script: str, argv: list[str], state: str, what: str, alone: bool = False) -> Iterator[None]:
    """Inside, a signal before anything is saved leads to the line `state`, and to the same call under the name `what`.
    `alone`: one process does the same as all that poprun started."""
    try:
        yield
    except StopRequest as asked:
        if not asked.told and not follows(os.environ):
            asked.told = True
            again = command(script, *argv) if alone or not under_poprun(os.environ) else "the same call of poprun"
            print(f"{state}\n{what + ':':<16} {again}")
        raise


def going_on(script: str, argv: list[str]) -> AbstractContextManager[None]:
    """The same for a run that goes on."""
    return repeatable(script, argv, "The run is as it was.", "Go on", alone=True)


def command(script: str, *words: str) -> str:
    """A command line that the user can paste."""
    python = _from_here(sys.executable)
    if python.startswith("..") or os.sep not in python:
        python = "python" if shutil.which("python") == sys.executable else sys.executable
    return shlex.join([python, _from_here(str(plugins.ROOT / f"{script}.py")), *words])


def _from_here(path: str) -> str:
    """Relative to the working directory, unless that has gone."""
    try:
        return os.path.relpath(path)
    except FileNotFoundError:
        return path


INTRODUCTIONS = {
    "train": "Trains a convolutional network on emulated IPUs.",
    "validation": "Validates checkpoints; takes the options or the configuration of the training as they are.",
    "inference_embedded": "Measures inference with one frozen program that is built once, and its latencies.",
    "restore": "Resumes the run in a folder; other options override what it recorded.",
}
