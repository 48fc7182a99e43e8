"""The loss of models with a large vocabulary."""

from __future__ import annotations

import torch
from torch import nn


class SampledSoftmax(nn.Module):
    """Cross entropy over a few rows of a large table: the target's and `n_negatives` words that all samples share, drawn by
    frequency rank (log-uniform) and corrected for it, so that only these rows have a gradient."""

    def __init__(self, n_words: int, width: int, n_negatives: int, sparse_gradient: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(n_words, width, sparse=sparse_gradient)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        self.n_negatives = n_negatives
        rank = torch.arange(1, n_words + 1, dtype=torch.float64)
        self.register_buffer("chance", (((rank + 1) / rank).log() / torch.tensor(float(n_words + 1), dtype=torch.float64).log()).float())

    def draw(self, seed: int) -> torch.Tensor:
        """Negatives of a step, the same on every rank."""
        uniform = torch.rand(self.n_negatives, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        n_words = len(self.chance)
        return (((n_words + 1.0) ** uniform).long() - 1).clamp_(0, n_words - 1)

    def forward(self, hidden: torch.Tensor, target: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
        """hidden [n, width], target [n], negatives [s]; the mean loss."""
        shift = (self.chance * self.n_negatives).log()
        positive = (hidden * self.table(target)).sum(1) - shift[target]
        others = hidden @ self.table(negatives).t() - shift[negatives]
        others = others.masked_fill(negatives[None, :] == target[:, None], -1e9)
        return nn.functional.cross_entropy(torch.cat([positive[:, None], others], 1), torch.zeros_like(target))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [n, width] over all words [n, n_words]."""
        return hidden @ self.table.weight.t()
