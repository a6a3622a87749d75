"""Configuration files: merges, line numbers in every error, MEME's way of writing, and files that mean harm."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from base.errors import DataError, OptionError
from harness.commands import cli
from harness.options import configs
from harness.options.sources import DEFAULT_CONFIG_PATH
from harness.run.resolve import prepare

# After MEME's configs.yml: strings where numbers are meant, lists of memory proportions, one mapping
# with several merges
MEME = """
mk2_efficientnet_base: &mk2_efficientnet_base
  model: 'efficientnet'
  dataset: 'imagenet'
  precision: 16.32
  eight_bit_io: True
  enable_half_partials: True
  standard_imagenet: True
  no_stochastic_rounding: True

mk2_efficientnet_train_base: &mk2_efficientnet_train_base
  <<: *mk2_efficientnet_base
  optimiser: 'RMSprop'
  lr_schedule: 'exponential'
  label_smoothing: 0.1
  epochs: 350
  enable_recomputation: True
  internal_exchange_optimisation_target: 'balanced'
  pipeline_schedule: 'Grouped'
  pipeline: True
  weight_avg_exp: [0.97]
  cutmix_version: 1
  disable_variable_offloading: True

B2: &B2
  model_size: 'B2'
  mixup_alpha: 0.1
  cutmix_lambda: 0.9

B2_Half_Res: &B2_Half_Res
  <<: *B2
  image_size: 196

G1: &G1
  group_dim: 1
  expand_ratio: 6

GN: &GN
  groups: 4

B2-G1-GN: &B2-G1-GN
  <<: *B2
  <<: *G1
  <<: *GN

B2-G1-GN-Native_16IPU_4x4:
  <<: *mk2_efficientnet_train_base
  <<: *B2-G1-GN
  micro_batch_size: 12
  shards: 4
  replicas: '4'
  gradient_accumulation_count: '16'
  pipeline_splits: ['block2b', 'block4a', 'block5d']
  available_memory_proportion: ['0.2']
"""
# what of it works so far, in the same style
AVAILABLE = """
base: &base
  model: 'efficientnet'
  dataset: 'imagenet'
  enable_half_partials: True
  standard_imagenet: True
  no_stochastic_rounding: True
  optimiser: 'Momentum'
  lr_schedule: 'exponential'
  label_smoothing: '0.1'
  epochs: 350
  weight_decay: 1e-5
  internal_exchange_optimisation_target: 'balanced'
  disable_variable_offloading: True
  cutmix_version: 1
  shards: 1
  validation: False
B2: &B2
  model_size: 'B2'
Half: &Half
  <<: *B2
  image_size: 196
G16: &G16
  group_dim: 16
  expand_ratio: 4
GN: &GN
  groups: 4
B2-G16-GN: &B2-G16-GN
  <<: *Half
  <<: *G16
  <<: *GN
run:
  <<: *base
  <<: *B2-G16-GN
  batch_size: '12'
  replicas: '4'
  gradient_accumulation_count: '16'
  available_memory_proportion: ['0.2']
  precision: 32.32
"""


@pytest.fixture
def write(tmp_path):
    """Writes a configuration file; gives its path."""

    def file(content: str | bytes) -> str:
        path = tmp_path / "c.yml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        return str(path)

    return file


def parse(path: str, *words: str, name: str = "a", script: str = "train") -> cli.Parsed:
    return cli.parse(["--config", name, "--config-path", path, *words], script, None, {})


def refused(path: str, *words: str, name: str = "a") -> str:
    """The message's first line, with the file called FILE."""
    with pytest.raises((OptionError, DataError)) as caught:
        parse(path, *words, name=name)
    first = str(caught.value).splitlines()[0]
    assert len(first) < 400
    return first.replace(path, "FILE")


def flat(text: str, name: str, path: str) -> dict[str, object]:
    Path(path).write_text(text)
    return {key: entry.value for key, entry in configs.ConfigFile(path).block(name).items()}


# Merges


