"""Who sums dense gradients: `dense=` of zt.ddp() and GradientSync, on two ranks. The process group is Gloo's, and the
reference DistributedDataParallel alone."""

from __future__ import annotations

import copy
import unittest
from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist
import torch_ddp
import torch_passes
from torch_ddp import *  # noqa: F403  its cases run in this launch
from torch_ddp import raises
from torch_passes import *  # noqa: F403
from torch_passes import Broken
from torch_sync import RANK, WORLD, assert_bits, job, same_everywhere

import zenps
import zenps.torch as zt
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from zenps.torch import dense
from zenps.torch.tables import MIN_ROWS, plan


class Mixed(nn.Module):
    """A sparse table, one with a dense gradient between dense layers, and a branch for some batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(21)
        self.before = nn.Linear(5, 8)
        self.sparse = nn.Embedding(4500, 8, sparse=True)
        self.middle = nn.Linear(8, 37)
        self.table = nn.Embedding(5000, 37)
        self.after = nn.Linear(37, 3)
        self.branch = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, branch: bool = False) -> torch.Tensor:
        # Without the factor DDP alone divides the gradient of both terms in place, and that of `before` twice.
        y = self.middle(torch.tanh(self.before(x)) + self.sparse(ids) * 0.5) + self.table(ids + 1)
        y = self.after(torch.tanh(y))
        return self.branch(y) if branch else y


def batch(step: int, rank: int = RANK) -> Any:
    made = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(20, 5, generator=made), torch.randperm(4400, generator=made)[:20]


def train(models: List[nn.Module], step: Callable[[nn.Module, int], torch.Tensor], steps: int = 4) -> None:
    """The first model's bits are those of the others, in each step and of each parameter."""
    optimizers = [torch.optim.SGD(model.parameters(), 0.2) for model in models]
    for number in range(steps):
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad(set_to_none=True)
            step(model, number).backward()
        first, *others = ([*model.parameters()] for model in models)
        for other in others:
            for wanted, own in zip(first, other):
                assert (own.grad is None) == (wanted.grad is None)
                if wanted.grad is not None:
                    assert_bits(own.grad.to_dense() + 0.0, wanted.grad.to_dense() + 0.0)
        for optimizer in optimizers:
            optimizer.step()


def summed_by_torch(sync: Any) -> bool:
    """Whether zenps has no tensor for dense gradients."""
    names = sync.tensors if isinstance(sync, zt.HookState) else [each.name for group in sync._groups for each in group.tensors]
    return not any("/.dense." in name for name in names)


def case_both_at_once(_: zenps.Job) -> None:
    """Tables over zenps and the rest over Gloo, in one backward pass; also where a bucket has both, and where it has one."""
    ways: List[Dict[str, Any]] = [{}, {"bucket_cap_mb": 0.001}, {"gradient_as_bucket_view": True}, {"static_graph": True}]
    for number, arguments in enumerate(ways):
        modules = [Mixed() for _ in range(5)]
        for module in modules:
            module.branch.requires_grad_(False)
        models = [DistributedDataParallel(each, **arguments) for each in modules[:3]] + modules[3:]
        made: List[Any] = []
        for how, wrapped, module in zip(("torch", "zenps"), models[1:], models[3:]):
            name = f"both.{how}.{number}"
            made.append(zt.ddp(wrapped, job, dense=how, name=name))
            made.append(zt.GradientSync(module, job, dense=how, bucket_mb=25 if number else 0.001, name=f"sync.{name}"))
        train(models, lambda model, step: model(*batch(step)).pow(2).mean())
        assert [summed_by_torch(each) for each in made] == [True, True, False, False]
        assert all(each.stats.steps == 4 and each.stats.bytes_out > 0 for each in made), [each.stats for each in made]
        assert made[0].bytes_last_step < made[2].bytes_last_step
        for each in made:
            each.close()


def case_without_tables(_: zenps.Job) -> None:
    """DDP alone sums such a model; sums in place of means are the hook's."""
    torch.manual_seed(22)
    modules = [copy.deepcopy(net) for net in [nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 1))] for _ in range(4)]
    models = [*(DistributedDataParallel(each, bucket_cap_mb=0.0001) for each in modules[:3]), modules[3]]
    states = [zt.ddp(models[1], job), zt.ddp(models[2], job, average=False)]
    sync = zt.GradientSync(models[3], job, bucket_mb=0.0001, name="without tables")
    assert states[0].is_idle and not states[1].is_idle
    factors = dict(zip(models, (1.0, 1.0, 1.0 / WORLD, 1.0)))
    train(models, lambda model, step: model(batch(step)[0]).pow(2).mean() * factors[model])
    with models[1].no_sync():
        models[1](batch(9)[0]).sum().backward()
    assert [each.stats.steps for each in (*states, sync)] == [4, 4, 4]
    assert not states[0].tensors and not states[1].tensors and summed_by_torch(sync)
    sync.close()


