"""Configuration files: merges, line numbers in every error, MEME's format, and malicious files."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnn_harness.base.errors import DataError, OptionError
from cnn_harness.harness.options import configs
from cnn_harness.harness.options.call import DEFAULT_CONFIG_PATH, Parsed
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a configuration file and returns its path."""

    def file(content: str | bytes) -> str:
        path = tmp_path / "c.yml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        return str(path)

    return file


def parse(path: str, *words: str, name: str = "a", script: str = "train") -> Parsed:
    return cli.parse(["--config", name, "--config-path", path, *words], script, None, {})


def refused(path: str, *words: str, name: str = "a") -> str:
    """Return the message's first line, with FILE for the file's path."""
    with pytest.raises((OptionError, DataError)) as caught:
        parse(path, *words, name=name)
    first = str(caught.value).splitlines()[0].replace(path, "FILE")
    assert len(first) < 400
    return first


def flat(text: str, name: str, path: str) -> dict[str, object]:
    Path(path).write_text(text)
    return {key: entry.value for key, entry in configs.ConfigFile(path).block(name).items()}


# Merges


@pytest.mark.parametrize(
    "block, expected",
    [
        ("{<<: *one}", {"x": 1, "y": 1}),
        ("{x: 5, <<: *one}", {"x": 5, "y": 1}),  # explicit keys win wherever the merge is
        ("{<<: *one, <<: *two}", {"x": 2, "y": 1, "z": 2}),  # a later merge beats an earlier one
        ("{<<: *one, x: 5, <<: *two}", {"x": 5, "y": 1, "z": 2}),
        ("{<<: [*one, *two]}", {"x": 1, "y": 1, "z": 2}),  # within a list the first wins
        ("{<<: [*two, *one], <<: *three}", {"x": 3, "y": 1, "z": 2}),
        ("{<<: *nested}", {"x": 3, "y": 1, "z": 2, "w": 4}),
        ("&loop {x: 1}", {"x": 1}),
    ],
)
def test_merges_follow_yaml_rules(tmp_path, block, expected):
    anchors = """
one: &one {x: 1, y: 1}
two: &two {x: 2, z: 2}
three: &three {x: 3}
nested: &nested
  <<: *two
  <<: {<<: *one, w: 4}
  <<: *three
empty: &empty
"""
    found = flat(f"{anchors}\na: {block}\n", "a", str(tmp_path / "c.yml"))
    assert found == {key: str(value) for key, value in expected.items()}


def test_entries_have_line_of_their_key(write):
    """A block's own key beats a merged one, in either spelling."""
    text = "b: &b\n  epochs: 1\n  log-freq: 2\na:\n  <<: *b\n\n  log_freq: 3\n"
    entries = configs.ConfigFile(write(text)).block("a")
    assert {key: (entry.value, entry.where.rsplit(":", 1)[1]) for key, entry in entries.items()} == {
        "epochs": ("1", "2"), "log_freq": ("3", "7"),
    }  # fmt: skip


# bases that require a number of replicas and leave it to the blocks that merge them
PARTS = dict.fromkeys(("mlperf_common", "mlperf_bs20", "mlperf_lars"), "--BN-span") | {
    "efficientnet_b4_g1_with_batch_norm_base": "no segment 'block0'"
}


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("name", configs.ConfigFile(str(DEFAULT_CONFIG_PATH)).names)
@pytest.mark.parametrize("script", ["train", "validation"])
def test_every_block_of_repository_is_valid(name, script):
    # a base may lack a data set
    written = configs.ConfigFile(str(DEFAULT_CONFIG_PATH)).block(name)
    data = [] if "dataset" in written else ["--dataset", "imagenet"]
    parsed = cli.parse(["--config", name, *data, "--generated-data"], script, None, {})
    if name in PARTS:
        with pytest.raises(OptionError, match=PARTS[name]):
            prepare(parsed.options, {})
        return
    run, _, warned = prepare(parsed.options, {})
    assert run.peak_rate > 0
    assert not [note for note in parsed.notes if "ignored" in note or "older spelling" in note]
    assert not [note for note in warned if note.startswith("warning")]  # no warnings for published values
    sources = parsed.options.sources.values()
    assert len([s for s in sources if s.startswith(f"configuration {name} (configs.yml:")]) >= len(written) - 1


