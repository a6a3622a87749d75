"""Messages of the Python API show keyword arguments and functions."""

from __future__ import annotations

import pytest

from cnn_harness.harness.options.keyword_form import in_python


@pytest.mark.parametrize(
    ("shell", "python"),
    [
        ("command line: --micro-batch-size is 'x' but must be", "micro_batch_size is 'x' but must be"),
        ("unknown option --modle; did you mean --model?", "unknown option modle=; did you mean model=?"),
        ("give --shards 4, --pipeline or --no-rts", "give shards=4, pipeline=True or rts=False"),
        ("give --config, or --model and --dataset", "give config=, or model= and dataset="),
        ("--restore-path logs/a: no such folder", "restore_path=logs/a: no such folder"),
        ("give --device cpu (or --precision bf16.32)", 'give device="cpu" (or precision=bf16.32)'),
        ("Try: python train.py --config quickstart\nAvailable: a", 'Try: train(config="quickstart")\nAvailable: a'),
        ("run python train.py --dry-run with it", "run train(dry_run=True) with it"),
        ("use restore.py or validation.py", "use train(restore_path=...) or evaluate()"),
        ("import them: cnn import-weights --half a.pth", "import them: cnn import-weights --half a.pth"),
        ("a--b of /a/train.py", "a--b of /a/train.py"),
    ],
)
def test_options_become_keyword_arguments(shell, python):
    assert in_python(shell) == python
    assert in_python(python) == python
