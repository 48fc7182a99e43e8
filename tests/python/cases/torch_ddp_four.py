"""The communication hook of DistributedDataParallel against gloo on four ranks, where the two add in different orders."""

from __future__ import annotations

from typing import List

import torch
import torch.distributed as dist
from torch_ddp import ids_of, pair
from torch_sync import RANK, ROUND_TIMEOUT, WORLD, job, same_everywhere

import zenps
import zenps.torch as zt
from torch import nn

EPS = torch.finfo(torch.float32).eps


def sizes_of_terms(model: nn.Module, ids: torch.Tensor) -> List[torch.Tensor]:
    """Of each parameter's gradient: the mean over ranks of what its values are without their signs."""
    grads = torch.autograd.grad(model(ids).pow(2).mean(), list(model.parameters()))
    sizes = [grad.to_dense().abs() for grad in grads]
    for size in sizes:
        dist.all_reduce(size)
    return [size / WORLD for size in sizes]


def case_within_rounding_of_gloo(_: zenps.Job) -> None:
    for sparse in (False, True):
        gloo, ours = pair(sparse)
        zt.ddp(ours, job, name=f"rounding.{sparse}")
        optimizer = torch.optim.SGD(gloo.parameters(), 0.3)
        differ = 0
        for step in range(6):
            sizes = sizes_of_terms(gloo.module, ids_of(step, RANK))
            for model in (gloo, ours):
                model.zero_grad(set_to_none=True)
                model(ids_of(step, RANK)).pow(2).mean().backward()
            for wanted, own, size in zip(gloo.parameters(), ours.parameters(), sizes):
                off = (own.grad.to_dense() - wanted.grad.to_dense()).abs()
                assert bool((off <= 4 * EPS * size).all()), (step, own.shape, float((off / size).nan_to_num().max()))
                differ += int(off.count_nonzero())
            same_everywhere(*(own.grad.to_dense() for own in ours.parameters()))
            optimizer.step()
            with torch.no_grad():
                for target, source in zip(ours.parameters(), gloo.parameters()):
                    target.copy_(source)  # so that each step has one rounding alone
        assert differ > 0, "the two add in one order: compare bits"