@pytest.mark.parametrize(
    "keys, name, value",
    [
        ("micro_batch_size: '12'", "micro_batch_size", 12),
        ("weight_decay: '1e-4'", "weight_decay", 1e-4),
        ("available_memory_proportion: '0.1 0.2'", "available_memory_proportion", (0.1, 0.2)),
        ("stochastic_rounding: OFF", "stochastic_rounding", "OFF"),
        ("no_stochastic_rounding: True", "stochastic_rounding", "OFF"),
        ("no_validation: yes", "validation", False),
        ("ckpts-per-epoch: 3", "ckpts_per_epoch", 3),
        ("lr_schedule: Cosine", "lr_schedule", "cosine"),
        ("model_size: '14'", "model_size", 14),
        ("wandb: 'true'", "wandb", True),
        ("name_suffix: 2020-01-01", "name_suffix", "2020-01-01"),
        ("name_suffix: 007", "name_suffix", "007"),  # was 7
        ("seed: 9223372036854775807", "seed", 2**63 - 1),
    ],
)
def test_values_convert_like_flags(write, keys, name, value):
    found = parse(write(f"a:\n  dataset: cifar-10\n  {keys}\n")).options.values()[name]
    assert (found, type(found)) == (value, type(value))


def test_unused_keys_of_plugins_are_noted(write):
    parsed = parse(write("a:\n  dataset: cifar-10\n  use_relu: yes\n  lr_drops: 3\n  repeat: 3\n  poly-lr-end-lr: 1\n"))
    assert parsed.notes == (
        "configuration a: ignored keys of other models, schedules or scripts: use_relu, lr_drops, repeat, poly-lr-end-lr",
    )
    used = parse(write("a:\n  dataset: cifar-10\n  use_relu: yes\n  model: efficientnet\n"))
    assert (used.notes, used.options.model.use_relu) == ((), True)


# Errors, with file and line


@pytest.mark.parametrize(
    "keys, line, parts",
    [
        ("micro_bath_size: 3", 3, "a: 'micro_bath_size' micro_batch_size, batch_size valid_batch_size?"),
        ("epochs: many", 3, "epochs 'many' number"),
        ("epochs: [1]", 3, "epochs list ['1']"),
        ("epochs: {x: 1}", 3, "'epochs' list"),
        ("batch_size: 2.0", 3, "micro_batch_size '2.0' whole number"),
        ("replicas: " + "1" * 5000, 3, "replicas 5000 characters whole number"),
        ('name_suffix: "\\ud800"', 3, "name_suffix '\\ud800' text"),
        ("model: alexnet", 3, "'alexnet' resnet resnext?"),
        ("restore_path: logs/x", 3, "restore_path command line"),
        ("epochs: 1\n  epochs: x", 4, "'epochs' twice FILE:3"),
        ("<<: {seed: 1, seed: 1}", 3, "'seed' twice FILE:3"),
        ("epochs: 1\n  iterations: 2", 3, "--iterations 2 --epochs 1.0 exclude"),
        ("epochs: 1\n  epoch: 2", 4, "epochs 1.0 epoch 2.0 spellings"),
        ("epochs: *nothing", 3, "YAML 'nothing'"),
        ("seed: !!python/object/apply:os.system ['touch FILE']", 3, "YAML python/object/apply:os.system"),
        ("name_suffix: !!binary aGk=", 3, "YAML binary"),
        ("<<: [{epochs: 1}, 3]", 3, "<< mappings '3'"),
        ("\tepochs: 1", 3, "YAML token"),
        ("variable_filter: &f [*f]", 3, "YAML recursive"),
    ],
)  # fmt: skip
def test_errors_name_file_and_line(write, keys, line, parts):
    said = refused(write(f"a:\n  dataset: cifar-10\n  {keys}\n"))
    assert f"FILE:{line}" in said and all(part in said for part in parts.split()), said


