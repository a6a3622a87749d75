"""From a run to its programs: data, loss, update rule; the program cache."""
