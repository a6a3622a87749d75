"""The interface of optimiser plug-ins. A file NAME.py is used by `--optimiser NAME`.

The file has a class `Options`, whose fields are the options that the optimiser uses, and a class `Rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cnn_harness.base.fields import below_one, opt

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    from cnn_harness.ipu_utils import Move

    Slots = dict[str, tf.Tensor]
    Updated = tuple[tf.Tensor, Slots]

SKIPPED = ("beta", "gamma", "bias")  # LARS and LAMB skip variables with these words in their names by default


class UpdateRule:
    """An optimiser. Each file defines a subclass `Rule`, whose instances compute in the precision of their arguments.

    slots: the state for each weight, as {name: initial value}
    linear: the update is linear in the gradient, so the loss scale may divide the learning rate instead
    squares: the state has squares of gradients, which are often too small for FP16
    counts_updates: the number of updates determines a bias correction of the state, as in Adam
    decoupled_decay: weight decay is subtracted from the weights, instead of added to the gradients
    skip_list: the option that lists the variables whose step does not depend on norms of the whole variable
    highest_rate: the highest learning rate in published trainings, with batches up to 65,536
    defaults: defaults of options, which override the defaults of the model
    """

    slots: Mapping[str, float] = {}
    linear: bool = False
    squares: bool = False
    counts_updates: bool = False
    decoupled_decay: bool = False
    skip_list: str = ""
    highest_rate: float
    defaults: Mapping[str, float | None] = {}

    def __init__(self, options: Any, global_batch: int) -> None:
        """Store the options, which have at least the fields of `Options`, and the number of images in an update."""
        self.options, self.global_batch = options, global_batch

    @property
    def has_norms(self) -> bool:
        """True if a step depends on norms of the whole variable."""
        return bool(self.skip_list)

    def skips(self, name: str) -> bool:
        """Return whether the skip list contains a word of the variable's name."""
        return named_by(getattr(self.options, self.skip_list))(name)

    def check(self) -> Iterator[str]:
        """Yield lines for the log. Raise OptionError if the optimiser cannot work with these options."""
        yield from ()

    def update(self, name: str, w: tf.Tensor, slots: Slots, g: tf.Tensor, rate: tf.Tensor, done: tf.Tensor) -> Updated:
        """Return the variable `name` and its slots after the update. `done` (int64) is the number of earlier updates that
        were not skipped."""
        raise NotImplementedError

    def update_all(self, moves: Sequence[Move], rate: tf.Tensor, done: tf.Tensor) -> list[Updated]:
        """Return each variable and its slots after the update. All moves have the same divisor."""
        return [self.update(m.name, m.w, m.slots, m.whole_gradient, rate, done) for m in moves]


@dataclass(frozen=True, kw_only=True)
class MomentumOption:
    """The option of several optimisers."""

    momentum: float = opt(0.9, "set the momentum coefficient of the optimisers momentum, RMSprop and LARS", check=below_one)


def named_by(words: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that returns whether the name of a variable contains one of the words."""
    return lambda name: any(word in name for word in words)


def kernels_for(x: tf.Tensor) -> ModuleType | None:
    """Return the native operations for a tensor, or None."""
    from cnn_harness.emulator.native import library

    return library.load_for(x)


def of_all(moves: Sequence[Move], rate: tf.Tensor) -> dict[str, Any]:
    """Return the arguments of a native operation that updates all variables, except the optimiser's slots."""
    import tensorflow.compat.v1 as tf

    return {
        "weights": [move.w for move in moves], "gradients": [move.gradient for move in moves], "rate": rate,
        "decays": tf.cast(tf.stack([move.decay for move in moves]), tf.float32), "divisor": moves[0].divisor,
    }  # fmt: skip


def bias_corrections(done: tf.Tensor, dtype: tf.DType, *decays: float) -> list[tf.Tensor]:
    """Return the bias correction 1 - decay^t for each decay. t is the number of updates, including the current one."""
    import tensorflow.compat.v1 as tf

    t = tf.cast(done + 1, tf.float64)
    return [tf.cast(1 - tf.pow(tf.constant(decay, tf.float64), t), dtype) for decay in decays]


def where_both(one: tf.Tensor, other: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Return `value` if both norms are positive, otherwise 1."""
    import tensorflow.compat.v1 as tf

    return tf.where_v2(tf.logical_and(one > 0, other > 0), value, tf.ones_like(value))


def or_one(x: tf.Tensor) -> tf.Tensor:
    """Return x if it is positive, otherwise 1. The result is a divisor."""
    import tensorflow.compat.v1 as tf

    return tf.where_v2(x > 0, x, tf.ones_like(x))
