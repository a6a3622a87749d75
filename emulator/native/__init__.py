"""Kernels in C++ for what XLA does in more passes over memory than are needed: `build` compiles them where a compiler is,
`library` finds and loads them. Without them `emulator.layers` computes the same in TensorFlow's own operations."""
