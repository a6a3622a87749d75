"""plan.py as a person calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml
from runs import run, succeed

from base.plugins import ROOT

CONFIGURATIONS = [
    name for name in yaml.safe_load((ROOT / "configs.yml").read_text()) if name != "releases"
]  # fmt: skip
PROMISED = ("system", "ipus", "fits", "memory_bytes_per_ipu", "memory_capacity_bytes", "images_per_second", "update_seconds",
            "idle_share", "hours")  # fmt: skip


def test_every_configuration_is_planned(capsys):
    """All blocks in one call, as JSON on standard output and nothing else there."""
    result = succeed("plan", "--config", *CONFIGURATIONS, "--json", "-")
    plans = json.loads(result.out)
    assert [plan["name"] for plan in plans] == CONFIGURATIONS
    for plan in plans:
        assert all(name in plan for name in PROMISED)
        assert plan["images_per_second"] > 0 and 0 <= plan["idle_share"] < 1
        # a block that is only the base of others has all of a large network on one IPU
        assert plan["fits"] is True or (len(plan["stages"]) == 1 and plan["name"].startswith(("B3", "B4", "B5")))
        assert len(plan["memory_bytes_per_ipu"]) in (1, len(plan["stages"]))
        assert plan["update_seconds"] == pytest.approx(plan["global_batch"] / plan["images_per_second"])
        assert sum(plan["update_parts"].values()) == pytest.approx(plan["update_seconds"])
        for size, parts in zip(plan["memory_bytes_per_ipu"], plan["memory_parts"]):
            assert sum(parts.values()) == size


def test_a_plan_imports_no_tensorflow_and_reads_no_data():
    code = ("import sys, plan; from harness.commands import entry; "
            "code = entry.run_command('plan', plan.main, ['--config', 'mk2_resnet50_mlperf_pod16_bs20']); "
            "assert code == 0; assert 'tensorflow' not in sys.modules")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_the_page_needs_nothing_else(tmp_path):
    page = tmp_path / "plan.html"
    words = ("--config", "B4-G16-GN-Native_16IPU_4x4", "mk2_resnet50_mlperf_pod16_bs20", "--system", "POD16", "BOW-POD16")
    out = succeed("plan", *words, "--html", page).out
    assert "predicted on POD16" in out and "predicted on BOW-POD16" in out
    text = page.read_text()
    assert text.count("<svg") >= 16 and 'name="viewport"' in text
    assert not [word for word in ("<script", "src=", "href=", "url(", "@import") if word in text]
    for picture in ("Images a second against memory", "Memory of each IPU", "Schedules", "on other systems"):
        assert picture in text


def test_what_is_found_runs(tmp_path):
    """The search's block is a configuration that train.py takes unchanged, with the same plan."""
    words = ("--config", "B0-G16-GN-Native_mini", "--system", "POD4")
    out = succeed("plan", *words, "--search", "--json", tmp_path / "found.json").out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["images_per_second"] >= found["given"]["images_per_second"] and found["looked_at"] > 10
    file = tmp_path / "found.yml"
    file.write_text(out.partition("# for configs.yml\n")[2].partition("\n\n")[0] + "\n")
    (name,) = yaml.safe_load(file.read_text())
    again = json.loads(succeed("plan", "--config-path", file, "--config", name, "--system", "POD4", "--json", "-").out)
    assert again["images_per_second"] == pytest.approx(found["images_per_second"])
    assert again["stages"] == found["stages"] and again["memory_bytes_per_ipu"] == found["memory_bytes_per_ipu"]
    shown = succeed("train", "--config-path", file, "--config", name, "--dry-run", "--generated-data").out
    assert f"Batch Size: {found['global_batch']}\n" in shown


def test_the_plan_that_is_given_is_looked_at(tmp_path):
    """Seven stages on one IPU, which the search does not make of itself, and reads back as it was."""
    words = ("--config", "efficientnet_b4_g1_with_batch_norm_16ipus", "--search", "--json", "-")
    found = json.loads(succeed("plan", *words).out)
    assert found["images_per_second"] >= found["given"]["images_per_second"] and found["fits"]
    file = tmp_path / "found.yml"
    file.write_text(found["configuration"])
    (name,) = yaml.safe_load(found["configuration"])
    again = json.loads(succeed("plan", "--config-path", file, "--config", name, "--json", "-").out)
    assert again["memory_bytes_per_ipu"] == found["memory_bytes_per_ipu"]


def test_links_and_pipes_stay_what_they_are(tmp_path):
    """Output goes through a link, and into a pipe."""
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("")
    link.symlink_to(target)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    succeed("plan", "--config", "quickstart", "--json", pipe, "--html", link)
    assert pipe.is_fifo() and os.read(reader, 100).startswith(b'{\n "name"')
    os.close(reader)
    assert link.is_symlink() and target.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_pipe_by_the_name_of_standard_output(option):
    words = [sys.executable, "plan.py", "--config", "quickstart", "--synthetic-data", option, "/dev/stdout"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    if option == "--html":
        assert done.stdout.startswith("<!DOCTYPE html>")
        return
    text = done.stdout[: done.stdout.index("\n}\n") + 2]
    assert json.loads(text)["host_images_per_second_limit"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--config B4-G16-GN-Native_16IPU_4x4 --system POD17", "did you mean POD16"),
        ("--config B4-G16-GN-Native_16IPU_4x4 --system POD4", "has 4 IPUs and the plan stands for 16"),
        ("--config B4-G16-GN-Nativ_16IPU_4x4", "did you mean B4-G16-GN-Native_16IPU_4x4"),
        ("--config B4-G16-GN-Native_16IPU_4x4 --pipeline-splits block2z block4c block6a", "did you mean block2"),
        ("--config quickstart --replicas 300", "POD256, has 256"),
        ("--config quickstart --processes 0", "not a whole number from 1 on"),
        ("--config quickstart --processes 1_0", "not a whole number from 1 on"),
        ("--config quickstart --num-io-tiles 1472", "leaves none of the 1472 tiles"),
        ("--config quickstart --html -", "needs the name of a file"),
        ("--config quickstart --html a --json a", "give two files"),
        ("--config quickstart --html /no/such/folder/x.html", "there is no folder"),
        ("--config quickstart --serch", "--serch"),
        ("--model efficientnet --model-size B7 --dataset imagenet --image-size 2048 --batch-size 1 --search --system POD4",
         "no plan fits on POD4"),
    ],
)  # fmt: skip
def test_a_slip_is_one_line(words, told):
    result = run("plan", *words.split())
    assert result.code == 2 and told in result.err and "Traceback" not in result.err
    assert result.err.startswith("plan.py: error: ")


def test_help_and_shares(capsys):
    assert "--system" in succeed("plan", "--help").out
    out = succeed("plan", "--config", "mk2_efficientnet_b4_g16_16ipus").out
    assert "fits" in out and "img/sec" in out and "block4a" in out
