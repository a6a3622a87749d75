"""Malicious or damaged command lines, configuration files, images and records are read or rejected in one line.

Everything runs in this process, with the inputs of the day (`fuzzing`).
"""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import fuzzing
import numpy as np
import photos
import pytest
from PIL import Image
from slurm_tasks import TASK, task

from cnn_harness.base.errors import DataError, OptionError
from cnn_harness.Datasets import cifar
from cnn_harness.Datasets._spec import OpenRequest
from cnn_harness.Datasets.formats import class_names, conversion_info, idx, image_headers, tf_example, tfrecord
from cnn_harness.Datasets.formats.bad_records import Tolerance
from cnn_harness.Datasets.formats.tfrecord import RecordIndex
from cnn_harness.Datasets.pipeline import decoding
from cnn_harness.harness.distributed import poprun_options
from cnn_harness.harness.options import configs
from cnn_harness.harness.options.catalogue import Option, all_options
from cnn_harness.harness.options.sources import DEFAULT_CONFIG_PATH
from cnn_harness.harness.run import cli, membership
from cnn_harness.harness.run.membership import TF_CONFIG
from cnn_harness.tools.datasets import listings, verify

MEMORY = 64 << 20  # of Python and NumPy, for inputs of kilobytes
ODD = (
    "１２", "٣", "1_000", "3 ", "0x10", "-0", "1e999", "-1e-999", "nan", "inf", "9" * 400, "1:30", ".", "-", "--", "=", "\0", "\n",
    "\ud800", "\u202e", "{", "[", "*a", "&a", "!!int", "<<", "~", "true", "NO", "'", '"', "%s", "{0}", "../..", "/dev/zero",
    "a" * 5000, ",", "0.5,0.25", "é", "\u2028", "AUTO", "all", "1/2", "+", "0" * 300 + "1",
)  # fmt: skip


Maker = Callable[[random.Random], Any]
Reader = Callable[[Any], Any]


class Refused(Exception):
    """The first line of an error; lists may follow."""


def bounded(text: str) -> str:
    """Return the text of a message or table; raise AssertionError unless it is short for any input."""
    assert 0 < len(text) < 60_000, f"{len(text)} characters"
    return text


def parsed(words: list[str]) -> Any:
    return cli.parse(words, "train", None, {}).options


# --- Command lines


FLAGS = sorted(all_options(None).flags())
OPTIONS: dict[str, Option] = {flag: spelling.option for flag, spelling in all_options(None).flags().items()}


def word(rng: random.Random, option: Option | None = None) -> str:
    """Return a value: one that fits the option, a number, or something odd."""
    if option is not None and rng.random() < 0.6:
        if option.meta["choices"]:
            return rng.choice(option.meta["choices"])
        return {int: str(rng.choice((0, 1, 2, 7, 64, 2**31))), float: f"{rng.uniform(-1, 3):.3g}"}.get(option.base, "stage1")
    return rng.choice((*ODD, str(rng.randint(-5, 300)), f"{rng.uniform(-2, 2):.4g}"))


