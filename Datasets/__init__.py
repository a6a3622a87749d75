"""Data sets. Each file is a plug-in: `SPECS` describes its data sets, and `DATASETS` maps names of --dataset to functions
that open them.

_spec.py defines the interface. formats/ reads files, pipeline/ builds the tf.data streams, and sources/ opens data.
convert.py and verify.py only start commands of tools/datasets.
"""
