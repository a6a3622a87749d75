"""Adam: m += (g - m) * (1 - beta1); v += (g^2 - v) * (1 - beta2);
w -= rate * m / (sqrt(v) + epsilon) * sqrt(1 - beta2^t) / (1 - beta1^t).

As in Keras and in section 2 of Kingma and Ba (arXiv 1412.6980), epsilon is added to sqrt(v) before the bias correction.
"""

from dataclasses import dataclass

from cnn_harness.base.fields import above, below_one, opt
from cnn_harness.Optimisers._rule import UpdateRule, bias_corrections


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of Adam and AdamW."""

    adam_beta1: float = opt(0.9, "Adam, AdamW: set the decay of the first moment", check=below_one)
    adam_beta2: float = opt(0.999, "Adam, AdamW: set the decay of the second moment", check=below_one)
    adam_epsilon: float = opt(1e-7, "Adam, AdamW: add this constant to the square root of the second moment", check=above(0))


class Rule(UpdateRule):
    """Adam."""

    slots = {"Adam_m": 0.0, "Adam_v": 0.0}
    squares = True
    counts_updates = True
    highest_rate = 0.01
    # the learning rate in the paper, for any batch size
    defaults = {"weight_decay": 0.0, "abs_learning_rate": 0.001, "base_learning_rate_exponent": None}

    def update(self, name, w, slots, g, rate, done):
        import tensorflow.compat.v1 as tf

        beta1, beta2 = self.options.adam_beta1, self.options.adam_beta2
        m = slots["Adam_m"] + (g - slots["Adam_m"]) * (1 - beta1)
        v = slots["Adam_v"] + (tf.square(g) - slots["Adam_v"]) * (1 - beta2)
        first, second = bias_corrections(done, w.dtype, beta1, beta2)
        rate *= tf.sqrt(second) / first
        return w - rate * m / (tf.sqrt(v) + self.options.adam_epsilon), {"Adam_m": m, "Adam_v": v}
