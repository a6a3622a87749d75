"""cnn plan as a user calls it."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from commands import run, succeed
from figures import checked

from cnn_harness.base.plugins import ROOT
from cnn_harness.emulator.plan.schedules import SCHEDULES
from cnn_harness.harness.options.call import Call
from cnn_harness.tools.planning import plan_options, this_computer

CONFIGURATIONS = [
    name for name in yaml.safe_load((ROOT / "configs.yml").read_text())
    if name != "releases" and not name.startswith("efficientnet_b4_g1_with_batch_norm_")  # bases, which name no model
]  # fmt: skip
PROMISED = ("system", "ipus", "fits", "memory_bytes_per_ipu", "memory_capacity_bytes", "images_per_second", "update_seconds",
            "idle_share", "hours")  # fmt: skip


@pytest.mark.slow
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


def test_page_is_self_contained(tmp_path):
    page = tmp_path / "plan.html"
    words = ("--config", "B4-G16-GN-Native_16IPU_4x4", "mk2_resnet50_mlperf_pod16_bs20", "--system", "POD16", "BOW-POD16")
    out = succeed("plan", *words, "--html", page).out
    assert "predicted on POD16" in out and "predicted on BOW-POD16" in out
    text = page.read_text()
    assert text.count("<svg") >= 12 and 'name="viewport"' in text
    assert all(words in text for words in ("An IPU is one chip", "A stage is", "An IPU is idle while"))
    assert not [word for word in ("<script", "src=", "href=", "url(", "@import") if word in text]
    svgs = re.findall(r"<figure(?: class=across)?>(.*?)</figure>", text, re.DOTALL)
    assert text.count("<figure") == len(svgs) and "min-width: 880px" in text
    for svg in svgs:
        checked(svg, room=375 - 38, wide_room=880)  # without the edges of page and figure; wide charts scroll
    predicted = re.findall(r"predicted on (\S+): ([\d,]+) img/sec", out)
    rates = next(svg for svg in svgs if "Images per second, and memory" in svg)
    assert len(predicted) == 4 and all(rate in rates for _, rate in predicted)
    assert all(text.count(f">{title}<") == count for title, count in (("Memory of each IPU", 4), ("Schedules", 2)))


def test_page_and_json_have_the_same_words(tmp_path):
    page, file = tmp_path / "plan.html", tmp_path / "plan.json"
    words = ("--config", "mk2_efficientnet_b4_g16_16ipus", "--vary", "group-dim 1 --expand-ratio 6")
    succeed("plan", *words, "--html", page, "--json", file)
    text, plans = page.read_text(), json.loads(file.read_text())
    heads = set(re.findall(r'<th scope="col"[^>]*>([^<]*)<', text))
    for plan in plans:
        step, layer = plan["steps"][-1][0], plan["layers"][0]
        varying = {"stashed_activations", "activations", "temporaries"}  # the others are in the chart of each IPU
        assert varying < set(step["memory"])
        for key in ({*layer, *layer["seconds"], *step["seconds"], *varying} | {"supersteps"}) - {"seconds"}:
            assert key.replace("_", " ") in heads, key
        assert all(f">{each['layer']}<" in text for each in plan["layers"])
        steps = [step for ipu in plan["steps"] for step in ipu]
        assert all(f">{each['stage']}: {each['block']}, {each['step']}<" in text for each in steps)
    grouped = [{each["channels_per_group"] for each in plan["layers"] if "groups" in each["operation"]} for plan in plans]
    assert grouped[0] == {16} and all(f">{words}<" in text for words in ("groups of 1", "groups of 16", "no groups"))


def test_schedules_are_compared():
    words = ("--dataset", "cifar-10", "--model-size", 8, "--shards", 2, "--pipeline", "--pipeline-splits", "auto")
    out = succeed("plan", *words, "--gradient-accumulation-count", 8, "--schedules").out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.split()[:1] and line.split()[0] in SCHEDULES}
    assert list(rows) == list(SCHEDULES)
    assert [rows[name][1] for name in ("1F1B", "1F1B-Virtual", "ZB-H1")] == ["2", "4", "2"]  # stages
    assert rows["1F1B"][1:] == rows["Interleaved"][1:] and rows["GPipe"][-2:] == ["8", "8"]
    alone = run("plan", *words[:4], "--schedules")
    assert alone.code == 2 and "one stage" in alone.err


def test_times_to_the_same_loss_are_compared():
    words = ("--config", "mk2_resnet50_bn_16ipus", "--noise-scale")
    batch = json.loads(succeed("plan", *words[:2], "--json", "-").out)["global_batch"]
    rows = {int(line.split()[0]): line.split() for line in succeed("plan", *words, batch).out.splitlines()
            if re.match(r" +\d+ +\d+ +[\d.]+ x", line)}  # fmt: skip
    # At the noise scale, twice the batch needs 0.75 times the updates and 1.5 times the epochs (arXiv 1812.06162).
    assert rows[batch][2] == rows[batch][4] == "1.00"
    assert (rows[2 * batch][2], rows[2 * batch][4]) == ("0.75", "1.50")
    wrong = run("plan", *words, batch, "--inference")
    assert wrong.code == 2 and "--noise-scale" in wrong.err


def test_combinations_of_changes_are_planned():
    """B4 fits on two IPUs with all three techniques of the article, and not without any of them."""
    words = ("--config", "mk2_efficientnet_b4_g16_16ipus", "--num-io-tiles", 32, "--prefetch-depth", 3, "--vary")
    changes = ("precision 16.32", "--micro-batch-size 4 --gradient-accumulation-count 192", "group-dim 1 --expand-ratio 6")
    plans = json.loads(succeed("plan", *words, *changes, "--json", "-").out)
    assert [plan["fits"] for plan in plans] == [True] + [False] * 7
    assert [plan["name"].count("+") for plan in plans] == [0, 1, 1, 1, 2, 2, 2, 3]
    assert plans[-1]["changes"] == "--precision 16.32 --micro-batch-size 4 --gradient-accumulation-count 192 " \
        "--group-dim 1 --expand-ratio 6"  # fmt: skip
    assert (plans[2]["micro_batch"], plans[2]["global_batch"], plans[-1]["precision"]) == (4, 6144, "16.32")
    for plan in plans:
        least, most = plan["memory_room_bytes_range"]
        assert least <= plan["memory_room_bytes"] <= most and (least >= 0 or most < 0)
    out = succeed("plan", *words, *changes).out
    assert "  +B: --micro-batch-size 4 --gradient-accumulation-count 192\n" in out and "-45 (-76 to -2)" in out


def test_uncertain_answers_say_so():
    out = succeed("plan", "--config", "mk2_efficientnet_b4_g16_16ipus", "--precision", "16.32").out
    assert "DOES NOT FIT, but this is within the error: " in out
    several = succeed("plan", "--config", "mk2_efficientnet_b4_g16_16ipus", "--vary", "precision 16.32").out
    assert " NO? " in several and " yes " in several


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


def test_run_directory_supplies_options(tmp_path):
    """--restore-path takes all recorded options, and the command line overrides them, as in train.py."""
    words = ("--config", "quickstart", "--epochs-per-ckpt", 2, "--global-batch-size", 64)
    prepared = plan_options.run_of(Call.of_words([str(word) for word in words], "train")).run
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


@pytest.mark.parametrize("given", ["--config B0-G16-GN-Native_mini", "--config mk2_resnet50_base --global-batch-size 64"])
def test_found_plan_runs(given, tmp_path):
    """The block from the search is a configuration that train.py accepts unchanged, with the same plan and release."""
    words = (*given.split(), "--system", "POD4")
    out = succeed("plan", *words, "--search", "--json", tmp_path / "found.json").out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["images_per_second"] >= found["given"]["images_per_second"] and found["looked_at"] > 10
    file = tmp_path / "found.yml"
    file.write_text(out.partition("# for configs.yml\n")[2].partition("\n\n")[0] + "\n")
    (name,) = yaml.safe_load(file.read_text())
    again = json.loads(succeed("plan", "--config-path", file, "--config", name, "--system", "POD4", "--json", "-").out)
    assert again["images_per_second"] == pytest.approx(found["images_per_second"])
    assert all(again[key] == found[key] for key in ("stages", "sdk", "memory_bytes_per_ipu"))
    shown = succeed("train", "--config-path", file, "--config", name, "--dry-run", "--generated-data").out
    assert f"Batch Size: {found['global_batch']}\n" in shown


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--config B4-G16-GN-Native_16IPU_4x4 --system POD17", "did you mean POD16"),
        ("--config B4-G16-GN-Nativ_16IPU_4x4", "did you mean B4-G16-GN-Native_16IPU_4x4"),
        ("--config quickstart --html /no/such/folder/x.html", "/no/such/folder"),
        ("--restore-path /no/such/run", "/no/such/run"),
        ("--config quickstart --vary nosuch", "--nosuch"),
        ("--config quickstart --vary help", "--vary help: --help is an option of train.py"),
        ("--config quickstart --dry-run=yes", "--dry-run is an option of train.py"),
        ("--system POD16 --calibrate rates.yml --json -", "leave out --json"),
        ("--system POD16 --calibrate rates.yml --epochs 3", "leave out --epochs"),
        ("--config quickstart --precision nvfp4", "give it as --weight-format, --activation-format and --gradient-format"),
        ("--config quickstart --grid 0", "--grid is '0' but must be above 0 and at most 10000"),
        ("--config quickstart --pue 0.9", "--pue is '0.9' but must be between 1 and 10"),
        ("--config quickstart --vary a b c d e f g", "give at most 6"),
        ("--model efficientnet --model-size B7 --dataset imagenet --image-size 2048 --batch-size 1 --search --system POD4",
         "POD4"),
    ],
)  # fmt: skip
def test_wrong_arguments_give_one_line(words, named):
    result = run("plan", *words.split())
    assert (result.code, result.out) == (2, "") and named in result.err and "Traceback" not in result.err
    assert result.err.startswith("cnn plan: error: ")


@pytest.mark.parametrize(
    "words",
    [
        "--model resnet --model-size 50 --dataset imagenet --micro-batch-size 32 --replicas 4 --system POD4",
        "--model resnet --model-size 50 --dataset imagenet --micro-batch-size 32 --image-size 800 --inference",
        "--model squeezenet --dataset imagenet --micro-batch-size 128 --pipeline --shards 4 --pipeline-splits auto "
        "--gradient-accumulation-count 16",
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


def test_found_mixup_plan_trains():
    """Mixup needs two images in a micro-batch; the batch of 3 alone would allow one."""
    words = "--model efficientnet --model-size B4 --dataset imagenet --micro-batch-size 3 --search --json -"
    one, mixed = (json.loads(succeed("plan", *words.split(), *more).out) for more in ((), ("--mixup-alpha", 0.2)))
    assert (one["micro_batch"], mixed["micro_batch"]) == (1, 3)
    given = ("plan", "--model", "resnet", "--dataset", "imagenet", "--micro-batch-size", 1, "--mixup-alpha", 0.2)
    refused = run(*given)
    assert refused.code == 2 and "--micro-batch-size 1 is too small; give 2 or more" in refused.err
    assert run(*given, "--generated-data").code == run(*given, "--inference").code == 0


OWN = """
mine:
  kind: gpu
  devices: 8
  memory: 24 GB
  fp16_rate: 142 TFLOP/s
  fp32_rate: 35.6e12 FLOP/s
  bandwidth: 936 GB/s
  machine_link: 200 Gbit/s
