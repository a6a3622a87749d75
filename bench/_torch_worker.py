"""Worker process of bench/peers.py that runs PyTorch with the networks of timm on random images.

Call: python -m bench._torch_worker NETWORK SIDE BATCH UPDATES ACCUMULATION [--last] [--compile] [--autocast]
[--inference]. SIDE is the height and width of an image. When the worker is ready, it prints its version. For each line of
standard input, it runs UPDATES weight updates, or as many inference batches, and prints the speed.
"""

from __future__ import annotations

import argparse
from functools import partial

from bench import _no_torchvision, _rounds  # noqa: F401
from cnn_harness.base.process import command_line

# isort: split
import timm
import torch
from timm.layers import BatchNormAct2d, GroupNormAct
from timm.models import _efficientnet_builder as builder
from timm.models import efficientnet
from torch import nn
from torch.nn import functional


def group16(norm: type[nn.Module] | partial) -> nn.Module:
    """Return EfficientNet-B0 with groups of 16 channels and expansion 4."""
    rows = (
        "ds_r1_k3_s1_e1_c16_se0.25", "ir_r2_k3_s2_e4_c24_se0.25", "ir_r2_k5_s2_e4_c40_se0.25", "ir_r3_k3_s2_e4_c80_se0.25",
        "ir_r3_k5_s1_e4_c112_se0.25", "ir_r4_k5_s2_e4_c192_se0.25", "ir_r1_k3_s1_e4_c320_se0.25",
    )  # fmt: skip
    blocks = builder.decode_arch_def([[row] for row in rows], 1.0, group_size=16)
    act = builder.resolve_act_layer({}, "swish")
    return efficientnet.EfficientNet(
        block_args=blocks, num_features=1280, stem_size=32, round_chs_fn=builder.round_channels, act_layer=act,
        norm_layer=norm,
    )  # fmt: skip


class Unit(nn.Module):
    """A basic unit of the network of configuration quickstart. The shortcut pools and adds zero channels."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(filters), nn.BatchNorm2d(filters)])
        self.stride = stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, channels, side, side] to [batch, filters, side / stride, side / stride]."""
        y = functional.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        if self.stride > 1:
            x = functional.avg_pool2d(x, self.stride)
            x = torch.cat([x, torch.zeros_like(x)], 1)
        return functional.relu(x + y)


def resnet14() -> nn.Module:
    """Return the network of configuration quickstart."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for filters, stride in ((16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        layers.append(Unit(channels, filters, stride))
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


OWN = {
    "resnet14": resnet14,
    "efficientnet_b0_g16_gn": partial(group16, partial(GroupNormAct, group_size=4)),
    "efficientnet_b0_g16_bn": partial(group16, BatchNormAct2d),
}


def main() -> None:
    """Build the network and run the requested rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help=f"{', '.join(OWN)}, or a network of timm")
    for name in ("side", "batch", "updates", "accumulation"):
        parser.add_argument(name, type=command_line.int_between(1))
    for flag, meaning in (
        ("--last", "store channels last"), ("--compile", "use torch.compile"),
        ("--autocast", "multiply in BF16 with torch.autocast"), ("--inference", None),
    ):  # fmt: skip
        parser.add_argument(flag, action="store_true", help=meaning)
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = OWN[asked.network]() if asked.network in OWN else timm.create_model(asked.network)
    layout = torch.channels_last if asked.last else torch.contiguous_format
    model = model.to(memory_format=layout)
    run = torch.compile(model) if asked.compile else model
    formats = partial(torch.autocast, "cpu", torch.bfloat16, enabled=asked.autocast)
    kept = asked.batch * asked.accumulation * (asked.updates if asked.inference else 1)
    images = torch.rand(kept, 3, asked.side, asked.side).contiguous(memory_format=layout)
    batches = images.split(asked.batch)
    if asked.inference:
        model.eval()

        def work() -> None:
            with torch.inference_mode(), formats():
                for batch in batches:
                    run(batch)
    else:
        model.train()
        labels = torch.randint(0, 10 if asked.network == "resnet14" else 1000, (kept,)).split(asked.batch)
        optimiser, loss = torch.optim.SGD(model.parameters(), 1e-4, 0.9), nn.CrossEntropyLoss()

        def work() -> None:
            for _ in range(asked.updates):
                optimiser.zero_grad()
                for batch, label in zip(batches, labels):
                    with formats():
                        error = loss(run(batch), label)
                    (error / asked.accumulation).backward()
                optimiser.step()

    work()
    samples = asked.batch * asked.accumulation * asked.updates
    _rounds.serve(work, samples, version=f"PyTorch {torch.__version__}, timm {timm.__version__}")


if __name__ == "__main__":
    main()
