"""Commands other than training: reports, sweeps, plans, exports, imported weights, data sets."""