@pytest.mark.parametrize(
    "content, place, parts",
    [
        ("# nothing\n", "FILE", "'a' no"),
        ("\n- a\n", "FILE:2", "mapping"),
        ("a: [1]", "FILE:1", "'a' mapping"),
        ("a: {seed: 1}\nb: {}\na: {seed: 1}\n", "FILE:3", "'a' twice FILE:1"),
        ("a: {seed: 1}\n---\na: {seed: 2}\n", "FILE:2", "YAML another document"),
        ("a: {seed: 1", "FILE:1", "YAML"),
        (b"\xff\xfea\x00", "FILE", "UTF-8 byte 0"),
        (b"\x00\x01", "FILE", "YAML #x0000"),
        ('a: {name_suffix: "\\UFFFFFFFF"}', "FILE", "YAML"),
        ("a: " + "{x: " * 5000, "FILE", "nested"),
        ("#" + "x" * 5_000_000, "FILE", "262144 bytes"),
        ("a: &a\n  <<: *a\n", "FILE:1", "YAML recursive"),
        ("a:\r\n  dataset: cifar-10\r\n  epochs: x\r\n", "FILE:3", "epochs"),
        ("releases: [a]\na: {}", "FILE:1", "'releases' mapping"),
        ("releases: {2.1: a}\na: {}", "FILE:1", "'releases' 2.1 to 2.3"),
        ("releases: {2.3 to 2.1: [a]}\na: {}", "FILE:1", "'releases' 2.1 to 2.3"),
    ],
)  # fmt: skip
def test_broken_files_are_rejected(write, content, place, parts):
    said = refused(write(content))
    assert place in said and all(part in said for part in parts.split()), said


def test_alias_is_read_once(write):
    """Each level names the one below four times, so reading every mention would take for ever."""
    merges = "l0: &l0 {dataset: cifar-10}\n" + "".join(
        f"l{i}: &l{i} {{<<: [{', '.join([f'*l{i - 1}'] * 4)}]}}\n" for i in range(1, 40)
    )
    lists = "l0: &l0 [x]\n" + "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 4)}]\n" for i in range(1, 40))
    assert parse(write(merges + "a:\n  <<: *l39\n")).options.dataset.dataset == "cifar-10"
    assert "a list of values" in refused(write(lists + "a:\n  dataset: cifar-10\n  variable_filter: *l39\n"))


def test_missing_names_and_files_are_rejected(write, tmp_path):
    path = write("\ufeffquick: {dataset: cifar-10}\n16: {dataset: cifar-100}\nquicker: {}\n")
    for name in ("quik", "QUICK"):
        assert all(part in refused(path, name=name) for part in (name, "quick or quicker?"))
    assert parse(path, name="16").options.dataset.dataset == "cifar-100"
    for wrong in ("none.yml", "."):
        assert wrong in refused(str(tmp_path / wrong)).replace("FILE", wrong)


# Old files: options of their release are accepted, with a note

V20 = """
base: &base
  model: resnet
  model_size: 50
  dataset: imagenet
  optimiser: 'SGD'
  xla_recompute: True
  optimiser: 'momentum'
run:
  <<: *base
  batch_size: 8
  ckpts-per-epoch: 5
  ckpts_per_epoch: 1
  replicas: 16
b4: &b4
  model: efficientnet
  model_size: B4
  dataset: imagenet
  optimiser: 'RMSprop'
  lr_schedule: 'exponential'
  shards: 4
  pipeline: True
b4_run:
  <<: *b4
  batch_size: 3
  gradient_accumulation: 64
  pipeline_splits: ['block2b', 'block4b', 'block6c']
twice: {seed: 1}
other:
twice: {dataset: cifar-10, seed: 2}
"""


