"""Define the optimisers (update rules of the weights). Each computes in the precision of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf

from cnn_harness.emulator.native import library
from cnn_harness.emulator.program.training_spec import Move, Optimiser
from cnn_harness.harness.options.sections import TrainingOptions
from cnn_harness.harness.options.update_rules import UPDATE_RULES, named_by

Slots = dict[str, tf.Tensor]
Named = Callable[[str], bool]


class SGD(Optimiser):
    """Stochastic gradient descent: w -= rate * g."""

    slots = UPDATE_RULES["SGD"].slots

    def update(
        self, name: str, w: tf.Tensor, slots: Slots, g: tf.Tensor, learning_rate: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        return w - learning_rate * g, {}


@dataclass(frozen=True)
class Momentum(Optimiser):
    """SGD with momentum: a = momentum * a + g; w -= rate * a.

    With `nesterov`: w -= rate * (g + momentum * a), as in PyTorch's SGD. This is the rule of Sutskever et al., ICML 2013,
    except that `a` does not contain the learning rate.
    """

    momentum: float
    nesterov: bool = False
    slots = UPDATE_RULES["momentum"].slots

    def update(
        self, name: str, w: tf.Tensor, slots: Slots, g: tf.Tensor, learning_rate: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        a = self.momentum * slots["Momentum"] + g
        return w - learning_rate * (g + self.momentum * a if self.nesterov else a), {"Momentum": a}

    def update_all(self, moves: Sequence[Move], learning_rate: tf.Tensor, done: tf.Tensor) -> list[tuple[tf.Tensor, Slots]]:
        kernels = library.load_for(learning_rate)
        if kernels is None or self.nesterov:
            return super().update_all(moves, learning_rate, done)
        momenta = [move.slots["Momentum"] for move in moves]
        values, momenta = kernels.emulator_momentum_update(
            momenta=momenta, momentum=self.momentum, **_of_all(moves, learning_rate)
        )
        return [(w, {"Momentum": a}) for w, a in zip(values, momenta)]


@dataclass(frozen=True)
class RMSprop(Optimiser):
    """RMSprop: ms += (g^2 - ms) * (1 - decay); mom = momentum * mom + rate * g / sqrt(ms + epsilon); w -= mom.

    The mean of the gradients is not subtracted (not centred). The mean square `ms` starts at 1, as in TensorFlow.
    """

    decay: float
    momentum: float
    epsilon: float
    slots = UPDATE_RULES["RMSprop"].slots

    def update(
        self, name: str, w: tf.Tensor, slots: Slots, g: tf.Tensor, learning_rate: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        ms = slots["RMSProp"] + (tf.square(g) - slots["RMSProp"]) * (1 - self.decay)
        mom = self.momentum * slots["RMSProp_1"] + learning_rate * g * tf.math.rsqrt(ms + self.epsilon)
        return w - mom, {"RMSProp": ms, "RMSProp_1": mom}

    def update_all(self, moves: Sequence[Move], learning_rate: tf.Tensor, done: tf.Tensor) -> list[tuple[tf.Tensor, Slots]]:
        kernels = library.load_for(learning_rate)
        if kernels is None:
            return super().update_all(moves, learning_rate, done)
        squares, momenta = ([move.slots[name] for move in moves] for name in ("RMSProp", "RMSProp_1"))
        moved = kernels.emulator_rms_prop_update(
            squares=squares, momenta=momenta, momentum=self.momentum, share=1 - self.decay, epsilon=self.epsilon,
            **_of_all(moves, learning_rate),
        )  # fmt: skip
        return [(w, {"RMSProp": ms, "RMSProp_1": mom}) for w, ms, mom in zip(*moved)]


def _of_all(moves: Sequence[Move], learning_rate: tf.Tensor) -> dict[str, Any]:
    """Return the arguments of a native operation that updates all variables, except the optimiser's slots."""
    return {
        "weights": [move.w for move in moves], "gradients": [move.gradient for move in moves], "rate": learning_rate,
        "decays": tf.cast(tf.stack([move.decay for move in moves]), tf.float32), "divisor": moves[0].divisor,
    }  # fmt: skip


