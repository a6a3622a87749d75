"""A run's layout and its costs, worked out without TensorFlow."""
