"""The work of a process before and beside its task: first lines, signals, command lines, orphaned instances, TensorFlow."""
