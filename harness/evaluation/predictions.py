"""What a network sees in photographs: the table that validation.py --predict prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from base.fields import brief
from Datasets._class_names import class_names
from harness.checkpoints import fit
from harness.checkpoints.checkpoint import Checkpoint
from harness.run.run import Run
from log import RunLog

if TYPE_CHECKING:
    import numpy as np

MOST = 5  # classes shown


def show(run: Run, checkpoint: Checkpoint, values: Mapping[str, np.ndarray], log: RunLog) -> None:
    """The most probable classes of every photograph of --predict, as the checkpoint with these tensors has it."""
    from Datasets import _photo_files
    from harness.programs.build import prediction_program

    paths = run.options.checkpoint.predict
    request = dataclasses.replace(run.request(1), host_normalise=False)
    pictures = _photo_files.load(paths, run.source.spec, request)
    program = prediction_program(run, request, pictures)
    try:
        fit.require(fit.of_values(values), fit.model(run), checkpoint)
        program.load(values)
        program.rewind()
        names = class_names(run.source.spec)
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
