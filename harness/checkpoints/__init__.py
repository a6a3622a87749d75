"""Checkpoints: found, read, compared, written, averaged."""