@pytest.mark.parametrize(
    "block, expected",
    [
        ("{<<: *one}", {"x": 1, "y": 1}),
        ("{<<: *one, x: 5}", {"x": 5, "y": 1}),
        ("{x: 5, <<: *one}", {"x": 5, "y": 1}),  # explicit keys win wherever the merge stands
        ("{<<: *one, <<: *two}", {"x": 2, "y": 1, "z": 2}),  # a later merge beats an earlier one
        ("{<<: *two, <<: *one}", {"x": 1, "y": 1, "z": 2}),
        ("{<<: *one, x: 5, <<: *two}", {"x": 5, "y": 1, "z": 2}),
        ("{<<: [*one, *two]}", {"x": 1, "y": 1, "z": 2}),  # within a list the first wins
        ("{<<: [*two, *one], <<: *three}", {"x": 3, "y": 1, "z": 2}),
        ("{<<: *nested}", {"x": 3, "y": 1, "z": 2, "w": 4}),
        ("{<<: {x: 7}}", {"x": 7}),
        ("{<<: *empty, x: 1}", {"x": 1}),
        ("{<<: , x: 1}", {"x": 1}),
        ("{<<: [], x: 1}", {"x": 1}),
        ("&loop {x: 1}", {"x": 1}),
    ],
)
def test_merges(tmp_path, block, expected):
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


def test_a_block_s_own_key_is_above_a_merged_one_in_either_spelling(write):
    for low, own in (("log_freq", "log-freq"), ("log-freq", "log_freq")):
        text = f"b: &b {{{low}: 1, seed: 2}}\na:\n  {own}: 3\n  <<: *b\n"
        assert {key: entry.value for key, entry in configs.ConfigFile(write(text)).block("a").items()} == {
            "seed": "2",
            own: "3",
        }


def test_every_entry_knows_the_line_of_its_key(write):
    text = "b: &b\n  epochs: 1\n  seed: 2\na:\n  <<: *b\n\n  seed: 3\n"
    entries = configs.ConfigFile(write(text)).block("a")
    assert {key: entry.where.rsplit(":", 1)[1] for key, entry in entries.items()} == {"epochs": "2", "seed": "7"}


def test_values(tmp_path):
    """Numbers and dates stay as they are written, for options that are text."""
    text = "a: {a: 1e-3, b: 007, c: 1.50, d: 2020-01-01, e: '1', f: [1, x, 2.5], g: yes, h: Off, i: ~, j: 1_000}"
    expected = {"a": "1e-3", "b": "007", "c": "1.50", "d": "2020-01-01", "e": "1", "f": ["1", "x", "2.5"], "g": True,
                "h": False, "i": None, "j": "1_000"}  # fmt: skip
    assert flat(text, "a", str(tmp_path / "c.yml")) == expected


# MEME's way of writing


def test_a_file_like_that_of_meme(write):
    path = write(MEME)
    names = configs.ConfigFile(path).names
    assert names[-1] == "B2-G1-GN-Native_16IPU_4x4"
    entries = configs.ConfigFile(path).block(names[-1])
    assert {key: entries[key].value for key in ("model_size", "groups", "group_dim", "precision", "replicas")} == {
        "model_size": "B2", "groups": "4", "group_dim": "1", "precision": "16.32", "replicas": "4"
    }  # fmt: skip
    found = parse(path, name=names[-1]).options.values()
    expected = {"eight_bit_io": True, "weight_avg_exp": (0.97,), "mixup_alpha": 0.1, "replicas": 4, "precision": "16.32"}
    assert {key: found[key] for key in expected} == expected


