"""A network's predictions for the photographs that validation.py --predict names: a table, or a file."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from base.errors import DataError
from base.fields import escaped, short
from base.process import tf_runtime
from Datasets._spec import ReadRequest
from Datasets.formats import image_headers
from Datasets.sources import picture_files
from harness.checkpoints import compatibility, read
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.evaluation import inference_record, predictions_file
from harness.evaluation.predictions_file import ImagePrediction
from harness.reports import profile
from harness.run.run import Run
from log import RunLog

if TYPE_CHECKING:
    import numpy as np

    from ipu_utils import InferenceProgram

MOST = 5  # classes in the table
_TOGETHER = 64  # photographs in memory


@dataclass(frozen=True)
class Photographs:
    """Paths of photographs in their order. `of_folders`: those that nobody named, of which a damaged one is left out;
    `warnings`: a line on each that is."""

    paths: tuple[str, ...]
    of_folders: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


def list_photographs(given: Sequence[str]) -> Photographs:
    """Return the photographs of the files and folders in `given`, by their headers; DataError for a file that is none, and
    for a folder without any."""
    paths: list[str] = []
    of_folders: set[str] = set()
    warnings: list[str] = []
    for path in given:
        if not Path(path).is_dir():
            image_headers.read(path)
            paths.append(path)
            continue
        faults = {str(file): image_headers.file_fault(file) for file in picture_files.pictures_below(Path(path))}
        sound = [file for file, fault in faults.items() if not fault]
        warnings += [f"warning: photograph {file} {fault}: left out" for file, fault in faults.items() if fault]
        if not sound:
            raise DataError(f"folder {path} holds no photograph{' that can be read' if faults else ''}")
        paths += sound
        of_folders |= {*sound}
    return Photographs(tuple(dict.fromkeys(paths)), frozenset(of_folders - {*given}), tuple(warnings))


def predict(run: Run, selected: Sequence[Checkpoint]) -> None:
    """Print the most probable classes of every photograph of --predict, by the newest checkpoint that is whole, or write
    them into --output."""
    log = RunLog(None)
    for note in run.notes:
        log.note(note)
    if run.options.device.profile_compilation or profile.requested(run.options.device, Path(), os.environ):
        log.note("--predict records no profile; leave it out to have one of validation")
    checkpoint, values, warnings = read.load_newest_of(selected, f"--restore-path {run.options.main.restore_path}")
    listed = list_photographs(run.options.checkpoint.predict)
    for warning in (*warnings, *compatibility.value_warnings(run, values, checkpoint), *listed.warnings):
        log.note(warning)
    answers = _answers(run, checkpoint, values, listed, log)
    network = f"{run.name.split('_bs')[0]} with {checkpoint.name}, {run.image_size}x{run.image_size} pixels"
    output = run.options.checkpoint.output
    if output:
        predictions_file.write(output, answers)
        log.note(f"Predictions of {network}, for {len(answers)} photographs: {output}")
    else:
        log.note(f"Predictions of {network}:")
        for path, answer in answers.items():
            log.note(table(path, answer))
    log.close()


def _answers(
    run: Run, checkpoint: Checkpoint, values: Mapping[str, np.ndarray], listed: Photographs, log: RunLog
) -> dict[str, tuple[ImagePrediction, ...]]:
    """Return the most probable classes by photograph."""
    tf_runtime.import_tensorflow("3")
    from harness.programs.build import prediction_program

    request, batch = dataclasses.replace(run.request(1), hostside_norm=False), _Batch()
    program: InferenceProgram = prediction_program(run, request, batch)
    answers = {}
    try:
        program.load(compatibility.model_tensors(run, values, checkpoint))
        names = inference_record.names(run, checkpoint)
        for pictures in _prepared(run, request, listed, log):
            batch.pictures = list(pictures.values())
            program.rewind()
            for k, path in enumerate(pictures):
                answers[path] = best(finite(program.step(k, k + 1)["probabilities"], checkpoint.prefix), names)
    finally:
        program.close()
    return answers


class _Batch:
    """The prepared pictures that a program goes through, from the first one after each rewind: [n, side, side, 3]."""

    def __init__(self) -> None:
        self.pictures: Sequence[np.ndarray] = ()

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.pictures)


def _prepared(run: Run, request: ReadRequest, listed: Photographs, log: RunLog) -> Iterator[dict[str, np.ndarray]]:
    """Yield the prepared pictures by photograph, a few at a time. A photograph of a folder that cannot be decoded is left
    out, with a line; DataError for any other."""
    from Datasets.pipeline import image_files

    def load(paths: Sequence[str]) -> dict[str, np.ndarray]:
        try:
            return dict(zip(paths, image_files.load(paths, run.data_source.spec, request)))
        except DataError as error:
            if len(paths) > 1:
                return {path: picture for each in paths for path, picture in load([each]).items()}
            if paths[0] not in listed.of_folders:
                raise
            log.note(f"warning: {error}: left out")
            return {}

    for first in range(0, len(listed.paths), _TOGETHER):
        yield load(listed.paths[first : first + _TOGETHER])


def finite(probabilities: np.ndarray, weights: str) -> np.ndarray:
    """Return the probabilities; CheckpointError if they are not finite. `weights`: the file that has given them."""
    if not math.isfinite(probabilities.sum()):
        raise CheckpointError(f"{weights} answers with numbers that are not finite; give another checkpoint")
    return probabilities


def best(probabilities: np.ndarray, names: Sequence[str]) -> tuple[ImagePrediction, ...]:
    """Return the most probable classes of a photograph, the first of equal ones first."""
    order = [int(i) for i in (-probabilities).argsort(kind="stable")[:MOST]]
    return tuple(ImagePrediction(i, names[i] if i < len(names) else f"class {i}", float(probabilities[i])) for i in order)


def table(path: str, answer: Sequence[ImagePrediction]) -> str:
    """Return a photograph's name, and a line for each of its most probable classes."""
    return "\n".join([escaped(path), *(f"  {100 * each.probability:5.1f} %  {short(each.name)}" for each in answer)])