twice: {like: A100-8, memory: 160 GB, devices: 16}
"""


def test_own_systems_are_rows_of_the_same_table(tmp_path):
    """A file has the keys of the table; `like` takes the rest from a row."""
    file = tmp_path / "own.yml"
    file.write_text(OWN)
    words = "--model resnet --model-size 50 --dataset imagenet --micro-batch-size 64 --replicas 16 --precision 16.32"
    plans = json.loads(succeed("plan", *words.split(), "--system", file, "A100-8", "--json", "-").out)
    mine, twice, usual = plans
    assert [(plan["system"], plan["ipus"]) for plan in plans] == [("mine", 8), ("twice", 16), ("A100-8", 8)]
    assert mine["memory_capacity_bytes"] == 24e9 and twice["memory_capacity_bytes"] == 160e9
    assert mine["images_per_second"] < usual["images_per_second"] < twice["images_per_second"]
    told = succeed("systems", file, "POD16").out
    assert "142.0 TFLOP/s" in told and "25.0 GB/s;" in told and "1,472 with 6 threads and 624 KiB each" in told
    assert "POD32" in succeed("systems").out


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("mine:\n  devcies: 8", (":2: unknown key 'devcies'; did you mean devices or tiles?", "Available: like, ")),
        ("mine:\n  like: POD17", (":2: like: POD17 is no system or chip; did you mean POD16",)),
        (
            "mine:\n  like: POD16\n  memory: 900 W",
            (":3: memory is '900 W' but must be a number above 0 with its unit, such as 80 GB",),
        ),
        ("mine:\n  like: POD16\n  memory: 900", (":3: memory is '900' but must be a number above 0 with its unit",)),
        (
            "mine:\n  like: POD16\n  fp16_rate: 0.1 GFLOP/s",
            (":3: fp16_rate is 0.1 GFLOP/s but must be at least 1e+09 FLOP/s",),
        ),
        ("mine:\n  like: POD16\n  memory:", (":3: memory has no value",)),
        ("mine:\n  chip: A10", (":2: chip: A10 is no chip; did you mean A100", "Available: ")),
        ("mine:\n  like: A100-8\n  kind: gup", (":3: kind: gup is no kind of chip; did you mean GPU?",)),
        ("mine:\n  like: POD16\n  devices: 1e20", (":3: devices is '1e20' but must be a whole number from 1 to 65,536",)),
        ("mine:\n  like: POD16\n  devices: 1.5", (":3: devices is '1.5' but must be a whole number from 1 to 65,536",)),
        ("mine:\n  like: POD16\n  matrix_share: 2", (":3: matrix_share is 2 but must be between 0.1 and 0.95",)),
        ("mine:\n  kind: GPU", (":2: mine has no devices; give it",)),
        ("", ("the file has no systems",)),
    ],
)
def test_wrong_system_files_name_the_line(text, parts, tmp_path):
    file = tmp_path / "own.yml"
    file.write_text(text)
    for command in (("plan", "--config", "quickstart", "--system", file), ("systems", file)):
        result = run(*command)
        assert result.code == 2 and f"{file}" in result.err and "Traceback" not in result.err
        assert all(part in result.err for part in parts), result.err


def test_calibration_reduces_errors(tmp_path):
    """Rates that a slower system would have are met after the fit, and the printed block can be planned."""
    trainings = ("--model resnet --model-size 50", "--model resnet --model-size 18", "--model efficientnet --model-size B0")
    words = [f"{training} --dataset imagenet --micro-batch-size 32 --precision 16.32" for training in trainings]
    rates = [json.loads(succeed("plan", *each.split(), "--system", "V100-1", "--json", "-").out) for each in words]
    rows = [f"r{k}: {{rate: {0.8 * rate['images_per_second']}, options: {each}}}" for k, (rate, each) in
            enumerate(zip(rates, words))]  # fmt: skip
    file = tmp_path / "rates.yml"
    file.write_text("\n".join(rows))
    out = succeed("plan", "--system", "V100-1", "--calibrate", file).out
    errors = re.findall(r"^r\d.*?([+-][\d.]+)%.*?([+-][\d.]+)%.*?([+-][\d.]+)%$", out, re.MULTILINE)
    assert len(errors) == 3
    assert all(float(before) == pytest.approx(25, abs=0.1) and abs(float(fitted)) < 5 for before, fitted, _ in errors)
    own = tmp_path / "own.yml"
    own.write_text(out.partition("# for a file that you give as --system\n")[2])
    slower = json.loads(succeed("plan", *words[0].split(), "--system", own, "--json", "-").out)
    assert slower["images_per_second"] < 0.9 * rates[0]["images_per_second"]
    own.write_text("V100-1: {like: V100-1, memory: 32 GB}")
    assert f"# add these lines to V100-1 in {own}\n" in succeed("plan", "--system", own, "--calibrate", file).out
    wrong = {
        "\n".join(rows[:2]): ": 2 measured rates; give 3 or more",
        rows[0]: ": 1 measured rate; give 3 or more",
        rows[0].replace("rate:", "rat:"): ":1: unknown key 'rat'; did you mean rate?",
        "r0: {rate: 1e-9, options: --help}": ":1: rate is '1e-9' but must be a number of images/s from 0.001 to 1e+12",
        "r0: {rate: 9, options: }": ":1: options has no value",
        "r0: {rate: 9, options: --help}": ":1: --help is an option of train.py",
        f"r0: {{rate: 9, options: {trainings[0]} --dataset imagenet --shards 2 --pipeline --pipeline-splits x}}": ":1: ",
    }
    for text, part in wrong.items():
        file.write_text(text)
        result = run("plan", "--system", "V100-1", "--calibrate", file)
        assert result.code == 2 and f"{file}{part}" in result.err, result.err
    assert "fits one system" in run("plan", "--calibrate", file).err


def test_this_computer_is_measured(tmp_path, monkeypatch):
    """The file is a system, for which a measured training is predicted with the printed error."""
    trainings = tuple(f"--dataset fashion-mnist --model-size 8 --micro-batch-size {size}" for size in (2, 4, 8))
    monkeypatch.setattr(this_computer, "SECONDS", 0)
    monkeypatch.setattr(this_computer, "TRAININGS", trainings)
    errors, text = this_computer.measure()
    (tmp_path / "own.yml").write_text(text)
    shown = {row[1]: (float(row[2].replace(",", "")), float(row[3])) for row in
             re.finditer(r"(?m)^(--.*?)  +([\d,]+) +\S+ +([+-][\d.]+)%", errors)}  # fmt: skip
    assert {*shown} == {*trainings}
    for words, (rate, error) in shown.items():
        plan = succeed("plan", *words.split(), "--precision", "32.32", "--generated-data", "--system", tmp_path / "own.yml",
                       "--json", "-")  # fmt: skip
        assert json.loads(plan.out)["images_per_second"] == pytest.approx(rate * (1 + error / 100), rel=0.01)


def test_costs_are_printed_if_rates_are_given(tmp_path):
    """Energy grows with PUE, CO2 with energy, and money with the hours of the system."""
    words = ("plan", "--config", "mk2_efficientnet_b4_g16_16ipus")
    plain = json.loads(succeed(*words, "--json", "-").out)
    plan = json.loads(succeed(*words, "--pue", 1.2, "--grid", 480, "--price", 40, "--json", "-").out)
    costs = plan["costs"]
    assert "costs" not in plain and costs["kilowatt_hours"] == pytest.approx(1.2 * plain["kilowatt_hours"])
    assert costs["kilograms_of_co2"] == pytest.approx(0.48 * costs["kilowatt_hours"])
    assert costs["money"] == pytest.approx(40 * plain["hours"])
    assert "  costs: 145.8 kWh with PUE 1.2, " in succeed(*words, "--pue", 1.2, "--grid", 480).out
    assert "costs:" not in succeed(*words).out
    (tmp_path / "own.yml").write_text(OWN)
    unknown = ("plan", "--config", "quickstart", "--system", tmp_path / "own.yml", "--pue", 1.2, "--grid", 480)
    assert "  costs: unknown, because mine has no watts\n" in succeed(*unknown).out
    (mine, _) = json.loads(succeed(*unknown, "--json", "-").out)
    assert mine["costs"] == {"kilowatt_hours": None, "kilograms_of_co2": None}


def test_search_keeps_to_budget():
    """A plan on fewer IPUs is slower, but needs less energy."""
    words = ("plan", "--config", "resnet50_mlperf_mini", "--system", "POD16", "--search", "--json", "-")
    free = json.loads(succeed(*words).out)
    limit = 990 * free["kilowatt_hours"]
    kept = json.loads(succeed(*words, "--budget", f"{limit} Wh").out)
    assert 1000 * kept["kilowatt_hours"] <= limit and kept["hours"] > free["hours"]
    refused = run(*words, "--budget", "1e-9 h")
    assert refused.code == 2 and "the cheapest plan on POD16 costs" in refused.err


def varints(data):
    """Yield the numbers of a byte string: groups of seven bits, lowest first."""
    number = place = 0
    for byte in data:
        number, place = number | (byte & 127) << place, place + 7
        if byte < 128:
            yield number
            number = place = 0


def delimited(data):
    """Yield the messages of a file, each after its length."""
    source = iter(data)
    for size in varints(source):
        yield bytes(next(source) for _ in range(size))


def members(message):
    """Return the values of each field of a protobuf message, read from its bytes alone."""
    source, found = iter(message), {}
    for key in varints(source):
        value = next(varints(source))
        found.setdefault(key >> 3, []).append(bytes(next(source) for _ in range(value)) if key & 7 == 2 else value)
    return found


@pytest.mark.parametrize("schedule, borders, least", [("Grouped", 1, 0.9), ("1F1B-Virtual", 3, 0.5), ("ZB-H1", 1, 0.5)])
def test_chakra_traces_can_be_replayed(tmp_path, schedule, borders, least):
    """With communication that takes no time, a replay takes as long as computation says, or less where the chips of the
    plan wait for each other. Every receive has a send."""
    words = ("plan", "--config", "mk2_efficientnet_b4_g16_16ipus", "--gradient-accumulation-count", 6)
    words += ("--pipeline-schedule", schedule, "--pipeline-splits", "auto")
    plan = json.loads(succeed(*words, "--chakra", tmp_path / "traces", "--json", "-").out)
    ranks = [[members(each) for each in delimited((tmp_path / f"traces/plan.{rank}.et").read_bytes())] for rank in range(16)]
    assert all(metadata == {1: [b"0.0.4"]} for metadata, *_ in ranks)
    sent, received = {}, {}
    waiting = [(rank, node) for rank, (_, *nodes) in enumerate(ranks) for node in nodes]
    ends = [{} for _ in ranks]
    while waiting:
        later = []
        for rank, node in waiting:
            number, kind, micros = (node.get(field, [0])[0] for field in (1, 3, 7))
            attributes = {each[1][0]: [*each.values()][1][0] for each in map(members, node[10])}
            key = tuple(attributes.get(name) for name in (b"comm_src", b"comm_dst", b"comm_tag", b"comm_size"))
            before = [ends[rank].get(each) for each in varints(node.get(5, [b""])[0])] + [sent.get(key)] * (kind == 6)
            if None in before:
                later.append((rank, node))
                continue
            ends[rank][number] = max([0, *before]) + micros
            if kind == 5:
                assert key not in sent and None not in key and key[0] == rank
                sent[key] = ends[rank][number]
            elif kind == 6:
                assert key not in received and key[1] == rank
                received[key] = number
            elif kind == 7:
                assert attributes[b"pg_name"] == b"%d" % (rank % 2) and attributes[b"comm_type"] == 0 and key[3] > 0
        assert len(later) < len(waiting), "nodes wait for each other"
        waiting = later
    assert sent.keys() == received.keys() and len(sent) == 8 * 2 * 6 * borders
    computed = plan["update_seconds"] - plan["update_parts"]["all_reduce"]
    assert least * computed < max(max(each.values()) for each in ends) / 1e6 < computed + 1e-4
    assert len(json.loads((tmp_path / "traces/groups.json").read_text())["1"]) == 8
    assert "give a new folder" in run(*words, "--chakra", tmp_path / "traces").err


def test_formats_below_16_bits_are_noted():
    note = "  the plan counts e4m3fnuz, e5m2fnuz as FP16: no time or memory is saved\n"
    assert note in succeed("plan", "--config", "quickstart", "--precision", "8.16").out
