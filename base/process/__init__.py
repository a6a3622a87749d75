"""The work of a process before and beside its task: first lines, signals, command lines, TensorFlow's quiet import."""
