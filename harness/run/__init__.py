"""A run as a value: what follows from its options, without TensorFlow."""
