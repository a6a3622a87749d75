"""First import of a script that is started by its path, such as `python tools/runs.py`.

Makes the project importable, and ends the process with a one-line message if a signal arrives during slow imports.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from base.process import early_exit

early_exit.install(os.path.basename(sys.argv[0]))
