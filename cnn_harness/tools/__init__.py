"""Commands other than training: reports, sweeps, plans, exports, imported weights, the paper's findings, data sets."""
