"""Command lines, configuration files, pictures and records that mean harm or are damaged: read, or refused in one line.

Everything happens in this process, with the inputs of the day (`fuzzing`).
"""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import fuzzing
import numpy as np
import photos
from PIL import Image
from slurm_tasks import TASK, task

from base.errors import DataError, OptionError
from Datasets import cifar
from Datasets._spec import OpenRequest
from Datasets.formats import class_names, image_headers, tf_example, tfrecord
from Datasets.formats.bad_records import Tolerance
from Datasets.formats.tfrecord import RecordIndex
from harness.cluster import membership
from harness.cluster.membership import TF_CONFIG
from harness.commands import cli
from harness.options import configs
from harness.options.catalogue import Option, all_options
from harness.options.sources import DEFAULT_CONFIG_PATH
from harness.processes import poprun_options
from tools.datasets import dataset_checks, listings
from tools.datasets.example_checks import ExampleChecker

MEMORY = 64 << 20  # of Python's and NumPy's, for inputs of kilobytes
ODD = (
    "１２", "٣", "1_000", "3 ", "0x10", "-0", "1e999", "-1e-999", "nan", "inf", "9" * 400, "1:30", ".", "-", "--", "=", "\0", "\n",
    "\ud800", "\u202e", "{", "[", "*a", "&a", "!!int", "<<", "~", "true", "NO", "'", '"', "%s", "{0}", "../..", "/dev/zero",
    "a" * 5000, ",", "0.5,0.25", "é", "\u2028", "AUTO", "all", "1/2", "+", "0" * 300 + "1",
)  # fmt: skip


class Refused(Exception):
    """The first line of an error, after which lists may follow."""


def refusing(*errors: type[Exception]):
    """Makes a reader's foreseen errors one: `hold` wants a single line, and the first one is complete in itself."""

    def wrap(read):
        def reading(given):
            try:
                return read(given)
            except errors as error:
                raise Refused(bounded(str(error).splitlines()[0])) from error

        return reading

    return wrap


def bounded(said: str) -> str:
    """Return the text of a message or a table; AssertionError unless it is short, however long the input was."""
    assert 0 < len(said) < 60_000, f"{len(said)} characters"
    return said


# --- Command lines


FLAGS = sorted(all_options(None).flags())
OPTIONS: dict[str, Option] = {flag: spelling.option for flag, spelling in all_options(None).flags().items()}


def word(rng: random.Random, option: Option | None = None) -> str:
    """A value: one that fits the option, a number, or something odd."""
    if option is not None and rng.random() < 0.6:
        if option.meta["choices"]:
            return rng.choice(option.meta["choices"])
        return {int: str(rng.choice((0, 1, 2, 7, 64, 2**31))), float: f"{rng.uniform(-1, 3):.3g}"}.get(option.base, "stage1")
    return rng.choice((*ODD, str(rng.randint(-5, 300)), f"{rng.uniform(-2, 2):.4g}"))


