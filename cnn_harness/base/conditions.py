"""Conditions for `opt(needs=...)`: what an option needs in a run to have an effect.

Plug-ins import this file, so it imports no other module of the project; a run is the value of `harness/run/run.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Condition(NamedTuple):
    """A condition. `text` completes a warning: "--wandb-id 3 has no effect without ..."."""

    text: str
    is_met: Callable[[Any], bool]


def option(name: str, value: str | None = None) -> Condition:
    """Return the condition that an option has this value; without a value, that it is on."""
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return Condition(flag, lambda run: bool(run.options.values()[name]))
    return Condition(f"{flag} {value}", lambda run: run.options.values()[name] == value)


data_files = Condition("data files", lambda run: not run.options.dataset.random_data)
photos = Condition("photos", lambda run: run.family == "imagenet")
photo_files = Condition("photo files", lambda run: photos.is_met(run) and data_files.is_met(run))
random_crops = Condition(
    "random crops", lambda run: data_files.is_met(run) and not run.options.dataset.train_with_valid_preprocessing
)
cutmix = Condition("--cutmix-lambda", lambda run: run.options.dataset.cutmix_lambda < 1)
frozen_batch_norms = Condition("frozen batch norms", lambda run: bool(run.frozen_norms))
half_precision = Condition(
    "half precision", lambda run: run.plan.precision.rounds_results or run.plan.precision.rounds_operands
)
block_formats = Condition("activations and gradients in block formats", lambda run: run.plan.precision.may_rotate)
several_stages = Condition("several stages", lambda run: len(run.plan.stages) > 1)
pipelined = Condition("--pipeline and several stages", lambda run: run.plan.options.pipeline and several_stages.is_met(run))
several_replicas = Condition("several replicas", lambda run: run.plan.total_replicas > 1)
several_processes = Condition("several processes", lambda run: run.plan.instances > 1)
checkpoints = Condition(
    "a checkpoint", lambda run: bool(run.options.checkpoint.ckpts_per_epoch or run.options.checkpoint.epochs_per_ckpt)
)
