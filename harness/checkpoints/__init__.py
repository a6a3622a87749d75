"""Checkpoints: finding, reading, writing, comparing and averaging them, and the record of a run beside them."""
