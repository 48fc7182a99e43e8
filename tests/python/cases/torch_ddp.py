"""The communication hook of DistributedDataParallel, against gloo, on two ranks."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch_sync import RANK, ROUND_TIMEOUT, WORLD, Net, assert_bits, job, loss_of, near, same_everywhere

import zenps
import zenps.torch as zt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", rank=RANK, world_size=WORLD)


class Plain(nn.Module):
    """Embeddings of which no batch has a row twice, so that the order of a rank's own additions does not show."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4500, 8, sparse=sparse)
        self.other = nn.Embedding(5000, 3)
        self.hidden = nn.Linear(11, 37)
        self.out = nn.Linear(37, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.embedding(ids), self.other(ids + 1)], -1)
        return self.out(torch.tanh(self.hidden(x)))


def ids_of(step: int, rank: int) -> torch.Tensor:
    return torch.randperm(4400, generator=torch.Generator().manual_seed(100 * step + rank))[:50]


def pair(sparse: bool, **arguments: Any) -> Any:
    torch.manual_seed(4)
    module = Plain(sparse)
    gloo = DistributedDataParallel(copy.deepcopy(module), **arguments)
    ours = DistributedDataParallel(module, **arguments)
    return gloo, ours


def case_bits_of_gloo(_: zenps.Job) -> None:
    for sparse, arguments in ((False, {}), (True, {}), (False, {"gradient_as_bucket_view": True, "bucket_cap_mb": 1})):
        gloo, ours = pair(sparse, **arguments)
        state = zt.ddp(ours, job, name=f"bits.{sparse}.{len(arguments)}")
        optimizers = [torch.optim.SGD(each.parameters(), 0.3) for each in (gloo, ours)]
        for step in range(6):
            for model, optimizer in zip((gloo, ours), optimizers):
                optimizer.zero_grad(set_to_none=True)
                model(ids_of(step, RANK)).pow(2).mean().backward()
            for wanted, own in zip(gloo.parameters(), ours.parameters()):
                assert own.grad.is_sparse == wanted.grad.is_sparse
                assert_bits(own.grad.to_dense() + 0.0, wanted.grad.to_dense() + 0.0)
            for optimizer in optimizers:
                optimizer.step()
            if step == 1:
                opened = state.tensors
        assert state.tensors == opened, (opened, state.tensors)  # buckets are rebuilt once, and no more
        assert state.stats.steps == 6


def case_sync_is_ddp_is_one_process(_: zenps.Job) -> None:
    torch.manual_seed(6)
    for sparse in (True, False):
        module = Net(sparse)
        models = [copy.deepcopy(module) for _ in range(3)]
        wrapped = DistributedDataParallel(models[0])
        zt.ddp(wrapped, job, name=f"three.{sparse}")
        sync = zt.GradientSync(models[1], job, name=f"three.sync.{sparse}")
        optimizers = [torch.optim.Adagrad(each.parameters(), 0.05) for each in models]
        for step in range(50):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            losses = [loss_of(wrapped, step, RANK), loss_of(models[1], step, RANK)]
            for loss in losses:
                loss.backward()
            whole = [loss_of(models[2], step, rank) for rank in range(WORLD)]
            (sum(whole) / WORLD).backward()
            for loss in losses:
                near(loss.detach(), whole[RANK].detach(), 1e-5)
            for optimizer in optimizers:
                optimizer.step()
        same_everywhere(*models[0].parameters())
        for first, second in zip(models[0].parameters(), models[1].parameters()):
            assert_bits(first, second)  # the hook and GradientSync add in the same order
        sync.close()


def case_accumulation(_: zenps.Job) -> None:
    gloo, ours = pair(True)
    zt.ddp(ours, job, name="accumulation")
    for model in (gloo, ours):
        for step in range(3):
            with model.no_sync():
                model(ids_of(step, RANK)).pow(2).mean().backward()
        model(ids_of(3, RANK)).pow(2).mean().backward()
        model(ids_of(4, RANK)).pow(2).mean().backward()  # DDP allows it: the mean is added to the mean
    for wanted, own in zip(gloo.parameters(), ours.parameters()):
        near(own.grad.to_dense(), wanted.grad.to_dense(), 1e-6)


def case_join_of_uneven_inputs(_: zenps.Job) -> None:
    torch.manual_seed(8)
    module = nn.Sequential(nn.Linear(6, 70), nn.ReLU(), nn.Linear(70, 3))
    gloo, ours = DistributedDataParallel(copy.deepcopy(module)), DistributedDataParallel(module)
    zt.ddp(ours, job, name="join")
    for model in (gloo, ours):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with model.join():
            for step in range(2 + 3 * RANK):
                optimizer.zero_grad(set_to_none=True)
                data = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + RANK))
                model(data).pow(2).mean().backward()
                optimizer.step()
    for wanted, own in zip(gloo.parameters(), ours.parameters()):
        near(own, wanted, 1e-6)


