"""The program that the instances of a job run, as its command line tells. Options are imported where they are asked for:
poprun is to answer at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from base.errors import OptionError
from base.process import commands

_SCRIPTS = {"train.py": "train", "restore.py": "restore", "validation.py": "validation"}
_FOLDERS = {"train": "logs_path", "restore": "restore_path"}  # the option that names the run's folder


@dataclass(frozen=True)
class LaunchedProgram:
    """The program of the instances: `script`, "" for one of the user's own, and its arguments."""

    script: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: Sequence[str]) -> LaunchedProgram:
        """The program of a command such as `python train.py --config NAME` or `cnn train --config NAME`."""
        for k, word in enumerate(words):
            name, following = Path(word).name, words[k + 1] if k + 1 < len(words) else ""
            if name in _SCRIPTS:
                return cls(_SCRIPTS[name], tuple(words[k + 1 :]))
            if name in ("cnn", commands.PACKAGE) and following in commands.COMMANDS:
                module = commands.COMMANDS[following].module
                return cls(module if module in _SCRIPTS.values() else "", tuple(words[k + 2 :]))
        return cls("")

    @property
    def ends_by_itself(self) -> bool:
        """Return whether its instances find out, and end, when one of them is lost."""
        return bool(self.script)

    @property
    def run_folder(self) -> Path | None:
        """The folder of the run that is trained."""
        from harness.options import sources

        option = _FOLDERS.get(self.script)
        given = sources.argument(list(self.arguments), option, self.script) if option else None
        return Path(given) if given else None

    def check_resumable(self) -> None:
        """OptionError for a training that would begin anew when it is called again."""
        from harness.options import sources

        if self.script == "train" and "autoresume" not in sources.given_arguments(list(self.arguments), "train"):
            raise OptionError(
                "--max-restarts makes the same call again, which has to go on with its run: give train.py --autoresume and "
                "--logs-path, or start restore.py"
            )