def test_meme_blocks_of_what_is_available(write):
    parsed = parse(write(AVAILABLE), name="run")
    found = parsed.options.values()
    expected = {
        "model": "efficientnet", "model_size": "B2", "image_size": 196, "group_dim": 16, "expand_ratio": 4, "groups": 4,
        "micro_batch_size": 12, "replicas": 4, "gradient_accumulation_count": 16, "precision": "32.32",
        "available_memory_proportion": (0.2,), "optimiser": "momentum", "lr_schedule": "exponential",
        "label_smoothing": 0.1, "epochs": 350.0, "weight_decay": 1e-5, "stochastic_rounding": "OFF", "validation": False,
        "internal_exchange_optimisation_target": "balanced", "lr_decay_rate": 0.97, "lr_drops": 146,
        "base_learning_rate_exponent": -10.0,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    run = prepare(parse(write(AVAILABLE), "--generated-data", name="run").options, {})
    assert (run.plan.global_batch, run.image_size, run.peak_rate) == (768, 196, 0.75)
    assert run.name == "EfficientNet-B2_bs12x16ax4r_GN4"


def test_every_anchor_block_can_be_chosen(write):
    path = write(AVAILABLE)
    for name in configs.ConfigFile(path).names:
        parse(path, "--model", "efficientnet", "--dataset", "imagenet", name=name)


# bases that say how many replicas there must be, and leave them to the blocks that merge them
PARTS = dict.fromkeys(("mlperf_common", "mlperf_bs20", "mlperf_lars"), "--BN-span") | {
    "efficientnet_b4_g1_with_batch_norm_base": "no segment 'block0'"
}


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("name", configs.ConfigFile(str(DEFAULT_CONFIG_PATH)).names)
@pytest.mark.parametrize("script", ["train", "validation"])
def test_every_block_of_the_repository(name, script):
    # a part of others may lack a data set
    written = configs.ConfigFile(str(DEFAULT_CONFIG_PATH)).block(name)
    data = [] if "dataset" in written else ["--dataset", "imagenet"]
    parsed = cli.parse(["--config", name, *data, "--generated-data"], script, None, {})
    if name in PARTS:
        with pytest.raises(OptionError, match=PARTS[name]):
            prepare(parsed.options, {})
        return
    run = prepare(parsed.options, {})
    assert run.peak_rate > 0
    assert not [note for note in parsed.notes if "not used by" in note or "older spelling" in note]
    assert not [note for note in run.notes if note.startswith("warning")]  # published values are not doubted
    sources = parsed.options.sources.values()
    assert len([s for s in sources if s.startswith(f"configuration {name} (configs.yml:")]) >= len(written) - 1


@pytest.mark.parametrize(
    "keys, name, value",
    [
        ("micro_batch_size: '12'", "micro_batch_size", 12),
        ("batch_size: 12", "micro_batch_size", 12),
        ("epochs: 65", "epochs", 65.0),
        ("weight_decay: 1e-4", "weight_decay", 1e-4),
        ("weight_decay: '1e-4'", "weight_decay", 1e-4),
        ("weight_decay: 0", "weight_decay", 0.0),
        ("precision: 32.32", "precision", "32.32"),
        ("available_memory_proportion: 0.2", "available_memory_proportion", (0.2,)),
        ("available_memory_proportion: '0.1 0.2'", "available_memory_proportion", (0.1, 0.2)),
        ("available_memory_proportion: []", "available_memory_proportion", ()),
        ("stochastic_rounding: OFF", "stochastic_rounding", "OFF"),
        ("stochastic_rounding: ON", "stochastic_rounding", "ON"),
        ("no_stochastic_rounding: True", "stochastic_rounding", "OFF"),
        ("no_stochastic_rounding: False", "stochastic_rounding", "ON"),
        ("validation: False", "validation", False),
        ("no_validation: yes", "validation", False),
        ("ckpts-per-epoch: 3", "ckpts_per_epoch", 3),
        ("lr-schedule: Cosine", "lr_schedule", "cosine"),  # was accepted, and the stepped schedule used
        ("lr_schedule: Cosine", "lr_schedule", "cosine"),
        ("lr_schedule:", "lr_schedule", "stepped"),
        ("model: RESNEXT", "model", "resnext"),
        ("epochs:", "epochs", 160.0),
        ("model_size: '14'", "model_size", 14),
        ("optimiser: MOMENTUM", "optimiser", "momentum"),
        ("wandb: 'true'", "wandb", True),
        ("cutmix_version: '1'", "cutmix_version", 1),
        ("name_suffix: 2020-01-01", "name_suffix", "2020-01-01"),
        ("name_suffix: 007", "name_suffix", "007"),  # was 7
        ("log_dir: 1.50", "log_dir", "1.50"),
        ("wandb_project: 1e3", "wandb_project", "1e3"),
        ("seed: 9223372036854775807", "seed", 2**63 - 1),
    ],
)
def test_values_pass_the_same_conversion_as_flags(write, keys, name, value):
    found = parse(write(f"a:\n  dataset: cifar-10\n  {keys}\n")).options.values()[name]
    assert (found, type(found)) == (value, type(value))


def test_keys_of_another_model_or_schedule_are_noted(write):
    parsed = parse(write("a:\n  dataset: cifar-10\n  use_relu: yes\n  lr_drops: 3\n  repeat: 3\n  poly-lr-end-lr: 1\n"))
    assert parsed.notes == (
        "configuration a: not used by this model and schedule: use_relu, lr_drops, repeat, poly-lr-end-lr",
    )
    used = parse(write("a:\n  dataset: cifar-10\n  use_relu: yes\n  model: efficientnet\n"))
    assert (used.notes, used.options.model.use_relu) == ((), True)


# Errors, with file and line


NO_KIND = "not valid YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:"


@pytest.mark.parametrize(
    "keys, message",
    [
        ("micro_bath_size: 3", "FILE:3: a: unknown key 'micro_bath_size'; did you mean micro_batch_size, batch_size or "
         "valid_batch_size?"),
        ("gradient_acumulation: 64", "FILE:3: a: unknown key 'gradient_acumulation'; did you mean "
         "gradient_accumulation_count, gradients_to_accumulate or gradient_format?"),
        ("epochs: many", "FILE:3: epochs is 'many' but must be a finite number"),
        ("epochs: .inf", "FILE:3: epochs is '.inf' but must be a finite number"),
        ("epochs: yes", "FILE:3: epochs is 'True' but must be a finite number"),
        ("epochs: [1]", "FILE:3: epochs takes one value, not the list ['1']"),
        ("epochs: {x: 1}", "FILE:3: 'epochs' must be a value or a list of values"),
        ("epochs: [[1]]", "FILE:3: 'epochs' must be a value or a list of values"),
        ("batch_size: 2.0", "FILE:3: micro_batch_size is '2.0' but must be a whole number"),
        ("batch_size: 0", "FILE:3: micro_batch_size is '0' but must be at least 1"),
        ("replicas: 1e1", "FILE:3: replicas is '1e1' but must be a whole number"),
        ("replicas: " + "1" * 5000, f"FILE:3: replicas is '{'1' * 100}... (5000 characters)' but must be at most 3.4e+38 in size"),
        ("pipeline:", "FILE:3: pipeline has no value: write true or false, or leave the key out"),
        ("wandb: maybe", "FILE:3: wandb is 'maybe' but must be true or false"),
        ("no_validation: maybe", "FILE:3: validation is 'maybe' but must be true or false"),
        ("precision: 16", "FILE:3: precision is '16' but must be one of 16.16, 16.32, 32.32, 8.16, 8.32, bf16.16, bf16.32; did you mean 8.16, 16.32 or 16.16?"),
        ("optimiser: yes", "FILE:3: optimiser is 'True' but must be one of SGD, momentum, RMSprop, LARS, LAMB, Adam, AdamW"),
        ("name_suffix: yes", "FILE:3: name_suffix is 'True' but must be UTF-8 text, not empty"),
        ("name_suffix: ''", "FILE:3: name_suffix is '' but must be UTF-8 text, not empty"),
        ('name_suffix: "\\ud800"', "FILE:3: name_suffix is '\\ud800' but must be UTF-8 text, not empty"),
        ("available_memory_proportion: [0.2, 1.2]", "FILE:3: available_memory_proportion is '0.2 1.2' but must lie between 0 "
         "and 1"),
        ("model: alexnet", "FILE:3: no model 'alexnet': Models/alexnet.py not found; did you mean resnet or resnext?"),
        ("lr_schedule: step", "FILE:3: no learning-rate schedule 'step': LR_Schedules/step.py not found; did you mean stepped?"),
        ("model_size: 21", "configuration a (FILE:3): no model size 21 for cifar-sized data; did you mean 32, 29 or 20?"),
        ("restore_path: logs/x", "FILE:3: a: restore_path has a meaning on the command line only"),
        ("autoresume: true", "FILE:3: a: autoresume has a meaning on the command line only"),
        ("config: b", "FILE:3: a: config has a meaning on the command line only"),
        ("epochs: 1\n  epochs: x", "FILE:4: 'epochs' is given twice, first at FILE:3; keep one of them"),
        ("<<: {seed: 1, seed: 1}", "FILE:3: 'seed' is given twice, first at FILE:3; keep one of them"),
        ("log_freq: 1\n  log-freq: 2", "FILE:4: 'log-freq' is given twice, first at FILE:3; keep one of them"),
        ("epochs: 1\n  iterations: 2", "FILE:3: --iterations 2 and --epochs 1.0 exclude each other; give one of them"),
        ("epochs: 1\n  epoch: 2", "FILE:4: epochs 1.0 and epoch 2.0 are two spellings of epochs with different values; give one "
         "of them"),
        ("epochs: *nothing", "FILE:3: not valid YAML: found undefined alias 'nothing'"),
        ("epochs: !!bool maybe", "FILE:3: epochs is 'maybe' but must be a finite number"),
        ('epochs: !!int ""', "FILE:3: epochs is '' but must be a finite number"),
        ("epochs: !!timestamp soon", "FILE:3: epochs is 'soon' but must be a finite number"),
        ("epochs: 2020-13-45", "FILE:3: epochs is '2020-13-45' but must be a finite number"),
        ("epochs: !!python/name:os.system", f"FILE:3: {NO_KIND}python/name:os.system'"),
        ("variable_filter: !!python/object/apply:os.system [touch x]", f"FILE:3: {NO_KIND}python/object/apply:os.system'"),
        ("name_suffix: !!binary aGk=", f"FILE:3: {NO_KIND}binary'"),
        ("name_suffix: !!map x", "FILE:3: 'x' is no mapping"),
        ("<<: 3", "FILE:3: << merges mappings of options, not '3'"),
        ("<<: [{epochs: 1}, 3]", "FILE:3: << merges mappings of options, not '3'"),
        ("<<: !!python/object:os.x {epochs: 1}", f"FILE:3: {NO_KIND}python/object:os.x'"),
        ("'<<': {epochs: 1}", "FILE:3: '<<' must be a value or a list of values"),
        ("? [x]\n  : 1", "FILE:3: a key must be a name, not a list or a mapping"),
        ("? {x: 1}\n  : 1", "FILE:3: a key must be a name, not a list or a mapping"),
        ("\tepochs: 1", "FILE:3: not valid YAML: found character '\\t' that cannot start any token"),
        ("epochs: 1\n  b: : 2", "FILE:4: not valid YAML: mapping values are not allowed here"),
    ],
)  # fmt: skip
def test_errors_name_file_and_line(write, keys, message):
    assert refused(write(f"a:\n  dataset: cifar-10\n  {keys}\n")) == message


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "FILE: no configuration 'a'; the file has none at all"),
        ("# nothing\n", "FILE: no configuration 'a'; the file has none at all"),
        ("a", "FILE:1: the file must be a mapping of block names to options"),
        ("\n- a\n", "FILE:2: the file must be a mapping of block names to options"),
        ("a: 3", "FILE:1: configuration 'a' must be a mapping of options"),
        ("a: [1]", "FILE:1: configuration 'a' must be a mapping of options"),
        ("a: !!python/object:os.x {epochs: 1}", f"FILE:1: {NO_KIND}python/object:os.x'"),
        ("a: {seed: 1}\nb: {}\na: {seed: 1}\n", "FILE:3: 'a' is given twice, first at FILE:1; keep one of them"),
        ("releases: {2.1: [a]}\na: {seed: 1}\nreleases: {2.1: [a]}", "FILE:3: 'releases' is given twice, first at FILE:1; keep one of them"),
        ("? [x]\n: 1\n", "FILE:1: a key must be a name, not a list or a mapping"),
        ("a: {seed: 1}\n---\na: {seed: 2}\n", "FILE:2: not valid YAML: but found another document"),
        ("%YAML 9.9\n---\na: 1", "FILE:1: not valid YAML: found incompatible YAML document (version 1.* is required)"),
        ("a: {seed: 1", "FILE:1: not valid YAML: expected ',' or '}', but got '<stream end>'"),
        (b"\xff\xfea\x00", "FILE: not UTF-8 text: invalid start byte at byte 0"),
        (b"\x00\x01", "FILE: not valid YAML: unacceptable character #x0000: special characters are not allowed"),
        (b"\x89PNG\r\n\x1a\n", "FILE: not UTF-8 text: invalid start byte at byte 0"),
        ('a: {name_suffix: "\\UFFFFFFFF"}', "FILE: not valid YAML: Python int too large to convert to C int"),
        *((text, "FILE: lists and mappings are too deeply nested")
          for text in ("[" * 100_000, "a: " + "{x: " * 5000, "- " * 1000, "? " * 1000, "a: " + "{[" * 800)),
        ("#" + "x" * 5_000_000, "configuration file FILE: Has more than the 262144 bytes that are read of such a file"),
        ("a: &a\n  <<: *a\n", "FILE:1: not valid YAML: found unconstructable recursive node"),
        ("a: &a\n  dataset: cifar-10\n  variable_filter: &f [*f]\n", "FILE:3: not valid YAML: found unconstructable "
         "recursive node"),
    ],
)  # fmt: skip
def test_files_that_are_wrong_as_a_whole(write, content, message):
    assert refused(write(content)) == message


