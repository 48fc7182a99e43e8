#!/usr/bin/env python3
"""DeepFM (Zen's): an embedding table for each categorical field, a factorisation machine and a perceptron; AUC of clicks.

    zenpsrun -n 4 -- worker/examples/python/deepfm.py
    zenpsrun -n 4 -- worker/examples/python/deepfm.py --data ratings.csv      # MovieLens: user, film, hour, weekday

Without --data the clicks are generated: Criteo's 26 fields, hashed to --rows each, values by Zipf's law, labels from a factorisation
machine of their own. With --rows 14000000 --width 16 the tables have as many rows as Criteo's, 33.8 M.
"""

from __future__ import annotations

from typing import Any, List

import torch
from torch import nn

import common
import data
from metrics import auc


class Model(nn.Module):
    def __init__(self, sizes: List[int], width: int, hidden: int, sparse: bool) -> None:
        super().__init__()
        # The last column of a field's table is its first-order weight.
        self.tables = nn.ModuleList(nn.Embedding(size, width + 1, sparse=sparse) for size in sizes)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.05)
        self.deep = nn.Sequential(
            nn.Linear(len(sizes) * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def scores(self, fields: torch.Tensor) -> torch.Tensor:
        """fields [n, f] of rows; log odds [n]."""
        rows = torch.stack([table(fields[:, f]) for f, table in enumerate(self.tables)], 1)
        factors, weights = rows[:, :, :-1], rows[:, :, -1]
        pairs = 0.5 * (factors.sum(1).square() - factors.square().sum(1)).sum(1)
        return self.bias + weights.sum(1) + pairs + self.deep(factors.flatten(1)).squeeze(1)

    def forward(self, fields: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.scores(fields), labels)


class Clicks(common.Task):
    name, metric, lower_is_better = "deepfm", "AUC", False

    def __init__(self, arguments: Any) -> None:
        if arguments.data:
            clicks = data.ratings(arguments.data, arguments.seed)
        else:
            clicks = data.clicks(arguments.samples, arguments.rows, arguments.seed)
        fields, labels = torch.from_numpy(clicks.fields), torch.from_numpy(clicks.labels)
        self.n_samples = len(labels) - len(labels) // 10
        self.train = fields[: self.n_samples], labels[: self.n_samples]
        self.held_out = fields[self.n_samples :], labels[self.n_samples :]
        self.model = Model(clicks.sizes, arguments.width, arguments.hidden, common.sparse(arguments))

    def batch(self, samples: List[int], step: int) -> Any:
        return self.train[0][samples], self.train[1][samples]

    @torch.no_grad()
    def evaluate(self) -> float:
        scores = torch.cat([self.model.scores(part) for part in self.held_out[0].split(4096)])
        return auc(scores.numpy(), self.held_out[1].numpy())


if __name__ == "__main__":
    options = common.parser(__doc__.split("\n")[0], batch=256, lr=0.06)
    options.add_argument("--width", type=int, default=8, help="factors of a row")
    options.add_argument("--hidden", type=int, default=64, help="of the perceptron's layers")
    options.add_argument("--samples", type=int, default=200000, help="that are generated")
    options.add_argument("--rows", type=int, default=50000, help="at most, of a generated field")
    common.run(Clicks, options.parse_args())
