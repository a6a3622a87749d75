"""Data sets, one plug-in a file: `SPECS` describes them, `DATASETS` opens them by the names that --dataset takes.

No plug-ins: files with a leading underscore, and convert.py and verify.py, which start commands of tools/datasets.
"""
