"""Build the section "Validation results" of a report: scores by class, confusion matrix, most confident mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

import numpy as np

from cnn_harness.harness.reports import markup

_MATRIX = 25  # With more classes, the confusion matrix is not drawn.
_LISTED = 30  # With more classes, the table of classes is folded.
_PAIRS = 12  # At most this number of pairs of confused classes is listed.
_SCORES = "precision", "recall", "F1"
WRONG = 12  # The page shows at most this number of wrong predictions.


@dataclass(frozen=True)
class Evaluation:
    """Predictions for n images.

    `labels` [n] are the actual classes and `records` [n] the record numbers. `answers` [n, k] are the k most probable
    classes in order of decreasing probability, and `probabilities` [n, k] their probabilities. `files` and `images` map the
    index of an image, from 0 to n - 1, to its file name and to the network's input image as PNG or JPEG. Some images may be
    missing.
    """

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
        """Return the name of a class, or its number if it has no name."""
        return self.names[label] if label < len(self.names) else f"class {label}"

    def described(self, place: int) -> str:
        """Return an image's file name, or its record number if the file name is unknown."""
        return self.files.get(place) or f"record {self.records[place]} of the validation set"

    def confusion_matrix(self) -> np.ndarray:
        """Return the confusion matrix: the number of images for each [actual class, predicted class]."""
        pairs = self.labels * self.classes + self.answers[:, 0]
        return np.bincount(pairs, minlength=self.classes**2).reshape(self.classes, self.classes)

    def class_scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Return precision, recall and F1 as an array [classes, 3], and the number of images [classes]. 0/0 counts as 0."""
        right = self.labels[self.labels == self.answers[:, 0]]
        both, answered, images = (np.bincount(of, minlength=self.classes) for of in (right, self.answers[:, 0], self.labels))
        parts = both / np.maximum(answered, 1), both / np.maximum(images, 1), 2 * both / np.maximum(answered + images, 1)
        return np.stack(parts, 1), images

    def most_confused(self, most: int) -> list[tuple[int, int, int]]:
        """Return the most frequent confusions: at most `most` triples (actual class, predicted class, number of images)."""
        wrong = self.labels != self.answers[:, 0]
        pairs = np.stack([self.labels[wrong], self.answers[wrong, 0]])
        pairs, count = np.unique(pairs, axis=1, return_counts=True)
        return [(int(pairs[0, k]), int(pairs[1, k]), int(count[k])) for k in np.argsort(-count, kind="stable")[:most]]

    def mistakes(self) -> list[int]:
        """Return the indices of at most WRONG images with wrong predictions, in order of decreasing probability."""
        order = np.argsort(-self.probabilities[:, 0], kind="stable")
        return [int(k) for k in order[self.labels[order] != self.answers[order, 0]][:WRONG]]


def section(scored: Evaluation) -> str:
    """Return the section as HTML."""
    count, right = len(scored.labels), int((scored.labels == scored.answers[:, 0]).sum())
    scores, images = scored.class_scores()
    means = (f"{name} {100 * mean:.1f} %" for name, mean in zip(_SCORES, scores[images > 0].mean(0)))
    introduction = (
        f"{scored.checkpoint} classifies {right:,} of {count:,} images correctly: {100 * right / count:.1f} %. "
        f"Averages over the classes: {', '.join(means)}."
    )
    blocks = (("Scores by class, %", _classes(scored)), ("Confusion matrix", _confusions(scored)))
    return "\n".join(
        [
            markup.paragraph(introduction),
            markup.side_by_side(f"<div>{markup.heading(3, title)}{content}</div>" for title, content in blocks),
            markup.heading(3, "Most confident mistakes"),
            _mistakes(scored),
        ]
    )


def _classes(scored: Evaluation) -> str:
    """Return a table of the classes that have images, sorted by increasing recall."""
    scores, images = scored.class_scores()
    order = sorted(np.flatnonzero(images).tolist(), key=lambda k: (scores[k, 1], k))
    rows = [(scored.name(k), *(("n", f"{100 * x:.1f}") for x in scores[k]), ("n", f"{images[k]:,}")) for k in order]
    table, without = markup.table(("class", *_SCORES, "images"), rows), scored.classes - len(order)
    number = "1 class has" if without == 1 else f"{without} classes have"
    missing = markup.paragraph(f"{number} no validation images.", "soft") if without else ""
    summary = f"{len(order)} classes, lowest recall first"
    return (table if len(order) <= _LISTED else markup.folded(summary, table)) + missing


def _confusions(scored: Evaluation) -> str:
    """Return the confusion matrix, if there are few classes, and a table of the most frequent confusions."""
    counts = Counter(scored.labels.tolist())
    rows = [
        (scored.name(label), scored.name(answer), ("n", f"{count:,}"), ("n", f"{100 * count / counts[label]:.1f}"))
        for label, answer, count in scored.most_confused(_PAIRS)
    ]
    if not rows:
        return markup.paragraph("None: every image is classified correctly.")
    listed = markup.table(("actual", "predicted", "images", "% of class"), rows, "Most frequent confusions")
    return listed if scored.classes > _MATRIX else _matrix(scored) + listed


def _matrix(scored: Evaluation) -> str:
    """Return the confusion matrix with a row for each actual class. A stronger colour means a larger share of the row."""
    names = [scored.name(k) for k in range(scored.classes)]
    head = "".join(f'<th scope="col" title="{escape(name)}">{k}</th>' for k, name in enumerate(names))
    rows = []
    for k, (name, counts) in enumerate(zip(names, scored.confusion_matrix().tolist())):
        cells = "".join(_cell(count, sum(counts), j == k) for j, count in enumerate(counts))
        rows.append(f'<tr><th scope="row" class="row">{escape(name)}&nbsp;{k}</th>{cells}</tr>')
    caption = "<caption>Rows: actual class. Columns: predicted class.</caption>"
    return (
        f'<div class="wide"><table class="matrix">{caption}<thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(count: int, of: int, right: bool) -> str:
    if not count:
        return "<td>·</td>"
    kind = ("right" if right else "wrong") + (" deep" if count > 0.55 * of else "")
    return f'<td class="{kind}" style="--a:{0.12 + 0.88 * count / of:.2f}">{count}</td>'


def _mistakes(scored: Evaluation) -> str:
    """Return the most confident wrong predictions, with their images if available."""
    figures = []
    for place in scored.mistakes():
        label, answer = int(scored.labels[place]), int(scored.answers[place, 0])
        own = scored.probabilities[place][scored.answers[place] == label]
        probability = f"{100 * own[0]:.1f} %" if len(own) else f"(not in the top {scored.answers.shape[1]})"
        file, content = scored.described(place), scored.images.get(place)
        image = markup.image(content, file, content.startswith(b"\x89PNG")) if content else ""
        given, true = escape(scored.name(answer)), escape(scored.name(label))
        words = f"predicted <b>{given}</b> {100 * scored.probabilities[place, 0]:.1f} %<br>actual {true} {probability}"
        figures.append(f"<figure>{image}<figcaption>{words}<br>{escape(file)}</figcaption></figure>")
    if not figures:
        return markup.paragraph("None: every image is classified correctly.")
    return f'<div class="images">{"".join(figures)}</div>'
