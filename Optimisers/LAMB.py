"""Layer-wise adaptive moments (You et al., arXiv 1904.00962), with bias correction: w -= rate * |w| / |u| * u.

u = m / (sqrt(v) + epsilon) + decay * w. For variables in --lamb-skip-list, decay is 0 and |w| / |u| is replaced by 1.
"""

from dataclasses import dataclass

from cnn_harness.base.fields import above, at_least, below_one, opt
from cnn_harness.Optimisers._rule import SKIPPED, UpdateRule, bias_corrections, or_one, where_both


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of LAMB."""

    lamb_beta1: float = opt(0.9, "LAMB: set the decay of the first moment", check=below_one)
    lamb_beta2: float = opt(0.999, "LAMB: set the decay of the second moment", check=below_one)
    lamb_epsilon: float = opt(1e-6, "LAMB: add this constant to the square root of the second moment", check=above(0))
    lamb_weight_decay: float | None = opt(
        None,
        "LAMB: set the weight decay that LAMB itself applies, in addition to --weight-decay (default: 0)",
        check=at_least(0),
    )
    lamb_skip_list: tuple[str, ...] = opt(
        SKIPPED, "LAMB: apply no trust ratio and no LAMB weight decay to variables whose names contain one of these words"
    )


class Rule(UpdateRule):
    """Layer-wise adaptive moments."""

    slots = {"LAMB_m": 0.0, "LAMB_v": 0.0}
    squares = True
    counts_updates = True
    skip_list = "lamb_skip_list"
    highest_rate = 1.0
    # the exponents of the models are for optimisers whose updates are proportional to the gradients
    defaults = {"base_learning_rate_exponent": None}

    def update(self, name, w, slots, g, rate, done):
        import tensorflow.compat.v1 as tf

        beta1, beta2 = self.options.lamb_beta1, self.options.lamb_beta2
        m = beta1 * slots["LAMB_m"] + (1 - beta1) * g
        v = beta2 * slots["LAMB_v"] + (1 - beta2) * tf.square(g)
        first, second = bias_corrections(done, w.dtype, beta1, beta2)
        u = m / first / (tf.sqrt(v / second) + self.options.lamb_epsilon)
        if not self.skips(name):
            u += (self.options.lamb_weight_decay or 0.0) * w
            of_w, of_u = tf.norm(w), tf.norm(u)
            rate *= where_both(of_w, of_u, of_w / or_one(of_u))
        return w - rate * u, {"LAMB_m": m, "LAMB_v": v}
