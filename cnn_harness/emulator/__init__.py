"""The emulated IPU device layer: plans, layers, and the programs that carry a plan out."""
