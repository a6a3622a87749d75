"""The emulated IPU device layer: plans, schedules, draws, and the TensorFlow executor."""
