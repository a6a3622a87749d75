"""The automatic number of micro-batches per pass depends only on predicted time and the memory budget."""

from __future__ import annotations

import pytest

from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

SMALL = "--dataset fashion-mnist --model-size 8 --batch-size 4 --gradient-accumulation-count 8"
LARGE = "--dataset imagenet --synthetic-data --model-size 50 --gradient-accumulation-count 8"
GROUPS = "--dataset imagenet --synthetic-data --model efficientnet --group-norm --group-dim 16 --expand-ratio 4"


def fold_of(words: str) -> int:
    options = cli.parse(["--precision", "32.32", *words.split()], "train", environ={}).options
    return prepare(options, {}).run.plan.fold


@pytest.mark.parametrize(
    ("words", "fold"),
    [
        (SMALL, 8),  # a pass's fixed cost is most of the time
        (f"{SMALL} --fold-memory 20", 4),
        (f"{SMALL} --fold-memory 1", 1),
        (SMALL.replace("count 8", "count 6"), 6),
        (SMALL.replace("count 8", "count 11"), 1),
        (f"{SMALL} --shards 2 --pipeline --pipeline-splits auto", 1),  # four passes for each stage
        (f"{SMALL.replace('count 8', 'count 64')} --shards 2 --pipeline --pipeline-splits auto", 8),
        (f"{LARGE} --batch-size 1", 4),
        (f"{LARGE} --batch-size 1 --fold-memory 65536", 8),
        (f"{LARGE} --batch-size 8 --fold-memory 65536", 4),
        (f"{LARGE} --batch-size 32 --fold-memory 65536", 1),  # nothing is gained
        (f"{GROUPS} --batch-size 4 --gradient-accumulation-count 8", 2),
        (f"{GROUPS} --batch-size 4 --gradient-accumulation-count 8 --fold-memory 2200", 8),
    ],
)
def test_auto_takes_smallest_near_optimal_fold(words, fold):
    assert fold_of(words) == fold


def test_batch_norm_span_counts_alone():
    """With other norms, a BN span changes neither the plan nor a bit."""
    words = f"{SMALL} --replicas 4 --fold 2 --precision 32.32"

    def plan_of(more: str) -> ExecutionPlan:
        return prepare(cli.parse(f"{words} {more}".split(), "train", environ={}).options, {}).run.plan

    alone, spanned = (plan_of(f"--group-norm {more}") for more in ("", "--BN-span 4"))
    assert alone == spanned and alone.micro_batches_per_pass == 2 and alone.summary([]) == spanned.summary([])
    batch_norm = plan_of("--batch-norm --BN-span 4")
    assert batch_norm.micro_batches_per_pass == 8 and "batch norm over 4 replicas" in batch_norm.summary([])
