"""The programs of a run: data, objective, plan; the program cache."""
