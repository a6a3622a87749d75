"""experiments/paper.py: the page has the rows with published values, and the chart."""

from figures import checked

from cnn_harness.base import plugins
from experiments import paper

DOCS = plugins.ROOT / "docs"


def test_page_shows_published_rows_and_chart():
    predicted = paper.predictions()
    lines = paper.table(predicted).splitlines()
    published = [line for line in lines if "% |" in line]
    assert len(predicted) == 30 and len(lines) == 32 and len(published) == len(paper.ACCURACY) == 9
    assert {lines[0], *published} <= set((DOCS / "paper.md").read_text().splitlines())
    svg = paper.svg(predicted)
    assert checked(svg) and svg == (DOCS / "paper.svg").read_text()
