"""Statistics of a classifier's answers: intervals of shares, calibration, and which classes are taken for which."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

Z = 1.959964  # of the normal distribution, for 95 %
BINS = 15  # of the probabilities in a calibration curve


class Share(NamedTuple):
    """A share of `count` trials that succeeded, with its Wilson interval; all from 0 to 1."""

    successes: int
    count: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share itself; nan of no trials."""
        return self.successes / self.count if self.count else math.nan


class Bin(NamedTuple):
    """The answers whose first probability lies in one bin: their mean, and the share that is right."""

    mean: float
    right: Share


class Confusion(NamedTuple):
    """Pictures of class `label` that were taken for `answer`; `of`: all pictures of the class."""

    label: int
    answer: int
    count: int
    of: int


def wilson(successes: int, count: int) -> Share:
    """The share with Wilson's interval of 95 %, which holds for few trials and for shares near 0 and 1, too; (0, 1) of no
    trials."""
    if not count:
        return Share(0, 0, 0.0, 1.0)
    share, spread = successes / count, Z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    reach = Z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return Share(successes, count, max(0.0, middle - reach), min(1.0, middle + reach))


def of_classes(labels: np.ndarray, answers: np.ndarray, classes: int) -> list[Share]:
    """The share of right answers among each class's pictures. `labels`, `answers`: whole numbers [n]."""
    import numpy as np

    count = np.bincount(labels, minlength=classes)
    right = np.bincount(labels[labels == answers], minlength=classes)
    return [wilson(int(hits), int(of)) for hits, of in zip(right, count)]


def calibration(probabilities: np.ndarray, right: np.ndarray) -> tuple[list[Bin], float]:
    """The bins that are not empty, and the expected calibration error: the mean distance of a bin's share of right answers
    from its mean probability, by its number of answers. `probabilities`: of the answers [n]; `right`: bool [n]."""
    import numpy as np

    place = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    bins = []
    for k in range(BINS):
        inside = place == k
        if inside.any():
            bins.append(Bin(float(probabilities[inside].mean()), wilson(int(right[inside].sum()), int(inside.sum()))))
    error = sum(each.right.count * abs(each.right.value - each.mean) for each in bins) / max(1, len(probabilities))
    return bins, error


def confusion_matrix(labels: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """Numbers of pictures [label, answer]."""
    import numpy as np

    return np.bincount(labels * classes + answers, minlength=classes**2).reshape(classes, classes)


def most_confused(labels: np.ndarray, answers: np.ndarray, most: int) -> list[Confusion]:
    """The pairs of a class and a wrong answer that occur most often, the most frequent first."""
    import numpy as np

    wrong = labels != answers
    pairs, count = np.unique(np.stack([labels[wrong], answers[wrong]]), axis=1, return_counts=True)
    order = np.argsort(-count, kind="stable")[:most]
    return [Confusion(int(pairs[0, k]), int(pairs[1, k]), int(count[k]), int((labels == pairs[0, k]).sum())) for k in order]


def confidently_wrong(labels: np.ndarray, answers: np.ndarray, probabilities: np.ndarray, most: int) -> list[int]:
    """The places of the wrong answers with the highest probabilities, the highest first."""
    import numpy as np

    order = np.argsort(-probabilities, kind="stable")
    return [int(k) for k in order[labels[order] != answers[order]][:most]]