@dataclass(frozen=True)
class LARS(Optimiser):
    """Layer-wise adaptive rates (You et al., arXiv 1708.03888): a = momentum * a + rate * trust * (g + decay * w); w -= a.

    trust = eeta * |w| / (|g| + decay * |w| + epsilon), or 1 if |w| or |g| is 0. Variables in --lars-skip-list have
    a = momentum * a + rate * g instead.
    """

    momentum: float
    weight_decay: float
    eeta: float
    epsilon: float
    skipped: Named
    slots = UPDATE_RULES["LARS"].slots
    has_norms = True

    def update(
        self, name: str, w: tf.Tensor, slots: Slots, g: tf.Tensor, learning_rate: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        step = learning_rate * g
        if not self.skipped(name):
            of_w, of_g = tf.norm(w), tf.norm(g)
            trust = self.eeta * of_w / _or_one(of_g + self.weight_decay * of_w + self.epsilon)
            step = learning_rate * _where_both(of_w, of_g, trust) * (g + self.weight_decay * w)
        a = self.momentum * slots["Momentum"] + step
        return w - a, {"Momentum": a}


@dataclass(frozen=True)
class LAMB(Optimiser):
    """Layer-wise adaptive moments (You et al., arXiv 1904.00962), with bias correction: w -= rate * |w| / |u| * u.

    u = m / (sqrt(v) + epsilon) + decay * w. For variables in --lamb-skip-list, decay is 0 and |w| / |u| is replaced by 1.
    """

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    skipped: Named
    slots = UPDATE_RULES["LAMB"].slots
    has_norms = True

    def update(
        self, name: str, w: tf.Tensor, slots: Slots, g: tf.Tensor, learning_rate: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        m = self.beta1 * slots["LAMB_m"] + (1 - self.beta1) * g
        v = self.beta2 * slots["LAMB_v"] + (1 - self.beta2) * tf.square(g)
        first, second = _corrections(done, w.dtype, self.beta1, self.beta2)
        u = m / first / (tf.sqrt(v / second) + self.epsilon)
        if not self.skipped(name):
            u += self.weight_decay * w
            of_w, of_u = tf.norm(w), tf.norm(u)
            learning_rate *= _where_both(of_w, of_u, of_w / _or_one(of_u))
        return w - learning_rate * u, {"LAMB_m": m, "LAMB_v": v}


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam, or AdamW with `decoupled_decay` (Loshchilov and Hutter, arXiv 1711.05101).

    m += (g - m) * (1 - beta1); v += (g^2 - v) * (1 - beta2);
    w -= rate * m / (sqrt(v) + epsilon) * sqrt(1 - beta2^t) / (1 - beta1^t).

    As in Keras and in section 2 of Kingma and Ba (arXiv 1412.6980), epsilon is added to sqrt(v) before the bias correction.
    """

    beta1: float
    beta2: float
    epsilon: float
    decoupled_decay: bool = False
    slots = UPDATE_RULES["Adam"].slots

    def update(
        self, name: str, w: tf.Tensor, slots: Slots, g: tf.Tensor, learning_rate: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        m = slots["Adam_m"] + (g - slots["Adam_m"]) * (1 - self.beta1)
        v = slots["Adam_v"] + (tf.square(g) - slots["Adam_v"]) * (1 - self.beta2)
        first, second = _corrections(done, w.dtype, self.beta1, self.beta2)
        learning_rate *= tf.sqrt(second) / first
        return w - learning_rate * m / (tf.sqrt(v) + self.epsilon), {"Adam_m": m, "Adam_v": v}


def _corrections(done: tf.Tensor, dtype: tf.DType, *decays: float) -> list[tf.Tensor]:
    """Return the bias correction 1 - decay^t for each decay. t is the number of updates, including the current one."""
    t = tf.cast(done + 1, tf.float64)
    return [tf.cast(1 - tf.pow(tf.constant(decay, tf.float64), t), dtype) for decay in decays]


def _where_both(one: tf.Tensor, other: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Return `value` if both norms are positive, otherwise 1."""
    return tf.where_v2(tf.logical_and(one > 0, other > 0), value, tf.ones_like(value))


def _or_one(x: tf.Tensor) -> tf.Tensor:
    """Return x if it is positive, otherwise 1. The result is a divisor."""
    return tf.where_v2(x > 0, x, tf.ones_like(x))


def make(options: TrainingOptions, global_batch: int) -> Optimiser:
    """Return the optimiser that --optimiser names, configured by the other options."""
    momentum, rule = options.momentum, UPDATE_RULES[options.optimiser]
    adam = partial(Adam, options.adam_beta1, options.adam_beta2, options.adam_epsilon, rule.decoupled_decay)
    return {
        "SGD": SGD,
        "momentum": lambda: Momentum(momentum, options.nesterov),
        "RMSprop": lambda: RMSprop(options.mean_square_decay(global_batch), momentum, options.rmsprop_epsilon),
        "LARS": lambda: LARS(
            momentum=momentum,
            weight_decay=options.lars_weight_decay or 0.0,
            eeta=options.lars_eeta,
            epsilon=options.lars_epsilon,
            skipped=named_by(options.lars_skip_list),
        ),
        "LAMB": lambda: LAMB(
            beta1=options.lamb_beta1,
            beta2=options.lamb_beta2,
            epsilon=options.lamb_epsilon,
            weight_decay=options.lamb_weight_decay or 0.0,
            skipped=named_by(options.lamb_skip_list),
        ),
        "Adam": adam,
        "AdamW": adam,
    }[options.optimiser]()
