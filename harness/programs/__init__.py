"""The programs of a run: data, loss, update rule; the program cache."""
