"""The steps that all commands share, and the small commands."""
