"""The planner: memory, time and rate of a plan on the IPU systems that the emulation stands for. No TensorFlow."""
