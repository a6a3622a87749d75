"""The programs of a run: data, losses, metrics, optimisers, plan; the program cache."""
