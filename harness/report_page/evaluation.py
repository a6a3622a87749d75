"""A checkpoint's answers to the validation images, and what can be counted among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

WRONG = 12  # images that are shown, the most confident mistakes


@dataclass(frozen=True)
class Evaluation:
    """Answers to n images. `labels`, `records` [n], whole numbers; `answers`, `probabilities` [n, k]: the most probable
    classes, the first one first; `files`: names by place, of those that are known; `images`: PNG or JPEG by place, as the
    network saw them."""

    checkpoint: str
    classes: int
    names: tuple[str, ...]
    labels: np.ndarray
    records: np.ndarray
    answers: np.ndarray
    probabilities: np.ndarray
    files: Mapping[int, str] = field(default_factory=dict)
    images: Mapping[int, bytes] = field(default_factory=dict)

    def name(self, label: int) -> str:
        """Return the name of a class, or its number."""
        return self.names[label] if label < len(self.names) else f"class {label}"

    def described(self, place: int) -> str:
        """Return the name of an image's file, or the number of its record."""
        return self.files.get(place) or f"record {self.records[place]} of the validation set"

    def confusion_matrix(self) -> np.ndarray:
        """Return numbers of images [label, answer]."""
        import numpy as np

        pairs = self.labels * self.classes + self.answers[:, 0]
        return np.bincount(pairs, minlength=self.classes**2).reshape(self.classes, self.classes)

    def most_confused(self, most: int) -> list[tuple[int, int, int]]:
        """Return the most frequent (class, wrong answer, count), the most frequent first."""
        import numpy as np

        wrong = self.labels != self.answers[:, 0]
        pairs = np.stack([self.labels[wrong], self.answers[wrong, 0]])
        pairs, count = np.unique(pairs, axis=1, return_counts=True)
        return [(int(pairs[0, k]), int(pairs[1, k]), int(count[k])) for k in np.argsort(-count, kind="stable")[:most]]

    def mistakes(self) -> list[int]:
        """Return the places of the wrong answers with the highest probabilities, the highest first."""
        import numpy as np

        order = np.argsort(-self.probabilities[:, 0], kind="stable")
        return [int(k) for k in order[self.labels[order] != self.answers[order, 0]][:WRONG]]
