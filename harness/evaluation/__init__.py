"""Predictions, and the input pipeline by itself."""
