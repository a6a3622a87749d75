"""A first look at data, options and environment, before any graph: refusals, and notes of a line."""

from __future__ import annotations

import json
import os
import shlex

import photos
import pytest
from commands import run

from base.errors import OptionError
from harness.commands import cli
from harness.run.resolve import prepare

TWO = json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"index": 0}})
BASE = "--dataset cifar-10 --generated-data --model-size 8"


def notes(words: str, environ: dict[str, str] | None = None, script: str = "train") -> list[str]:
    """Return the notes of a prepared training, or of a validation's."""
    parsed = cli.parse(shlex.split(f"{BASE} {words}"), script, environ={})
    return list(prepare(parsed.options, environ or {}, training=script == "train").notes)


@pytest.mark.parametrize(
    "words, environ, begins",
    [
        # trained with a rate of 64, or of 1000, without a word
        ("--base-learning-rate-exponent 0.01 --batch-size 64", {},
         "warning: --base-learning-rate-exponent 0.01 makes the learning rate 2^0.01 x 64 = 64.45; published exponents"),
        ("--abs-learning-rate 1000", {}, "warning: the learning rate goes up to 1000, and published ones for --optimiser SGD"),
        ("--abs-learning-rate 3 --optimiser RMSprop", {}, "warning: the learning rate goes up to 3, and published ones for"),
        ("--abs-learning-rate 1e-12", {}, "warning: the learning rate is 1e-12 at most"),
        ("--learning-rate-decay 10", {}, "warning: the stepped schedule lets the learning rate rise from 0.5 to 50"),
        ("--iterations 1", {}, "warning: the learning rate is 0 in all of the run's 1 updates: the warm-up begins there"),
        ("--epochs 1e-320 --abs-learning-rate 512", {}, "warning: the learning rate is 0 in all of the run's 1 updates: the"),
        ("--precision 16.16 --loss-scaling 1e20", {}, "warning: --loss-scaling 1e+20 lets most gradients overflow in FP16"),
        ("--precision 16.32 --loss-scaling 1e-30", {}, "warning: --loss-scaling 1e-30 lets most gradients become 0 in FP16"),
        ("--optimiser Adam --abs-learning-rate 0.05", {}, "warning: the learning rate goes up to 0.05, and published ones for --optimiser Adam not beyond 0.01"),
        ("--optimiser AdamW --weight-decay 2000", {}, "warning: --weight-decay 2000 x learning rate 0.001 = 2: an update"),
        ("--optimiser Adam", {}, "warning: --optimiser Adam keeps mean squares of gradients in FP16, where those below 3e-08"),
        ("--optimiser LAMB --abs-learning-rate 0.01", {}, "warning: --optimiser LAMB keeps mean squares of gradients in FP16"),
        ("--optimiser LAMB --abs-learning-rate 0.01 --precision 32.32 --slot-format e5m2", {}, "warning: --optimiser LAMB keeps mean squares of gradients in e5m2, where those below 8e-06 become 0, and the update is divided by --lamb-epsilon 1e-06 alone; give --slot-format fp32"),
        ("--optimiser Adam --precision 16.32 --force-weight-to-fp16 fc1", {}, "warning: --optimiser Adam keeps mean squares of gradients in FP16, where those below 3e-08 become 0, and the update is divided by --adam-epsilon 1e-07 alone; leave --force-weight-to-fp16 out, or give --offload-fp32-weight-copy"),
        ("--offload-fp32-weight-copy --precision 16.32", {}, "--offload-fp32-weight-copy changes nothing: with 16.32 the"),
        ("--precision 8.16 --weight-bias -60", {}, "warning: --weight-bias -60: of the weights as e4m3b-60fnuz, all below 1.44"),
        ("--precision 8.16 --gradient-bias 60", {}, "warning: --gradient-bias 60: of the gradients as e5m2b60fnuz, all above"),
        ("--weight-decay 9", {}, "warning: --weight-decay 9 x learning rate 0.5 = 4.5"),
        ("--warmup-epochs 20 --epochs 10", {}, "warning: --warmup-epochs 20 is the whole run of 10 epochs"),
        ("--warmup-epochs 9 --epochs 10 --lr-schedule cosine", {},
         "warning: --warmup-epochs 9 is most of the run's 10 epochs: the learning rate never gets to its 0.5, and to 0.1457 at"),
        ("--config finetune_network --validation-split 0 --epochs 1", {}, "warning: --warmup-epochs 1 is the whole run of 1 epochs"),
        ("--weight-avg-exp 0.9 1", {}, "warning: --weight-avg-exp 1 is the first checkpoint"),
        ("--batch-norm --batch-size 1", {}, "warning: batch norm takes the statistics of one picture at a time"),
        # trained alone without a word
        ("", {"TF_CONFIG": TWO}, "warning: TF_CONFIG names 2 workers, and this process trains alone; give --distributed"),
        ("", {"OMPI_COMM_WORLD_SIZE": "3"}, "warning: mpirun started 3 processes, and each of them trains alone"),
        ("--momentum 0.5", {}, "--momentum changes nothing: --optimiser is SGD"),
        ("--optimiser momentum --lars-eeta 0.1", {}, "--lars-eeta changes nothing: --optimiser is momentum"),
        ("--precision 32.32 --fp32-accumulators", {}, "--fp32-accumulators changes nothing: with 32.32 nothing is half"),
        ("--precision 32.32 --enable-half-partials", {}, "--enable-half-partials changes nothing: with 32.32"),
        ("--precision 32.32 --stochastic-rounding all", {}, "--stochastic-rounding all changes nothing: with 32.32"),
        ("--precision 16.32 --stochastic-rounding update", {}, "--stochastic-rounding update changes nothing: the weights that"),
        ("--precision 16.16 --force-weight-to-fp32 all/ --stochastic-rounding ON", {}, "--stochastic-rounding ON changes nothing"),
        ("--precision 16.16 --optimiser momentum --offload-fp32-weight-copy --stochastic-rounding", {},
         "--stochastic-rounding ON changes nothing: the weights that updates move are FP32"),
        # with the bits of the same call without them, and without a word
        ("--precision 8.16 --format-scaling --weight-bias 3", {}, "--weight-bias 3 changes nothing: --format-scaling moves"),
        ("--precision 8.16 --format-scaling --gradient-bias 9", {}, "--gradient-bias 9 counts in the first update alone:"),
        ("--precision 16.16 --format-for last=bf16 fc1=e4m3", {}, "--format-for fc1=e4m3 changes nothing: the words before"),
        ("--precision 16.16 --format-for last=fp32", {}, "--format-for last=fp32 changes nothing: every number that its"),
        ("--precision 16.16 --optimiser momentum --offload-fp32-weight-copy --slot-format e4m3", {},
         "--slot-format e4m3 changes nothing: without it the slots are FP32 too"),
        ("--precision 16.16 --master-format e5m2 --force-weight-to-fp32 all/", {}, "--master-format e5m2 changes nothing"),
        ("--precision 16.16 --accumulator-format bf16", {}, "--accumulator-format bf16 changes nothing: an update is one"),
        ("--precision 16.16 --fp32-accumulators", {}, "--fp32-accumulators changes nothing: an update is one pass"),
        ("--weight-avg-N 0", {}, "warning: --weight-avg-N 0 takes the checkpoints of the run's last moment alone"),
        ("--weight-avg-exp 0", {}, "warning: --weight-avg-exp 0 is the last checkpoint, and takes nothing of the others"),
        ("--epochs 2 --weight-avg-N 5", {}, "--weight-avg-N 5 takes every checkpoint: the run has 2 epochs"),
        ("--optimiser rmsprop --rmsprop-epsilon 1e30", {}, "warning: --rmsprop-epsilon 1e+30 hides the numbers that it is added"),
        ("--shards 2 --pipeline-splits b2/0 --sharding-exclude-filter b2", {}, "--sharding-exclude-filter b2 changes nothing: --pipeline"),
        ("--cutmix-version 2", {}, "--cutmix-version 2 changes nothing: --cutmix-lambda 1 is no cutmix"),
        ("--precision 32.32 --offload-fp32-weight-copy", {}, "--offload-fp32-weight-copy changes nothing: with 32.32"),
        ("--precision 16.32 --force-weight-to-fp32 conv", {}, "--force-weight-to-fp32 changes nothing: with 16.32"),
        ("--precision 16.16 --force-weight-to-fp16 conv", {}, "--force-weight-to-fp16 changes nothing: with 16.16"),
        ("--pipeline-schedule Grouped", {}, "--pipeline-schedule Grouped changes nothing: there is one stage"),
        ("--sharding-include-filter b1 b2", {}, "--sharding-include-filter b1 b2 changes nothing: there is one stage"),
        ("--data-dir /data", {}, "--data-dir /data is not read: --generated-data makes the pictures"),
        ("--symmetric-input", {}, "--symmetric-input changes nothing: cifar-10 standardises every picture"),
        ("--group-norm --replicas 2 --BN-span 2", {}, "--BN-span 2 changes nothing: the network has no batch norm"),
        ("--lr-schedule polynomial_decay_lr --poly-lr-end-ratio 2", {},
         "warning: the polynomial_decay_lr schedule lets the learning rate rise from 0.5 to 1 at the end; --poly-lr-end-ratio 2"),
        ("--lr-schedule polynomial_decay_lr --abs-end-learning-rate 5", {},
         "warning: the polynomial_decay_lr schedule lets the learning rate rise from 0.5 to 5 at the end; --abs-end-learning"),
        ("--BN-decay 1", {}, "warning: --BN-decay 1 leaves the moving statistics as they begin"),
        ("--group-norm --BN-decay 0.9", {}, "--BN-decay 0.9 changes nothing: the network has no batch norm"),
        ("--groups 4 --contiguous-groups", {}, "--groups 4 changes nothing: the network has no group norm"),
        ("--groups 4 --contiguous-groups", {}, "--contiguous-groups changes nothing: the network has no group norm"),
        ("--iterations 5 --stop-after 5", {}, "--stop-after 5 changes nothing: the run has 5 updates"),
        ("--iterations 5 --numerics 6", {}, "--numerics 6 changes nothing: the run has 5 updates"),
        ("--epochs 2 --ckpt-epochs-offset 3", {}, "--ckpt-epochs-offset 3 leaves the last checkpoint alone: the run has 2"),
        ("--epochs 2 --patience 3", {}, "--patience 3 changes nothing: the run is validated 3 times at most"),
        ("--epochs 3 --epochs-per-ckpt 5 --patience 1", {}, "--patience 1 changes nothing: the run is validated once"),
        ("--lr-schedule exponential --lr-decay-rate 0.9 --lr-drops 0", {}, "--lr-decay-rate 0.9 changes nothing: --lr-drops 0"),
        ("--lr-schedule exponential --lr-decay-rate 1 --lr-drops 9", {}, "--lr-drops 9 changes nothing: --lr-decay-rate 1"),
        ("--learning-rate-schedule 0.5 --learning-rate-decay 1", {}, "--learning-rate-schedule 0.5 changes nothing: --learning"),
        ("--enable-half-partials", {}, "--enable-half-partials is not emulated: all sums inside of an operation are FP32"),
        # passed over without a word
        ("--wandb-project x", {}, "--wandb-project x changes nothing: it is for --wandb, which is not given"),
        ("--mlflow-experiment x", {}, "--mlflow-experiment x changes nothing: it is for --mlflow, which is not given"),
        ("--no-logs --logs-path run", {}, "--logs-path run changes nothing: --no-logs keeps no run folder"),
        ("--no-logs --log-dir runs", {}, "--log-dir runs changes nothing: --no-logs keeps no run folder"),
        ("--logs-path run --log-dir runs", {}, "--log-dir runs changes nothing: --logs-path is the run's folder"),
        ("--no-validation --valid-batch-size 5", {}, "--valid-batch-size 5 changes nothing: --no-validation"),
        ("--no-validation --latency", {}, "--latency changes nothing: --no-validation"),
        ("--ckpts-per-epoch 0 --max-ckpts-to-keep 2", {}, "--max-ckpts-to-keep 2 changes nothing: --ckpts-per-epoch 0"),
        ("--ckpts-per-epoch 0 --ckpt-epochs-offset 1", {}, "--ckpt-epochs-offset 1.0 changes nothing: --ckpts-per-epoch 0"),
        ("--ckpts-per-epoch 0 --safety-ckpt-minutes 1", {}, "--safety-ckpt-minutes 1 changes nothing: --ckpts-per-epoch 0"),
        ("--no-executable-cache --executable-cache-path x", {}, "--executable-cache-path x changes nothing: --no-exec"),
        ("--no-executable-cache --executable-cache-size 5", {}, "--executable-cache-size 5 changes nothing: --no-exec"),
        ("--gradient-accumulation-count 4 --fold 2 --fold-memory 5", {}, "--fold-memory 5 changes nothing: --fold gives"),
        ("--stable-norm", {}, "--stable-norm changes nothing: the network has no group norm"),
        ("--group-norm --stable-norm --force-unstable-norm", {}, "--stable-norm changes nothing: --force-unstable-norm goes"),
        ("--group-norm --force-unstable-norm", {}, "--force-unstable-norm changes nothing: the statistics are one-pass"),
        ("--model efficientnet --model-size B0 --proxy-epsilon 0.1", {}, "--proxy-epsilon 0.1 changes nothing: it is for"),
        ("--dataset imagenet --model-size 18 --shuffle-block 9", {}, "--shuffle-block 9 changes nothing: generated and"),
        ("--dataset imagenet --model-size 18 --skip-bad-records 9", {}, "--skip-bad-records 9 changes nothing: generated"),
        ("--dataset imagefolder --model-size 18 --validation-split 0.2", {}, "--validation-split 0.2 changes nothing: gener"),
        ("--no-dataset-cache", {}, "--no-dataset-cache changes nothing: generated and synthetic data have no records"),
        ("--train-with-valid-preprocessing", {}, "--train-with-valid-preprocessing changes nothing: generated and synthetic"),
        ("--pipeline-num-parallel 3", {}, "--pipeline-num-parallel 3 changes nothing: generated and synthetic data are not"),
        ("--ckpt-all-instances", {}, "--ckpt-all-instances changes nothing: one process trains"),
        ("--log-all-instances", {}, "--log-all-instances changes nothing: one process trains"),
        ("--worker-timeout 5", {}, "--worker-timeout 5.0 changes nothing: one process trains"),
        ("--max-cross-replica-buffer-size 0", {}, "--max-cross-replica-buffer-size 0 changes nothing: one process trains"),
        ("--identical-replica-seeding", {}, "--identical-replica-seeding changes nothing: there is one replica"),
        ("--pipeline-splits auto", {}, "--pipeline-splits auto changes nothing: there is one stage"),
        ("--precision 32.32 --loss-scaling 1e38", {}, "warning: --loss-scaling 1e+38 lets most gradients overflow in FP32"),
    ],
)  # fmt: skip
def test_what_is_most_likely_not_meant_is_told_in_a_line(words, environ, begins):
    assert [note for note in notes(words, environ) if note.startswith(begins)], notes(words, environ)


