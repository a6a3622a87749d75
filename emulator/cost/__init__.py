"""What a model costs: counted without TensorFlow."""
