"""The named configurations agree with those of the original's releases: every option of every block, and the resulting
batch, rate, updates, stages, cuts, precision and schedule.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cnn_harness.base.errors import OptionError
from cnn_harness.harness.options import configs
from cnn_harness.harness.options.releases import VINTAGES, version
from cnn_harness.harness.options.sources import DEFAULT_CONFIG_PATH
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import Prepared, prepare
from cnn_harness.harness.run.run import Run

pytestmark = pytest.mark.usefixtures("read_once")

IMAGES = 1_281_167  # ImageNet's training set
# release: name: every option of the block with its merged blocks, or the earlier release with the same options
REFERENCE = json.loads((Path(__file__).parents[2] / "references" / "recipes.json").read_text())
MEME_RELEASE = "MEME"  # a file outside the releases: more efficient EfficientNet
RELEASES = [release for release in REFERENCE if release != MEME_RELEASE]
SIDES = {"B0": 224, "B1": 240, "B2": 260, "B3": 300, "B4": 380, "B5": 456}
HALF_SIDES = {"B0": 160, "B1": 176, "B2": 196, "B3": 204, "B4": 252, "B5": 328}
CUTS_BN, CUTS_MK1 = "b1/2/relu b2/3/relu b3/3/relu", "b1/2/relu b2/3/relu b3/5/relu"
CUTS_16, CUTS_20 = "b1/0/relu b1/2/relu b2/3/relu", "b1/0/relu b1/2/relu b2/0/relu b2/2/relu b3/0/relu b3/3/relu"
CUTS_G1, CUTS_G16 = "block2b block4b block6c", "block2c block4c block6a"
# kind, size: micro-batch, shards, replicas, accumulation, cuts
MEME = """
G1-GN-Native B0 12 2 8 8 block3b
G1-GN-Native B1 12 4 4 16 block2b block4a block5c
G1-GN-Native B2 12 4 4 16 block2b block4a block5d
G1-GN-Native B3 6 4 4 32 block2b block4a block5d
G1-GN-Native B4 3 4 4 64 block2b block4b block6c
G1-GN-Native B5 2 4 4 96 block2c block4a block5g
G16-GN-Native B0 12 2 8 8 block3b
G16-GN-Native B1 8 2 8 12 block4b
G16-GN-Native B2 12 4 4 16 block2b block4a block5d
G16-GN-Native B3 8 4 4 24 block2b block4b block5e
G16-GN-Native B4 4 4 4 48 block2c block4c block6a
G16-GN-Native B5 2 4 4 96 block2e block4f block6e
G16-GN-Half B0 24 2 8 4 block4b
G16-GN-Half B1 24 4 4 8 block2b block4a block5d
G16-GN-Half B2 24 4 4 8 block2b block4a block5d
G16-GN-Half B3 12 4 4 16 block2b block4b block5e
G16-GN-Half B4 8 4 4 24 block2c block4c block6a
G16-GN-Half B5 3 4 4 64 block2e block4e block6c
"""
MEME_ROWS = [
    (kind.replace("-GN-", norm), *row)
    for kind, *row in (line.split() for line in MEME.strip().splitlines())
    for norm in (("-GN-",) if kind.startswith("G1-") else ("-GN-", "-LN_PN-"))
]
# name: micro-batch, shards, replicas, accumulation, epochs, rate, cuts, precision, optimiser, schedule, stage order.
# A rate is 2^exponent x batch ("^-13") or absolute ("4.588").
APPLICATION = {
    "mk2_resnet50_gn_16ipus": (8, 1, 16, 8, 65, "^-11", "", "16.16", "momentum", "cosine", "Sequential"),
    "mk2_resnet50_gn_64ipus": (8, 1, 64, 2, 65, "^-11", "", "16.16", "momentum", "cosine", "Sequential"),
    "mk2_resnet50_bn_16ipus": (16, 4, 4, 256, 100, "^-13", CUTS_BN, "16.32", "momentum", "cosine", "Grouped"),
    "mk2_resnet50_bn_64ipus": (16, 4, 16, 64, 100, "^-13", CUTS_BN, "16.32", "momentum", "cosine", "Grouped"),
    "mk2_resnet50_bn_128ipus": (16, 4, 32, 32, 100, "^-13", CUTS_BN, "16.32", "momentum", "cosine", "Grouped"),
    "resnet50_bn_32ipus": (16, 4, 8, 128, 100, "^-13", CUTS_BN, "16.32", "momentum", "cosine", "Grouped"),
    "mk1_resnet50_16ipus": (4, 4, 4, 64, 65, "^-11", CUTS_MK1, "16.16", "momentum", "cosine", "Grouped"),
    "mk2_resnext101_16ipus": (6, 2, 8, 16, 120, "^-11", "b3/3/relu", "16.16", "momentum", "cosine", "Grouped"),
    "mk2_efficientnet_b4_g1_16ipus": (3, 4, 4, 64, 350, "^-14", CUTS_G1, "16.32", "RMSprop", "exponential", "Grouped"),
    "mk2_efficientnet_b4_g1_32ipus": (3, 4, 8, 32, 350, "^-14", CUTS_G1, "16.32", "RMSprop", "exponential", "Grouped"),
    "mk2_efficientnet_b4_g1_64ipus": (3, 4, 16, 16, 350, "^-14", CUTS_G1, "16.32", "RMSprop", "exponential", "Grouped"),
    "mk2_efficientnet_b4_g16_16ipus_rmsprop":
        (5, 4, 4, 40, 350, "^-14", CUTS_G16, "16.32", "RMSprop", "exponential", "Grouped"),
    "mk2_efficientnet_b4_g16_16ipus@2.1":
        (5, 4, 4, 40, 350, "^-14", CUTS_G16, "16.32", "RMSprop", "exponential", "Grouped"),
    "mk2_efficientnet_b4_g16_16ipus@2.0":
        (5, 4, 4, 1, 350, "^-14", CUTS_G16, "16.32", "RMSprop", "exponential", "Grouped"),
    "mk2_efficientnet_b4_g16_64ipus_rmsprop":
        (5, 4, 16, 8, 350, "^-14", CUTS_G16, "16.32", "RMSprop", "exponential", "Grouped"),
    "mk2_efficientnet_b4_g16_64ipus_LARS":
        (5, 4, 16, 38, 350, "^-9.5", CUTS_G16, "16.32", "LARS", "polynomial_decay_lr", "Grouped"),
}  # fmt: skip
for _ipus, _replicas, _count in ((16, 8, 256), (32, 16, 128), (64, 32, 64), (128, 64, 32), (256, 128, 16)):
    APPLICATION[f"mk2_efficientnet_b4_g16_{_ipus}ipus"] = (
        3, 2, _replicas, _count, 350, "^-9.5", "block4a", "16.16", "LARS", "polynomial_decay_lr", "Grouped"
    )  # fmt: skip
for _name, _micro, _replicas, _count, _epochs, _rate in (
    ("mk2_resnet50_mlperf_pod16", 16, 16, 9, 44, "4.588"),
    ("mk2_resnet50_mlperf_pod4_bs20", 20, 4, 24, 44, "3.824"),
    ("mk2_resnet50_mlperf_pod16_bs20", 20, 16, 6, 40, "3.824"),
    ("mk2_resnet50_mlperf_pod64_bs20", 20, 64, 2, 41, "5.098"),
    ("mk2_resnet50_mlperf_pod128_bs20", 20, 128, 2, 41, "4.078"),
    ("mk2_resnet50_mlperf_pod16_lars", 20, 16, 10, 38, "10.72"),
    ("mk2_resnet50_mlperf_pod64_lars", 20, 64, 3, 38, "12.15"),
    ("mk2_resnet50_mlperf_pod128_lars", 20, 128, 2, 41, "12.1"),
    ("mk2_resnet50_mlperf_pod256_lars", 20, 256, 2, 45, "20.2"),
    ("resnet50_mlperf_pod16_lars", 22, 16, 10, 38, "10.72"),
    ("resnet50_mlperf_pod32_lars", 22, 32, 6, 38, "11.42"),
    ("resnet50_mlperf_pod64_lars", 20, 64, 4, 40, "14.225"),
):
    APPLICATION[_name] = (
        _micro, 1, _replicas, _count, _epochs, _rate, CUTS_16 if _micro == 16 else CUTS_20, "16.16",
        "LARS" if "lars" in _name else "momentum", "polynomial_decay_lr", "Sequential",
    )  # fmt: skip
# newer name: the same recipe
SAME = {
    "resnet8_test": "mk2_resnet8_test", "resnet50_base": "mk2_resnet50_base", "resnext101_16ipus": "mk2_resnext101_16ipus",
    "mk2_efficientnet_b4_g1_256ipus": "mk2_efficientnet_b4_g16_256ipus",
    "mk2_efficientnet_b4_g16_16ipus_rmsprop": "mk2_efficientnet_b4_g16_16ipus@2.3",
    "mk2_efficientnet_b4_g16_64ipus_rmsprop": "mk2_efficientnet_b4_g16_64ipus@2.3",
    "efficientnet_b4_16ipus_base": "mk2_efficientnet_b4_16ipus_base",
    **{f"resnet50_{x}": f"mk2_resnet50_{x}" for x in ("gn_16ipus", "bn_16ipus", "bn_64ipus", "mlperf_pod16",
                                                     "mlperf_pod16_bs20", "mlperf_pod64_bs20")},
    **{f"efficientnet_b4_{x}": f"mk2_efficientnet_b4_{x}" for x in ("g1_16ipus", "g1_32ipus", "g1_64ipus", "g16_16ipus",
                                                                   "g16_32ipus", "g16_64ipus")},
}  # fmt: skip


def resolved(name: str, *words: str) -> Prepared:
    parsed = cli.parse(["--config", name, *words], "train", environ={})
    return prepare(parsed.options, {}, parsed.notes)


def cuts(run: Run) -> list[str]:
    return [stage[0] for stage in run.plan.stages[1:]]


@pytest.mark.parametrize(("kind", "size", "micro", "shards", "replicas", "count", "splits"),
                         [(*row[:6], row[6:]) for row in MEME_ROWS])  # fmt: skip
def test_meme_runs_match_their_file(kind, size, micro, shards, replicas, count, splits):
    run = resolved(f"{size}-{kind}_16IPU_{shards}x{replicas}", "--generated-data").run
    plan, options = run.plan, run.options
    assert (plan.micro_batch_size, plan.options.shards, plan.options.replicas, plan.accumulation) == tuple(
        map(int, (micro, shards, replicas, count))
    )
    assert plan.global_batch == 768 and plan.ipus == 16 and plan.schedule == "Grouped" and plan.options.enable_recomputation
    assert cuts(run) == list(splits) and len(plan.stages) == int(shards)
    assert run.image_size == (HALF_SIDES if kind.endswith("Half") else SIDES)[size]
    assert run.peak_rate == 768 * 2.0**-14 == 0.046875
    assert run.length.iterations == IMAGES * 350 // 768 and options.main.lr_schedule == "exponential"


def test_meme_has_thirty_runs():
    names = configs.ConfigFile(str(DEFAULT_CONFIG_PATH)).names
    expected = {f"{row[1]}-{row[0]}_16IPU_{row[3]}x{row[4]}" for row in MEME_ROWS}
    assert len(expected) == 30 and expected == {name for name in names if "_16IPU_" in name}


@pytest.mark.parametrize("name", APPLICATION)
def test_application_recipes_match_their_values(name):
    micro, shards, replicas, count, epochs, rate, splits, precision, optimiser, schedule, order = APPLICATION[name]
    run = resolved(name, "--generated-data").run
    batch = micro * replicas * count
    assert (run.plan.micro_batch_size, run.plan.options.shards, run.plan.options.replicas, run.plan.accumulation) == (
        micro,
        shards,
        replicas,
        count,
    )
    assert run.plan.global_batch == batch
    expected = batch * 2.0 ** float(rate[1:]) if rate.startswith("^") else float(rate)
    assert run.peak_rate == pytest.approx(expected, rel=1e-12)
    assert run.length.epochs == epochs and run.length.iterations == int(Fraction(IMAGES) * epochs // batch)
    assert cuts(run) == splits.split() and run.plan.schedule == order
    assert run.plan.precision.name == precision and run.options.training.optimiser == optimiser
    training = run.options.training
    if optimiser == "LARS":
        decays = (5e-5, 5e-5) if "mlperf" in name else (0, 1e-5 if name.endswith("_LARS") else 2.5e-6)
        assert (training.weight_decay, training.lars_weight_decay) == decays
    else:
        assert training.weight_decay == (2.5e-5 if "mlperf" in name else 1e-5 if "efficientnet" in name else 1e-4)
    assert run.options.main.lr_schedule == schedule
    assert max(run.learning_rate(i) for i in range(0, run.length.iterations, 97)) <= expected * (1 + 1e-9)


# Every option of every block, by release. Options missing in a block have their default.

UNLIKE = ("config", "config_path", "release")
# blocks without network or data, merged by other blocks
PARTS = {
    "efficientnet_b4_g1_with_batch_norm_base": "--model efficientnet --model-size B4 --pipeline --dataset imagenet",
    "efficientnet_b4_g1_with_batch_norm_pod64_modification": "--dataset imagenet",
}


def blocks_of(release: str) -> dict[str, dict[str, Any]]:
    blocks = REFERENCE[release]
    return {name: REFERENCE[block][name] if isinstance(block, str) else block for name, block in blocks.items()}


def words_for(name: str, *words: str) -> list[str]:
    return [*words, "--generated-data", *PARTS.get(name, "").split()]


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return values in one spelling."""
    later = re.compile(r"stage([0-9]+)/unit([0-9]+)/")
    splits = tuple(later.sub(lambda m: f"b{m[1]}/{int(m[2]) - 1}/", split) for split in values["pipeline_splits"])
    return {name: value for name, value in {**values, "pipeline_splits": splits}.items() if name not in UNLIKE}


