"""Predict the classes of photos (validation.py --predict), and print a table or write a file."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cnn_harness.base.errors import DataError
from cnn_harness.base.fields import escaped, short
from cnn_harness.base.process import tf_runtime
from cnn_harness.Datasets.formats import image_headers
from cnn_harness.Datasets.sources import image_tree
from cnn_harness.harness.checkpoints import compatibility, read
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from cnn_harness.harness.checkpoints.read import Tensors
from cnn_harness.harness.evaluation import inference_record, predictions_file
from cnn_harness.harness.evaluation.predictions_file import ImagePrediction
from cnn_harness.harness.reports import profile
from cnn_harness.harness.run import recorded_arguments
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run
from cnn_harness.log import RunLog

if TYPE_CHECKING:
    import numpy as np

    from cnn_harness.ipu_utils import InferenceProgram

MOST = 5  # This number of classes is reported for each photo.
TOGETHER = 64  # At most this number of photos is in memory.


@dataclass(frozen=True)
class Photos:
    """Paths of photos, in order. `of_folders` are the photos that were found in folders; if one is damaged, it is skipped.
    `warnings` contains a line for each skipped photo."""

    paths: tuple[str, ...]
    of_folders: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


def list_photos(given: Sequence[str]) -> Photos:
    """Return the photos in a list of files and folders. Only the headers are read. Raise DataError for a file that is no
    photo, and for a folder without photos."""
    paths: list[str] = []
    of_folders: set[str] = set()
    warnings: list[str] = []
    for path in given:
        if not Path(path).is_dir():
            image_headers.read(path)
            paths.append(path)
            continue
        faults = {str(file): image_headers.file_fault(file) for file in image_tree.images_below(Path(path))}
        sound = [file for file, fault in faults.items() if not fault]
        warnings += [f"warning: skipped photo {file}, which {fault}" for file, fault in faults.items() if fault]
        if not sound:
            raise DataError(f"folder {path} contains no {'readable ' if faults else ''}photos; give another folder")
        paths += sound
        of_folders |= {*sound}
    return Photos(tuple(dict.fromkeys(paths)), frozenset(of_folders - {*given}), tuple(warnings))


def predict(run: Run, execution: Execution, selected: Sequence[Checkpoint]) -> None:
    """Print the most probable classes of each photo in --predict, or write them to the file in --output.

    The newest intact checkpoint in `selected` makes the predictions.
    """
    log = RunLog(None)
    for note in execution.notes:
        log.note(note)
    if run.options.device.profile_compilation or profile.requested(run.options.device, Path(), os.environ):
        log.note("--predict records no profile; to profile a validation, leave out --predict")
    checkpoint, values, warnings = load_weights(run, selected)
    listed = list_photos(run.options.checkpoint.predict)
    for warning in (*warnings, *listed.warnings):
        log.note(warning)
    with closing(Predictor(run, execution.seed, checkpoint, values)) as predictor:
        answers = _answers(predictor, listed, log)
    network = f"{recorded_arguments.network_title(run.options.values())} with {checkpoint.name}, "
    network += f"{run.image_size}x{run.image_size} pixels"
    network += ", mirrored too" if run.mirrors else ""
    output = run.options.checkpoint.output
    if output:
        predictions_file.write(output, answers)
        log.note(f"Predictions of {network}, for {len(answers)} photo{'s' * (len(answers) != 1)}: {output}")
    else:
        log.note(f"Predictions of {network}:")
        for path, answer in answers.items():
            log.note(table(path, answer))
    log.close()


def load_weights(run: Run, selected: Sequence[Checkpoint]) -> tuple[Checkpoint, Tensors, list[str]]:
    """Return the newest intact checkpoint, its tensors, and warnings about damaged checkpoints and unusual values."""
    checkpoint, values, warnings = read.load_network(selected, f"--restore-path {run.options.main.restore_path}")
    return checkpoint, values, [*warnings, *compatibility.value_warnings(run, values, checkpoint)]


class Predictor:
    """A network that predicts with the weights of a checkpoint."""

    def __init__(self, run: Run, seed: int, checkpoint: Checkpoint, values: Mapping[str, np.ndarray]) -> None:
        """`values` are the tensors of the checkpoint. Raise CheckpointError if they belong to another network."""
        tf_runtime.import_tensorflow("3")
        from cnn_harness.harness.programs.build import prediction_program

        self._run, self._checkpoint = run, checkpoint
        self._batch: list[np.ndarray] = []  # the program reads it again after each rewind
        self._request = dataclasses.replace(run.request(1), hostside_norm=False)
        self.class_names = inference_record.names(run, checkpoint)
        self._program: InferenceProgram = prediction_program(run, seed, self._request, self._batch)
        try:
            self._program.load(compatibility.model_tensors(run, values, checkpoint))
        except BaseException:
            self.close()
            raise

    def prepare(self, images: Sequence[str | np.ndarray], first: int = 0) -> np.ndarray:
        """Return the input of the network, [n, side, side, 3], for images given as paths or as uint8 [height, width, 3].
        Raise DataError if an image cannot be decoded. `first` is the number of the first image in messages."""
        from cnn_harness.Datasets.pipeline import image_files

        return image_files.load(images, self._run.data_source.spec, self._request, first)

    def probabilities(self, prepared: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the probabilities [classes] of each prepared image."""
        self._batch[:] = prepared
        self._program.rewind()
        for k in range(len(prepared)):
            yield finite(self._program.step(k, k + 1)["probabilities"], self._checkpoint.prefix)

    def close(self) -> None:
        """Free the program's memory."""
        self._program.close()


def _answers(predictor: Predictor, listed: Photos, log: RunLog) -> dict[str, tuple[ImagePrediction, ...]]:
    """Return the most probable classes of each photo, by path. If a photo cannot be decoded, skip it with a warning if it
    was found in a folder, or raise DataError if the user named it."""

    def load(paths: Sequence[str]) -> dict[str, np.ndarray]:
        try:
            return dict(zip(paths, predictor.prepare(paths)))
        except DataError as error:
            if len(paths) > 1:
                return {path: image for each in paths for path, image in load([each]).items()}
            if paths[0] not in listed.of_folders:
                raise
            log.note(f"warning: skipped: {error}")
            return {}

    answers = {}
    for first in range(0, len(listed.paths), TOGETHER):
        loaded = load(listed.paths[first : first + TOGETHER])
        for path, probabilities in zip(loaded, predictor.probabilities([*loaded.values()])):
            answers[path] = best(probabilities, predictor.class_names)
    return answers


def finite(probabilities: np.ndarray, weights: str) -> np.ndarray:
    """Return the probabilities. Raise CheckpointError if one is not finite. `weights` names the checkpoint in the
    message."""
    if not math.isfinite(probabilities.sum()):
        raise CheckpointError(f"the predictions of {weights} are not finite; give another checkpoint")
    return probabilities


def best(probabilities: np.ndarray, names: Sequence[str]) -> tuple[ImagePrediction, ...]:
    """Return the most probable classes of a photo. Classes with equal probabilities are sorted by their number."""
    order = [int(i) for i in (-probabilities).argsort(kind="stable")[:MOST]]
    return tuple(ImagePrediction(i, names[i] if i < len(names) else f"class {i}", float(probabilities[i])) for i in order)


def table(path: str, answer: Sequence[ImagePrediction]) -> str:
    """Return a text with the path of a photo, and a line for each of the most probable classes."""
    return "\n".join([escaped(path), *(f"  {100 * each.probability:5.1f} %  {short(each.name)}" for each in answer)])
