"""Plans as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from harness.planning.planned_config import Planned, efficiencies
from harness.reports import output


def json_file(planned: Sequence[Planned], target: str) -> None:
    """Write one object, or a list of them for several plans; `-`: on standard output."""
    each = [values(one, efficiency) for one, efficiency in zip(planned, efficiencies(planned))]
    text = json.dumps(each[0] if len(each) == 1 else each, indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        output.write_atomically(target, text, output.JSON)


def values(planned: Planned, efficiency: float | None) -> dict[str, Any]:
    """Return a plan's values for JSON."""
    content = {"configuration": planned.block, "looked_at": planned.looked_at} if planned.given else {}
    given = {"given": planned.given.values()} if planned.given else {}
    scaling = {"efficiency": efficiency, "undivided": planned.undivided}
    remedies = {"remedies": list(planned.remedies)}
    return {"name": planned.name, **planned.prediction.values(), **scaling, **remedies, **content, **given}
