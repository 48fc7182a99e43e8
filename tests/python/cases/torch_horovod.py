"""Horovod's names on two ranks. The cases run in this order: init() comes first, shutdown() last."""

from __future__ import annotations

import copy
import os
from typing import Any, List

import torch
from torch_sync import assert_bits, near

import zenps
import zenps.torch as zt
import zenps.torch.horovod as hvd
from torch import nn

ROUND_TIMEOUT = 240


class Net(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(5000, 6, sparse=sparse)
        self.small = nn.Embedding(50, 3, sparse=sparse)
        self.out = nn.Linear(9, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(torch.cat([self.table(ids), self.small(ids % 50)], -1)))


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    ids = torch.randint(0, 5000, (40,), generator=torch.Generator().manual_seed(100 * step + rank))
    return model(ids).pow(2).mean()


def started(seed: int, sparse: bool = True) -> Net:
    torch.manual_seed(seed)
    return Net(sparse)


def invalid(text: str, call: Any, *arguments: Any, **named: Any) -> None:
    try:
        call(*arguments, **named)
    except zenps.Invalid as error:
        assert text in str(error), error
    else:
        raise AssertionError("no error")


def case_names(job: zenps.Job) -> None:
    invalid("call init() first", hvd.rank)
    assert not hvd.is_initialized()
    hvd.init(join_timeout=None, round_timeout=ROUND_TIMEOUT)  # the runner's own: it is one job
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == (job.rank, 2) == (int(os.environ["RANK"]), job.world)
    assert (hvd.local_rank(), hvd.local_size()) == (job.rank, 2)


def case_allreduce(job: zenps.Job) -> None:
    mine = torch.tensor([1.0, 2.0, -4.0]) * (job.rank + 1)
    assert hvd.allreduce(mine).tolist() == [1.5, 3.0, -6.0]
    assert hvd.allreduce(mine, average=False).tolist() == hvd.allreduce(mine, op=hvd.Sum).tolist() == [3.0, 6.0, -12.0]
    assert hvd.allreduce(mine, name="largest", op=hvd.Max).tolist() == [2.0, 4.0, -4.0]
    zeros = torch.tensor([-1.0, 0.0, 0.0] if job.rank else [0.0, -2.0, 7.0])
    assert hvd.allreduce(zeros, op=hvd.Max).tolist() == [0.0, 0.0, 7.0]
    assert hvd.allreduce(zeros, op=hvd.Min).tolist() == [-1.0, -2.0, 0.0]
    assert mine.tolist() == [job.rank + 1, 2 * job.rank + 2, -4 * job.rank - 4]
    assert hvd.allreduce_(mine) is mine and mine.tolist() == [1.5, 3.0, -6.0]
    assert float(hvd.allreduce(torch.tensor(float(job.rank)), name="loss")) == 0.5
    invalid("give one of them", hvd.allreduce, mine, average=True, op=hvd.Sum)


def case_broadcasts(job: zenps.Job) -> None:
    model = started(job.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + job.rank, momentum=0.5)
    wanted = started(0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for got, first in zip(model.parameters(), wanted.parameters()):
        assert_bits(got, first)
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["lr"] == 1.1
    assert hvd.broadcast_object({"epoch": 3 * job.rank, "best": [0.25]}, root_rank=1) == {"epoch": 3, "best": [0.25]}


def trained(model: nn.Module, optimizer: Any, steps: int, passes: int, ranks: List[int]) -> None:
    """Each step of several passes; over the mean of these ranks' losses."""
    for step in range(steps):
        optimizer.zero_grad()
        for each in range(passes):
            (sum(loss_of(model, 10 * step + each, rank) for rank in ranks) / len(ranks)).backward()
        optimizer.step()


def case_training(job: zenps.Job) -> None:
    """Two ranks are one process with both batches, whatever the layouts, in one pass a step or three."""
    for sparse, passes, kind in ((True, 1, torch.optim.Adagrad), (False, 1, torch.optim.Adam), (True, 3, torch.optim.SGD)):
        model = started(7, sparse)
        alone = copy.deepcopy(model)
        wrapped = kind(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(wrapped, 100)
        optimizer = hvd.DistributedOptimizer(wrapped, model.named_parameters(), backward_passes_per_step=passes)
        assert optimizer is wrapped and isinstance(optimizer, kind) and scheduler.optimizer is optimizer
        trained(model, optimizer, 8, passes, [job.rank])
        trained(alone, kind(alone.parameters(), lr=0.05), 8, passes, [0, 1])
        for got, wanted in zip(model.parameters(), alone.parameters()):
            near(got.detach(), wanted.detach(), 1e-5)
        assert optimizer.sync.stats.steps == 8
        assert len(set(job.gather(repr([float(each.sum()) for each in model.parameters()]).encode()))) == 1
        optimizer.sync.close()


def case_clipping(job: zenps.Job) -> None:
    """As Horovod's documentation has it; and the mean of a GradientSync, bit for bit."""
    model = started(8)
    other = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Average)
    sync = zt.GradientSync(other, job, name="beside")
    for each in (model, other):
        loss_of(each, 1, job.rank).backward()
    optimizer.synchronize()
    for got, wanted in zip(model.parameters(), other.parameters()):
        assert_bits(got.grad.to_dense() + 0.0, wanted.grad.to_dense() + 0.0)
    before = [each.detach().clone() for each in model.parameters()]
    for each in model.parameters():
        each.grad = each.grad.to_dense()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with optimizer.skip_synchronize():
        optimizer.step()
    moved = sum(float((old - new).detach().pow(2).sum()) for old, new in zip(before, model.parameters())) ** 0.5
    near(torch.tensor(moved), torch.tensor(1e-4), 1e-6)
    sync.close()
    optimizer.sync.close()


def case_failed_pass(job: zenps.Job) -> None:
    """A backward pass that fails in the user's code on all ranks does not end the training."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
            raise ValueError("on purpose")

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    hvd.broadcast_parameters(model.state_dict())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    try:
        model[1](Fails.apply(model[0](torch.ones(2, 3)))).sum().backward()
        raise AssertionError("no error")
    except ValueError:
        pass
    optimizer.zero_grad()
    model(torch.full((2, 3), float(job.rank))).sum().backward()
    optimizer.step()
    assert optimizer.sync.stats.steps == 1
    optimizer.sync.close()


def case_two_tasks(job: zenps.Job) -> None:
    """Passes are counted, and not how often a parameter had a part in them."""
    model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)})
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), backward_passes_per_step=2)
    for step in range(3):
        optimizer.zero_grad()
        for name in ("a", "b") if step < 2 else ("b", "b"):
            model[name](torch.full((1, 2), job.rank + 1.0)).sum().backward()
        twice = 1 if step < 2 else 2
        assert model["b"].weight.grad.eq(1.5 * twice).all() and optimizer.sync.stats.steps == step + 1
        assert step == 2 or model["a"].weight.grad.eq(1.5).all()
        optimizer.step()
    optimizer.zero_grad()
    model["a"](torch.ones(1, 2)).sum().backward()
    invalid("step() after 1 backward passes", optimizer.step)
    optimizer.sync.close()


def case_refusals(_: zenps.Job) -> None:
    model = started(9)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    invalid("must be Average or Sum", hvd.DistributedOptimizer, sgd, op=hvd.Max)
    invalid("must be 1 or more", hvd.DistributedOptimizer, sgd, backward_passes_per_step=0)
    invalid("lacks 3", hvd.DistributedOptimizer, sgd, model.table.named_parameters())
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), backward_passes_per_step=2)
    invalid("one already", hvd.DistributedOptimizer, optimizer)
    loss_of(model, 0, 0).backward()
    invalid("step() after 1 backward passes; backward_passes_per_step is 2", optimizer.step)
    optimizer.sync.close()


def case_travels_as_fp16(job: zenps.Job) -> None:
    model = nn.Linear(64, 64, bias=False)
    hvd.broadcast_parameters(model.state_dict())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=hvd.Compression.fp16, op=hvd.Sum
    )
    model(torch.full((1, 64), 1 / 3)).sum().backward()
    near(model.weight.grad, torch.full((64, 64), 2 / 3), 1e-3)
    assert float((model.weight.grad - 2 / 3).abs().max()) > 1e-5  # halves were rounded
    optimizer.sync.close()


def case_shutdown(job: zenps.Job) -> None:
    hvd.shutdown()
    assert job.closed and not hvd.is_initialized()
    invalid("nothing after shutdown()", hvd.size)