@pytest.mark.parametrize(
    ("words", "told"), [("0.3", True), ("0.61", True), ("0.62", False), ("0.3 --cutmix-version 2", False)]
)
def test_a_share_that_cutmix_does_not_keep_is_told_of(words, told):
    """All of them ended with one and the same fingerprint."""
    own = f"--dataset fashion-mnist --model-size 8 --batch-size 4 --cutmix-lambda {words}"
    found = prepare(cli.parse(own.split(), "train", environ={}).options, {}).notes
    assert any("does with --cutmix-version 1 what any up to 0.619" in note for note in found) == told


@pytest.mark.parametrize(
    "words, environ",
    [
        ("", {}),
        ("--optimiser LARS --abs-learning-rate 29", {}),  # of batches of 65,536
        ("--optimiser momentum --abs-learning-rate 12.8", {}),
        ("--abs-learning-rate 48", {}),  # EfficientNet's 2^-7 x 6144
        ("--optimiser RMSprop --base-learning-rate-exponent -11 --global-batch-size 512 --batch-size 64", {}),
        ("--abs-learning-rate 1e-5", {}),
        ("--abs-learning-rate 512 --epochs 1", {}),  # which the warm-up does not get to
        ("--precision 32.32 --loss-scaling 1e20", {}),
        ("--optimiser LAMB --abs-learning-rate 0.01 --precision 16.16 --slot-format fp32", {}),
        ("--precision 16.32 --force-weight-to-fp16 fc1 --offload-fp32-weight-copy", {}),
        ("--optimiser Adam --precision 16.32 --force-weight-to-fp16 fc1 --offload-fp32-weight-copy", {}),
        ("--precision 16.16 --loss-scaling 65536", {}),
        ("--base-learning-rate-exponent 0 --batch-size 2", {}),
        ("--precision 32.32 --force-weight-to-fp16 conv --stochastic-rounding ON", {}),
        ("--precision 32.32 --no-stochastic-rounding", {}),
        ("--precision 16.16 --stochastic-rounding update", {}),
        ("--precision 16.16 --force-weight-to-fp32 all/ --stochastic-rounding all", {}),
        ("--precision 16.16 --optimiser momentum --slot-format bf16 --master-format e5m2", {}),
        ("--precision 16.16 --offload-fp32-weight-copy --master-format bf16", {}),
        ("--precision 16.16 --accumulator-format bf16 --gradient-accumulation-count 2 --fold 1", {}),
        ("--precision 16.16 --accumulator-format bf16 --distributed", {"TF_CONFIG": TWO}),
        ("--precision 8.16 --format-for last=fp32 first=fp16", {}),
        ("--precision 8.16 --format-for fc1=bf16 b1=e3m4 all=e4m3", {}),
        ("--precision 32.32 --weight-format e4m3 --weight-bias 5", {}),
        ("--batch-norm --batch-size 1 --replicas 2 --BN-span 2", {}),
        ("--abs-learning-rate 180 --epochs 10 --warmup-epochs 5 --lr-schedule cosine", {}),  # where the curve falls already
        ("--iterations 5 --numerics 5", {}),
        ("--epochs 3 --ckpt-epochs-offset 3", {}),
        ("--epochs 3 --patience 2", {}),
        ("--iterations 3", {}),  # ends within the warm-up that nobody asked for
        ("--group-norm --groups 4 --BN-span 1", {}),
        ("--BN-decay 0.9", {}),
        ("--no-wandb --log-dir ./logs/ --no-latency --no-validation --validation-split 0 --skip-bad-records 0", {}),  # defaults
        ("--replicas 2 --identical-replica-seeding", {}),
        ("--group-norm --stable-norm", {}),
        ("--logs-path run --name-suffix x", {}),
        ("--lr-schedule polynomial_decay_lr --poly-lr-end-ratio 0.1", {}),
        ("--distributed", {"TF_CONFIG": TWO}),
        ("", {"TF_CONFIG": "{"}),
        ("", {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}})}),
        ("", {"OMPI_COMM_WORLD_SIZE": "1"}),
        ("", {"OMPI_COMM_WORLD_SIZE": "2", "POPDIST_NUM_TOTAL_REPLICAS": "1", "POPDIST_NUM_LOCAL_REPLICAS": "1",
              "POPDIST_REPLICA_INDEX_OFFSET": "0"}),
    ],
)  # fmt: skip
def test_what_may_well_be_meant_is_not_warned_of(words, environ):
    assert not [note for note in notes(words, environ) if "warning" in note or "changes nothing" in note]


