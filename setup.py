"""Build the wheel: the scripts and plug-ins at the top of the checkout become part of the package cnn_harness."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

TOP = (
    "train.py", "validation.py", "restore.py", "weight_avg.py", "inference_embedded.py", "poprun.py", "ipu_utils.py",
    "log.py", "configs.yml", "Models", "LR_Schedules", "Optimisers", "Datasets",
)  # fmt: skip


class BuildPackage(build_py):
    """Copies the packages, and TOP into the package cnn_harness."""

    def run(self) -> None:
        """Copy. An editable installation copies nothing, because it uses the files of the checkout."""
        super().run()
        for name in self._top() if not self.editable_mode else ():
            target = Path(self.build_lib, "cnn_harness", name)
            self.mkpath(str(target.parent))
            self.copy_file(name, str(target))

    def get_source_files(self) -> list[str]:
        """Return the files of a source distribution."""
        return [*super().get_source_files(), *self._top()]

    def _top(self) -> list[str]:
        files = (file for name in TOP for file in (Path(name), *Path(name).rglob("*")))
        return [str(file) for file in files if file.is_file() and "__pycache__" not in file.parts]


setup(cmdclass={"build_py": BuildPackage})
