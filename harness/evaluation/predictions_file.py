"""Predictions as a file: a row, or an object, for each photograph, with its most probable classes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from base.errors import OptionError
from harness.reports import output


class ImagePrediction(NamedTuple):
    """A class, and its probability from 0 to 1."""

    label: int
    name: str
    probability: float


PredictionsByFile = Mapping[str, Sequence[ImagePrediction]]  # by photograph, the most probable class first


def check(target: str | None, photographs: Sequence[str]) -> None:
    """OptionError for an --output that cannot be written, or that has nothing to keep."""
    if target is None:
        return
    if not photographs:
        raise OptionError(f"--output {target} keeps what --predict finds; give photographs or a folder: --predict DIR")
    if Path(target).suffix.lower() not in _FORMS:
        raise OptionError(f"--output {target}: the name must end in {' or '.join(_FORMS)}")
    output.check(target, _BEGINNINGS)


def write(target: str, answers: PredictionsByFile) -> None:
    """Write predictions in the form that the file's ending says, probabilities in six digits. Bytes of a file's name that
    are no UTF-8 become escapes."""
    rounded = {
        file.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"): [
            each._replace(probability=float(f"{each.probability:.6g}")) for each in best
        ]
        for file, best in answers.items()
    }
    output.write_atomically(target, _FORMS[Path(target).suffix.lower()](rounded), _BEGINNINGS)


def _csv(answers: PredictionsByFile) -> str:
    """A header, and a row for each photograph: file, then class, name and probability, once for each answer."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    most = max(map(len, answers.values()), default=0)
    rows.writerow(["file", *(f"{part}_{k}" for k in range(1, most + 1) for part in ("class", "name", "probability"))])
    rows.writerows([file, *(cell for each in best for cell in each)] for file, best in answers.items())
    return text.getvalue()


def _json(answers: PredictionsByFile) -> str:
    """A list of objects: the file, and its answers as objects in a list."""
    names = ("class", "name", "probability")
    listed = [{"file": file, "top": [dict(zip(names, each)) for each in best]} for file, best in answers.items()]
    return json.dumps(listed, indent=1, ensure_ascii=False) + "\n"


_FORMS: Mapping[str, Callable[[PredictionsByFile], str]] = {".csv": _csv, ".json": _json}
_BEGINNINGS = ("file,", "file\n", "[")