def command_line(rng: random.Random) -> list[str]:
    words = ["--dataset", rng.choice(("cifar-10", "imagenet")), "--generated-data"] * (rng.random() < 0.8)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3, 4, 5))):  # some calls are accepted, whatever the seed
        flag = rng.choice(FLAGS)
        given = [word(rng, OPTIONS[flag]) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        if rng.random() < 0.15:
            flag = flag[: rng.randint(1, len(flag))] + rng.choice(("", "x", "é", "="))
        words += [f"{flag}={given[0]}"] if given and rng.random() < 0.2 else [flag, *given]
    return [each for each in words if each not in ("--help", "-h")]


def test_command_lines(pytestconfig, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    @refusing(OptionError, DataError)
    def read(words: list[str]) -> None:
        bounded(cli.explain(cli.parse(words, "train", None, {}).options))

    count = fuzzing.rounds(60, 2500, pytestconfig)
    assert fuzzing.hold("command lines", count, command_line, read, Refused) < count
    assert not list(tmp_path.iterdir())


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
            for name in (
                membership.TOTAL,
                membership.LOCAL,
                membership.OFFSET,
                membership.IPUS,
            )
        }
        found[membership.ADDRESSES] = ",".join(worker)
    return found


def test_environments_of_clusters(pytestconfig):
    words = ["--dataset", "cifar-10", "--generated-data"]
    alone, together = (cli.parse(words + more, "train", None, {}).options for more in ([], ["--distributed"]))

    @refusing(OptionError)
    def read(environ: dict[str, str]) -> None:
        membership.is_later_instance(environ)
        membership.find(alone if membership.under_poprun(environ) else together, environ)

    fuzzing.hold("clusters", fuzzing.rounds(300, 1000, pytestconfig), cluster_of, read, Refused)


def step_of(rng: random.Random) -> dict[str, str]:
    """A task's environment, with a few values that are not Slurm's."""
    values = (
        "n[1-2]", "n[1-2", "a[1-2]b[3-4],c", "n[0-999999999]" * rng.randint(1, 3), "n1," * 20_000, "2,1", "3(x999999)", "cyclic",
        "plane", "26001-26003", "70000-70009", "1", "3", None,
    )  # fmt: skip
    changed = {
        name.removeprefix("SLURM_"): rng.choice((*values, word(rng))) for name in rng.sample(sorted(TASK), rng.randint(0, 4))
    }
    mpi = ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", *membership.OPENMPI)
    return task(**changed) | ({rng.choice(mpi): word(rng)} if rng.random() < 0.2 else {})


def test_environments_of_steps(pytestconfig):
    together = cli.parse(["--dataset", "cifar-10", "--generated-data", "--distributed"], "train", None, {}).options

    @refusing(OptionError)
    def read(environ: dict[str, str]) -> None:
        membership.is_later_instance(environ)
        bounded(" ".join(["none", *membership.ignored_others(environ)]))
        membership.find(together, environ)

    count = fuzzing.rounds(300, 1000, pytestconfig)
    assert 0 < fuzzing.hold("steps", count, step_of, read, Refused, MEMORY) < count


def launch_of(rng: random.Random) -> list[str]:
    names = sorted(poprun_options.flags() - {"-h", "--help", "--version"})
    words = []
    for _ in range(rng.randint(0, 4)):
        words += [rng.choice((rng.choice(names), rng.choice(names), rng.choice(ODD)))] + [word(rng)] * (rng.random() < 0.8)
    return [*words, "python", "train.py"]


def test_calls_of_poprun(pytestconfig):
    read = refusing(OptionError)(poprun_options.parse)
    fuzzing.hold("poprun", fuzzing.rounds(300, 1000, pytestconfig), launch_of, read, Refused)


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


def test_configuration_files(pytestconfig, tmp_path):
    path = tmp_path / "c.yml"

    @refusing(OptionError)
    def read(content: bytes) -> None:
        path.write_bytes(content)
        file = configs.ConfigFile(str(path))
        for name in random.Random(len(content)).sample(file.names, len(file.names)):
            for entry in file.block(name).values():
                str(entry.value)

    count = fuzzing.rounds(150, 1000, pytestconfig)
    assert fuzzing.hold("YAML", count, yaml_of, read, Refused, MEMORY) < count


def test_options_of_a_configuration_file(pytestconfig, tmp_path):
    """Any scalar that YAML knows, as the value of any option."""
    path, keys = tmp_path / "c.yml", sorted(all_options("train").spellings)

    def block(rng: random.Random) -> str:
        value = rng.choice((word(rng), *SNIPPETS, "2020-01-01", "!!binary aGVsbG8=", "[1, x]", "yes", "{}", "~", "1e5"))
        return f"a:\n  dataset: cifar-10\n  generated_data: true\n  {rng.choice(keys)}: {value}\n"

    @refusing(OptionError, DataError)
    def read(text: str) -> None:
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        bounded(cli.explain(cli.parse(["--config", "a", "--config-path", str(path)], "train", None, {}).options))

    fuzzing.hold("YAML options", fuzzing.rounds(60, 1000, pytestconfig), block, read, Refused)


# --- Pictures


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


def picture_of(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        size = [rng.choice((0, 1, 9_000, 30_000, 65_535)) for _ in range(2)]
        return photos.promising(*size, rng.choice(image_headers.FORMATS))
    return fuzzing.damaged(rng, rng.choice(PICTURES))


def test_headers_of_pictures(pytestconfig):
    def read(data: bytes) -> None:
        reason = image_headers.fault(data)
        if reason is not None:
            raise Refused(reason)
        header = image_headers.header(data)
        assert 0 < header.width * header.height <= image_headers.MAX_PIXELS

    fuzzing.hold("headers", fuzzing.rounds(1000, 10_000, pytestconfig), picture_of, read, Refused, MEMORY)


def test_pictures(pytestconfig):
    """Through the decoder that training uses."""
    decoder = ExampleChecker(True)

    def read(data: bytes) -> None:
        reason = decoder.picture(data)
        if reason is not None:
            raise Refused(reason)

    count = fuzzing.rounds(200, 3000, pytestconfig)
    assert fuzzing.hold("pictures", count, picture_of, read, Refused) < count


# --- Records and lists


EXAMPLES = [tf_example.serialised(PICTURES[k % len(PICTURES)], k % 3 + 1, "abc"[k % 3]) for k in range(5)]
SHARD = b"".join(map(tfrecord.framed, EXAMPLES))


def test_records_of_shards(pytestconfig, tmp_path):
    """With tolerance and without, and as Datasets.verify reads them: what comes was stored."""
    file, judge = tmp_path / "train-00000-of-00001", ExampleChecker(False)

    @refusing(DataError)
    def read(content: bytes) -> None:
        file.write_bytes(content)
        dataset_checks._checked_shard(file, range(1, 4), judge, None, lambda: None)
        for most in (10_000, 0):
            index = RecordIndex([file], Tolerance(most))
            for record in range(len(index)):
                assert index.damage(record) or index.payload(record) in EXAMPLES or len(index.payload(record)) < 4096

    make = fuzzing.damaged
    fuzzing.hold("records", fuzzing.rounds(150, 2000, pytestconfig), lambda rng: make(rng, SHARD), read, Refused, MEMORY)


def test_examples(pytestconfig):
    """Whole records of damaged content."""
    judge = ExampleChecker(False)

    def read(content: bytes) -> None:
        reason = judge.example(content, range(1, 4))
        if reason is not None:
            raise Refused(reason)

    fuzzing.hold(
        "examples", fuzzing.rounds(1000, 10_000, pytestconfig), lambda rng: fuzzing.damaged(rng, rng.choice(EXAMPLES)), read,
        Refused,
    )  # fmt: skip


def test_small_pictures(pytestconfig, tmp_path):
    files = cifar.BINARY_FILES["cifar-10"]
    whole = np.tile(np.arange(3073) % 10, 3).astype(np.uint8).tobytes()
    for name in (*files.train, *files.validation):
        (tmp_path / name).write_bytes(whole)

    @refusing(DataError)
    def read(content: bytes) -> None:
        (tmp_path / files.train[2]).write_bytes(content)
        source = cifar.DATASETS["cifar-10"](OpenRequest(str(tmp_path), {}))
        assert source.spec.train_images == 12 + len(content) // 3073

    make = fuzzing.damaged
    fuzzing.hold("CIFAR", fuzzing.rounds(150, 2000, pytestconfig), lambda rng: make(rng, whole), read, Refused, MEMORY)


def test_lists_and_labels(pytestconfig, tmp_path):
    """labels.txt, and the CSV files that Datasets.convert takes."""
    labels, rows = b"ant\nbee\ncat\n", b"path,label,split\na/1.jpg,ant,train\nb/2.jpg,bee,val\n"

    @refusing(DataError)
    def read(given: tuple[bytes, bytes]) -> None:
        (tmp_path / "labels.txt").write_bytes(given[0])
        (tmp_path / "rows.csv").write_bytes(given[1])
        try:
            class_names.read(tmp_path)
        finally:
            listings.of(tmp_path / "rows.csv")

    def make(rng: random.Random) -> tuple[bytes, bytes]:
        return fuzzing.damaged(rng, labels), fuzzing.damaged(rng, rows)

    fuzzing.hold("lists", fuzzing.rounds(200, 2000, pytestconfig), make, read, Refused, MEMORY)
