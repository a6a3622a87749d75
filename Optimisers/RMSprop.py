"""RMSprop: ms += (g^2 - ms) * (1 - decay); mom = momentum * mom + rate * g / sqrt(ms + epsilon); w -= mom.

The mean of the gradients is not subtracted (not centred). The mean square `ms` starts at 1, as in TensorFlow.
"""

from dataclasses import dataclass

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import above, below_one, between, opt
from cnn_harness.Optimisers._rule import MomentumOption, UpdateRule, kernels_for, of_all

DECAY = 0.9  # the default decay of the mean square


@dataclass(frozen=True, kw_only=True)
class Options(MomentumOption):
    """The options of RMSprop."""

    rmsprop_decay: float | None = opt(
        None, "RMSprop: set the decay of the mean square (default: see --rmsprop-base-decay-exp)", check=below_one
    )
    rmsprop_base_decay_exp: float | None = opt(
        None,
        "RMSprop: set the decay to 1 - global batch size x 2^X (default: X = -14 for EfficientNet on ImageNet; "
        "otherwise the decay is 0.9)",
        check=between(-126, 64),
    )
    rmsprop_epsilon: float = opt(0.001, "RMSprop: add this constant inside the square root", check=above(0))


class Rule(UpdateRule):
    """RMSprop. A native operation updates all variables at once."""

    slots = {"RMSProp": 1.0, "RMSProp_1": 0.0}
    highest_rate = 2.0

    @property
    def decay(self) -> float:
        """The decay of the mean square. Raise OptionError unless it is at least 0 and below 1.

        The decay is --rmsprop-decay, otherwise 1 - global batch x 2^--rmsprop-base-decay-exp, otherwise 0.9.
        """
        exponent, batch = self.options.rmsprop_base_decay_exp, self.global_batch
        if self.options.rmsprop_decay is not None:
            return self.options.rmsprop_decay
        if exponent is None:
            return DECAY
        share = batch * 2.0**exponent
        if not 0 < share <= 1 or 1 - share == 1:
            remedy = f"give a {'smaller' if share > 1 else 'larger'} exponent, or --rmsprop-decay"
            raise OptionError(
                f"--rmsprop-base-decay-exp {exponent:g}: 1 - global batch x 2^exp = 1 - {batch} x {2.0**exponent:.4g}"
                f" = {1 - share:.4g} must be between 0 and 1; {remedy}"
            )
        return 1 - share

    def check(self):
        if self.decay is not None and None not in (self.options.rmsprop_decay, self.options.rmsprop_base_decay_exp):
            yield (
                f"--rmsprop-base-decay-exp {self.options.rmsprop_base_decay_exp:g} is ignored, because --rmsprop-decay "
                f"{self.options.rmsprop_decay:g} sets the decay"
            )

    def update(self, name, w, slots, g, rate, done):
        import tensorflow.compat.v1 as tf

        ms = slots["RMSProp"] + (tf.square(g) - slots["RMSProp"]) * (1 - self.decay)
        mom = self.options.momentum * slots["RMSProp_1"] + rate * g * tf.math.rsqrt(ms + self.options.rmsprop_epsilon)
        return w - mom, {"RMSProp": ms, "RMSProp_1": mom}

    def update_all(self, moves, rate, done):
        kernels = kernels_for(rate)
        if kernels is None:
            return super().update_all(moves, rate, done)
        squares, momenta = ([move.slots[name] for move in moves] for name in self.slots)
        moved = kernels.emulator_rms_prop_update(
            squares=squares, momenta=momenta, momentum=self.options.momentum, share=1 - self.decay,
            epsilon=self.options.rmsprop_epsilon, **of_all(moves, rate),
        )  # fmt: skip
        return [(w, {"RMSProp": ms, "RMSProp_1": mom}) for w, ms, mom in zip(*moved)]
