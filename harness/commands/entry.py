"""The start of every run: options parsed, the run prepared and checked, questions about it answered."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from base import host_limits
from base.errors import Answered, OptionError
from base.fields import ONE_CALL
from harness.checkpoints import find, run_record, weights_file
from harness.checkpoints.checkpoint import CheckpointError
from harness.cluster import membership
from harness.commands import answers
from harness.commands.cli import Parsed
from harness.evaluation import inference_record
from harness.options import sources
from harness.options.sections import with_trait
from harness.reports import profile
from harness.run import rules
from harness.run.origin import Origin
from harness.run.recorded_arguments import changed_data, other_class_names
from harness.run.resolve import prepare
from harness.run.run import Run

# options of which one at least is given by whoever gives them all
NETWORK_OPTIONS = ("config", "model", "dataset", "data_dir", "train_dir")


def checked_run(
    argv: list[str], script: str, origin: Origin | None = None, training: bool = True,
    compiled: Callable[[Run], None] | None = None,
) -> Run:  # fmt: skip
    """The run that a call asks for, checked as far as it can be before anything is built; Answered if the call asked for
    something else, which has been done: help, --explain, --dry-run, --summary, --dataset-benchmark, --compile-only.

    `origin`: the run or the weights that the call starts from. `compiled`: the work of --compile-only, if not the usual.
    """
    origin = origin or Origin()
    parsed = answers.parse(argv, script, origin.recorded, origin.folder)
    run, warnings = _prepared(parsed, origin, training)
    _answer(run, warnings, origin, training, compiled)
    if not run.options.checkpoint.predict:
        profile.check_target(run.options.device, os.environ)
    logging = run.options.logging
    if training and (logging.wandb or logging.mlflow):
        from harness.reports import trackers

        if not membership.is_later_instance(os.environ, run.options.training.distributed):
            trackers.check_installed(logging)
    return run


def _prepared(parsed: Parsed, origin: Origin, training: bool) -> tuple[Run, list[str]]:
    """The run, and warnings of where it starts from."""
    notes = (*parsed.notes, *origin.check_source(parsed.options))
    run = prepare(parsed.options, os.environ, notes, training=training, total_replicas=origin.total_replicas)
    other_data = (*_other_names(run, origin), *(() if training else other_pictures(run, origin.recorded)))
    run = replace(run, notes=(*run.notes, *other_data))
    warnings = origin.check_run(run)
    if not run.options.dataset.dataset_benchmark:
        run = _checked(run)
    return run, warnings


def _answer(run: Run, warnings: list[str], origin: Origin, training: bool, compiled: Callable[[Run], None] | None) -> None:
    """Answered, if the call asks for something else than a run."""
    main = run.options.main
    if run.options.dataset.dataset_benchmark:
        from harness.evaluation import input_benchmark

        input_benchmark.report(run, training)
        raise Answered
    if main.dry_run:
        from harness.commands import describe

        answers.print_answer(*run.notes, *warnings, describe.run(run, origin.updates) if training else run.summary())
    if main.summary:
        from harness.reports.layer_table import layer_table

        answers.print_answer(layer_table(run.trace, run.plan))
    if main.dry_run or main.summary:
        raise Answered
    if run.options.device.compile_only:
        from harness.commands import compile_only

        compiled(run) if compiled else compile_only.report(run, training)
        raise Answered


def recorded_options(folder: Path, argv: list[str], script: str) -> dict[str, Any]:
    """The recorded options of a run folder, less those that belong to one call. CheckpointError if they are lost, and this
    call says nothing of the network either, as nobody means all defaults."""
    recorded = run_record.options(folder)
    if "model" not in recorded:
        _check_recorded(run_record.arguments_file(folder), argv, script)
    one_call = with_trait(ONE_CALL)
    return {name: value for name, value in recorded.items() if name not in one_call}


def other_pictures(run: Run, recorded: Mapping[str, Any]) -> list[str]:
    """A line where the pictures to validate are not those that the training recorded."""
    changed = changed_data(run.data_source, recorded, ("validation_images",))
    asked = changed and not run.options.checkpoint.predict
    return [f"the data are not those that the run recorded ({', '.join(changed)})"] * bool(asked)


def _check_recorded(file: Path, argv: list[str], script: str) -> None:
    names_network = any(sources.argument(argv, name, script) for name in NETWORK_OPTIONS)
    if weights_file.located(file):
        if names_network:
            return
        raise CheckpointError(
            f"weights {file} tell no options of their network: give them, as --model, --model-size and --dataset, or have "
            "tools/import_weights.py make the file, which records them"
        )
    if script in ("train", "restore"):  # a later instance looks for no checkpoint before
        find.check_run_folder(file.parent)
    lost = f"no state of a checkpoint and no {file} tells the options of that training:"
    if script in ("train", "restore"):
        raise CheckpointError(f"{lost} begin a new run with the weights: --init-path {file.parent}")
    if not names_network:
        raise CheckpointError(f"{lost} give them, as --model, --dataset and --config")


def _other_names(run: Run, origin: Origin) -> list[str]:
    """A line where the classes of data that only name predictions are not those that the weights know; OptionError where
    they are to be validated."""
    if not run.options.checkpoint.predict:
        inference_record.check_class_names(run, origin.folder, origin.recorded)
        return []
    if not other_class_names(origin.recorded, run.data_source.spec):
        return []
    if inference_record.recorded_names(origin.folder, origin.recorded):
        return ["the classes are named as in the training; in the data they have other names, or another order"]
    return [
        "warning: the classes have other names, or another order, than in the training, whose classes the network has learnt"
    ]


def _checked(run: Run) -> Run:
    """The run, with a warning where it may need more memory than there is; refused where it certainly does and is to run."""
    try:
        warnings = rules.check_host_memory(run, host_limits.limits())
    except OptionError as error:
        main = run.options.main
        if not (main.dry_run or main.summary or run.options.device.compile_only):
            raise
        warnings = [f"warning: {error}"]
    return replace(run, notes=(*run.notes, *warnings))
