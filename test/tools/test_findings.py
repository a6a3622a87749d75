"""tools/findings.py: its arithmetic, its chart, and its reuse of existing results."""

from __future__ import annotations

from figures import checked

from base import plugins
from tools import findings
from tools.findings import HALVED, RECIPES, TUNED
from tools.study import Result

ROOT = plugins.ROOT
RESULTS = [
    Result(label, seed, base + seed, 2.0 + k)
    for k, (label, base) in enumerate([*zip(RECIPES, (70, 80, 81)), (HALVED, 10), (TUNED, 79)])
    for seed in (3, 1, 2)
]


def test_table_and_chart_are_correct():
    lines = findings.table(RESULTS).splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:7]] == [*RECIPES, HALVED, TUNED]
    # the mean of 71, 72, 73 and its standard error, 1 / sqrt(3)
    assert "| 2.0 | 72.00 ± 0.58 % (71.00, 72.00, 73.00) |" in lines[2]
    against = {line.split(" | ")[0].strip("| "): line for line in lines[10:]}
    assert "10.00 ± 0.00 points (10.00, 10.00, 10.00) | 1.50 times |" in next(iter(against.values()))
    assert "-1.00 ± 0.00 points" in lines[-1] and "2.00 times" in lines[-1]
    texts = checked(findings.svg(RESULTS))
    assert "11.00 to 13.00, off this scale" in " ".join(texts)
    assert f"{next(iter(RECIPES))}: 72.00 ± 0.58 %, 2.0 minutes" in texts
    assert findings.table([r for r in RESULTS if r.seed == 1]).count("±") == 0  # one seed has no spread
