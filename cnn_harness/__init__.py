"""The project as a Python package.

`cnn_harness.load`, `train` and the other functions of `api.py` are the Python API. `from cnn_harness import ipu_utils`
imports the device layer. TensorFlow and the project's modules are imported only when a function is first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors; `__getattr__` imports the same names when they are first used
    from cnn_harness import ipu_utils as ipu_utils
    from cnn_harness.api import *

    __version__: str

_HERE = os.path.dirname(os.path.abspath(__file__))
if not os.path.isfile(os.path.join(_HERE, "train.py")):  # a checkout has the scripts and plug-ins in the folder above
    __path__.append(os.path.dirname(_HERE))
ROOT = __path__[-1]  # the folder with train.py, configs.yml, Models, LR_Schedules and Datasets
_API = (
    "load", "train", "finetune", "plan", "history", "runs", "compare", "TrainedNetwork", "HarnessError", "WrongInput",
    "OptionError", "DataError", "CheckpointError", "Failure",
)  # fmt: skip


if not TYPE_CHECKING:  # with this function, an editor would accept any name

    def __getattr__(name: str) -> Any:
        """Return a function or class of `api.py`, the module `ipu_utils`, or the version."""
        if name == "ipu_utils":
            return importlib.import_module(f"{__name__}.{name}")
        if name == "__version__":
            return importlib.import_module(f"{__name__}.base.version").own()
        if name not in _API:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        api = importlib.import_module(f"{__name__}.api")
        globals().update({each: getattr(api, each) for each in _API})  # `train` becomes the function, not the module
        return globals()[name]


def __dir__() -> list[str]:
    return [*_API, "ipu_utils", "__version__"]
