"""Add the option that is missing before the first argument: `train.py photos` means `train.py --data-dir photos`."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.plugins import did_you_mean
from cnn_harness.base.process import commands
from cnn_harness.base.storage import run_files
from cnn_harness.harness.options import releases, sources
from cnn_harness.harness.options.catalogue import all_options
from cnn_harness.harness.options.sections import flag


def as_option(argv: list[str], script: str) -> list[str]:
    """Return the arguments of a call, with an option before a first argument that has none.

    Raise OptionError for several such arguments, or for an argument that is neither a folder nor a configuration.
    """
    bare = list(takewhile(lambda word: not word.startswith("-"), argv))
    row = commands.COMMANDS.get(commands.command_name(script) or "")
    if not bare or not row or row.takes != script:
        return argv
    sources.check_assignments(bare, all_options(script).flags())
    if len(bare) > 1:
        call = f"{script}.py {row.usage}[options]"
        raise OptionError(f"{short(' '.join(bare))}: {len(bare)} words before the options, but only one is allowed: {call}")
    name = _of_training(bare[0], argv) if script == "train" else "restore_path"
    if name in sources.given_arguments(argv[1:], script):
        raise OptionError(f"{short(bare[0])} means {flag(name)}, which is also given; leave one of them out")
    return [flag(name), *argv]


def _of_training(word: str, argv: list[str]) -> str:
    """Return the option that an argument of train.py means: --data-dir for a folder, otherwise --config."""
    if os.path.isdir(word):
        if run_files.is_in_run(Path(word) / run_files.ARGUMENTS[0]):
            raise OptionError(
                f"{short(word)} is a run directory; resume it with restore.py, or validate it with validation.py"
            )
        return "data_dir"
    from cnn_harness.harness.options import configs  # late, because it imports yaml

    names = configs.ConfigFile(sources.argument(argv, "config_path", "train") or str(sources.DEFAULT_CONFIG_PATH)).names
    if not {word, releases.split_name(word)[0]} & {*names}:
        near = did_you_mean(word, names)
        raise OptionError(
            f"'{short(word)}' is neither a folder (--data-dir) nor a configuration (--config, --list-configs){near}"
        )
    return "config"
