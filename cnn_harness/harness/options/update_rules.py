"""List the optimisers with their state, learning rates and options.

`harness/programs/optimisers.py` computes the updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

RMSPROP_DECAY = 0.9  # the default decay of the mean square
SKIPPED = ("beta", "gamma", "bias")  # LARS and LAMB skip variables with these words in their names by default
_ADAM_RATE = {
    "abs_learning_rate": 0.001,
    "base_learning_rate_exponent": None,
}  # the learning rate in the paper, for any batch size


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """An optimiser.

    slots: its state for each weight, as {name: initial value}
    linear: the update is linear in the gradient, so the loss scale may divide the learning rate instead
    squares: the state has squares of gradients, which are often too small for FP16
    counts_updates: the number of updates determines a bias correction of the state, as in Adam
    decoupled_decay: weight decay is subtracted from the weights, instead of added to the gradients
    highest_rate: the highest learning rate in published trainings, with batches up to 65,536
    options: the options that this optimiser uses, if others do not
    defaults: defaults of options, which override the defaults of the model
    """

    slots: Mapping[str, float] = field(default_factory=dict)
    linear: bool = False
    squares: bool = False
    counts_updates: bool = False
    decoupled_decay: bool = False
    highest_rate: float
    options: tuple[str, ...] = ()
    defaults: Mapping[str, float | None] = field(default_factory=dict)


UPDATE_RULES: Mapping[str, UpdateRule] = {
    "SGD": UpdateRule(linear=True, highest_rate=100.0),
    "momentum": UpdateRule(slots={"Momentum": 0.0}, linear=True, highest_rate=20.0, options=("momentum", "nesterov")),
    "RMSprop": UpdateRule(
        slots={"RMSProp": 1.0, "RMSProp_1": 0.0},
        highest_rate=2.0,
        options=("momentum", "rmsprop_decay", "rmsprop_base_decay_exp", "rmsprop_epsilon"),
    ),
    "LARS": UpdateRule(
        slots={"Momentum": 0.0},
        highest_rate=100.0,
        options=("momentum", "lars_epsilon", "lars_eeta", "lars_skip_list", "lars_weight_decay"),
        defaults={"weight_decay": 0.0},  # LARS has its own weight decay
    ),
    "LAMB": UpdateRule(
        slots={"LAMB_m": 0.0, "LAMB_v": 0.0},
        squares=True,
        counts_updates=True,
        highest_rate=1.0,
        options=("lamb_beta1", "lamb_beta2", "lamb_epsilon", "lamb_weight_decay", "lamb_skip_list"),
        # the exponents of the models are for optimisers whose updates are proportional to the gradients
        defaults={"base_learning_rate_exponent": None},
    ),
    "Adam": UpdateRule(
        slots={"Adam_m": 0.0, "Adam_v": 0.0},
        squares=True,
        counts_updates=True,
        highest_rate=0.01,
        options=("adam_beta1", "adam_beta2", "adam_epsilon"),
        defaults={"weight_decay": 0.0, **_ADAM_RATE},
    ),
    "AdamW": UpdateRule(
        slots={"Adam_m": 0.0, "Adam_v": 0.0},
        squares=True,
        counts_updates=True,
        decoupled_decay=True,
        highest_rate=0.01,
        options=("adam_beta1", "adam_beta2", "adam_epsilon"),
        defaults={"weight_decay": 0.01, **_ADAM_RATE},
    ),
}


def named_by(words: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that returns whether the name of a variable contains one of the words."""
    return lambda name: any(word in name for word in words)
