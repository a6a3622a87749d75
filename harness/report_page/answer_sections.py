"""The sections of a page on a checkpoint's answers: classes, confusions, calibration, and pictures that it gets wrong."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from harness.report_page import chart, evaluation, markup, scores
from harness.report_page.evaluation import Evaluation
from harness.report_page.scores import Share

if TYPE_CHECKING:
    import numpy as np

_MATRIX = 25  # classes that a matrix is drawn for
_LISTED = 30  # classes that are all shown at once
_EXTREMES = 10  # classes shown of each end otherwise
_PAIRS = 12


def section(scored: Evaluation) -> str:
    """Everything on one checkpoint's answers."""
    right = scored.labels == scored.answers[:, 0]
    whole = scores.wilson(int(right.sum()), len(right))
    bins, error = scores.calibration(scored.probabilities[:, 0], right)
    introduction = (
        f"{scored.checkpoint} is right on {whole.successes:,} of {whole.count:,} pictures: {_percent(whole.value)} %; so "
        f"many pictures leave {_percent(whole.low)} to {_percent(whole.high)} % open (Wilson's interval of 95 %, as below)."
    )
    caption = (
        f"Expected calibration error {100 * error:.2f} %, in {scores.BINS} bins. Answers on the line are as often right "
        "as their probability says, those below it less often; the pale bars count the answers."
    )
    blocks = (
        ("Accuracy of each class", _classes(scored)),
        ("Which class is taken for which", _confusions(scored)),
        ("Calibration", markup.figure(chart.calibration(bins), caption)),
    )
    return "\n".join(
        [
            markup.paragraph(introduction),
            markup.charts(f"<div>{markup.heading(3, title)}{content}</div>" for title, content in blocks),
            markup.heading(3, "The most confidently wrong"),
            _pictures(scored),
        ]
    )


def _classes(scored: Evaluation) -> str:
    """A row for each class, the lowest accuracy first; of many classes both ends, and all of them folded."""
    shares = scores.of_classes(scored.labels, scored.answers[:, 0], scored.classes)
    order = sorted((k for k in range(scored.classes) if shares[k].count), key=lambda k: shares[k].value)
    without = scored.classes - len(order)
    missing = markup.paragraph(f"{without} classes have no validation pictures.", "soft") if without else ""
    if len(order) <= _LISTED:
        return _class_table(scored, shares, order) + missing
    ends = (
        _class_table(scored, shares, order[:_EXTREMES], f"the {_EXTREMES} lowest"),
        _class_table(scored, shares, order[-_EXTREMES:][::-1], f"the {_EXTREMES} highest"),
    )
    everything = markup.folded(f"All {len(order)} classes", _class_table(scored, shares, order))
    return "".join(ends) + everything + missing


def _class_table(scored: Evaluation, shares: Sequence[Share], order: Sequence[int], caption: str = "") -> str:
    rows = [
        (
            evaluation.name(scored, k),
            ("n", _percent(shares[k].value)),
            ("html", chart.interval(shares[k])),
            ("n", f"{_percent(shares[k].low)}–{_percent(shares[k].high)}"),
            ("n", f"{shares[k].count:,}"),
        )
        for k in order
    ]
    return markup.table(("class", "%", "", "95 % interval", "of"), rows, caption)


def _confusions(scored: Evaluation) -> str:
    """The matrix of few classes, and the pairs that are most often confused."""
    labels, answers = scored.labels, scored.answers[:, 0]
    pairs = scores.most_confused(labels, answers, _PAIRS)
    if not pairs:
        return markup.paragraph("Nothing: every picture is answered rightly.")
    rows = [
        (
            evaluation.name(scored, pair.label),
            evaluation.name(scored, pair.answer),
            ("n", f"{pair.count:,}"),
            ("n", f"{100 * pair.count / pair.of:.1f}"),
        )
        for pair in pairs
    ]
    head = ("class", "taken for", "count", "% of it")
    listed = markup.table(head, rows, "the most frequent confusions")
    if scored.classes > _MATRIX:
        return listed
    matrix = _matrix(scores.confusion_matrix(labels, answers, scored.classes), evaluation.names_of(scored, _MATRIX))
    return matrix + listed


def _matrix(counts: np.ndarray, names: Sequence[str]) -> str:
    """Classes as rows and answers as columns, numbered alike; a deeper colour is a larger part of the class."""
    head = "".join(f'<th scope="col" title="{escape(name)}">{k}</th>' for k, name in enumerate(names))
    rows = []
    for k, name in enumerate(names):
        cells = (_matrix_cell(int(count), int(counts[k].sum()), j == k) for j, count in enumerate(counts[k]))
        rows.append(f'<tr><th scope="row" class="row">{escape(name)}&nbsp;{k}</th>{"".join(cells)}</tr>')
    caption = "pictures by class (rows) and answer (columns, by the classes' numbers)"
    return (
        f'<div class="wide"><table class="matrix"><caption>{caption}</caption><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _matrix_cell(count: int, of: int, right: bool) -> str:
    if not count:
        return "<td>·</td>"
    share = count / of
    kind = ("right" if right else "wrong") + (" deep" if share > 0.55 else "")
    return f'<td class="{kind}" style="--a:{0.12 + 0.88 * share:.2f}">{count}</td>'


def _pictures(scored: Evaluation) -> str:
    """The wrong answers of the highest probability, with their pictures where these are kept."""
    answers, probabilities = scored.answers[:, 0], scored.probabilities
    places = scores.confidently_wrong(scored.labels, answers, probabilities[:, 0], evaluation.WRONG)
    if not places:
        return markup.paragraph("None: every picture is answered rightly.")
    return f'<div class="pictures">{"".join(_picture(scored, place) for place in places)}</div>'


def _picture(scored: Evaluation, place: int) -> str:
    label, answer = int(scored.labels[place]), int(scored.answers[place, 0])
    own = scored.probabilities[place][scored.answers[place] == label]
    probability = f"{100 * own[0]:.1f}\u00a0%" if len(own) else f"not among the first {scored.answers.shape[1]}"
    file = evaluation.described(scored, place)
    content = scored.pictures.get(place)
    image = markup.photograph(content, file, content.startswith(b"\x89PNG")) if content else ""
    given_name, true_name = (escape(evaluation.name(scored, k)) for k in (answer, label))
    return (
        f"<figure>{image}<figcaption><b>{given_name}</b> {100 * scored.probabilities[place, 0]:.1f}&nbsp;%"
        f"<br>is {true_name} ({probability})<br>{escape(file)}</figcaption></figure>"
    )


def _percent(share: float) -> str:
    """A share as per cent with one decimal."""
    return f"{100 * share:.1f}"
