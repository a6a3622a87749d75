"""cnn plan as a user calls it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml
from commands import run, succeed
from figures import checked

from cnn_harness.base.plugins import ROOT
from cnn_harness.harness.options.call import Call
from cnn_harness.tools.planning import plan_options

CONFIGURATIONS = [
    name for name in yaml.safe_load((ROOT / "configs.yml").read_text())
    if name != "releases" and not name.startswith("efficientnet_b4_g1_with_batch_norm_")  # bases, which name no model
]  # fmt: skip
PROMISED = ("system", "ipus", "fits", "memory_bytes_per_ipu", "memory_capacity_bytes", "images_per_second", "update_seconds",
            "idle_share", "hours")  # fmt: skip


def test_every_configuration_is_planned(capsys):
    """All blocks in one call, as JSON on standard output, with nothing else there."""
    result = succeed("plan", "--config", *CONFIGURATIONS, "--json", "-")
    plans = json.loads(result.out)
    assert [plan["name"] for plan in plans] == CONFIGURATIONS
    for plan in plans:
        assert all(name in plan for name in PROMISED)
        assert plan["images_per_second"] > 0 and 0 <= plan["idle_share"] < 1
        # a base block puts a large network on one IPU; fine-tuning in FP32 is for a host
        large = ("B3", "B4", "B5", "finetune")
        assert plan["fits"] is True or (len(plan["stages"]) == 1 and plan["name"].startswith(large))
        assert len(plan["memory_bytes_per_ipu"]) in (1, len(plan["stages"]))
        assert plan["update_seconds"] == pytest.approx(plan["global_batch"] / plan["images_per_second"])
        assert sum(plan["update_parts"].values()) == pytest.approx(plan["update_seconds"])
        for size, parts in zip(plan["memory_bytes_per_ipu"], plan["memory_parts"]):
            assert sum(parts.values()) == size


def test_plan_needs_neither_tensorflow_nor_data():
    code = ("import sys; from cnn_harness.tools import plan; from cnn_harness.harness.commands import answers; "
            "code = answers.run_command('plan', plan.main, ['--config', 'mk2_resnet50_mlperf_pod16_bs20']); "
            "assert code == 0; assert 'tensorflow' not in sys.modules")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_page_is_self_contained(tmp_path):
    page = tmp_path / "plan.html"
    words = ("--config", "B4-G16-GN-Native_16IPU_4x4", "mk2_resnet50_mlperf_pod16_bs20", "--system", "POD16", "BOW-POD16")
    out = succeed("plan", *words, "--html", page).out
    assert "predicted on POD16" in out and "predicted on BOW-POD16" in out
    text = page.read_text()
    assert text.count("<svg") >= 12 and 'name="viewport"' in text
    assert not [word for word in ("<script", "src=", "href=", "url(", "@import") if word in text]
    svgs = re.findall(r"<figure>(.*?)</figure>", text, re.DOTALL)
    for svg in svgs:
        checked(svg, room=375 - 38)  # without the edges of page and figure
    predicted = re.findall(r"predicted on (\S+): ([\d,]+) img/sec", out)
    rates = next(svg for svg in svgs if "Images per second, and memory" in svg)
    assert len(predicted) == 4 and all(rate in rates for _, rate in predicted)
    assert all(text.count(f">{title}<") == count for title, count in (("Memory of each IPU", 4), ("Schedules", 2)))


def test_page_shows_scaling(tmp_path):
    """Each configuration is scaled once, to Mk2 and Bow systems, with its batch and with a growing one."""
    page = tmp_path / "plan.html"
    names = ("B4-G16-GN-Native_16IPU_4x4", "mk2_resnet50_mlperf_pod16_bs20")
    succeed("plan", "--config", *names, "--system", "POD128", "POD256", "--html", page)
    text = page.read_text()
    for name, batch, count in zip(names, ("768", "1,920"), (48, 6)):
        section = text.split(f"<h2>{name}, scaled</h2>")
        assert len(section) == 2 and f"each replica keeps {count} micro-batches" in section[1]
        figures = re.findall(r"<figure>(.*?)</figure>", section[1].split("<h2>")[0], re.DOTALL)
        labels = [f"{ipu}, {words}" for ipu in ("Mk2", "Bow") for words in (f"batch {batch}", "growing batch")]
        assert len(figures) == 2 and all(figure.count(f">{label}<") == 1 for figure in figures for label in labels)
        assert all(figure.count("<circle") == 4 * (5 + 1) for figure in figures)  # one more in the legend
    assert "POD64 uses 48 of its 64 IPUs, POD128 uses 96 of" in text.split(f"<h2>{names[1]}, scaled</h2>")[1]
    succeed("plan", "--config", names[0], "--inference", "--html", page)
    assert ", scaled" not in page.read_text()


def test_energy_is_power_times_time():
    """1,500 W for an Mk2 machine and 1,250 W for a Bow machine of four IPUs; unknown for Mk1."""
    words = ("--config", "mk1_resnet50_16ipus", "--system", "POD16", "BOW-POD16", "MK1-16")
    result = succeed("plan", *words).out
    mk2, bow, mk1 = json.loads(succeed("plan", *words, "--json", "-").out)
    assert mk2["kilowatt_hours"] == pytest.approx(4 * 1.5 * mk2["hours"])
    assert bow["kilowatt_hours"] == pytest.approx(4 * 1.25 * bow["hours"]) and mk1["kilowatt_hours"] is None
    table = result.splitlines()[:4]
    assert f"{mk2['kilowatt_hours']:.0f} kWh" in table[1] and f"{bow['kilowatt_hours']:.0f} kWh" in table[2]
    assert "kWh" not in table[3] and result.count("kWh") == 4


def test_search_page_shows_evaluated_plans(tmp_path):
    page = tmp_path / "plan.html"
    out = succeed("plan", "--config", "B0-G16-GN-Native_16IPU_2x8", "--search", "--html", page).out
    looked_at = re.search(r"fastest of ([\d,]+) plans", out)[1]
    figure = page.read_text().split("<figure")[1].split("</figure")[0]
    assert f"of {looked_at} plans" in re.sub(r"<[^>]*>\s*", " ", figure)
    assert all(f">{words}<" in figure for words in ("given plan", "chosen plan", "1 stage", "16 stages"))
    assert len(re.findall(r'<circle [^>]*r="8"', figure)) == 4  # the two, and theirs in the legend


def test_several_systems_keep_global_batch():
    """Each takes as many replicas as fit and accumulates less. Repeated systems are dropped; the order is the call's."""
    words = ("--config", "mk2_efficientnet_b4_g16_16ipus", "--system")
    asked = ("POD64", "POD16", "pod64", "BOW-POD16", "POD256")
    plans = json.loads(succeed("plan", *words, *asked, "--json", "-").out)
    assert [(p["system"], p["replicas"], p["accumulation"]) for p in plans] == [
        ("POD64", 32, 64), ("POD16", 8, 256), ("BOW-POD16", 8, 256), ("POD256", 128, 16)
    ]  # fmt: skip
    assert {p["global_batch"] for p in plans} == {6144}
    small, large = (next(p for p in plans if p["system"] == name) for name in ("POD16", "POD256"))
    ratio = large["images_per_second"] / small["images_per_second"]
    assert large["efficiency"] == pytest.approx(ratio / 16) and small["efficiency"] == 1
    assert plans[2]["efficiency"] is None  # no other of its kind
    alone = json.loads(succeed("plan", *words, "POD256", "--json", "-").out)
    assert alone["replicas"] == 8 and alone["efficiency"] is None


