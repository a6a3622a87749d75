"""Sweeps: one training for each of many values of options, from a block of a YAML file."""
