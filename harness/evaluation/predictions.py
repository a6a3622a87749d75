"""A network's predictions for photographs: the table that validation.py --predict prints."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from base.fields import brief
from base.process import tf_runtime
from harness.checkpoints import compatibility, read
from harness.checkpoints.checkpoint import Checkpoint
from harness.evaluation import inference_record
from harness.reports import profile
from harness.run.run import Run
from log import RunLog

if TYPE_CHECKING:
    import numpy as np

MOST = 5  # classes shown


def predict(run: Run, selected: Sequence[Checkpoint]) -> None:
    """Says what the photographs of --predict show to the newest checkpoint that is whole; writes nothing."""
    log = RunLog(None)
    for note in run.notes:
        log.note(note)
    if run.options.device.profile_compilation or profile.requested(run.options.device, Path(), os.environ):
        log.note("--predict records no profile; leave it out to have one of validation")
    checkpoint, values, warnings = read.newest_of(selected, f"--restore-path {run.options.main.restore_path}")
    warnings += [f"warning: {fault}" for fault in compatibility.faults(values, compatibility.model(run), checkpoint)]
    for warning in warnings:
        log.note(warning)
    _show(run, checkpoint, values, log)
    log.close()


def _show(run: Run, checkpoint: Checkpoint, values: Mapping[str, np.ndarray], log: RunLog) -> None:
    """The most probable classes of every photograph, as the checkpoint with these tensors has it."""
    names = inference_record.names(run, checkpoint)
    tf_runtime.import_tensorflow()
    from Datasets.pipeline import image_files
    from harness.programs.build import prediction_program

    paths = run.options.checkpoint.predict
    request = dataclasses.replace(run.request(1), host_normalise=False)
    pictures = image_files.load(paths, run.source.spec, request)
    program = prediction_program(run, request, pictures)
    try:
        compatibility.check_shapes(compatibility.of_values(values), compatibility.model(run), checkpoint)
        program.load(values)
        program.rewind()
        log.note(
            f"Predictions of {run.name.split('_bs')[0]} with {checkpoint.name}, {run.image_size}x{run.image_size} pixels:"
        )
        for k, path in enumerate(paths):
            log.note(table(path, program.step(k, k + 1)["probabilities"], names))
    finally:
        program.close()


def table(path: str, probabilities: np.ndarray, names: tuple[str, ...]) -> str:
    """A photograph's name, and a line for each of its most probable classes."""
    order = (-probabilities).argsort(kind="stable")[:MOST]
    return "\n".join([path, *(f"  {100 * probabilities[i]:5.1f} %  {_name(int(i), names)}" for i in order)])


def _name(label: int, names: tuple[str, ...]) -> str:
    return brief(names[label]) if label < len(names) else f"class {label}"
