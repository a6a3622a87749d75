"""How a learning-rate plug-in declares an option: a dataclass field with its help text and its rule.

Nothing here reads a command line: the harness turns the fields into flags and YAML keys.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], "str | None"]


def opt(default: Any, help: str, **metadata: Any) -> Any:
    """One option; field name = flag = YAML key.

    `aliases`: older spellings. `choices`: the values allowed. `kind`: "now", "later" or "hint".
    `check`: a function of the value that returns the rule it breaks, as text ("must be >= 0"), or None.
    """
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


def warmup_epochs() -> Any:
    """The option that all four schedules share."""
    return opt(5.0, "epochs over which the rate rises from 0; 0 switches the warm-up off", check=at_least(0))


def at_least(bound: float) -> Check:
    """Check: a finite value >= bound; None is a value that was not given."""
    return lambda value: None if value is None or bound <= value < math.inf else f"must be >= {bound:g} and finite"


def above(bound: float) -> Check:
    """Check: a finite value > bound; None is a value that was not given."""
    return lambda value: None if value is None or bound < value < math.inf else f"must be > {bound:g} and finite"


def keep_rules(options: Any) -> None:
    """Hold every field of a dataclass against its rule, for callers that come past the command line."""
    for field in dataclasses.fields(options):
        rule, value = field.metadata.get("check"), getattr(options, field.name)
        broken = rule(value) if rule else None
        if broken:
            raise ValueError(f"{field.name} is {value!r} but {broken}")
