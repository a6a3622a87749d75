"""What a run records of itself, as it is read again: in arguments.json beside the options, which have rules of their own,
and in the states of its checkpoints. Others may have written either. A leaf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from harness.fields import LARGEST_COUNT, brief

ROLLING = "rolling"  # in the state of a checkpoint that the next one replaces
ITERATION = "iteration"  # in every state: the updates that the run had done
CALLS = "calls"  # in every state: the calls of the run that led to it
RUN_ID = "run_id"  # in every state and in the options that a run records
ASKED = "asked"  # in those options: as they were asked for, where something else followed
_LARGEST = 2**63 - 1
_ROUNDED = 1e-3  # that a mean of fractions may be above 1
Rule = tuple[Callable[[Any], bool], str]  # whether a value keeps it, and what it says


def _is_whole(value: Any, least: int = 0, most: int = _LARGEST) -> bool:
    return type(value) is int and least <= value <= most


def _is_number(value: Any) -> bool:
    return type(value) is float or _is_whole(value, -_LARGEST)


def _are_means(value: Any) -> bool:
    """(loss, accuracy) each; a loss need not be finite, as --keep-going goes on after one."""
    pairs = isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value)
    return pairs and all(_is_number(loss) and _is_number(right) and 0 <= right <= 1 + _ROUNDED for loss, right in value)


def _are_calls(value: Any) -> bool:
    pairs = isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value)
    return pairs and all(isinstance(name, str) and _is_whole(since) for name, since in value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_COUNT: Rule = (lambda value: _is_whole(value, 1, LARGEST_COUNT), f"a whole number from 1 to {LARGEST_COUNT}")
_WHOLE: Rule = (_is_whole, "a whole number from 0 on")
_SWITCH: Rule = (lambda value: isinstance(value, bool), "true or false")
_TEXT: Rule = (lambda value: isinstance(value, str), "text")
_MEANS: Rule = (_are_means, "pairs of a loss and a fraction")
_OPTIONS: Mapping[str, Rule] = {
    ASKED: (lambda value: isinstance(value, dict), "an object"),
    RUN_ID: _TEXT,
    "total_replicas": _COUNT,
    "total_batch_size": _COUNT,
    "image_size": _COUNT,
    "parameters": _WHOLE,
    "instance": _WHOLE,
    "instance_folders": (_are_texts, "a list of names"),
    "symmetric_input": _SWITCH,
    "normalise_input": _SWITCH,
}
_STATE: Mapping[str, Rule] = {
    ITERATION: _WHOLE,
    ROLLING: _SWITCH,
    RUN_ID: _TEXT,
    CALLS: (_are_calls, "pairs of a name and a whole number"),
    "host_steps": _WHOLE,
    "updates_per_step": _COUNT,
    "seconds": (lambda value: _is_number(value) and 0 <= value < math.inf, "a number from 0 on"),
    "window": _MEANS,
    "open": _MEANS,
}


def wrong_option(found: Mapping[str, Any]) -> str | None:
    """What is wrong with the first value that breaks its rule; null stands for none."""
    return _wrong({name: value for name, value in found.items() if value is not None}, _OPTIONS)


def sound_state(found: Mapping[str, Any]) -> bool:
    """Whether every value that is read of a checkpoint's state can be one."""
    return _wrong(found, _STATE) is None


def _wrong(found: Mapping[str, Any], rules: Mapping[str, Rule]) -> str | None:
    broken = (name for name, (keeps, _) in rules.items() if name in found and not keeps(found[name]))
    return next((f"{name} is {brief(repr(found[name]))} but must be {rules[name][1]}" for name in broken), None)
