"""The layout of a run and its cost, worked out without TensorFlow."""
