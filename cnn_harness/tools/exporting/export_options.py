"""Parse the command line of cnn export: network, formats and output folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import opt, short
from cnn_harness.harness.checkpoints import find, weights_file
from cnn_harness.harness.commands import answers
from cnn_harness.harness.options.call import Call
from cnn_harness.tools.exporting.file_formats import FORMATS

SCRIPT = "validation"  # cnn export accepts the options of this command for network and data.
FOLDER = "export"  # This is the name of the default output folder in the run directory.


RUN = {
    "RUN": f"a run directory, a checkpoint such as RUN/ckpt-500, a .npz or .safetensors file, or "
    f"{' or '.join(weights_file.BUNDLED)}. A run directory means the newest checkpoint or, if the run had --keep-best-ckpt, "
    "the best checkpoint"
}


@dataclass(frozen=True, kw_only=True)
class ExportOptions(answers.OwnOptions):
    """The options of cnn export that validation.py does not have."""

    to: tuple[str, ...] = opt(
        (), f"one or more of {', '.join(FORMATS)}, separated by commas", metavar="FORMAT", repeated=True
    )
    output: str | None = opt(None, "output folder. Default: the folder export in the run directory", metavar="DIR")
    int8: bool = opt(False, "tflite and onnx: write 8-bit weights and activations, calibrated on images")
    force: bool = opt(False, "replace an export of another network in the output folder")
    restore_path: str | None = opt(None, "another way to give RUN", metavar="RUN")


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


def parse(call: Call) -> ExportRequest:
    """Return the request of a call. Raise OptionError for invalid options, and Answered for --help."""
    known, words, options = answers.own_options(
        ExportOptions, call, "cnn export RUN --to FORMAT[,FORMAT...] [options]",
        "Export a trained network for other runtimes, and compare each file with the checkpoint.", RUN,
        "cnn export also accepts the options of validation.py for the data set and the model, such as --data-dir.\n"
        "They override the values that the run recorded.",
    )  # fmt: skip
    path = _path(words, known.restore_path)
    names = tuple(dict.fromkeys(_format(word) for each in known.to for word in each.split(",") if word.strip()))
    if not names:
        raise OptionError(f"--to is missing: give one or more of {', '.join(FORMATS)}, separated by commas")
    if known.int8 and not any(FORMATS[name].quantised for name in names):
        raise OptionError(
            f"--int8 needs tflite or onnx, but --to is {', '.join(names)}; add one of them, or leave --int8 out"
        )
    output = Path(known.output) if known.output else _default_output(Path(path))
    return ExportRequest(
        path=path, formats=names, output=output, int8=known.int8, force=known.force, options=options,
    )  # fmt: skip


def _path(words: Sequence[str], flag: str | None) -> str:
    """Return the path of the weights to export."""
    first = next(iter(words), None)
    path = first or flag
    if not path:
        bundled = " or ".join(weights_file.BUNDLED)
        raise OptionError(f"nothing to export: give a run directory, a checkpoint, a file of weights or {bundled} first")
    if None not in (first, flag) and first != flag:
        raise OptionError(f"{short(first)} and --restore-path {short(flag)} name two networks; give only one of them")
    if len(words) > 1:
        raise OptionError(f"'{short(words[1])}' is one argument too many: give one RUN, and no spaces between formats")
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