def test_indivisible_batch_names_divisible_ones():
    words = ("--config", "mk2_resnet50_mlperf_pod16_bs20", "--system", "POD16", "POD64")
    plans = json.loads(succeed("plan", *words, "--json", "-").out)
    assert [p["undivided"] != "" for p in plans] == [False, True] and plans[1]["global_batch"] == 1920
    batches = plans[1]["undivided"].rpartition("--global-batch-size ")[2].split(" or ")
    for batch in batches:
        scaled = json.loads(succeed("plan", *words, "--global-batch-size", batch, "--json", "-").out)
        assert [(p["undivided"], p["ipus"], p["global_batch"]) for p in scaled] == [
            ("", 16, int(batch)),
            ("", 64, int(batch)),
        ]
    assert f"give --global-batch-size {' or '.join(batches)}" in succeed("plan", *words).out
    searched = json.loads(succeed("plan", *words, "--search", "--json", "-").out)
    assert all(p["fits"] and p["global_batch"] == 1920 for p in searched) and searched[1]["ipus"] > 16


def test_dry_run_draws_one_replica():
    """Replicas are separate pipelines: two stages idle for 2 of 18 clocks with any number of replicas."""
    words = ("train", "--config", "mk2_efficientnet_b4_g16_256ipus", "--generated-data", "--dry-run")
    for more in ((), ("--replicas", 2)):
        out = succeed(*words, *more).out
        assert "16 micro-batches, 11 % of slots idle:" in out and "1F15+1B15" in out and "1F16" not in out


