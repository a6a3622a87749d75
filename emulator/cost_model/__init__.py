"""The cost model: memory, time and throughput of a plan on the IPU systems that the emulation stands for. No TensorFlow."""
