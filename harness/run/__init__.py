"""A run as a value, resolved from its options without TensorFlow."""
