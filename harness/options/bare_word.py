"""The word that a call of a script of runs may begin with, in place of the option that names a folder or a configuration."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path

from base.errors import OptionError
from base.fields import short
from base.plugins import did_you_mean
from base.process import commands
from base.storage import run_files
from harness.options import releases, sources
from harness.options.sections import flag


def as_option(argv: list[str], script: str) -> list[str]:
    """Return the words of a call with its bare first one behind its option; OptionError for several, or for one that names
    nothing. Words of other scripts stay as they are."""
    bare = list(takewhile(lambda word: not word.startswith("-"), argv))
    row = commands.COMMANDS.get(commands.command_name(script) or "")
    if not bare or not row or row.takes != script:
        return argv
    if len(bare) > 1:
        call = f"{script}.py {row.usage}[options]"
        raise OptionError(f"{short(' '.join(bare))}: {len(bare)} words come before the options, and one may: {call}")
    name = _of_training(bare[0], argv) if script == "train" else "restore_path"
    if name in sources.given_arguments(argv[1:], script):
        raise OptionError(f"{short(bare[0])} stands for {flag(name)}, which this call gives too; leave one of them out")
    return [flag(name), *argv]


def _of_training(word: str, argv: list[str]) -> str:
    """Return the option of train.py that a word stands for: a folder of images, or else a configuration."""
    if os.path.isdir(word):
        if run_files.is_in_run(Path(word) / run_files.ARGUMENTS[0]):
            raise OptionError(f"{short(word)} is the folder of a run: give it to restore.py, or to validation.py")
        return "data_dir"
    from harness.options import configs  # which imports yaml

    names = configs.ConfigFile(sources.argument(argv, "config_path", "train") or str(sources.DEFAULT_CONFIG_PATH)).names
    if not {word, releases.split_name(word)[0]} & {*names}:
        near = did_you_mean(word, names)
        raise OptionError(
            f"'{short(word)}' is no folder of images (--data-dir) and no configuration (--config, --list-configs){near}"
        )
    return "config"
