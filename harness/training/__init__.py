"""A training: its start, its loop, and the events between host steps."""
