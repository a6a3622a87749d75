"""Observations of a network's weights, activations and gradients: exponents, and losses in their number formats."""