def test_an_alias_is_read_once(write):
    """Each level names the one below four times: no file of this kind takes long."""
    merges = "l0: &l0 {dataset: cifar-10}\n" + "".join(
        f"l{i}: &l{i} {{<<: [{', '.join([f'*l{i - 1}'] * 4)}]}}\n" for i in range(1, 40)
    )
    lists = "l0: &l0 [x]\n" + "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 4)}]\n" for i in range(1, 40))
    assert parse(write(merges + "a:\n  <<: *l39\n")).options.dataset.dataset == "cifar-10"
    assert "a list of values" in refused(write(lists + "a:\n  dataset: cifar-10\n  variable_filter: *l39\n"))


@pytest.mark.parametrize(
    "text",
    [
        "a: {epochs: LONG}", "a: {'LONG': 3}", "a: LONG", "a: {dataset: LONG}", "a: {model: LONG}", "a: {dataset: *LONG}",
        "a: {dataset: !LONG x}", "a: {device: !!int LONG}", "a: {epochs: [LONG]}", "a: {epochs: {x: LONG}}",
        "a: {model_size: LONG}", "a: {weight_avg_N: [LONG]}", "a: {dataset: cifar-10, iterations: 3, batch_size: 3,"
        " micro_batch_size: 4, name_suffix: LONG}", "a: {optimiser: LONG}", "a: {stable_norm: LONG}", "a: {select_ipu: [LONG]}",
        "a: {dataset: cifar-10, learning_rate_schedule: 'LONG'}", "a: {seed: !!bool LONG}", "a: {no_validation: LONG}",
    ],
)  # fmt: skip
def test_what_is_echoed_is_cut(text, write):
    """`refused` holds the message's length."""
    for long in ("v" * 100_000, "1:" * 50_000 + "1"):
        assert refused(write(text.replace("LONG", long)))


