"""How many micro-batches share a pass where the plan chooses: as predicted time and the memory budget say, and nothing else."""

from __future__ import annotations

import pytest

from emulator.plan.plan import ExecutionPlan
from harness.commands import cli
from harness.run.resolve import prepare

SMALL = "--dataset fashion-mnist --model-size 8 --batch-size 4 --gradient-accumulation-count 8"
LARGE = "--dataset imagenet --synthetic-data --model-size 50 --gradient-accumulation-count 8"
GROUPS = "--dataset imagenet --synthetic-data --model efficientnet --group-norm --group-dim 16 --expand-ratio 4"


def fold_of(words: str) -> int:
    options = cli.parse(["--precision", "32.32", *words.split()], "train", environ={}).options
    return prepare(options, {}).plan.fold


@pytest.mark.parametrize(
    ("words", "fold"),
    [
        (SMALL, 8),  # what a pass takes beside its multiply-adds is most of the time
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
def test_auto_takes_the_fewest_that_are_near_the_shortest_time(words, fold):
    assert fold_of(words) == fold


def test_a_span_counts_with_batch_norm_alone():
    """Of micro-batches that share a pass, nothing but their statistics would need it, and the bits depend on the number."""
    words = f"{SMALL} --replicas 4 --fold 2 --precision 32.32"

    def plan_of(more: str) -> ExecutionPlan:
        return prepare(cli.parse(f"{words} {more}".split(), "train", environ={}).options, {}).plan

    alone, spanned = (plan_of(f"--group-norm {more}") for more in ("", "--BN-span 4"))
    assert alone == spanned and alone.micro_batches_per_pass == 2 and alone.summary([]) == spanned.summary([])
    batch_norm = plan_of("--batch-norm --BN-span 4")
    assert batch_norm.micro_batches_per_pass == 8 and "batch norm over 4 replicas" in batch_norm.summary([])
