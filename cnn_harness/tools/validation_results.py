"""Evaluate a checkpoint on the validation set: predictions, confusion matrix, scores by class."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cnn_harness.base.errors import DataError, OptionError, WrongInput
from cnn_harness.base.process import tf_runtime
from cnn_harness.harness.checkpoints import compatibility, read
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.commands import entry
from cnn_harness.harness.evaluation import inference_record, photo_predictions
from cnn_harness.harness.evaluation.saved_weights import SavedWeights
from cnn_harness.harness.evaluation.validate import local_micro_batches
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.programs import program_cache
from cnn_harness.harness.reports.validation_sections import Evaluation
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run
from cnn_harness.log import RunLog

if TYPE_CHECKING:
    from cnn_harness.ipu_utils import InferenceProgram

_SMALL = 64  # Images whose longer side has at most this number of pixels keep every pixel.
_SIDE = 160  # A longer side is reduced to this number of pixels.


class NoEvaluation(Exception):
    """The checkpoint or the data cannot be read, so there is no evaluation. The message is one line."""


def evaluate(folder: Path, say: Callable[[str], None], checkpoint: Checkpoint | None = None) -> Evaluation:
    """Return the predictions of a checkpoint. Raise NoEvaluation if the checkpoint or the data cannot be read.

    The default is the newest intact checkpoint in `folder` or, if the run had --keep-best-ckpt, the best checkpoint.
    Progress messages are passed to `say`.
    """
    try:
        return _evaluate(folder, say, checkpoint)
    except WrongInput as error:
        raise NoEvaluation(str(error).splitlines()[0].removeprefix("--restore-path ")) from error
    except Exception as error:
        if not tf_runtime.is_of_tensorflow(error):
            raise
        raise NoEvaluation(tf_runtime.device_error(error).splitlines()[0]) from error  # e.g. a damaged record


def _evaluate(folder: Path, say: Callable[[str], None], checkpoint: Checkpoint | None) -> Evaluation:
    call = Call.of_values({"restore_path": folder, "logs": False}, "validation")
    checkpoint, values, warnings = (checkpoint, read.tensors(checkpoint), []) if checkpoint else read.load_network_in(folder)
    for line in warnings:
        say(line)
    recorded = entry.recorded_options(folder, call)
    run = entry.checked_run(call, SavedWeights([checkpoint], folder, recorded), training=False).run
    if run.options.dataset.random_data:
        raise DataError("the run was trained on random data, so predictions mean nothing")
    if not run.data_source.spec.validation_images:
        raise DataError(f"data set {run.data_source.spec.name} has no validation images")
    for line in entry.other_images(run, recorded):
        say(line)
    spec = run.data_source.spec
    say(f"Evaluating {checkpoint.name} on the {spec.validation_images} validation images of {spec.name}")
    execution = Execution.of(run.options)
    return _with_images(run, execution, _answered(run, execution, checkpoint, values))


def _answered(run: Run, execution: Execution, checkpoint: Checkpoint, values: Mapping[str, np.ndarray]) -> Evaluation:
    """Return the predictions of a checkpoint, without images and file names."""
    program_cache.import_tensorflow(run)
    from cnn_harness.harness.programs import build

    classes = run.data_source.spec.num_classes
    most = min(photo_predictions.MOST, classes)
    values = compatibility.model_tensors(run, values, checkpoint)
    with build.top_k_program(run, execution, most) as program:
        program.load(values)
        program.rewind()
        rows = _rows(program, local_micro_batches(run))
    records = np.flatnonzero(rows[:, 0] >= 0)  # Padding and unreadable images have label -1.
    if not len(records):
        raise OptionError("no validation image can be read")
    rows = rows[records]
    photo_predictions.finite(rows[:, 1 + most :], checkpoint.prefix)
    return Evaluation(
        checkpoint.name, classes, tuple(inference_record.names(run, checkpoint)), rows[:, 0].astype(np.int64),
        records, rows[:, 1 : 1 + most].astype(np.int64), rows[:, 1 + most :],
    )  # fmt: skip


def _rows(program: InferenceProgram, micro_batches: int) -> np.ndarray:
    """Return the output of a program as an array with a row for each image, in the order of the validation set."""
    log, rows = RunLog(None), []
    for k in range(micro_batches):
        rows.append(program.step(k, k + 1)["answers"])
        log.progress(k + 1, micro_batches, "micro-batches")
    log.close()
    return np.concatenate(rows)


def _with_images(run: Run, execution: Execution, scored: Evaluation) -> Evaluation:
    """Add file names, and the images with the most confident wrong predictions."""
    from cnn_harness.harness.programs import build

    wrong = scored.mistakes()
    images = build.validation_images_at(run, execution, [int(scored.records[place]) for place in wrong])
    name = getattr(run.data_source, "validation_name", None)
    files = {place: _short(name(int(record)), run) for place, record in enumerate(scored.records)} if name else {}
    return replace(scored, images={place: _encoded(image) for place, image in zip(wrong, images)}, files=files)


def _short(name: str, run: Run) -> str:
    """Return a file's path relative to the data set's folder. Bytes that are not UTF-8 are escaped."""
    top = f"{run.data_dir}/" if run.data_dir else ""
    return name.removeprefix(top).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _encoded(image: np.ndarray) -> bytes:
    """Return a small image as PNG. Scale a large image down and return it as JPEG."""
    from PIL import Image

    drawn, content = Image.fromarray(image), io.BytesIO()
    if max(drawn.size) <= _SMALL:
        drawn.save(content, "PNG", optimize=True)
    else:
        drawn.thumbnail((_SIDE, _SIDE))
        drawn.save(content, "JPEG", quality=85)
    return content.getvalue()
