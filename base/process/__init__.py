"""What a process does before and beside its work: first lines, signals, command lines, TensorFlow's quiet import."""
