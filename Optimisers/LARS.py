"""Layer-wise adaptive rates (You et al., arXiv 1708.03888): a = momentum * a + rate * trust * (g + decay * w); w -= a.

trust = eeta * |w| / (|g| + decay * |w| + epsilon), or 1 if |w| or |g| is 0. Variables in --lars-skip-list have
a = momentum * a + rate * g instead.
"""

from dataclasses import dataclass

from cnn_harness.base.fields import above, at_least, opt
from cnn_harness.Optimisers._rule import SKIPPED, MomentumOption, UpdateRule, or_one, where_both


@dataclass(frozen=True, kw_only=True)
class Options(MomentumOption):
    """The options of LARS."""

    lars_epsilon: float = opt(0.0, "LARS: add this constant to the denominator of the trust ratio", check=at_least(0))
    lars_eeta: float = opt(0.001, "LARS: set the trust coefficient", check=above(0))
    lars_skip_list: tuple[str, ...] = opt(
        SKIPPED, "LARS: apply no trust ratio and no LARS weight decay to variables whose names contain one of these words"
    )
    lars_weight_decay: float | None = opt(
        None,
        "LARS: set the weight decay that LARS itself applies, in addition to --weight-decay (default: depends on the model)",
        check=at_least(0),
    )


class Rule(UpdateRule):
    """Layer-wise adaptive rates."""

    slots = {"Momentum": 0.0}
    skip_list = "lars_skip_list"
    highest_rate = 100.0
    defaults = {"weight_decay": 0.0}  # LARS has its own weight decay

    def update(self, name, w, slots, g, rate, done):
        import tensorflow.compat.v1 as tf

        step, decay = rate * g, self.options.lars_weight_decay or 0.0
        if not self.skips(name):
            of_w, of_g = tf.norm(w), tf.norm(g)
            trust = self.options.lars_eeta * of_w / or_one(of_g + decay * of_w + self.options.lars_epsilon)
            step = rate * where_both(of_w, of_g, trust) * (g + decay * w)
        a = self.options.momentum * slots["Momentum"] + step
        return w - a, {"Momentum": a}
