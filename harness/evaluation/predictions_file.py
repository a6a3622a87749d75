"""Write predictions to a file: a CSV row or a JSON object for each photo, with its most probable classes."""

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
    """A class with its probability, 0 to 1."""

    label: int
    name: str
    probability: float


PredictionsByFile = Mapping[str, Sequence[ImagePrediction]]  # by photo, the most probable class first


def check(target: str | None, photos: Sequence[str]) -> None:
    """OptionError for an --output that cannot be written, or without --predict."""
    if target is None:
        return
    if not photos:
        raise OptionError(f"--output {target} needs photos or a folder of photos to predict: --predict DIR")
    if Path(target).suffix.lower() not in _FORMS:
        raise OptionError(f"--output {target}: the name must end in {' or '.join(_FORMS)}")
    output.check(target, _BEGINNINGS)


def write(target: str, answers: PredictionsByFile) -> None:
    """Write predictions as CSV or JSON, depending on the suffix, with six digits. Bytes in file names that are not UTF-8 are
    escaped."""
    rounded = {
        file.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"): [
            each._replace(probability=float(f"{each.probability:.6g}")) for each in best
        ]
        for file, best in answers.items()
    }
    output.write_atomically(target, _FORMS[Path(target).suffix.lower()](rounded), _BEGINNINGS)


def _csv(answers: PredictionsByFile) -> str:
    """Return a header, and a row for each photo: file, then class, name and probability of each prediction."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    most = max(map(len, answers.values()), default=0)
    rows.writerow(["file", *(f"{part}_{k}" for k in range(1, most + 1) for part in ("class", "name", "probability"))])
    rows.writerows([file, *(cell for each in best for cell in each)] for file, best in answers.items())
    return text.getvalue()


def _json(answers: PredictionsByFile) -> str:
    """Return a list with an object for each photo: its file and the list of its predictions."""
    names = ("class", "name", "probability")
    listed = [{"file": file, "top": [dict(zip(names, each)) for each in best]} for file, best in answers.items()]
    return json.dumps(listed, indent=1, ensure_ascii=False) + "\n"


_FORMS: Mapping[str, Callable[[PredictionsByFile], str]] = {".csv": _csv, ".json": _json}
_BEGINNINGS = ("file,", "file\n", "[")
