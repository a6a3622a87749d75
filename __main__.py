"""`python -m cnn_harness COMMAND`: the same as `cnn COMMAND`, in an installed package."""

from __future__ import annotations

from cnn_harness.tools import console

if __name__ == "__main__":
    console.module()