@pytest.mark.parametrize("word", ["--eight-bit-io", "--hostside-norm"])
def test_the_way_from_the_host_is_idle_where_the_device_makes_the_pictures(word):
    words = ["--dataset", "imagenet", "--model-size", "18", "--synthetic-data", word]
    found = prepare(cli.parse(words, "train", environ={}).options, {}).notes
    assert f"{word} changes nothing: --synthetic-data has no host input" in found


def test_a_model_without_norm_options_takes_those_of_every_model():
    words = "--dataset cifar-10 --generated-data --model squeezenet --force-unstable-norm --stable-norm"
    for k in (6, 7):
        prepare(cli.parse(words.split()[:k], "train", environ={}).options, {})


def test_options_of_trackers_and_of_servers_are_told_of_where_they_are_idle():
    for script, words, said in (
        ("restore", "--wandb-id x", "it is for --wandb, which is not given"),
        ("restore", "--mlflow-id x", "it is for --mlflow, which is not given"),
        ("inference_embedded", "--tmp-execs --force-recompile", "--tmp-execs builds the program anew anyway"),
    ):
        parsed = cli.parse(shlex.split(f"{BASE} {words}"), script, environ={})
        found = prepare(parsed.options, {}, training=script == "restore").notes
        assert f"{words.removeprefix('--tmp-execs ')} changes nothing: {said}" in found