@pytest.mark.parametrize("release", REFERENCE)
def test_every_block_of_every_release_matches(release, tmp_path):
    """The block of the release's file equals the block of the name here, and both are valid. The plain name is the last release."""
    file = tmp_path / "original.yml"
    file.write_text(json.dumps(blocks_of(release)))  # JSON is YAML
    asked = [] if release == MEME_RELEASE else ["--release", release]
    own_file = ("--config-path", str(file), *asked)
    meant = {
        name: plain(cli.parse(["--config", name, *words_for(name, *own_file)], "train", None, {}).options.values())
        for name in blocks_of(release)
    }
    for name, values in meant.items():
        last = [each for each in REFERENCE if name in REFERENCE[each]][-1]
        for words in [asked] + [[]] * (release == last):
            found = plain(resolved(name, *words_for(name, *words)).run.options.values())
            assert {key: (found[key], values[key]) for key in found if found[key] != values[key]} == {}, name


def test_release_names_select_their_values():
    spans = configs.ConfigFile(str(DEFAULT_CONFIG_PATH)).spans()
    found = {release: {name for name, span in spans.items() if version(release) in span} for release in RELEASES}
    assert found == {release: set(REFERENCE[release]) for release in RELEASES}
    assert {name for release in RELEASES for name in REFERENCE[release]} == set(spans)


