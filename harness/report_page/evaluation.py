"""A checkpoint's answers to the validation pictures, and the file of the run's folder that keeps them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import bounds
from base.storage import files, input_files
from Datasets.formats import image_headers
from harness.checkpoints import state_file

if TYPE_CHECKING:
    import numpy as np

FILE = "evaluation.json"
WRONG = 12  # pictures that are kept, the most confidently wrong ones
_MAX_BYTES = 64 << 20  # half a million pictures
_MAX_CLASSES = 1 << 20
_VERSION = 2


@dataclass(frozen=True)
class Evaluation:
    """Answers to n pictures. `fingerprint`: of the checkpoint's tensors; `labels`, `records` [n], whole numbers; `answers`,
    `probabilities` [n, k]: the most probable classes, the first one first; `files`: names by place, of those that are known;
    `pictures`: PNG or JPEG by place, as the network saw them."""

    fingerprint: str
    checkpoint: str
    classes: int
    names: tuple[str, ...]
    labels: np.ndarray
    records: np.ndarray
    answers: np.ndarray
    probabilities: np.ndarray
    files: Mapping[int, str] = field(default_factory=dict)
    pictures: Mapping[int, bytes] = field(default_factory=dict)


def kept(folder: Path, fingerprint: str) -> tuple[Evaluation | None, str]:
    """The evaluation in a run's folder if it is of the checkpoint with this fingerprint; otherwise None, with a line where
    the file cannot be used."""
    path = folder / FILE
    try:
        content = bounds.json_value(input_files.content(path, _MAX_BYTES))
        if content["fingerprint"] != fingerprint or content["version"] != _VERSION:
            return None, ""
        if content.pop(state_file.DIGEST, None) != state_file.digest_of(content):
            raise ValueError("it has other content than was written")
        return _of(content), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        return None, f"warning: {path} cannot be used ({bounds.reason(error)}) and is made anew"


def keep(folder: Path, evaluation: Evaluation) -> str:
    """Write an evaluation into a run's folder; a line where that cannot be done."""
    content = {
        "version": _VERSION,
        "fingerprint": evaluation.fingerprint,
        "checkpoint": evaluation.checkpoint,
        "classes": evaluation.classes,
        "names": list(evaluation.names),
        "labels": evaluation.labels.tolist(),
        "records": evaluation.records.tolist(),
        "answers": evaluation.answers.tolist(),
        "probabilities": [[round(each, 7) for each in row] for row in evaluation.probabilities.tolist()],
        "files": {str(place): name for place, name in evaluation.files.items()},
        "pictures": {str(place): base64.b64encode(image).decode() for place, image in evaluation.pictures.items()},
    }
    content[state_file.DIGEST] = state_file.digest_of(content)
    try:
        files.write_atomically(folder / FILE, json.dumps(content, separators=(",", ":")) + "\n")
    except OSError as error:
        return f"warning: {folder / FILE} cannot be written ({error.strerror}): the next report evaluates again"
    return ""


def _of(content: Mapping[str, Any]) -> Evaluation:
    """An evaluation from JSON; ValueError or TypeError for what `keep` does not write, as anybody may have changed the
    file."""
    import numpy as np

    classes, names = content["classes"], content["names"]
    if type(classes) is not int or not 0 < classes <= _MAX_CLASSES or type(content["checkpoint"]) is not str:
        raise ValueError("its checkpoint or its number of classes is none")
    if not isinstance(names, list) or len(names) not in (0, classes) or not all(isinstance(each, str) for each in names):
        raise ValueError("its names are not those of its classes")
    if not all(isinstance(content[name], dict) for name in ("files", "pictures")):
        raise ValueError("its files or its pictures have no places")
    labels, records = (np.array(content[name], np.int64) for name in ("labels", "records"))
    answers, probabilities = np.array(content["answers"], np.int64), np.array(content["probabilities"], np.float64)
    n = len(labels)
    fits = labels.shape == records.shape == (n,) and answers.ndim == 2 and answers.shape == probabilities.shape
    if not n or not fits or len(answers) != n or not answers.shape[1]:
        raise ValueError("its lists have not one entry for each picture")
    for each in (labels, answers):
        if each.min() < 0 or each.max() >= classes:
            raise ValueError(f"a class is not from 0 to {classes - 1}")
    if not (np.isfinite(probabilities).all() and probabilities.min() >= 0 and probabilities.max() <= 1):
        raise ValueError("a probability is not from 0 to 1")
    return Evaluation(
        content["fingerprint"], content["checkpoint"], classes, tuple(names), labels, records, answers, probabilities,
        {_place(key, n): str(name) for key, name in content["files"].items()},
        {_place(key, n): _picture(text) for key, text in content["pictures"].items()},
    )  # fmt: skip


def _place(key: str, most: int) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < most):
        raise ValueError("a picture's place is none")
    return int(key)


def _picture(text: str) -> bytes:
    content = base64.b64decode(text, validate=True)
    if image_headers.kind(content) not in ("PNG", "JPEG"):
        raise ValueError("a picture is neither PNG nor JPEG")
    return content


def described(evaluation: Evaluation, place: int) -> str:
    """The name of a picture's file, or the number of its record."""
    return evaluation.files.get(place) or f"record {evaluation.records[place]} of the validation set"


def name(evaluation: Evaluation, label: int) -> str:
    """The name of a class, or its number."""
    return evaluation.names[label] if label < len(evaluation.names) else f"class {label}"


def names_of(evaluation: Evaluation, most: int) -> Sequence[str]:
    """The names of the classes in the order of their labels, the first `most` of them."""
    return [name(evaluation, label) for label in range(min(most, evaluation.classes))]
