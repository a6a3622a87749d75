"""Native kernels return a result or an error for any shapes and attributes; they never crash or read foreign memory.

Too little memory is an error of the operation, too. The calls run in a separate process (`python test_invalid_shapes.py
ROUNDS`, or 0 for the calls without memory), so that a crash fails the test.
"""

from __future__ import annotations

import math
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzzing
import numpy as np
import pytest

from cnn_harness.base import plugins
from cnn_harness.emulator.native import library

# Shapes that fit, by input name, in some variants: a letter is a size, a digit is itself.
SHAPES = {
    "x": ["nhwc"], "other": ["nhwc"], "dy": ["nHWf"], "shortcut": ["nhwc"], "gate": ["n11c"], "factor": ["n11c"], "noise": ["n111"],
    "weights": ["kkif", "11cf", "kk1f"], "mean": ["f", "pf", "f", "nf"],
    "variance": ["f", "pf", "f", "nf"], "shares": ["v"], "rate": [""], "divisor": [""], "decays": ["v"],
}  # fmt: skip
USUAL = "f"  # for other names: one number per channel
OF_LISTS, OPTIONAL = "kkif", ("noise", "shortcut", "gate", "moments", "proxy")  # lists of variables; lists that may be empty
ACTIVATIONS = ["linear", "relu", "relu6", "swish", "sigmoid"]
NUMBERS = {"epsilon": [1e-3], "momentum": [0.9], "share": [0.1], "largest": [65504.0], "beyond": [0.0], "fraction_bits": [10],
           "least_exponent": [-14], "salt": [1], "kernel": [1, 3, 3, 5], "stride": [1, 1, 2, 3], "groups": [0, 1, 1, 2],
           "parts": [0, 1, 1, 2], "rows": [0, 1, 2, 7, 9], "columns": [1, 2, 7, 9, 30]}  # fmt: skip
TAKE_ANY = "EmulatorWidening", "EmulatorRelu", "EmulatorShares"  # operations that refuse nothing
# The left-out checks would make addresses of functions no constants, and then the headers of TensorFlow do not compile.
SANITIZED = (
    "-fsanitize=address,undefined -fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute,vptr "
    "-fno-sanitize-recover=undefined -O1"  # compiles in a fraction of the time
)
WILD = {
    "int": [-(2**63), -1, 0, 1, 3, 24, 2**31 - 1, 2**31, 2**60, 2**63 - 1],
    "float": [0.0, -1.0, float("nan"), float("inf")],
}
LARGEST = 1 << 26  # numbers in an input of random shape
SOUND = 1e30  # results of numbers near 1 are smaller; uninitialised memory is filled with -1.7e38


@pytest.mark.skipif(not library.identity(), reason="the kernels are not built: there is no C++ compiler")
def test_any_shape_gives_result_or_error():
    path = os.pathsep.join(map(str, (plugins.ROOT, plugins.ROOT / "test" / "helpers")))
    environ = {**os.environ, "PYTHONPATH": path, "MALLOC_PERTURB_": "1", fuzzing.SEED: str(fuzzing.seed())}
    command = [sys.executable, __file__, "200"]
    call = subprocess.run(command, cwd=plugins.ROOT, env=environ, capture_output=True, text=True)
    *lines, last = call.stdout.splitlines() or [""]
    assert call.returncode == 0, f"code {call.returncode} at: {last}\n{call.stderr[-2000:]}"
    assert last == "all operations" and lines


@pytest.mark.skipif(not library.identity(), reason="the kernels are not built: there is no C++ compiler")
def test_too_little_memory_gives_error():
    path = os.pathsep.join(map(str, (plugins.ROOT, plugins.ROOT / "test" / "helpers")))
    environ = {**os.environ, "PYTHONPATH": path}
    call = subprocess.run([sys.executable, __file__, "0"], cwd=plugins.ROOT, env=environ, capture_output=True, text=True)
    assert call.returncode == 0, f"code {call.returncode} after: {call.stdout}\n{call.stderr[-2000:]}"
    assert call.stdout.splitlines() == ["in the kernel", "in shares", "in threads"]


