"""How a run is laid out and what that costs, worked out without TensorFlow."""
