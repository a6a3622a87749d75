"""Scripts that are started by path, such as `python tools/runs.py`, import this module first.

The project becomes importable. If a signal arrives during the slow imports that follow, the script ends with a one-line
message.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cnn_harness.base.process import early_exit

early_exit.install(os.path.basename(sys.argv[0]))
