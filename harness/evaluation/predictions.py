"""A network's predictions for photographs: the table that validation.py --predict prints."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from base.errors import DataError
from base.fields import escaped, short
from base.process import tf_runtime
from Datasets._spec import ReadRequest
from harness.checkpoints import compatibility, read
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.evaluation import inference_record, predict_inputs, predictions_file
from harness.evaluation.predict_inputs import Photographs
from harness.evaluation.predictions_file import ImagePrediction
from harness.reports import profile
from harness.run.run import Run
from log import RunLog

if TYPE_CHECKING:
    import numpy as np

    from ipu_utils import InferenceProgram

MOST = 5  # classes shown
_TOGETHER = 64  # photographs in memory


def predict(run: Run, selected: Sequence[Checkpoint]) -> None:
    """Print what the photographs of --predict show to the newest checkpoint that is whole; write nothing but --output."""
    log = RunLog(None)
    for note in run.notes:
        log.note(note)
    if run.options.device.profile_compilation or profile.requested(run.options.device, Path(), os.environ):
        log.note("--predict records no profile; leave it out to have one of validation")
    checkpoint, values, warnings = read.load_newest_of(selected, f"--restore-path {run.options.main.restore_path}")
    for warning in (*warnings, *compatibility.value_warnings(run, values, checkpoint)):
        log.note(warning)
    _show(run, checkpoint, values, log)
    log.close()


def _show(run: Run, checkpoint: Checkpoint, values: Mapping[str, np.ndarray], log: RunLog) -> None:
    """The most probable classes of every photograph, as the checkpoint with these tensors has it: printed, or written into
    --output."""
    tf_runtime.import_tensorflow("3")
    from harness.programs.build import prediction_program

    options = run.options.checkpoint
    listed = predict_inputs.list_photographs(options.predict)
    for warning in listed.warnings:
        log.note(warning)
    request = dataclasses.replace(run.request(1), hostside_norm=False)
    batch = _Batch()
    program = prediction_program(run, request, batch)
    try:
        program.load(compatibility.model_tensors(run, values, checkpoint))
        names = inference_record.names(run, checkpoint)
        network = f"{run.name.split('_bs')[0]} with {checkpoint.name}, {run.image_size}x{run.image_size} pixels"
        probabilities = _probabilities(program, batch, listed, run, request, log)
        answers = ((path, best(finite(each, checkpoint.prefix), names)) for path, each in probabilities)
        tell(network, answers, options.output, log.note)
    finally:
        program.close()


class _Batch:
    """The prepared pictures that a program goes through, anew after each rewind: [n, side, side, 3]."""

    def __init__(self) -> None:
        self.pictures: Sequence[np.ndarray] = ()

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.pictures)


def _probabilities(
    program: InferenceProgram, batch: _Batch, listed: Photographs, run: Run, request: ReadRequest, log: RunLog
) -> Iterator[tuple[str, np.ndarray]]:
    """Each photograph with its probabilities [classes]."""
    from Datasets.pipeline import image_files

    for pictures in loaded(listed, lambda paths: image_files.load(paths, run.data_source.spec, request), log.note):
        batch.pictures = list(pictures.values())
        program.rewind()
        for k, path in enumerate(pictures):
            yield path, program.step(k, k + 1)["probabilities"]


def loaded(
    listed: Photographs, load: Callable[[Sequence[str]], np.ndarray], note: Callable[[str], None]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the prepared pictures by photograph, a few at a time, as `load` makes them of paths. A photograph of a folder
    that cannot be decoded is left out, with a line; DataError for any other."""

    def some(paths: Sequence[str]) -> dict[str, np.ndarray]:
        try:
            return dict(zip(paths, load(paths)))
        except DataError as error:
            if len(paths) > 1:
                return {path: picture for each in paths for path, picture in some([each]).items()}
            if paths[0] not in listed.of_folders:
                raise
            note(predict_inputs.left_out_line(str(error)))
            return {}

    for first in range(0, len(listed.paths), _TOGETHER):
        yield some(listed.paths[first : first + _TOGETHER])


def tell(
    network: str,
    answers_by_name: Iterable[tuple[str, Sequence[ImagePrediction]]],
    output: str | None,
    note: Callable[[str], None],
) -> None:
    """Print the answers of a network for photographs, or write them into a file."""
    if output:
        answered = dict(answers_by_name)
        predictions_file.write(output, answered)
        note(f"Predictions of {network}, for {len(answered)} photographs: {output}")
        return
    answers = iter(answers_by_name)
    first = list(itertools.islice(answers, 1))  # before the heading, as weights that answer with NaN are refused here
    note(f"Predictions of {network}:")
    for path, answer in itertools.chain(first, answers):
        note(table(path, answer))


def finite(probabilities: np.ndarray, weights: object, advice: str = "give another checkpoint") -> np.ndarray:
    """The probabilities; CheckpointError if they are not finite. `weights`: the file that has given them."""
    if not math.isfinite(probabilities.sum()):
        raise CheckpointError(f"{weights} answers with numbers that are not finite; {advice}")
    return probabilities


def best(probabilities: np.ndarray, names: tuple[str, ...]) -> tuple[ImagePrediction, ...]:
    """The most probable classes of a photograph, the first of equal ones first."""
    order = (-probabilities).argsort(kind="stable")[:MOST]
    return tuple(ImagePrediction(int(i), name_of(int(i), names), float(probabilities[i])) for i in order)


def table(path: str, answer: Sequence[ImagePrediction]) -> str:
    """A photograph's name, and a line for each of its most probable classes."""
    return "\n".join([escaped(path), *(f"  {100 * each.probability:5.1f} %  {short(each.name)}" for each in answer)])


def name_of(label: int, names: Sequence[str]) -> str:
    """The name of a class; its number where nothing names it."""
    return names[label] if label < len(names) else f"class {label}"
