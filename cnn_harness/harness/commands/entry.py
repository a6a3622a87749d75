"""Start a run: parse the options, prepare and check the run, or answer --dry-run and similar questions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.base import host_limits
from cnn_harness.base.errors import Answered, OptionError
from cnn_harness.base.fields import ONE_CALL
from cnn_harness.harness.checkpoints import find, run_record, weights_file
from cnn_harness.harness.checkpoints.checkpoint import CheckpointError
from cnn_harness.harness.commands import answers
from cnn_harness.harness.evaluation import inference_record
from cnn_harness.harness.options.call import Call, Parsed
from cnn_harness.harness.options.sections import RunOptions, with_trait
from cnn_harness.harness.run import membership, rules
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.recorded_arguments import changed_data, other_class_names
from cnn_harness.harness.run.resolve import Origin, Prepared, prepare
from cnn_harness.harness.run.run import Run

if TYPE_CHECKING:
    from cnn_harness.harness.commands.preview import Preview

# a call must have at least one of these options to describe a network
NETWORK_OPTIONS = ("config", "model", "dataset", "data_dir", "train_dir")
PREVIEWS = (("dataset_benchmark",), ("dry_run", "summary"), ("compile_only",))


def checked_run(
    call: Call, origin: Origin | None = None, training: bool = True,
    compiled: Callable[[Preview], None] | None = None,
) -> Prepared:  # fmt: skip
    """Return the run of a call, after all checks that are possible before a graph is built.

    Raise Answered after --help, --explain, --dry-run, --summary, --dataset-benchmark or --compile-only. `origin` is the run
    or the weights that the call starts from. If `compiled` is given, it does the work of --compile-only.
    """
    origin = origin or Origin()
    parsed = answers.parse(call, origin.recorded, origin.folder)
    prepared, warnings = _prepared(parsed, origin, training)
    run = prepared.run
    asked = _previews(run.options)
    if asked:
        from cnn_harness.harness.commands.preview import SHOW, Preview

        show = {**SHOW, "compile_only": compiled or SHOW["compile_only"]}
        execution = Execution.of(run.options, prepared.cluster, prepared.notes)
        for name in asked:
            show[name](Preview(run, execution, warnings, origin.updates, training))
        raise Answered
    if not run.options.checkpoint.predict:
        from cnn_harness.harness.reports import profile

        profile.check_target(run.options.device, os.environ)
    logging = run.options.logging
    if training and (logging.wandb or logging.mlflow):
        from cnn_harness.harness.reports import trackers

        if not membership.is_later_instance(os.environ, run.options.training.distributed):
            trackers.check_installed(logging)
    return prepared


def _prepared(parsed: Parsed, origin: Origin, training: bool) -> tuple[Prepared, list[str]]:
    """Return the run, and warnings about its origin."""
    notes, options = (*parsed.notes, *origin.check_source(parsed.options)), origin.options(parsed.options)
    run, cluster, notes = prepare(
        options, os.environ, notes, training=training, total_replicas=origin.total_replicas, here=True
    )
    other_data = (*_other_names(run, origin), *(() if training else other_images(run, origin.recorded)))
    warnings = origin.check_run(run, cluster)
    memory = () if run.options.dataset.dataset_benchmark else _memory_warnings(run, cluster.neighbours)
    return Prepared(run, cluster, (*notes, *other_data, *memory)), warnings


def _previews(options: RunOptions) -> list[str]:
    """Return the options that only show what a run would do. The first group of PREVIEWS wins."""
    values = options.values()
    found = ([name for name in group if values[name]] for group in PREVIEWS)
    return next(filter(None, found), [])


def recorded_options(folder: Path, call: Call) -> dict[str, Any]:
    """Return the recorded options of a run directory, without options that apply to one call only.

    Raise CheckpointError if the record is lost and this call does not describe the network.
    """
    recorded = run_record.options(folder)
    if "model" not in recorded:
        _check_recorded(run_record.arguments_file(folder), call)
    one_call = with_trait(ONE_CALL)
    return {name: value for name, value in recorded.items() if name not in one_call}


def other_images(run: Run, recorded: Mapping[str, Any]) -> list[str]:
    """Return a line if the training recorded other validation images, or []."""
    changed = changed_data(run.data_source, recorded, ("validation_images",))
    asked = changed and not run.options.checkpoint.predict
    return [f"the validation images have changed since the training ({', '.join(changed)})"] * bool(asked)


def _check_recorded(file: Path, call: Call) -> None:
    names_network = any(map(call.argument, NETWORK_OPTIONS))
    if weights_file.located(file):
        if names_network:
            return
        raise CheckpointError(
            f"weights {file} do not record the options of the network; give --model, --model-size and --dataset, or "
            "convert the weights with cnn import-weights"
        )
    if call.script in ("train", "restore"):  # only the first process has checked it
        find.check_run_folder(file.parent)
    lost = f"the options of the training are lost: they are in no checkpoint and not in {file};"
    if call.script in ("train", "restore"):
        raise CheckpointError(f"{lost} start a new run from the weights with --init-path {file.parent}")
    if not names_network:
        raise CheckpointError(f"{lost} give --config, or --model and --dataset")


def _other_names(run: Run, origin: Origin) -> list[str]:
    """Check that the data have the class names of the training. With --predict, return a line instead of an error."""
    if not run.options.checkpoint.predict:
        inference_record.check_class_names(run, origin.folder, origin.recorded)
        return []
    if not other_class_names(origin.recorded, run.data_source.spec):
        return []
    if inference_record.recorded_names(origin.folder, origin.recorded):
        return [
            "the class names of the data, or the order, differ from the training; predictions use the names of the training"
        ]
    return [
        "warning: the class names of the data, or the order, differ from the training, so predictions may be mislabelled"
    ]


def _memory_warnings(run: Run, processes: int) -> list[str]:
    """Return a warning if the run may exceed the memory of the host. Raise OptionError if it certainly does."""
    try:
        return rules.check_host_memory(run, processes, host_limits.limits())
    except OptionError as error:
        if not _previews(run.options):
            raise
        return [f"warning: {error}"]