def test_what_is_explained_is_cut(write):
    long = "v" * 200_000
    options = parse(write(f"a: {{dataset: cifar-10, name_suffix: {long}}}")).options
    assert options.logging.name_suffix == long
    assert len(cli.explain(options)) < 100_000


def test_no_object_of_python_is_made(write, tmp_path):
    for tag in ("object/apply:os.system", "object/new:os.system", "object:os.system"):
        made = f"!!python/{tag} ['touch {tmp_path}/made']"
        assert "python/" in refused(write(f"a: {made}"))
        assert "python/" in refused(write(f"a:\n  dataset: cifar-10\n  seed: {made}"))
    assert not (tmp_path / "made").exists()


def test_names_of_blocks(write):
    path = write("quick: {dataset: cifar-10}\n16: {dataset: cifar-100}\nquicker: {}\n")
    with pytest.raises(OptionError) as caught:
        parse(path, name="quik")
    assert str(caught.value) == (
        f"{path}: no configuration 'quik'; did you mean quick or quicker?\nThere are: quick, 16, quicker"
    )
    assert refused(path, name="QUICK").startswith("FILE: no configuration 'QUICK'; did you mean quick or quicker?")
    assert parse(path, name="16").options.dataset.dataset == "cifar-100"


def test_paths_that_are_no_files(tmp_path):
    assert refused(str(tmp_path / "none.yml")) == "configuration file FILE: No such file or directory"
    assert refused(str(tmp_path)) == "configuration file FILE: Is a directory"
    with pytest.raises(OptionError, match=r"^configuration file : No such file or directory$"):
        parse("")
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", "/dev/tty", str(tmp_path / "pipe")):
        if os.path.exists(path):
            assert refused(path) == "configuration file FILE: Is a pipe or a device, not a file"


