"""The weight update rules as a table without TensorFlow: state, linearity, rates and options of each. The arithmetic is in
`harness/programs/optimisers.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

RMSPROP_DECAY = 0.9  # of the mean square, unless options give another
SKIPPED = ("beta", "gamma", "bias")  # words of variables' names that LARS and LAMB neither scale nor decay, by default
_ADAM_RATE = {"abs_learning_rate": 0.001, "base_learning_rate_exponent": None}  # the paper's, for any batch


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """A row of the table of update rules. `highest_rate`: published trainings with batches up to 65,536 stay at or below it;
    momentum 0.9 does the work of a rate ten times as large, and LARS scales by layer."""

    slots: Mapping[str, float] = field(default_factory=dict)  # state of each weight by name, with its initial value
    linear: bool = False  # in the gradient: the loss scale may be undone in the learning rate
    squares: bool = False  # of gradients are among the slots, which FP16 cannot hold
    counts_updates: bool = False  # since its slots began, and corrects them by the number
    decoupled_decay: bool = False  # --weight-decay x rate shrinks the weights themselves, and is not in the gradients
    highest_rate: float
    options: tuple[str, ...] = ()  # that not every rule reads
    defaults: Mapping[str, float | None] = field(default_factory=dict)  # of options, before the model's


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
        defaults={"weight_decay": 0.0},  # beside its own
    ),
    "LAMB": UpdateRule(
        slots={"LAMB_m": 0.0, "LAMB_v": 0.0},
        squares=True,
        counts_updates=True,
        highest_rate=1.0,
        options=("lamb_beta1", "lamb_beta2", "lamb_epsilon", "lamb_weight_decay", "lamb_skip_list"),
        defaults={"base_learning_rate_exponent": None},  # models' ones are of rules whose steps are gradients
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
