"""Reports of runs as pages: what a run's folder tells, what its newest checkpoint answers, and both as one HTML file."""