def test_a_missing_file_is_also_an_error_when_the_block_is_in_the_usual_one():
    with pytest.raises(OptionError, match="no configuration 'nosuch'"):
        cli.parse(["--config", "nosuch"], "train", None, {})
    assert refused("/nowhere/c.yml", name="quickstart") == "configuration file FILE: No such file or directory"


def test_bytes_before_the_text_and_windows_lines(write):
    assert parse(write("\ufeffa: {dataset: cifar-10}\r\n")).options.dataset.dataset == "cifar-10"
    assert "FILE:3: epochs is" in refused(write("a:\r\n  dataset: cifar-10\r\n  epochs: x\r\n"))


# Old files: options that their release took are taken, with a note

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
         ["FILE:12: ckpts-per-epoch is left out: its release did not read it",
          "FILE:7: xla_recompute is an older spelling of enable_recomputation",
          "FILE:11: batch_size is an older spelling of micro_batch_size"]),
        ("b4", {"pipeline_splits": ("auto",)},
         ["configuration b4 has 4 stages but no pipeline_splits: auto cuts them by cost"]),
        ("b4_run", {"gradient_accumulation_count": 1, "pipeline_splits": ("block2b", "block4b", "block6c")},
         ["FILE:26: gradient_accumulation is left out: its release did not read it",
          "FILE:25: batch_size is an older spelling of micro_batch_size"]),
        ("twice", {"seed": 2}, []),
    ],
)  # fmt: skip
def test_old_files(write, name, expected, notes):
    path = write(V20)
    parsed = parse(path, "--generated-data", name=name)
    values = parsed.options.values()
    assert {option: values[option] for option in expected} == expected
    assert [note.replace(path, "FILE") for note in parsed.notes] == notes
    assert prepare(parsed.options, {}).peak_rate > 0