def test_options_of_training_are_told_of_where_nothing_is_trained():
    """In one line; those of a configuration may be for other calls, and defaults say nothing."""
    given = "--optimiser LARS --lr-schedule cosine --warmup-epochs 3 --epochs 2 --replicas 2 --no-validation --momentum 0.9"
    told = [note for note in notes(f"{given} --label-smoothing 0.2", script="validation") if "nothing" in note]
    (line,) = told
    assert line.endswith(" change nothing: nothing is trained here")
    words = ("optimiser LARS", "lr-schedule cosine", "warmup-epochs 3.0", "epochs 2.0", "replicas 2", "no-validation")
    assert sorted(line.split(" change ")[0].split(", ")) == sorted(f"--{word}" for word in words)
    assert not any("nothing is trained" in note for note in notes(f"{given} --abs-learning-rate 1"))


@pytest.mark.parametrize("script", ["train", "validation"])
def test_folders_of_a_call_without_one_are_told_of(script):
    assert "--logs-path runs changes nothing: --no-logs keeps no run folder" in notes(
        "--no-logs --logs-path runs", script=script
    )
    said = "--log-dir runs changes nothing: --logs-path is the run's folder"
    assert said in notes("--log-dir runs --logs-path runs/one", script=script)


@pytest.mark.parametrize("words", ["--repeat 3", "--latency", "--valid-batch-size 5", "--inference"])
def test_options_of_validation_beside_photographs_are_told_of(words):
    said = f"{words} changes nothing: --predict names photographs"
    assert any(note.startswith(said) for note in notes(f"{words} --predict cat.jpg", script="validation"))
    assert not any("changes nothing" in note for note in notes(words, script="validation"))


