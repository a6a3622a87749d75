"""`python -m cnn_harness COMMAND`, where this folder is an installed package: the same as `cnn COMMAND`."""

from __future__ import annotations

from cnn_harness.tools import console

if __name__ == "__main__":
    console.module()