def test_a_kind_of_profile_is_not_a_file(write):
    """Before releases had --profile, --gc-profile was written under this key."""
    path = write("a: {dataset: fashion-mnist, profile: NO_PROFILE}\nb: {dataset: fashion-mnist, profile: here}")
    parsed = parse(path)
    assert (parsed.options.device.profile, parsed.options.device.gc_profile) == (None, "NO_PROFILE")
    assert [note.replace(path, "FILE") for note in parsed.notes] == ["FILE:1: profile is an older spelling of gc_profile"]
    device = parse(path, name="b").options.device
    assert (device.profile, device.gc_profile) == ("here", None)


def test_moving_statistics_that_are_forced_to_what_they_are(write):
    """The last releases' own spelling; a moving variance is FP32 whatever the weights are."""
    path = write("a: {dataset: fashion-mnist, batch_norm: yes, force_weight_to_fp32: [batch_norm/moving_variance, fc1]}")
    run = prepare(parse(path).options, {})
    assert run.plan.precision.force_weight_to_fp32 == ("batch_norm/moving_variance", "fc1")
    prepare(parse(path, "--force-weight-to-fp16", "batch_norm").options, {})  # the trained ones
    skip = ["--optimiser", "LARS", "--abs-learning-rate", "1", "--lars-skip-list", "beta", "batch_norm/moving_"]
    prepare(parse(path, *skip).options, {})
    for words, message in (
        (["--force-weight-to-fp16", "moving_mean"], "moving_mean names only moving statistics, which stay in FP32"),
        (["--force-weight-to-fp16", "fc1"], "fc1 both name all/fc1/dense/kernel"),
        (["--no-batch-norm", "--group-norm"], "batch_norm/moving_variance: no trained variable's name contains it"),
    ):
        with pytest.raises(OptionError, match=message):
            prepare(parse(path, *words).options, {})


