"""Say what the gradient noise scale of a run means for its batch size (McCandlish et al., arXiv 1812.06162).

To reach the same loss with a batch of B images, training needs 1 + N / B times the fewest possible updates, and 1 + B / N
times the fewest possible epochs. N is the noise scale in images (section 2.3 of the paper).
"""

from __future__ import annotations

from cnn_harness.harness.reports import markup

FACTORS = (0.25, 0.5, 1, 2, 4, 8)


def relative(batch: float, other: float, scale: float) -> tuple[float, float]:
    """Return how many updates and epochs the batch `other` needs, relative to those of `batch`."""
    return (1 + scale / other) / (1 + scale / batch), (1 + other / scale) / (1 + batch / scale)


def section(scale: float, batch: int) -> str:
    """Return the meaning of the noise scale (images) for a run with the global batch `batch`, as HTML."""
    updates, epochs = relative(batch, 2 * batch, scale)
    text = (
        f"The gradient noise scale is {scale:,.0f} images. Twice the batch of {batch:,} would save "
        f"{100 * (1 - updates):.0f} % of the updates and need {100 * (epochs - 1):.0f} % more epochs for the same loss. At "
        "the noise scale, twice the batch saves 25 % of the updates; beyond it, less."
    )
    rows = [
        (f"{other:,.0f}", *(("n", f"{each:.2f}") for each in relative(batch, other, scale)))
        for other in (factor * batch for factor in FACTORS)
        if other >= 1
    ]
    return markup.paragraph(text) + markup.table(("global batch", "updates", "epochs"), rows)
