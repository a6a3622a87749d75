"""Run `python -m cnn_harness COMMAND`, which does the same as `cnn COMMAND` in an installed package."""

from __future__ import annotations

from cnn_harness.tools import console

if __name__ == "__main__":
    console.module()
