"""tools/paper.py: the page that follows the paper shows what the tool prints and draws."""

from figures import checked

from base import plugins
from tools import paper

DOCS = plugins.ROOT / "docs"


def test_the_page_has_the_tool_s_table_and_picture():
    predicted = paper.predictions()
    lines = paper.table(predicted).splitlines()
    assert len(predicted) == 30 and sum("% |" in line for line in lines) == len(paper.ACCURACY) == 9
    assert set(lines) <= set((DOCS / "paper.md").read_text().splitlines())
    picture = paper.picture(predicted)
    assert checked(picture) and picture == (DOCS / "paper.svg").read_text()
