"""The commands that convert, verify and rebuild data sets: `python -m Datasets.convert` and `python -m Datasets.verify`."""