def test_stages_on_the_command_line_want_their_cuts(write):
    """Only a base that was published without them gets them."""
    path = write("a: {model: efficientnet, dataset: imagenet, shards: 4, pipeline: yes}")
    for words in (["--shards", "2"], ["--no-pipeline-splits"], ["--pipeline"]):
        found = parse(path, *words, "--generated-data").options
        assert found.device.pipeline_splits == ()
        with pytest.raises(OptionError, match="pipeline_splits has 0 names"):
            prepare(found, {})


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
    ("name", "words", "epochs", "release", "note"),
    [
        (
            "a",
            "",
            5,
            None,
            "configuration a as release 2.5 has it; up to 2.1 and up to 2.3 it had other values, which --release gives",
        ),
        ("a", "--release 2.5", 5, "2.5", "configuration a as release 2.5 has it"),
        ("a", "--release 2.4.0", None, None, "no release '2.4.0'; did you mean"),
        ("a", "--release 2.3", 3, "2.3", "configuration a as release 2.3 has it"),
        ("a", "--release v2.1.0", 1, "2.1", "configuration a as release 2.1 has it"),
        ("a@2.1", "", 1, "2.1", "configuration a as release 2.1 has it"),
        ("a@2.5", "--release 2.5", 5, "2.5", "configuration a as release 2.5 has it"),
        ("a@2.1", "--release 2.5", None, None, "--config a@2.1 and --release 2.5 name two releases; give one of them"),
        ("a", "--release 2.6", None, None, "configuration 'a' exists in releases 2.1 to 2.5, not in 2.6"),
        ("a", "--release 1.0", None, None, "configuration 'a' exists in releases 2.1 to 2.5, not in 1.0\nRelease 1.0 has: "),
        ("b", "", 5, None, None),
        ("b", "--release 2.5", None, None, "configuration 'b' exists in release 2.6, not in 2.5"),
        ("c", "--release 3.0", 5, "3.0", "configuration c as release 3.0 has it"),  # 2.10 comes after 2.6
        ("own", "", 9, None, None),
        ("own", "--release 1.0", 7, "1.0", "configuration own as release 1.0 has it"),
        ("own", "--release 2.1", 9, "2.1", "configuration own as release 2.1 has it"),
        ("own@v1.0", "", 7, "1.0", "configuration own as release 1.0 has it"),
        ("own", "--release newest", None, None, "no release 'newest'"),
        ("nosuch@2.1", "", None, None, "no configuration 'nosuch'"),
        ("a@b", "", None, None, "no configuration 'a@b'; did you mean"),
        ("releases", "", None, None, "no configuration 'releases'"),
    ],
)
def test_releases(write, name, words, epochs, release, note):
    path = write(BY_RELEASE)
    if epochs is None:
        with pytest.raises(OptionError, match=re.escape(note)):
            parse(path, *words.split(), name=name)
        return
    parsed = parse(path, *words.split(), name=name)
    assert (parsed.options.training.epochs, parsed.options.main.release) == (epochs, release)
    assert [line for line in parsed.notes if "release" in line] == [note] * (note is not None)
    asked = f"{name.split('@')[0]}@{release}" if words or "@" in name else name
    assert parsed.options.sources["epochs"].startswith(f"configuration {asked} ({path}:")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("releases: [a]", "FILE:1: 'releases' must be a mapping of releases to names"),
        ("releases: {2.1: a}", "FILE:1: 'releases' has lines like 2.1 to 2.3: [NAME, ...]"),
        ("releases: {2.3 to 2.1: [a]}", "FILE:1: 'releases' has lines like 2.1 to 2.3: [NAME, ...]"),
        ("releases: {2.1 to 2.2 to 2.3: [a]}", "FILE:1: 'releases' has lines like 2.1 to 2.3: [NAME, ...]"),
        ("releases: {2.1: [[a]]}", "FILE:1: 'releases' has lines like 2.1 to 2.3: [NAME, ...]"),
        ("a@2.1: {epochs: 1}", "FILE: no release '2.2'; did you mean 2.1?"),
    ],
)
def test_tables_of_releases_that_are_wrong(write, table, message):
    assert refused(write(f"{table}\na: {{dataset: cifar-10}}\n"), "--release", "2.2") == message


def test_files_without_releases(write):
    assert parse(write("a: {dataset: cifar-10}"), "--release", "2.1").options.main.release == "2.1"  # as the harness was
    assert parse(write("a: {dataset: cifar-10, release: 2.0}")).options.dataset.cutmix_version == 2
    assert refused(write("a: {dataset: cifar-10}"), "--release", "2.9").startswith(
        "command line: --release: no release '2.9'"
    )
    path = write("x@2.1: {dataset: cifar-10, seed: 4}\nx@y: {dataset: cifar-10, seed: 5}\n")
    assert [parse(path, name=name).options.device.seed for name in ("x@2.1", "x@y")] == [4, 5]


# Mutated files: nothing but an answer or an error that was foreseen

SEEDS = [MEME, AVAILABLE, V20, BY_RELEASE, Path(DEFAULT_CONFIG_PATH).read_text()]
SNIPPETS = ["<<: *base", "*B2", "&base", "!!int", "!!bool ", "!!python/name:os.system", "- ", ": ", "\t", "{", "}", "[", "]", "\x00",
            "\u2028", "'", '"', '"\\UFFFFFFFF"', "1e999", "~", "? ", "%YAML 9", "---\n", "no_", "2020-99-99", "0x", "|", ">",
            "\ud800", "=", "<<", "!!timestamp ", "!!binary ", "!!set ", "@2.1", " to ", "releases: "]  # fmt: skip
EDIT = st.tuples(st.integers(0, 2000), st.integers(0, 12), st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=4)))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(SEEDS), st.lists(EDIT, max_size=4), st.sampled_from(["run", "quickstart", "B2", "a@2.3"]))
@example("run: !!timestamp x\n", [], "run")
@example("run: {dataset: cifar-10, epochs: !!bool maybe}\n", [], "run")
def test_any_file_ends_in_options_or_in_a_foreseen_error(text, edits, name):
    for at, length, new in edits:
        at %= len(text) + 1
        text = text[:at] + new + text[at + length :]
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"mutated-{os.getpid()}.yml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        told = cli.explain(parse(str(path), name=name).options)
    except (OptionError, DataError) as error:
        told = str(error).splitlines()[0].strip()
    finally:
        path.unlink()
    assert told