def test_run_directory_supplies_options(tmp_path):
    """--restore-path takes all recorded options, and the command line overrides them, as in train.py."""
    words = ("--config", "quickstart", "--epochs-per-ckpt", 2, "--global-batch-size", 64)
    prepared = plan_options.run_of(Call.of_words([str(word) for word in words], "train"))
    recorded = tmp_path / "arguments.json"
    recorded.write_text(json.dumps({**prepared.options.values(), "total_replicas": prepared.plan.options.replicas}))
    one, other = (json.loads(succeed("plan", *given, "--json", "-").out) for given in (words, ("--restore-path", tmp_path)))
    assert {**one, "name": ""} == {**other, "name": ""}
    (tmp_path / "own.yml").write_text("more: {replicas: 2, global_batch_size: 128}")  # wins over the record
    more = ("--config-path", tmp_path / "own.yml", "--config", "more", "--json", "-")
    assert json.loads(succeed("plan", "--restore-path", tmp_path, *more).out)["replicas"] == 2
    larger = json.loads(succeed("plan", "--restore-path", tmp_path, "--model-size", 20, "--json", "-").out)
    assert larger["memory_bytes_per_ipu"] > one["memory_bytes_per_ipu"]
    assert "fastest of" in succeed("plan", "--restore-path", tmp_path, "--search").out  # the block is read back
    for missing in (tmp_path / "nowhere", recorded):
        result = run("plan", "--restore-path", missing)
        assert (result.code, result.err.count("\n")) == (2, 1) and "is not a folder" in result.err


def test_found_plan_runs(tmp_path):
    """The block from the search is a configuration that train.py accepts unchanged, with the same plan."""
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


def test_given_plan_is_kept(tmp_path):
    """Seven stages on one IPU, which the search itself never proposes, are read back unchanged."""
    words = ("--config", "efficientnet_b4_g1_with_batch_norm_16ipus", "--search", "--json", "-")
    found = json.loads(succeed("plan", *words).out)
    assert found["images_per_second"] >= found["given"]["images_per_second"] and found["fits"]
    file = tmp_path / "found.yml"
    file.write_text(found["configuration"])
    (name,) = yaml.safe_load(found["configuration"])
    again = json.loads(succeed("plan", "--config-path", file, "--config", name, "--json", "-").out)
    assert again["memory_bytes_per_ipu"] == found["memory_bytes_per_ipu"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--config B4-G16-GN-Native_16IPU_4x4 --system POD17", "did you mean POD16"),
        ("--config B4-G16-GN-Native_16IPU_4x4 --system POD4", "16"),
        ("--config mk2_resnet50_bn_16ipus --system POD16 MK1-2", "MK1-2"),
        ("--config B4-G16-GN-Nativ_16IPU_4x4", "did you mean B4-G16-GN-Native_16IPU_4x4"),
        ("--config B4-G16-GN-Native_16IPU_4x4 --pipeline-splits block2z block4c block6a", "did you mean block2"),
        ("--config quickstart --replicas 300", "256"),
        ("--config quickstart --processes 0", "--processes"),
        ("--config quickstart --num-io-tiles 1472", "1471"),
        ("--config quickstart --num-io-tiles 1216 --system MK1-2", "1216"),
        ("--config quickstart --html -", "--html"),
        ("--config quickstart --html a --json a", "--json and --html"),
        ("--config quickstart --html /no/such/folder/x.html", "/no/such/folder"),
        ("--config quickstart --serch", "--serch"),
        ("--config quickstart --dry-run", "train.py --dry-run"),
        ("--restore-path /no/such/run", "/no/such/run"),
        ("--model efficientnet --model-size B7 --dataset imagenet --image-size 2048 --batch-size 1 --search --system POD4",
         "POD4"),
    ],
)  # fmt: skip
def test_wrong_arguments_give_one_line(words, named):
    result = run("plan", *words.split())
    assert (result.code, result.out) == (2, "") and named in result.err and "Traceback" not in result.err
    assert result.err.startswith("cnn plan: error: ")


