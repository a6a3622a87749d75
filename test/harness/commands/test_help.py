"""--help, and the bare word with which a call may start."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from commands import run, succeed
from PIL import Image

from cnn_harness.base import plugins
from cnn_harness.harness.options import option_help
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.run import cli

SCRIPTS = ("train", "validation", "restore", "inference_embedded")
TITLES = {"resnet": "ResNet", "resnext": "ResNeXt", "squeezenet": "SqueezeNet", "efficientnet": "EfficientNet"}


def shown(text: str) -> list[str]:
    """Return the options in a help text, without their --no- forms."""
    return [flag.replace("--no-", "--") for flag in re.findall(r"^  (--[\w-]+)[ \n]+\S", text, re.M) if flag != "--help"]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("model", plugins.names("Models"))
def test_help_all_lists_every_option(script, model):
    words = ("--model", model, "--lr-schedule", "exponential", "--help")
    known = cli.parse([*words], script, None, {}).catalogue
    for topic in ("all", *known.sections()):
        text = succeed(script, *words, topic).out
        wanted = [o.flag for o in known.options.values() if topic in ("all", o.section) and o.name != "help"]
        assert shown(text) == wanted
        assert (f"\n{TITLES[model]}:\n" in text) == (topic in ("all", "model"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_short_help_leads_to_rest(script):
    text = succeed(script, "--help").out
    common = text.split("\n\n  --help main ")[0]
    assert len(shown(common)) < 25 and len(text.splitlines()) < 80
    assert set(shown(common)) < set(shown(succeed(script, "--help", "all").out))
    topics = re.findall(r"^  --help (\w+) ", text, re.M)
    assert topics == [*cli.parse(["-h"], script, None, {}).catalogue.sections(), "all", "WORD"]
    assert {*option_help.GROUPS} < {*topics}


def test_help_of_predict_is_short():
    call = [sys.executable, "-m", "cnn_harness", "predict", "--help"]
    text = subprocess.run(call, cwd=plugins.ROOT, capture_output=True, text=True, timeout=60).stdout
    assert "PHOTO is a photo" in text and {"--output", "--tta"} < {*shown(text)} and len(text.splitlines()) < 30
    assert text.endswith("All options of python -m cnn_harness validate are accepted, too (see python -m cnn_harness "
                         "validate --help).\n")  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Make a folder with images, a run and a configuration file."""
    for name in ("pics/ant", "pics/bee", "quickstart"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name / "1.png")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/arguments.json").write_text("{}")
    (tmp_path / "own.yml").write_text("mine:\n  dataset: cifar-10\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("script", "words", "expected"),
    [
        ("train", "pics --epochs 3", "--data-dir pics --epochs 3"),
        ("train", "mk2_resnet8_test --epochs 3", "--config mk2_resnet8_test --epochs 3"),
        ("train", "quickstart", "--data-dir quickstart"),  # a folder of that name wins
        ("train", "mine --config-path own.yml", "--config mine --config-path own.yml"),
        ("validation", "run/ckpt-3 --latency", "--restore-path run/ckpt-3 --latency"),
        ("restore", "run", "--restore-path run"),
    ],
)
def test_bare_word_becomes_option(script, words, expected, place):
    once = Call.of_words(words.split(), script).with_option()
    assert once.words == tuple(expected.split()) and once.with_option() == once == Call.of_words(once.words, script)


@pytest.mark.parametrize(
    ("script", "words", "parts"),
    [
        ("train", "quikstart", "'quikstart' --data-dir --config quickstart?"),
        ("train", "run", "restore.py validation.py"),
        ("train", "pics --data-dir other", "pics --data-dir"),
        ("validation", "nowhere", "--restore-path nowhere"),
    ],
)
def test_unknown_bare_words_are_rejected(script, words, parts, place):
    result = run(script, *words.replace("''", "").split(" "))
    assert result.code == 2 and all(part in result.err.splitlines()[0] for part in parts.split()), result.err
