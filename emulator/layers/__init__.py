"""The layer vocabulary in TensorFlow: norms, number formats, checks, gradients."""