class Tied(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(MIN_ROWS, 4, sparse=sparse), nn.Linear(4, MIN_ROWS, bias=False)
        self.out.weight = self.words.weight


def case_tied_tables_are_dense(_: zenps.Job) -> None:
    """A large embedding that is the last layer, too, fills all rows: it is no table, unless it is sparse or named."""
    assert plan(Tied()).tables == [] and len(plan(Tied().words).tables) == 1
    assert len(plan(Tied(sparse=True)).tables) == len(plan(Tied(), ["words.weight"]).tables) == 1
    state = zt.ddp(DistributedDataParallel(Tied()), job, name="tied")
    assert state.is_idle
    state.close()


def case_buckets_that_are_ready_in_another_order(_: zenps.Job) -> None:
    """Ranks take different branches, so that their buckets are complete in another order; collectives have no names."""
    modules = [Mixed() for _ in range(3)]
    models: List[Any] = [DistributedDataParallel(each, bucket_cap_mb=0.0001, find_unused_parameters=True) for each in modules[:2]]
    zt.ddp(models[1], job, dense="torch")
    sync = zt.GradientSync(modules[2], job, dense="torch", bucket_mb=0.0001, name="ordered")
    assert len(sync._ordered) == 4
    train([*models, modules[2]], lambda model, step: model(*batch(step), branch=(RANK + step) % 2 == 0).pow(2).mean(), 6)
    sync.close()


def case_passes_over_torch(_: zenps.Job) -> None:
    """Those of torch_passes and torch_ddp: several passes a step, refused and failed ones, static graphs, checkpoints."""
    failed = []
    for module in (torch_passes, torch_ddp):
        module.DENSE = "auto"
        for name, case in list(vars(module).items()):
            if name.startswith("case_") and name not in ("case_all_reduce_of_many_lengths", "case_long_and_odd_names"):
                try:
                    case(job)
                except unittest.SkipTest:
                    pass
                except Exception as error:  # pylint: disable=broad-except
                    failed.append(f"{name}: {type(error).__name__}: {error}")
        module.DENSE = "zenps"
    assert not failed, "\n".join(failed)


def case_a_pass_that_one_rank_does_not_end(_: zenps.Job) -> None:
    """The next pass is right: each rank has started the collectives of the failed one."""
    models: List[Any] = [Mixed(), Mixed()]
    gloo, ours = DistributedDataParallel(models[0], find_unused_parameters=True), models[1]
    sync = zt.GradientSync(ours, job, dense="torch", bucket_mb=0.001, name="failed pass")

    def broken() -> None:
        x, ids = batch(0)
        y = torch.tanh(ours.before(x))
        y = ours.middle(Broken.apply(y) if RANK else y) + ours.table(ids)
        try:
            ours.branch(ours.after(y)).sum().backward()
        finally:
            ours(*batch(1))  # the forward pass after a failed pass gives its sums up

    raises((OverflowError, RuntimeError, zenps.Canceled), broken)
    train([gloo, ours], lambda model, step: model(*batch(step)).pow(2).mean(), 3)
    sync.close()


class Large(nn.Module):
    """Parameters that fill rows of a bucket, and others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(23)
        self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 65), nn.Linear(65, 64)])
        self.conv = nn.Conv2d(64, 8, 3).to(memory_format=torch.channels_last)
        self.rows = nn.Parameter(torch.randn(100, 64))
        self.branch = nn.Linear(64, 64)
        self.unused = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, branch: bool) -> torch.Tensor:
        y = x
        for layer in self.layers:
            y = torch.tanh(layer(y))
        y = self.branch(y) if branch else y
        y = y + nn.functional.embedding(torch.arange(len(x)) * 3, self.rows, sparse=branch)
        image = y[:, :, None, None].expand(-1, -1, 3, 3).contiguous(memory_format=torch.channels_last)
        return self.conv(image).pow(2).mean() + y.pow(2).mean()


def case_large_gradients_are_summed_where_they_are(_: zenps.Job) -> None:
    """As parts of their bucket's round: of any layout, of one rank alone, and of none."""
    model, alone = Large(), Large()
    sync = zt.GradientSync(model, job, dense="zenps", name="large")
    for step in range(4):
        x = torch.randn(6, 64, generator=torch.Generator().manual_seed(10 * step + RANK))
        for each in (model, alone):
            each.zero_grad(set_to_none=step != 2)
        before = sync.stats.copied_bytes
        model(x, branch=RANK == 0).backward()
        alone(x, branch=RANK == 0).backward()
        for (name, own), other in zip(model.named_parameters(), alone.parameters()):
            assert (own.grad is None) == name.startswith("unused")
            if own.grad is not None:
                wanted = torch.zeros_like(other) if other.grad is None else other.grad.to_dense().clone()
                dist.all_reduce(wanted)
                assert_bits(own.grad.to_dense() + 0.0, wanted / WORLD + 0.0)
        same_everywhere(model.conv.weight.grad, model.branch.weight.grad)
    copied = [each for each in model.parameters() if each.numel() < 4096] + [model.conv.weight] + [model.rows] * (RANK == 0)
    assert sync.stats.copied_bytes - before <= 8 * (sum(each.numel() for each in copied) + 64), sync.stats
    sync.close()


def case_a_process_group_sums_large_gradients_where_they_are(_: zenps.Job) -> None:
    """From a megabyte on; the others by a buffer. Also of one rank alone, and of none."""
    torch.manual_seed(24)
    model = nn.ModuleDict({name: nn.Linear(520, 520) for name in ("first", "branch", "unused", "last")})
    alone = copy.deepcopy(model)
    sync = zt.GradientSync(model, job, dense="torch", name="large over torch")
    for step in range(3):
        x = torch.randn(6, 520, generator=torch.Generator().manual_seed(10 * step + RANK))
        for each in (model, alone):
            each.zero_grad(set_to_none=step != 2)
            y = torch.tanh(each["first"](x))
            before = sync.stats.copied_bytes
            each["last"](torch.tanh(each["branch"](y)) if RANK == 0 else y).pow(2).mean().backward()
            if each is model:
                copied = sync.stats.copied_bytes - before
        for (name, own), other in zip(model.named_parameters(), alone.parameters()):
            assert (own.grad is None) == name.startswith("unused")
            if own.grad is not None:
                wanted = torch.zeros_like(other) if other.grad is None else other.grad / WORLD
                dist.all_reduce(wanted)
                assert_bits(own.grad + 0.0, wanted + 0.0)
    # The last step: biases, and zeros for the one large gradient that is not there.
    assert 2 * 4 * 520 * 520 <= copied <= 2 * 4 * (4 * 520 + 520 * 520), copied
    sync.close()


def case_names_and_obstacles(_: zenps.Job) -> None:
    """Wrong names, and what a process group cannot do, are refused; "auto" then has zenps."""
    raises(zenps.Invalid, lambda: zt.GradientSync(Mixed(), job, dense="gloo"), "'gloo'", "auto, torch or zenps")
    wrapped = DistributedDataParallel(Mixed())
    raises(zenps.Invalid, lambda: zt.ddp(wrapped, job, dense="nccl"), "'nccl'", "auto, torch or zenps")
    ranks = [dist.new_group([rank], backend="gloo") for rank in range(WORLD)]
    groups = [job.group(f"dense{rank}", [rank]) for rank in range(WORLD) if rank == RANK]
    compress = zt.TopK(0.5, min_numel=8, start_iter=0)
    obstacles: List[Any] = [
        ({"compress": compress}, "compress="),
        ({"dense_scheme": "ring"}, "dense_scheme="),
        ({"process_group": ranks[RANK]}, f"has 1 ranks, and job {job.name} {WORLD}"),
    ]
    for number, (arguments, words) in enumerate(obstacles):
        name = f"obstacle.{number}"
        raises(zenps.Invalid, lambda: zt.GradientSync(Mixed(), job, dense="torch", **arguments), words, 'dense="zenps"')
        raises(zenps.Invalid, lambda: zt.ddp(wrapped, job, dense="torch", **arguments), words, 'dense="zenps"')
        sync = zt.GradientSync(Mixed(), job, name=name, **arguments)
        assert not sync._ordered
        sync.close()
    sync = zt.GradientSync(Mixed(), job, name="narrow", values="bf16")
    assert not sync._ordered
    sync.close()
    sync = zt.GradientSync(Mixed(), groups[0], process_group=ranks[RANK])  # of ranks that are replicas
    assert sync._ordered
    sync.close()
    raises(zenps.Invalid, lambda: zt.GradientSync(Mixed(), groups[0], dense="torch"), f"has {WORLD} ranks", "process_group=")
    zt.ddp(wrapped, job, dense="torch", name="obstacle.none").close()


def case_ranks_that_choose_differently(_: zenps.Job) -> None:
    """An error on every rank, at once, where they would wait for each other."""
    how = ("torch", "zenps")[RANK]
    said = ('rank 0 has dense="torch"', 'rank 1 has dense="zenps"')
    raises(zenps.ShapeMismatch, lambda: zt.GradientSync(Mixed(), job, dense=how), *said)
    wrapped = DistributedDataParallel(Mixed())
    raises(zenps.ShapeMismatch, lambda: zt.ddp(wrapped, job, dense=how), *said)
    ranks = [dist.new_group([rank], backend="gloo") for rank in range(WORLD)]
    own = dist.group.WORLD if RANK == 0 else ranks[RANK]  # rank 1 alone cannot have what it asks for
    said_of_group = (said[0], 'rank 1 has dense="torch", which cannot be: the process group has 1 ranks')
    raises(zenps.ShapeMismatch, lambda: zt.GradientSync(Mixed(), job, dense="torch", process_group=own), *said_of_group)
    raises(zenps.ShapeMismatch, lambda: zt.ddp(wrapped, job, dense="torch", process_group=own), *said_of_group)
    bare = DistributedDataParallel(Mixed(), find_unused_parameters=True)
    bare.register_comm_hook(zt.HookState(job, bare.module, dense=how, name="chosen"), zt.hook)
    for _step in range(2):
        raises(zenps.ShapeMismatch, lambda: bare(*batch(0)).sum().backward(), *said)
    state = zt.ddp(wrapped, job, name="chosen alike")
    wrapped(*batch(0), branch=True).sum().backward()
    assert summed_by_torch(state)
    same_everywhere(wrapped.module.middle.weight.grad, wrapped.module.table.weight.grad)


def case_a_process_group_that_writes_with_operations_of_torch(_: zenps.Job) -> None:
    """As Gloo has it on GPUs. A gradient that the program changes in flight is refused, and not what the group writes."""
    module, sums = Mixed(), []
    sync = zt.GradientSync(module, job, dense="torch", bucket_mb=0.0001, wait="step", name="written")
    real = dense.dist.all_reduce

    def noted(tensor: torch.Tensor, **more: Any) -> Any:
        work = real(tensor, **more)
        work.wait()
        sums.append(tensor)
        return work

    dense.dist.all_reduce = noted
    try:
        module(*batch(0)).sum().backward()
    finally:
        dense.dist.all_reduce = real
    for each in sums:
        each.mul_(1.0)
    sync.wait()
    same_everywhere(module.middle.weight.grad, module.after.bias.grad)
    sync.close()


def case_a_process_group_that_fails(_: zenps.Job) -> None:
    """FabricError has torch's words, whether the collective fails at its start or later; zenps's rounds end. A collective
    that is over only in the next pass may have written to buckets of it."""
    for late, over in ((False, True), (True, True), (True, False)):
        modules = [Mixed(), Mixed()]
        wrapped = DistributedDataParallel(modules[0], find_unused_parameters=True)
        state = zt.ddp(wrapped, job)
        sync = zt.GradientSync(modules[1], job, name=f"broken.{late}.{over}")
        real = dense.dist.all_reduce

        class Lost:
            waited = False

            def wait(self) -> None:
                if not self.waited:
                    self.waited = True
                    raise RuntimeError("Connection closed by peer")

            def is_completed(self) -> bool:
                return over

        def broken(*_: Any, **__: Any) -> Any:
            if late:
                return Lost()
            raise RuntimeError("Connection closed by peer")

        for model, name in ((wrapped, state.name), (modules[1], sync.name)):
            dense.dist.all_reduce = broken
            try:
                raises(zenps.FabricError, lambda: model(*batch(0)).sum().backward(), name, "Connection closed by peer")
            finally:
                dense.dist.all_reduce = real
            if model is wrapped and not over:
                raises(zenps.Canceled, lambda: model(*batch(1)).sum().backward(), name, "repeat the pass")
            model.zero_grad(set_to_none=True)
            model(*batch(1)).sum().backward()
            module = getattr(model, "module", model)
            same_everywhere(module.middle.weight.grad, module.table.weight.grad)
        sync.close()

