"""Write the options of a run as a configuration for configs.yml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from cnn_harness.base.fields import ONE_CALL
from cnn_harness.harness.options.releases import VINTAGES, vintage
from cnn_harness.harness.options.sections import COMMAND_LINE, CONFIGURATION, RECORDED, RunOptions, with_trait
from cnn_harness.harness.run.option_values import drop_conflicting

# Older spellings and the release imply values, which the block must have, because it has neither.
_GIVEN = (COMMAND_LINE, CONFIGURATION, RECORDED, "default of release", "default with")


def given_values(options: RunOptions) -> dict[str, Any]:
    """Return the values that a command line, a configuration or a recorded run gives or implies, except those for a single
    call."""
    left_out, release = with_trait(ONE_CALL), options.values_release
    # Releases that warm up differently would change the learning rate, so they are kept only if they are given.
    of_release = {"release": release} if release in VINTAGES and vintage(release).warms_up_iterations else {}
    return of_release | {
        name: value
        for name, value in options.values().items()
        if name not in left_out and options.sources.get(name, "").startswith(_GIVEN) and value is not None
    }


def block(name: str, values: Mapping[str, Any]) -> str:
    """Return values as a configuration with a name, in YAML."""
    kept = drop_conflicting(values)  # A recorded run has values even for options that exclude each other.
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in kept.items()}
    style = None if any(isinstance(value, list) for value in plain.values()) else False  # one line for each option
    return yaml.safe_dump({name: plain}, sort_keys=False, default_flow_style=style, width=120)
