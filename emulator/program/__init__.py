"""Programs of TensorFlow that carry out a plan."""
