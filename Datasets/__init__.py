"""Data sets, one plug-in per file: `SPECS` describes them, and `DATASETS` opens them by the names of --dataset.

_spec.py defines the contract. formats/ reads files, pipeline/ builds the tf.data streams, and sources/ opens data.
convert.py and verify.py only start commands of tools/datasets.
"""