@pytest.mark.parametrize(
    ("name", "expected", "notes"),
    [
        ("base", {"optimiser": "momentum"},
         ["FILE:7: xla_recompute is an older spelling of enable_recomputation"]),
        ("run", {"optimiser": "momentum", "ckpts_per_epoch": 1, "micro_batch_size": 8},
         ["FILE:12: ckpts-per-epoch is ignored, because its release did not read it",
          "FILE:7: xla_recompute is an older spelling of enable_recomputation",
          "FILE:11: batch_size is an older spelling of micro_batch_size"]),
        ("b4", {"pipeline_splits": ("auto",)},
         ["configuration b4 has 4 stages but no pipeline_splits, so --pipeline-splits auto is used"]),
        ("b4_run", {"gradient_accumulation_count": 1, "pipeline_splits": ("block2b", "block4b", "block6c")},
         ["FILE:26: gradient_accumulation is ignored, because its release did not read it",
          "FILE:25: batch_size is an older spelling of micro_batch_size"]),
        ("twice", {"seed": 2}, []),
    ],
)  # fmt: skip
def test_old_files_are_accepted_with_notes(write, name, expected, notes):
    path = write(V20)
    parsed = parse(path, "--generated-data", name=name)
    values = parsed.options.values()
    assert {option: values[option] for option in expected} == expected
    assert [note.replace(path, "FILE") for note in parsed.notes] == notes
    assert prepare(parsed.options, {}).run.peak_rate > 0


# Releases: NAME, NAME@2.3 and a table of names

BY_RELEASE = """
releases:
  2.1 to 2.5: [a]
  2.6: [b]
  2.10 to 3.0: [c]
a: &a {dataset: cifar-10, epochs: 5}
a@2.3: &a23 {<<: *a, epochs: 3, loss_scaling: 8}
a@v2.1.0: {<<: *a23, epochs: 1}
b: *a
c: *a
own: &own {dataset: cifar-10, epochs: 9}
own@1.0: {<<: *own, epochs: 7}
"""


@pytest.mark.parametrize(
    ("name", "words", "epochs", "release", "parts"),
    [
        ("a", "", 5, None, "2.5 2.1 2.3 other values"),
        ("a", "--release 2.4.0", None, None, "'2.4.0' 2.1"),
        ("a", "--release 2.3", 3, "2.3", "2.3"),
        ("a@2.1", "", 1, "2.1", "2.1"),
        ("a@2.1", "--release 2.5", None, None, "a@2.1 2.5"),
        ("a", "--release 2.6", None, None, "'a' 2.1 2.5 2.6"),
        ("b", "", 5, None, ""),
        ("c", "--release 3.0", 5, "3.0", "3.0"),  # 2.10 comes after 2.6
        ("own", "--release 1.0", 7, "1.0", "1.0"),
        ("own", "--release newest", None, None, "'newest'"),
        ("releases", "", None, None, "'releases'"),
    ],
)
def test_releases_are_selected_by_name(write, name, words, epochs, release, parts):
    path = write(BY_RELEASE)
    if epochs is None:
        said = refused(path, *words.split(), name=name)
        assert all(part in said for part in parts.split()), said
        return
    parsed = parse(path, *words.split(), name=name)
    assert (parsed.options.training.epochs, parsed.options.main.release) == (epochs, release)
    (note,) = [line for line in parsed.notes if "release" in line] or [""]
    assert bool(note) == bool(parts) and all(part in note for part in parts.split())
    asked = f"{name.split('@')[0]}@{release}" if words or "@" in name else name
    assert parsed.options.sources["epochs"].startswith(f"configuration {asked} ({path}:")
