"""Builds the wheel from the files that there are, without those of earlier builds: all else is in pyproject.toml."""

from __future__ import annotations

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class FreshBuild(build_py):
    """The copy of the modules, into a folder that holds nothing else: what lies in it is packed, whoever put it there."""

    def run(self) -> None:
        """Copy."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return the scripts, without this one."""
        return [each for each in super().find_package_modules(package, package_dir) if each[1] != "setup"]


setup(cmdclass={"build_py": FreshBuild})