def of_release(release: str | None, words: str) -> Run:
    return of_release_with_notes(release, words).run


def of_release_with_notes(release: str | None, words: str) -> Prepared:
    return resolved("quickstart", *words.split(), *(["--release", release] if release else []))


def test_release_without_values_selects_behaviour():
    """The same holds for configurations outside the releases, and without a configuration."""
    assert of_release("v2.0.0", "").options.main.release == "2.0"
    assert [of_release(each, "").options.dataset.cutmix_version for each in (None, "1.3", "2.0", "2.1")] == [1, 1, 2, 1]
    assert of_release("2.0", "--cutmix-version 1").options.dataset.cutmix_version == 1
    assert cli.parse(["--release", "2.0", "--dataset", "cifar-10"], "train", None, {}).options.dataset.cutmix_version == 2
    for wrong in ("2.7", "new", "0.1"):
        with pytest.raises(OptionError, match=f"^command line: --release: no release '{wrong}'"):
            of_release(wrong, "")


def test_first_releases_warm_up_over_epochs():
    for release, words, warmup in (
        ("1.3", "--iterations 40", 0), ("1.4", "--iterations 40 --warmup-epochs 2", 0), ("1.3", "--epochs 2", 1),
        ("2.0", "--iterations 40 --warmup-epochs 2", 0), ("2.0", "--epochs 2", 1), ("2.1", "--iterations 40", 1),
        (None, "--iterations 40", 1),
    ):  # fmt: skip
        run, _, notes = of_release_with_notes(release, words)
        assert run.options.schedule.warmup_epochs == warmup
        assert (run.learning_rate(0) == 0) == bool(warmup)
        assert any("no warm-up, because release" in note for note in notes) == (not warmup)


def test_first_releases_save_after_outer_steps():
    words = "--iterations 100 --batches-per-step 10 --log-freq 10"
    for release in (None, *VINTAGES):
        points = [10, 90, 100] if release in ("1.3", "1.4", "2.0") else [100]
        assert of_release(release, words).length.checkpoint_points() == points
    assert of_release("1.3", f"{words} --ckpts-per-epoch 0 --no-validation").length.checkpoint_points() == []


def test_mlperf_rates_end_on_schedule():
    run = resolved("mk2_resnet50_mlperf_pod16_bs20", "--generated-data").run
    assert run.learning_rate(run.length.iterations) == pytest.approx(1e-4)
    assert run.learning_rate(run.length.iterations * 5 // 40) == pytest.approx(3.824, rel=1e-3)
    assert run.plan.options.BN_span == 2 and run.channels == 4 and run.options.logging.mlperf_logging


@pytest.mark.parametrize("newer", SAME)
def test_newer_names_select_same_recipe(newer):
    file = configs.ConfigFile(str(DEFAULT_CONFIG_PATH))
    assert {k: e.value for k, e in file.block(newer).items()} == {k: e.value for k, e in file.block(SAME[newer]).items()}
