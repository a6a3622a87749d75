"""A table of the weight update rules: their state, linearity, learning rates and options.

The arithmetic is in `harness/programs/optimisers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

RMSPROP_DECAY = 0.9  # of the mean square, by default
SKIPPED = ("beta", "gamma", "bias")  # words in names of variables that LARS and LAMB skip by default
_ADAM_RATE = {"abs_learning_rate": 0.001, "base_learning_rate_exponent": None}  # the rate of the paper, for any batch


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """A row of the table.

    slots: state of each weight by name, with its initial value
    linear: the update is linear in the gradient, so the learning rate may be divided by the loss scale
    squares: slots hold squares of gradients, which FP16 cannot represent
    counts_updates: the rule corrects its slots by the number of updates since they began
    decoupled_decay: --weight-decay x rate shrinks the weights, and is not added to the gradients
    highest_rate: published trainings with batches up to 65,536 stay at or below it
    options: the options that only some rules read
    defaults: defaults of options, which win over the model's
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
        defaults={"weight_decay": 0.0},  # because it has its own
    ),
    "LAMB": UpdateRule(
        slots={"LAMB_m": 0.0, "LAMB_v": 0.0},
        squares=True,
        counts_updates=True,
        highest_rate=1.0,
        options=("lamb_beta1", "lamb_beta2", "lamb_epsilon", "lamb_weight_decay", "lamb_skip_list"),
        defaults={
            "base_learning_rate_exponent": None
        },  # because the models' exponents are for rules whose steps are gradients
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
    """Return a test whether a variable's name contains one of the words."""
    return lambda name: any(word in name for word in words)