def command_line(rng: random.Random) -> list[str]:
    words = ["--dataset", rng.choice(("cifar-10", "imagenet")), "--generated-data"] * (rng.random() < 0.8)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3, 4, 5))):  # some calls are accepted for any seed
        flag = rng.choice(FLAGS)
        given = [word(rng, OPTIONS[flag]) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        if rng.random() < 0.15:
            flag = flag[: rng.randint(1, len(flag))] + rng.choice(("", "x", "é", "="))
        words += [f"{flag}={given[0]}"] if given and rng.random() < 0.2 else [flag, *given]
    return [each for each in words if each not in ("--help", "-h")]


def cluster_of(rng: random.Random) -> dict[str, str]:
    worker = [rng.choice((f"h{k}:{word(rng)}", f"h{k}:{2000 + k}", word(rng))) for k in range(rng.randint(0, 3))]
    task = rng.choice(({"type": "worker", "index": rng.choice((0, 1, True, 1.0, word(rng)))}, word(rng), None, [[]]))
    given = json.dumps({"cluster": {"worker": worker}, "task": task})
    if rng.random() < 0.3:
        given = fuzzing.damaged(rng, given.encode()).decode("utf-8", "surrogateescape")
    if rng.random() < 0.05:
        given = "[" * 100_000
    found = {TF_CONFIG: given} | ({membership.OPENMPI[0]: word(rng)} if rng.random() < 0.2 else {})
    if rng.random() < 0.3:
        found = {
            name: rng.choice((word(rng), "2", "1"))
            for name in (membership.TOTAL, membership.LOCAL, membership.OFFSET, membership.IPUS)
        }
        found[membership.ADDRESSES] = ",".join(worker)
    return found


def step_of(rng: random.Random) -> dict[str, str]:
    """Return a task's environment with a few values that Slurm never sets."""
    values = (
        "n[1-2]", "n[1-2", "a[1-2]b[3-4],c", "n[0-999999999]" * rng.randint(1, 3), "n1," * 20_000, "2,1", "3(x999999)", "cyclic",
        "plane", "26001-26003", "70000-70009", "1", "3", None,
    )  # fmt: skip
    changed = {
        name.removeprefix("SLURM_"): rng.choice((*values, word(rng))) for name in rng.sample(sorted(TASK), rng.randint(0, 4))
    }
    mpi = ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", *membership.OPENMPI)
    return task(**changed) | ({rng.choice(mpi): word(rng)} if rng.random() < 0.2 else {})


def launch_of(rng: random.Random) -> list[str]:
    names = sorted(poprun_options.flags() - {"-h", "--help", "--version"})
    words = []
    for _ in range(rng.randint(0, 4)):
        words += [rng.choice((rng.choice(names), rng.choice(names), rng.choice(ODD)))] + [word(rng)] * (rng.random() < 0.8)
    return [*words, "python", "train.py"]


GENERATED = ["--dataset", "cifar-10", "--generated-data"]


def read_environment(environ: dict[str, str]) -> None:
    membership.is_later_instance(environ)
    bounded(" ".join(["none", *membership.ignored_others(environ)]))
    alone = membership.under_poprun(environ)
    membership.find(parsed(GENERATED if alone else [*GENERATED, "--distributed"]), environ)


# --- Configuration files


YAML = Path(DEFAULT_CONFIG_PATH).read_text(encoding="utf-8")
SNIPPETS = (
    "<<: *base", "&base ", "*base", "!!int ", "!!float ", "!!bool ", "!!binary ", "!!timestamp ", "!!set ", "!!python/name:os.system ",
    "{", "[", "}", "]", "- ", "? ", ": ", "|\n", ">\n", "---\n", "...\n", "%YAML 9\n", "\t", "'", '"', "#", "{" * 600, "- " * 600,
    "{a: " * 300, "\n" * 300, "0x1f", "017", "1:30:30", "1:" * 3000 + "1", ".inf", "=", "a" * 20_000,
)  # fmt: skip


def yaml_of(rng: random.Random) -> bytes:
    blocks = YAML.split("\n\n")
    text = "\n\n".join(rng.sample(blocks, rng.randint(1, 4)))
    text = rng.choice(
        (text, "base: &base\n  epochs: 3\na:\n  <<: *base\n  batch_size: 4\n  pipeline_splits: [x, y]\n" + text)
    )
    for _ in range(rng.randint(0, 3)):
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice((*SNIPPETS, *ODD)) + text[at + rng.choice((0, 0, 1, 30)) :]
    data = text.encode("utf-8", "surrogatepass")
    return fuzzing.damaged(rng, data) if rng.random() < 0.5 else data


def option_of(rng: random.Random) -> str:
    """Return any YAML scalar as the value of any option."""
    value = rng.choice((word(rng), *SNIPPETS, "2020-01-01", "!!binary aGVsbG8=", "[1, x]", "yes", "{}", "~", "1e5"))
    return f"a:\n  dataset: cifar-10\n  generated_data: true\n  {rng.choice(KEYS)}: {value}\n"


KEYS = sorted(all_options("train").spellings)


def read_configuration(content: bytes) -> None:
    Path("c.yml").write_bytes(content)
    file = configs.ConfigFile("c.yml")
    for name in random.Random(len(content)).sample(file.names, len(file.names)):
        for entry in file.block(name).values():
            str(entry.value)


def read_option(text: str) -> None:
    Path("c.yml").write_bytes(text.encode("utf-8", "surrogatepass"))
    bounded(cli.explain(parsed(["--config", "a", "--config-path", "c.yml"])))


# --- Images


def _seeds() -> list[bytes]:
    noise = Image.effect_noise((24, 17), 80).convert("RGB")
    made = []
    for form, options in (
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("GIF", {}),
        ("BMP", {}),
        ("WebP", {}),
    ):
        out = io.BytesIO()
        noise.save(out, form, **options)
        made.append(out.getvalue())
    out = io.BytesIO()
    noise.convert("P").save(out, "GIF", save_all=True, append_images=[noise.rotate(90).convert("P")] * 3)
    return [*made, out.getvalue()]


PICTURES = _seeds()


def image_of(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        size = [rng.choice((0, 1, 9_000, 30_000, 65_535)) for _ in range(2)]
        return photos.promising(*size, rng.choice(image_headers.FORMATS))
    return fuzzing.damaged(rng, rng.choice(PICTURES))


def refusing(fault: Callable[[bytes], str | None]) -> Reader:
    """Return a reader for a function that returns the reason why content cannot be used."""

    def read(content: bytes) -> None:
        if reason := fault(content):
            raise DataError(reason)

    return read


def decoded(content: bytes) -> str | None:
    """Decode with the decoder of training."""
    return decoder().fault(content)


@cache
def decoder() -> decoding.Decoder:
    return decoding.Decoder()


# --- Records and the files next to them


EXAMPLES = [tf_example.serialised(PICTURES[k % len(PICTURES)], k % 3 + 1, "abc"[k % 3]) for k in range(5)]
SHARD = b"".join(map(tfrecord.framed, EXAMPLES))
CIFAR = np.tile(np.arange(3073) % 10, 3).astype(np.uint8).tobytes()
IDX = bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in (5, 4, 3)) + bytes(range(60))


def read_shard(content: bytes) -> None:
    """Read with and without tolerance, and like Datasets.verify: only stored records may come out."""
    file = Path("train-00000-of-00001")
    file.write_bytes(content)
    verify.check_shard(file, range(1, 4), image_headers.fault)
    for most in (10_000, 0):
        index = RecordIndex([file], Tolerance(most))
        for record in range(len(index)):
            with suppress(DataError):
                assert (payload := index.payload(record)) in EXAMPLES or len(payload) < 4096


def read_cifar(content: bytes) -> None:
    files = cifar.BINARY_FILES["cifar-10"]
    for name in (*files.train, *files.validation):
        Path(name).write_bytes(content if name == files.train[2] else CIFAR)
    assert cifar.DATASETS["cifar-10"](OpenRequest(".", {})).spec.train_images == 12 + len(content) // 3073


def reading(name: str, read: Callable[[Path], Any]) -> Reader:
    def written_and_read(content: bytes) -> None:
        Path(name).write_bytes(content)
        read(Path(name))

    return written_and_read


def damages(*contents: bytes) -> Maker:
    return lambda rng: fuzzing.damaged(rng, rng.choice(contents))


LABELS = "ant\nbee\n\u00e4\n".encode()
LIST = b'path,label,split\na.jpg,cat,train\n"b.jpg",dog,val\n'
INFO = b'{"records": {"train-00000-of-00001": 5}}'
# maker, reader, number of inputs; None: memory has no limit
INPUTS: dict[str, tuple[Maker, Reader, int, int | None]] = {
    "command lines": (command_line, lambda words: bounded(cli.explain(parsed(words))), 100, None),
    "clusters": (cluster_of, read_environment, 300, None),
    "steps": (step_of, read_environment, 100, MEMORY),
    "poprun": (launch_of, poprun_options.parse, 300, None),
    "YAML": (yaml_of, read_configuration, 200, MEMORY),
    "YAML options": (option_of, read_option, 100, None),
    "headers": (image_of, refusing(image_headers.fault), 1500, MEMORY),
    "images": (image_of, refusing(decoded), 300, None),
    "examples": (
        damages(*EXAMPLES), refusing(lambda content: tf_example.fault(tf_example.parse(content), range(1, 4), image_headers.fault)), 1500, None
    ),
    "records": (damages(SHARD), read_shard, 200, MEMORY),
    "CIFAR": (damages(CIFAR), read_cifar, 200, MEMORY),
    "labels": (damages(LABELS), reading("labels.txt", lambda file: class_names.read(file.parent)), 150, MEMORY),
    "lists": (damages(LIST), reading("list.csv", listings.read), 150, MEMORY),
    "IDX": (damages(IDX), reading("images", lambda file: idx.read_array(file, 3)), 100, MEMORY),
    "packed IDX": (damages(gzip.compress(IDX)), reading("images.gz", lambda file: idx.read_array(file, 3)), 100, MEMORY),
    "conversions": (damages(INFO), reading("conversion.json", lambda file: conversion_info.read(file.parent)), 100, MEMORY),
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_are_read_or_rejected_briefly(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    make, reader, count, memory = INPUTS[name]

    def read(given: Any) -> None:
        try:
            reader(given)
        except (OptionError, DataError) as error:
            raise Refused(bounded(str(error).splitlines()[0])) from error

    assert fuzzing.hold(name, count, make, read, Refused, memory) <= count
