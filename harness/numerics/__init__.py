"""--numerics: observations of a run's numbers, in a file, in TensorBoard, and as a picture."""