def test_generated_data_stay_in_found_block(tmp_path):
    words = ("--model", "resnet", "--model-size", 8, "--dataset", "cifar-10", "--batch-size", 16)
    of_one_call = ("--autoresume", "--logs-path", tmp_path / "run", "--profile")
    given, assumed = (succeed("plan", *words, *more, "--search").out for more in (("--generated-data", *of_one_call), ()))
    assert "generated_data: true" in given and "generated_data" not in assumed
    assert not any(f"  {name}:" in given for name in ("autoresume", "logs_path", "profile"))
    assert "on POD4: 1 Mk2 IPU," in given  # four stages are no faster


@pytest.mark.parametrize(
    "words",
    [
        "--config quickstart --global-batch-size 3000 --micro-batch-size 1500",
        "--model resnet --model-size 50 --dataset imagenet --micro-batch-size 32 --replicas 4 --system POD4",
        "--model resnet --model-size 50 --dataset imagenet --micro-batch-size 32 --image-size 800 --inference",
        "--model squeezenet --dataset imagenet --micro-batch-size 128 --pipeline --shards 4 --pipeline-splits auto "
        "--gradient-accumulation-count 16",
        "--model resnet --model-size 50 --dataset imagenet --micro-batch-size 3 --image-size 800",
    ],
)
def test_proposed_remedies_are_valid_and_help(words):
    """A proposal keeps the global batch and needs less memory on the fullest IPU."""
    plan = json.loads(succeed("plan", *words.split(), "--json", "-").out)
    assert not plan["fits"] and plan["remedies"]
    for remedy in plan["remedies"]:
        other = json.loads(succeed("plan", *words.split(), *remedy.split(), "--json", "-").out)
        assert max(other["memory_bytes_per_ipu"]) < 0.98 * max(plan["memory_bytes_per_ipu"]), remedy
        if "--inference" not in words:
            assert other["global_batch"] == plan["global_batch"], remedy


def test_search_may_use_part_of_system():
    """If all of its IPUs do not divide the batch."""
    words = "--model resnet --model-size 50 --dataset imagenet --system POD64"
    found = json.loads(succeed("plan", *words.split(), "--micro-batch-size", 33, "--search", "--json", "-").out)
    assert found["fits"] and 1 < found["ipus"] <= 64 and found["global_batch"] == 33


def test_found_mixup_plan_trains():
    """Mixup needs two images in a micro-batch; the batch of 3 alone would allow one."""
    words = "--model efficientnet --model-size B4 --dataset imagenet --micro-batch-size 3 --search --json -"
    one, mixed = (json.loads(succeed("plan", *words.split(), *more).out) for more in ((), ("--mixup-alpha", 0.2)))
    assert (one["micro_batch"], mixed["micro_batch"]) == (1, 3)
    given = ("plan", "--model", "resnet", "--dataset", "imagenet", "--micro-batch-size", 1, "--mixup-alpha", 0.2)
    refused = run(*given)
    assert refused.code == 2 and "--micro-batch-size 1 is too small; give 2 or more" in refused.err
    assert run(*given, "--generated-data").code == run(*given, "--inference").code == 0


def test_single_process_of_several_is_planned(monkeypatch):
    """TF_CONFIG does not affect a plan."""
    cluster = {"cluster": {"worker": ["127.0.0.1:23411", "127.0.0.1:23412"]}, "task": {"index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert "--distributed is ignored" in succeed("plan", "--config", "quickstart", "--distributed").out


def test_replicas_are_assumed_for_batch_norm_span():
    words = ("--model-size", 14, "--dataset", "imagenet", "--image-size", 64, "--BN-span", 4)
    said = "--BN-span 4 needs 4 replicas"
    assert said in succeed("plan", *words, "--batch-norm").out
    alone = succeed("plan", *words, "--group-norm").out
    assert said not in alone and ", 1 replica," in alone
