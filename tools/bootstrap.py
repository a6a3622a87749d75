"""The first import of a script that is called by its path, as `python tools/runs.py`: it makes the project importable, and
lets a signal end the process in one line while slower imports follow."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from base.process import early_exit

early_exit.install(os.path.basename(sys.argv[0]))