def case_unused_parameters(_: zenps.Job) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.left(x) if RANK else self.right(x)

    module = Branches()
    gloo = DistributedDataParallel(copy.deepcopy(module), find_unused_parameters=True)
    ours = DistributedDataParallel(module, find_unused_parameters=True)
    zt.ddp(ours, job, name="unused")
    for model in (gloo, ours):
        model(torch.ones(2, 3)).sum().backward()
    for wanted, own in zip(gloo.parameters(), ours.parameters()):
        assert_bits(own.grad, wanted.grad)


def case_without_a_module(_: zenps.Job) -> None:
    """As Lightning registers the pair."""
    gloo, ours = pair(True)
    ours.register_comm_hook(zt.HookState(job, name="bare"), zt.hook)
    for model in (gloo, ours):
        model(ids_of(0, RANK)).pow(2).mean().backward()
    for wanted, own in zip(gloo.parameters(), ours.parameters()):
        assert_bits(own.grad.to_dense() + 0.0, wanted.grad.to_dense() + 0.0)
    try:
        zt.ddp(nn.Linear(2, 2), job)
        raise AssertionError("a Linear is no DDP")
    except zenps.Invalid as error:
        assert "DistributedDataParallel" in str(error)


def case_failed_passes(_: zenps.Job) -> None:
    """A hook that fails, and a pass that fails in the user's code: the next pass is whole."""
    gloo, ours = pair(False)
    state = zt.ddp(ours, job, name="failed")
    for model in (gloo, ours):
        model(ids_of(0, RANK)).pow(2).mean().backward()
        model.zero_grad(set_to_none=True)
    real = state._start_dense

    def broken(bucket: Any, made: Any) -> None:
        raise zenps.Busy("on purpose")

    state._start_dense = broken  # type: ignore[method-assign]
    try:
        ours(ids_of(1, RANK)).pow(2).mean().backward()
        raise AssertionError("no error")
    except zenps.Busy as error:
        assert str(error) == "on purpose"
    state._start_dense = real  # type: ignore[method-assign]
    gloo(ids_of(1, RANK)).pow(2).mean().backward()
    for model in (gloo, ours):
        model.zero_grad(set_to_none=True)
        model(ids_of(2, RANK)).pow(2).mean().backward()
    for wanted, own in zip(gloo.parameters(), ours.parameters()):
        assert_bits(own.grad + 0.0, wanted.grad + 0.0)


def case_compression(_: zenps.Job) -> None:
    """The bits of GradientSync with the same compress=; residuals do not move when DDP makes other buckets."""
    torch.manual_seed(9)
    module = nn.Sequential(nn.Linear(30, 100), nn.Tanh(), nn.Linear(100, 90), nn.Tanh(), nn.Linear(90, 3))
    other = copy.deepcopy(module)
    compress = zt.DGC(0.02, warmup=(0.1,), warmup_steps=3, min_numel=1000, start_iter=1)
    wrapped = DistributedDataParallel(module, bucket_cap_mb=0.01)
    state = zt.ddp(wrapped, job, name="compressed", compress=compress)
    sync = zt.GradientSync(other, job, name="compressed.sync", compress=compress)
    optimizers = [torch.optim.SGD(each.parameters(), 0.5) for each in (wrapped, other)]
    for step in range(8):
        data = torch.randn(5, 30, generator=torch.Generator().manual_seed(10 * step + RANK))
        for model, optimizer in zip((wrapped, other), optimizers):
            optimizer.zero_grad(set_to_none=True)
            model(data).pow(2).mean().backward()
            optimizer.step()
        for own, wanted in zip(module.parameters(), other.parameters()):
            assert_bits(own, wanted)
    assert float((module[2].weight.grad != 0).float().mean()) < 0.2
    ours, theirs = state.state_dict(), sync.state_dict()
    assert sorted(ours["compress"]) == sorted(theirs["compress"]) == ["0.weight", "2.weight"]
    for name, kept in ours["compress"].items():
        assert torch.equal(kept["saved"], theirs["compress"][name]["saved"])
    gathered = sync.state_dict(gather_state=True)["compress"]
    assert bool(gathered["0.weight"]["residual"].any()) == (RANK == 0)
    state.load_state_dict(ours)
    sync.close()
    try:
        zt.HookState(job, compress=compress)
        raise AssertionError("no module")
    except zenps.Invalid as error:
        assert "module" in str(error)
