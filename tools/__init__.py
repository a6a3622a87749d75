"""Commands beside training: weights of other projects, comparisons of runs, the paper's findings, data sets."""