@pytest.mark.parametrize(
    "words, begins",
    [
        ("--optimiser momentum --momentum 1", "--momentum 1 forgets no gradient ever; give less than 1"),
        ("--optimiser LAMB --abs-learning-rate 0.01 --lamb-beta1 1", "--lamb-beta1 1 forgets no gradient"),
        ("--optimiser AdamW --adam-beta2 1", "--adam-beta2 1 forgets no gradient"),
        (
            "--optimiser RMSprop --abs-learning-rate 0.01 --rmsprop-decay 1",
            "--rmsprop-decay 1 takes no gradient into the mean",
        ),
        (
            "--optimiser RMSprop --abs-learning-rate 0.01 --rmsprop-base-decay-exp -70",
            "--rmsprop-base-decay-exp -70: 1 - glob",
        ),
        (
            "--loss-scaling 5e-324",
            "--loss-scaling 4.94066e-324 is 0 in FP32, which gradients are divided in; give 1.18e-38 or",
        ),
        ("--optimiser Adam --adam-epsilon 1e-45", "--adam-epsilon 1e-45 is 0 in FP32, which weights are updated in; give"),
        (
            "--model efficientnet --model-size cifar --norm-epsilon 1e-45",
            "--norm-epsilon 1e-45 is 0 in FP32, which norms are computed in; give 1.18e-38 or more",
        ),
        (
            "--label-smoothing 0.9",
            "--label-smoothing 0.9 leaves the true class of 10 no more than each other one; give less",
        ),
        *(
            (
                f"--lr-schedule exponential --lr-decay-rate 1e30 --lr-drops {drops} --iterations 1000 --batch-size 8",
                "the exponential schedule lets the learning rate rise from 0.125 beyond FP32's largest number, 3.403e+38; its",
            )
            for drops in (3, 100, 1_000_000)
        ),
        ("--dataset imagenet --model-size 18 --num-classes 1", "data set imagenet has one class: every answer is right"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, begins):
    with pytest.raises(OptionError) as refused:
        notes(words)
    assert str(refused.value).startswith(begins)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--epochs 10", "up to 0.5 ("),
        ("--epochs 1", "up to 0.05 on the way to 0.5 ("),
        ("--iterations 1", "up to 0 on the"),
        ("--epochs 10 --lr-schedule cosine", "up to 0.2623 ("),
        ("--epochs 10 --warmup-epochs 9 --lr-schedule cosine", "up to 0.1457 on the way to 0.5 ("),
        ("--epochs 10 --lr-schedule exponential --lr-decay-rate 1.9 --lr-drops 3", "up to 1.805 ("),
        ("--epochs 10 --lr-schedule polynomial_decay_lr --poly-lr-end-ratio 2", "up to 1 ("),
    ],
)
def test_the_highest_learning_rate_is_one_that_the_run_gets_to(words, said):
    options = cli.parse(shlex.split(f"{BASE} {words}"), "train", environ={}).options
    assert f"learning rate {said}" in prepare(options, {}).summary()


def test_pictures_of_one_class_and_pictures_without_validation(tmp_path):
    """The one trained to a loss of 0, the other recommended to validate; validating it made a run folder first."""
    words = ("--dataset", "imagefolder", "--data-dir", tmp_path, "--model-size", 18, "--log-dir", tmp_path / "logs")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(photos.jpegs(1)[0])
        if name == "cat":
            alone = run("train", *words, "--no-validation")
    assert (alone.code, alone.err.count("\n"), "imagefolder has one class: every answer is right" in alone.err) == (
        2,
        1,
        True,
    )
    unseen = "no pictures for validation in "
    told = run("train", *words, "--dry-run").out
    assert f"warning: data set imagefolder: {unseen}" in told and "or train with --no-validation" in told
    assert unseen not in run("train", *words, "--dry-run", "--no-validation").out
    for script in (("validation",), ("inference_embedded", "--iterations", 2)):
        refused = run(script[0], *words, *script[1:])
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1) and unseen in refused.err
    assert not (tmp_path / "logs").exists()


def test_data_whose_folder_no_run_could_name_again_are_refused(tmp_path, monkeypatch):
    """The run was trained, and could neither go on nor be validated."""
    folder = tmp_path / os.fsdecode(b"lat\xe9")
    for name in ("cat", "dog"):
        (folder / "pics" / name).mkdir(parents=True)
        (folder / "pics" / name / "1.jpg").write_bytes(photos.jpegs(1)[0])
    monkeypatch.chdir(folder)
    words = ("--dataset", "imagefolder", "--data-dir", "pics", "--model-size", 18, "--no-validation", "--dry-run")
    refused = run("train", *words)
    assert (refused.code, refused.err.count("\n")) == (2, 1) and "which is no UTF-8 text" in refused.err
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    assert run("train", *words[:3], "link/pics", *words[4:]).code == 0
