"""Stochastic gradient descent: w -= rate * g."""

from dataclasses import dataclass

from cnn_harness.Optimisers._rule import UpdateRule


@dataclass(frozen=True, kw_only=True)
class Options:
    """SGD has no options."""


class Rule(UpdateRule):
    """Stochastic gradient descent."""

    linear = True
    highest_rate = 100.0

    def update(self, name, w, slots, g, rate, done):
        return w - rate * g, {}
