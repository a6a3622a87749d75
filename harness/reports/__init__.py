"""Pictures and profiles of a run."""
