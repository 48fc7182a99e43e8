#!/usr/bin/env python3
"""VGG on Fashion-MNIST (Ok-Topk's VGG-16, SparCML's CIFAR, BlueConnect): dense gradients, whole or sparsified with --compress.

    zenpsrun -n 4 -- worker/examples/python/vgg.py --compress buckets

Images: Debian's dataset-fashion-mnist. --channels 64 is VGG-16, 14.7 M parameters; a quarter or an eighth of its channels learn, too.
"""

from __future__ import annotations

from typing import Any, List

import torch
from torch import nn

import common
import data

VGG16 = [1, 1, "pool", 2, 2, "pool", 4, 4, 4, "pool", 8, 8, 8, "pool", 8, 8, 8]  # channels, in multiples of the first's
SMALL = [1, "pool", 2, "pool", 4, "pool", 8]


class Model(nn.Module):
    def __init__(self, layers: List[Any], channels: int) -> None:
        super().__init__()
        parts: List[nn.Module] = []
        before = 1
        for layer in layers:
            if layer == "pool":
                parts.append(nn.MaxPool2d(2, ceil_mode=True))
                continue
            # GroupNorm, whose statistics are those of one image: the same however a batch is shared out.
            parts += [nn.Conv2d(before, layer * channels, 3, padding=1), nn.GroupNorm(4, layer * channels), nn.ReLU()]
            before = layer * channels
        self.features = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classes = nn.Linear(before, 10)

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        return self.classes(self.features(images))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.scores(images), labels)


class Images(common.Task):
    name, metric, lower_is_better = "vgg", "accuracy", False

    def __init__(self, arguments: Any) -> None:
        images, labels = data.images(train=True)
        self.train = torch.from_numpy(images), torch.from_numpy(labels)
        images, labels = data.images(train=False)
        self.held_out = torch.from_numpy(images[: arguments.held_out]), torch.from_numpy(labels[: arguments.held_out])
        self.n_samples = len(self.train[1])
        self.model = Model(SMALL if arguments.small else VGG16, arguments.channels)

    def optimiser(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=lr)

    def batch(self, samples: List[int], step: int) -> Any:
        return self.train[0][samples], self.train[1][samples]

    @torch.no_grad()
    def evaluate(self) -> float:
        right = sum((self.model.scores(i).argmax(1) == t).sum().item() for i, t in zip(*(x.split(500) for x in self.held_out)))
        return right / len(self.held_out[1])


if __name__ == "__main__":
    options = common.parser(__doc__.split("\n")[0], batch=16, lr=0.05)
    options.add_argument("--channels", type=int, default=16, help="of the first layer; VGG-16 has 64")
    options.add_argument("--small", action="store_true", help="four layers in place of thirteen")
    options.add_argument("--held-out", type=int, default=2000, help="images that the accuracy is of")
    common.run(Images, options.parse_args())
