"""The parts that all commands share, and the small commands."""
