"""Reports of runs as pages: a run's folder, the answers of its newest checkpoint, and both as one HTML file."""
