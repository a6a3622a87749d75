"""Fine-tune timm's tf_efficientnet_lite0 from this project's weights, and print the validation accuracy after each epoch.

Call: python -m bench._torch_finetuning FOLDER SIDE EPOCHS. FOLDER has train/<class> and val/<class>. The recipe is timm's
usual one. Images are mirrored and cropped to 8 to 100 % of their area. AdamW trains all weights in batches of 32, with a
weight decay of 0.05 and label smoothing 0.1. The rate rises to 5e-4 in one epoch and then follows a cosine.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from PIL import Image

from bench import _no_torchvision  # noqa: F401
from bench._class_folders import central, images, normalised
from cnn_harness.base import plugins

# isort: split
import timm
import torch
from torch.nn import functional

BATCH, RATE, DECAY, SMOOTHING, LEAST_AREA = 32, 5e-4, 0.05, 0.1, 0.08


def network(classes: int) -> torch.nn.Module:
    """Return the network with the published weights, and a new classifier. Both projects list the layers in one order."""
    model = timm.create_model("tf_efficientnet_lite0")
    with np.load(plugins.ROOT / "Models/_weights/efficientnet_lite0.npz", allow_pickle=False) as file:
        arrays = [file[name] for name in file.files if name.startswith("all/")]
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    for tensor, array in zip(state.values(), arrays, strict=True):
        if array.ndim == 4:  # depthwise kernels are [height, width, channels, 1] or [height, width, 1, channels]
            array = array.transpose(3, 2, 0, 1) if array.shape[2] == tensor.shape[1] else array.transpose(2, 3, 0, 1)
        tensor.copy_(torch.from_numpy(np.ascontiguousarray(array.T if array.ndim == 2 else array)))
    model.reset_classifier(classes)
    return model


def random_crop(image: Image.Image, side: int, random: np.random.Generator) -> Image.Image:
    """Return a crop of random area and aspect ratio; half of the crops are mirrored."""
    for _ in range(10):
        area = image.width * image.height * random.uniform(LEAST_AREA, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= image.width and 0 < height <= image.height:
            left, top = random.integers(image.width - width + 1), random.integers(image.height - height + 1)
            image = image.crop((left, top, left + width, top + height))
            break
    image = image.resize((side, side), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.integers(2) else image


def tensor(batch: list[Image.Image]) -> torch.Tensor:
    """Return normalised images, float32 [batch, 3, side, side]."""
    return torch.from_numpy(normalised(batch)).permute(0, 3, 1, 2)


def main() -> None:
    """Train and validate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("side", type=int)
    parser.add_argument("epochs", type=int)
    asked = parser.parse_args()
    torch.manual_seed(1)
    random = np.random.default_rng(1)
    (trained, labels), (validated, answers) = (images(asked.folder / split) for split in ("train", "val"))
    model = network(1 + labels.max()).to(memory_format=torch.channels_last)
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim < 2]
    optimiser = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0}], RATE)
    updates = len(trained) // BATCH
    held_out = tensor([central(image, asked.side) for image in validated])
    for epoch in range(asked.epochs):
        model.train()
        order = random.permutation(len(trained))
        for k in range(updates):
            done = epoch * updates + k
            rate = (1 + math.cos(math.pi * done / (asked.epochs * updates))) / 2 * min(1, (done + 1) / updates)
            for group in optimiser.param_groups:
                group["lr"] = RATE * rate
            chosen = order[k * BATCH : (k + 1) * BATCH]
            x = tensor([random_crop(trained[i], asked.side, random) for i in chosen])
            loss = functional.cross_entropy(model(x), torch.from_numpy(labels[chosen]), label_smoothing=SMOOTHING)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        model.eval()
        with torch.no_grad():
            right = torch.cat([model(part).argmax(1) for part in held_out.split(BATCH)]).numpy() == answers
        print(f"epoch {epoch + 1}: {right.sum()} of {len(right)}", flush=True)


if __name__ == "__main__":
    main()
