"""Models by name, with the options of their families."""

from __future__ import annotations

import dataclasses
import importlib

from emulator.plan.trace import trace

CLASSES = {"imagenet": 1000, "cifar": 10}


def options_of(name, family, **changes):
    """Return a model's module and its options: the family's defaults with changes."""
    module = importlib.import_module(f"Models.{name}")
    fields = {field.name for field in dataclasses.fields(module.Options)}
    defaults = {key: value for key, value in module.DEFAULTS[family].items() if key in fields}
    return module, module.Options(**{**defaults, **changes})


def network(name, family, size, *, two_pass=False, **changes):
    """Return the segments of a model, and its usual image size."""
    module, options = options_of(name, family, model_size=size, **changes)
    return module.build(options, family, CLASSES[family], two_pass), module.image_size(options, family)


def traced(name, family, size, *, side=None, channels=3, **changes):
    """Return a counted model."""
    segments, usual = network(name, family, size, **changes)
    return trace(segments, side or usual, channels)
