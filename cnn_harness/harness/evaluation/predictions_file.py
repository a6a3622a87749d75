"""Write predictions for photos to a CSV or JSON file. Each photo is a row or an object with its most probable classes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cnn_harness.base.errors import OptionError
from cnn_harness.harness.reports import output


class ImagePrediction(NamedTuple):
    """A class and its probability, from 0 to 1."""

    label: int
    name: str
    probability: float


PredictionsByFile = Mapping[str, Sequence[ImagePrediction]]  # maps a path to predictions, the most probable class first


def check(target: str | None, photos: Sequence[str]) -> None:
    """Raise OptionError if the file in --output cannot be written, or if there are no photos to predict."""
    if target is None:
        return
    if not photos:
        raise OptionError(f"--output {target} needs photos: give files or folders as --predict PATH ...")
    if Path(target).suffix.lower() not in _FORMS:
        raise OptionError(f"--output {target}: the name must end in {' or '.join(_FORMS)}")
    output.check(target, _BEGINNINGS)


def write(target: str, answers: PredictionsByFile) -> None:
    """Write predictions as CSV or JSON, depending on the suffix of `target`. Probabilities have six significant digits.
    Bytes in file names that are not UTF-8 are escaped."""
    rounded = {
        file.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"): [
            each._replace(probability=float(f"{each.probability:.6g}")) for each in best
        ]
        for file, best in answers.items()
    }
    output.write_atomically(target, _FORMS[Path(target).suffix.lower()](rounded), _BEGINNINGS)


def _csv(answers: PredictionsByFile) -> str:
    """Return CSV with a header and a row for each photo: the path, then class, name and probability of each prediction."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    most = max(map(len, answers.values()), default=0)
    rows.writerow(["file", *(f"{part}_{k}" for k in range(1, most + 1) for part in ("class", "name", "probability"))])
    rows.writerows([file, *(cell for each in best for cell in each)] for file, best in answers.items())
    return text.getvalue()


def _json(answers: PredictionsByFile) -> str:
    """Return a JSON list with an object for each photo, which contains the path and the list of predictions."""
    names = ("class", "name", "probability")
    listed = [{"file": file, "top": [dict(zip(names, each)) for each in best]} for file, best in answers.items()]
    return json.dumps(listed, indent=1, ensure_ascii=False) + "\n"


_FORMS: Mapping[str, Callable[[PredictionsByFile], str]] = {".csv": _csv, ".json": _json}
_BEGINNINGS = ("file,", "file\n", "[")
