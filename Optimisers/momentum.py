"""SGD with momentum: a = momentum * a + g; w -= rate * a.

With `nesterov`: w -= rate * (g + momentum * a), as in PyTorch's SGD. This is the rule of Sutskever et al., ICML 2013,
except that `a` does not contain the learning rate.
"""

from dataclasses import dataclass

from cnn_harness.base.fields import opt
from cnn_harness.Optimisers._rule import MomentumOption, UpdateRule, kernels_for, of_all


@dataclass(frozen=True, kw_only=True)
class Options(MomentumOption):
    """The options of momentum."""

    nesterov: bool = opt(False, "use Nesterov momentum with --optimiser momentum")


class Rule(UpdateRule):
    """SGD with momentum. A native operation updates all variables at once."""

    slots = {"Momentum": 0.0}
    linear = True
    highest_rate = 20.0

    def update(self, name, w, slots, g, rate, done):
        momentum = self.options.momentum
        a = momentum * slots["Momentum"] + g
        return w - rate * (g + momentum * a if self.options.nesterov else a), {"Momentum": a}

    def update_all(self, moves, rate, done):
        kernels = kernels_for(rate)
        if kernels is None or self.options.nesterov:
            return super().update_all(moves, rate, done)
        values, momenta = kernels.emulator_momentum_update(
            momenta=[move.slots["Momentum"] for move in moves], momentum=self.options.momentum, **of_all(moves, rate)
        )
        return [(w, {"Momentum": a}) for w, a in zip(values, momenta)]
