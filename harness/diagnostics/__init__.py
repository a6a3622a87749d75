"""Checks of a training under way: numbers that are not finite, lost gradients, slow instances, and --numerics."""
