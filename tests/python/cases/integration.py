"""A small model and its batches for the libraries around PyTorch, on two ranks. Their processes have torch with gloo."""

from __future__ import annotations

import os
import warnings
from typing import Any, Iterator

import torch

import zenps
from torch import nn

warnings.simplefilter("ignore")
torch.set_num_threads(1)
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS = 6


class Net(nn.Module):
    """The embedding's gradient is sparse; two layers are in DDP's bucket."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(5000, 8, sparse=True)
        self.hidden = nn.Linear(8, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(self.table(ids)))).pow(2).mean()


def batches() -> Iterator[torch.Tensor]:
    """This rank's; no row is in one twice, so that gloo's order of additions is zenps's."""
    for step in range(STEPS):
        yield torch.randperm(5000, generator=torch.Generator().manual_seed(10 * step + RANK))[:64]


def check(job: zenps.Job, ours: nn.Module, gloos: nn.Module, state: Any, steps: int = STEPS) -> None:
    """The model that zenps trained is the one that gloo did, and the same on all ranks; and it was zenps that summed."""
    for got, wanted in zip(ours.parameters(), gloos.parameters()):
        worst = float((got - wanted).abs().max())
        assert worst <= 1e-6, worst
    assert state.stats.steps == steps, state.stats
    assert any(name.endswith("table.weight") for name in state.tensors), state.tensors
    sums = repr([float(each.sum()) for each in ours.parameters()])
    assert len(set(job.gather(sums.encode()))) == 1


def invalid(text: str, call: Any) -> None:
    try:
        call()
    except zenps.Invalid as error:
        assert text in str(error), error
    else:
        raise AssertionError("no error")