@pytest.mark.slow
@pytest.mark.skipif(not library.identity(), reason="the kernels are not built: there is no C++ compiler")
def test_sanitizers_find_nothing(tmp_path):
    """The kernels are compiled in a copy of the program with AddressSanitizer and UndefinedBehaviorSanitizer."""
    for part in ("cnn_harness", "Models", "test/helpers", "pyproject.toml"):
        source, target = plugins.ROOT / part, tmp_path / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("built", "__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    (tmp_path / "compiler").write_text(f'#!/bin/sh\nexec g++ "$@" {SANITIZED}\n')  # after the usual options
    (tmp_path / "compiler").chmod(0o755)
    path = os.pathsep.join(map(str, (tmp_path, tmp_path / "test" / "helpers")))
    environ = {**os.environ, "PYTHONPATH": path, "CXX": str(tmp_path / "compiler"), fuzzing.SEED: str(fuzzing.seed())}
    subprocess.run([sys.executable, "-m", "cnn_harness.emulator.native.build"], cwd=tmp_path, env=environ, check=True)
    assert list((tmp_path / "cnn_harness/emulator/native/built").glob("*.so")), "the kernels do not compile with sanitizers"
    libraries = [
        subprocess.run(["g++", f"-print-file-name={name}.so"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan", "libubsan")
    ]
    environ |= {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    command = [sys.executable, __file__, "60"]
    call = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    *lines, last = call.stdout.splitlines() or [""]
    assert lines and call.returncode == 0 and last == "all operations", (
        f"code {call.returncode} at: {last}\n{call.stderr[-4000:]}"
    )


def main(rounds: int) -> None:
    """Call every operation of the library `rounds` times; print each call first."""
    import tensorflow.compat.v1 as tf
    from tensorflow.python.framework import op_def_registry

    kernels = library.load()
    names = (name for name in dir(kernels) if name.startswith("Emulator"))
    definitions = [op_def_registry.get(name) for name in names]
    for definition in definitions:
        operation, outcomes = getattr(kernels, definition.name), []
        for number in range(rounds):
            rng = random.Random(f"{fuzzing.seed()} {definition.name} {number}")
            attributes, shapes, is_sound = drawn(rng, definition)
            print(definition.name, attributes, shapes, flush=True)
            outcomes.append(outcome(tf, rng, definition, operation, attributes, shapes, is_sound))
        for way in zip(*outcomes):
            expected = {True} if definition.name in TAKE_ANY else {True, False}
            assert expected == set(way), f"{definition.name} was always refused, or never: add its inputs to SHAPES"
    print("all operations")


def starve() -> None:
    """Call kernels that need more memory than they may take: for themselves, and on the threads of both ways to share work.
    With memory, the same call gives a result."""
    import tensorflow.compat.v1 as tf

    kernels = library.load()
    sizes = {"stride": 1, "noise": [], "V": tf.float32}
    row, half = tf.ones([1, 1, 1, 16]), tf.ones([8, 1, 128, 70_000], tf.half)
    kernel, filters, factors = tf.ones([1024, 1024, 1, 1]), tf.ones([1, 1, 1, 2**23]), tf.ones([70_000])
    norm = {"noise": [], "shortcut": [], "moments": [], "proxy": [], "parts": 1, "activation": "relu", "epsilon": 1e-3}
    for name, megabytes, call in (
        ("in the kernel", 40, lambda: kernels.emulator_convolution(x=row[..., :1], weights=kernel, groups=1, **sizes)),
        ("in shares", 120, lambda: kernels.emulator_convolution(x=row, weights=filters, groups=16, **sizes)),
        ("in threads", 170, lambda: kernels.emulator_norm(x=half, gamma=factors, beta=factors, **norm).y),
    ):
        message = refused(tf, megabytes, call)
        assert "OOM when allocating memory for the work of" in message, f"{name}: {message}"
        assert call().shape.num_elements(), name
        print(name, flush=True)
    wide = refused(
        tf, 1000, lambda: kernels.emulator_convolution_weights_gradient(x=row, dy=row, stride=1, groups=1, kernel=40_000)
    )
    assert "kernel is 40000" in wide, wide


def refused(tf: Any, megabytes: int, call: Callable[[], Any]) -> str:
    """Return the message of the error that a call gives if the process may take only some more memory."""
    taken = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + megabytes * 10**6, hard))
    try:
        return f"no error, but {call().shape}"
    except (tf.errors.ResourceExhaustedError, tf.errors.InvalidArgumentError) as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def drawn(rng: random.Random, definition: Any) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Return attributes, shapes of the inputs (a list for a list), and whether results have a usual size.

    In half of the cases, one or two of the attributes and inputs are random.
    """
    lists = {arg.number_attr for arg in definition.input_arg}
    attrs = [attr for attr in definition.attr if attr.name not in lists]
    wild = set(rng.sample([each.name for each in (*attrs, *definition.input_arg)], rng.choice((0, 0, 1, 2))))
    given = {name: rng.choice(values) for name, values in NUMBERS.items()}
    count = rng.choice((1, 2, 3))
    attributes: dict[str, Any] = {}
    for attr in attrs:
        name, names = attr.name, [each.decode() for each in attr.allowed_values.list.s] or ACTIVATIONS
        attributes[name] = {
            "bool": rng.random() < 0.5,
            "string": "unknown" if name in wild else rng.choice(names),
            "type": rng.choice(list(attr.allowed_values.list.type) or [1]),
            "list(float)": [0.1] * (rng.randrange(5) if name in wild else count),
        }.get(attr.type, rng.choice(WILD.get(attr.type, [1])) if name in wild else given.get(name, 1))
    shapes = drawn_shapes(rng, definition, wild, {**given, **attributes, "count": count})
    return attributes, shapes, not wild.intersection(NUMBERS)


def drawn_shapes(rng: random.Random, definition: Any, wild: set[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return shapes of inputs that fit together and fit the attributes, except those in `wild`."""
    stride, groups, parts = (abs(given[name]) or 1 for name in ("stride", "groups", "parts"))
    sizes = {"n": parts % 9 * rng.choice((0, 1, 1, 3)), "h": given["rows"] % 31, "w": given["columns"] % 31,
             "c": rng.choice((0, 2, 16, 32, 32, 64, 140)), "k": given["kernel"] % 9, "p": parts % 9, "v": given["count"]}  # fmt: skip
    sizes |= {"f": sizes["c"] if rng.random() < 0.6 else rng.choice((16, 32, 64)), "i": sizes["c"] // groups}
    sizes |= {"H": -(-sizes["h"] // stride), "W": -(-sizes["w"] // stride)}
    variant = rng.randrange(12)

    def shape(name: str, pattern: str) -> list[int]:
        if name in wild:
            axes = rng.choices((0, 1, 2, 3, 16, 17, 32, *sizes.values()), k=rng.choice((0, 1, 2, 3, 4, 4, 4, 5)))
            while math.prod(axes) > LARGEST:
                axes[axes.index(max(axes))] = 1
            return axes
        return [int(axis) if axis.isdigit() else sizes[axis] for axis in pattern]

    def shapes(arg: Any) -> Any:
        patterns = SHAPES.get(arg.name, [USUAL])
        if not arg.number_attr:
            return shape(arg.name, patterns[variant % len(patterns)])
        if arg.name not in OPTIONAL:
            return [shape(arg.name, OF_LISTS) for _ in range(given["count"])]
        is_there = given["rounding"] == "random" if arg.name == "noise" and "rounding" in given else rng.random() < 0.3
        usual = is_there * (2 if arg.name in ("moments", "proxy") else 1)
        return [shape(arg.name, patterns[0]) for _ in range(rng.randrange(3) if arg.name in wild else usual)]

    return {arg.name: shapes(arg) for arg in definition.input_arg}


def outcome(tf, rng, definition, operation, attributes, shapes, is_sound) -> tuple[bool, bool]:
    """Return whether the kernel, and the shape function with some shapes unknown, gave results."""
    types = {arg.name: tf.as_dtype(arg.type or attributes[arg.type_attr]).as_numpy_dtype for arg in definition.input_arg}
    inferred = {arg.type_attr for arg in definition.input_arg}  # TensorFlow infers these attributes from the inputs
    attributes = {name: value for name, value in attributes.items() if name not in inferred}
    lists = {arg.name for arg in definition.input_arg if arg.number_attr}
    noise = np.random.default_rng(rng.randrange(2**32))

    def each(make):
        return {
            name: [make(types[name], own) for own in shape] if name in lists else make(types[name], shape)
            for name, shape in shapes.items()
        }

    results = static = None
    try:
        results = operation(
            **each(lambda dtype, shape: tf.constant(noise.uniform(0.5, 1.5, shape).astype(dtype))), **attributes
        )
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        said(error)
    hidden = rng.choice((0, 0, 0.3))

    def known(dtype, shape):
        return tf.placeholder(
            dtype, None if rng.random() < hidden else [None if rng.random() < hidden else size for size in shape]
        )

    with tf.Graph().as_default():
        try:
            static = operation(**each(known), **attributes)
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            said(error)
    refused = "unknown" in attributes.values() or not 0 < attributes.get("fraction_bits", 1) < 23
    assert not refused or results is static is None, "an attribute is not checked"
    own, expected = ([] if found is None else tf.nest.flatten(found) for found in (results, static))
    assert not own or expected, "the shape function refuses what the kernel takes"
    for result, one in zip(own, expected):
        assert one.shape.is_compatible_with(result.shape), f"{result.shape}, where the shape function says {one.shape}"
        assert not is_sound or not result.shape.num_elements() or np.abs(result.numpy().astype(np.float32)).max() < SOUND, (
            "memory of others"
        )
    return results is not None, static is not None


def said(error: Exception) -> None:
    """Fail for an error without a message."""
    assert re.search(r"\w{2}", str(error))


if __name__ == "__main__":
    main(int(sys.argv[1])) if int(sys.argv[1]) else starve()
