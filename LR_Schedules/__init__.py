"""Learning-rate schedules; every file without a leading underscore is a plug-in, found by its name."""
