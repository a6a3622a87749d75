"""Data sets, one plug-in a file: `SPECS` describes them, `DATASETS` opens them by the names that --dataset takes.

_spec.py is the contract; formats/ reads files, pipeline/ makes the tf.data streams, sources/ opens data. convert.py
and verify.py start commands of tools/datasets and have neither table.
"""
