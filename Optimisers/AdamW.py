"""Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101): w -= rate * decay * w, in addition to Adam."""

from cnn_harness.Optimisers import Adam

Options = Adam.Options


class Rule(Adam.Rule):
    """Adam with decoupled weight decay."""

    decoupled_decay = True
    defaults = {**Adam.Rule.defaults, "weight_decay": 0.01}
