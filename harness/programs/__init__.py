"""From a run to its programs: data, loss, update rule; programs that are kept."""
