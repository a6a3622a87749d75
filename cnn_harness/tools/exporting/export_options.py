"""Parse the command line of cnn export: network, formats and output folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.process import command_line
from cnn_harness.harness.checkpoints import find, weights_file
from cnn_harness.harness.commands import answers
from cnn_harness.harness.options.call import Call
from cnn_harness.tools.exporting.file_formats import FORMATS

SCRIPT = "validation"  # cnn export accepts the options of this command for network and data.
FOLDER = "export"  # This is the name of the default output folder in the run directory.


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """The parsed command line of cnn export. `path` names the weights in the same way as --restore-path. `options` are
    options of validation.py."""

    path: str
    formats: tuple[str, ...]  # keys of FORMATS, without duplicates
    output: Path
    int8: bool
    force: bool
    options: Call

    @property
    def files(self) -> dict[str, str]:
        """The names of the output files by format."""
        chosen = {name: FORMATS[name] for name in self.formats}
        return {name: (each.quantised if self.int8 else "") or each.file for name, each in chosen.items()}


def parser() -> argparse.ArgumentParser:
    """Return the parser for the options of cnn export that validation.py does not have."""
    own = command_line.Parser(
        prog="cnn export", add_help=False, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="cnn export RUN --to FORMAT[,FORMAT...] [options]",
        description="Export a trained network for other runtimes, and compare each file with the checkpoint.",
        epilog="cnn export also accepts the options of validation.py for the data set and the model, such as --data-dir. "
        "They override the values that the run recorded.",
    )  # fmt: skip
    add = own.add_argument
    add("path", nargs="?", metavar="RUN", help="a run directory, a checkpoint such as RUN/ckpt-500, a .npz or .safetensors "
        f"file, or {' or '.join(weights_file.BUNDLED)}. A run directory means the newest checkpoint or, if the run had "
        "--keep-best-ckpt, the best checkpoint")  # fmt: skip
    add("--to", action="append", default=[], metavar="FORMAT",
        help=f"one or more of {', '.join(FORMATS)}, separated by commas")  # fmt: skip
    add("--output", metavar="DIR", help="output folder. Default: the folder export in the run directory")
    add(
        "--int8",
        action="store_true",
        help="tflite and onnx: write 8-bit weights and activations, calibrated on images",
    )
    add("--force", action="store_true", help="replace an export of another network in the output folder")
    add("--restore-path", metavar="RUN", help="another way to give RUN")
    add("-h", "--help", action="store_true", help="show this help and exit")
    return own


def parse(argv: Sequence[str]) -> ExportRequest | None:
    """Return the parsed command line, or None for --help. Raise OptionError for invalid options."""
    known, call = answers.with_own_options(parser(), argv, SCRIPT)
    # This also finds abbreviations such as --hel, which validation.py accepts.
    if known.help or "help" in call:
        return None
    path = _path(known.path, known.restore_path, call)
    names = tuple(dict.fromkeys(_format(word) for words in known.to for word in words.split(",") if word.strip()))
    if not names:
        raise OptionError(f"--to is missing: give one or more of {', '.join(FORMATS)}, separated by commas")
    if known.int8 and not any(FORMATS[name].quantised for name in names):
        raise OptionError(
            f"--int8 needs tflite or onnx, but --to is {', '.join(names)}; add one of them, or leave --int8 out"
        )
    output = Path(known.output) if known.output else _default_output(Path(path))
    return ExportRequest(
        path=path, formats=names, output=output, int8=known.int8, force=known.force,
        options=call,
    )  # fmt: skip


def _path(first: str | None, flag: str | None, call: Call) -> str:
    """Return the path of the weights to export."""
    path = first or flag
    if not path:
        bundled = " or ".join(weights_file.BUNDLED)
        raise OptionError(f"nothing to export: give a run directory, a checkpoint, a file of weights or {bundled} first")
    if None not in (first, flag) and first != flag:
        raise OptionError(f"{short(first)} and --restore-path {short(flag)} name two networks; give only one of them")
    if call.bare:
        raise OptionError(f"'{short(call.bare[0])}' is one argument too many: give one RUN, and no spaces between formats")
    return path


def _format(word: str) -> str:
    """Return the name of a format. The case of letters, - and _ do not matter in `word`."""
    name = word.strip().lower().replace("_", "").replace("-", "")
    if name in FORMATS:
        return name
    near = plugins.did_you_mean(name, list(FORMATS))
    listed = f"{near} Formats" if near else "; formats"
    raise OptionError(f"--to: no format '{short(word.strip())}'{listed}: {', '.join(FORMATS)}")


def _default_output(path: Path) -> Path:
    """Return the default output folder: in the run directory or, for a file of weights, in the working directory."""
    file = weights_file.located(path)
    return Path(f"{path.stem}-{FOLDER}") if file else find.run_folder(path) / FOLDER
