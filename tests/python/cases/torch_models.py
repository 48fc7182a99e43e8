"""GradientSync on two ranks with models that change, are saved, have buffers, or write parameters in forward()."""

from __future__ import annotations

import copy
import io
from typing import Any, Dict, List

import torch
from torch_passes import grads, inputs, net, refused
from torch_sync import RANK, ROUND_TIMEOUT, assert_bits, digest, job, same_everywhere, sync_of

import zenps
import zenps.torch as zt
import zenps.torch.horovod
from torch import nn
from torch.nn.parallel import DistributedDataParallel

assert ROUND_TIMEOUT  # runner.py reads it here


def _unfreeze(model: Any) -> None:
    model[2].requires_grad_(True)


def _replace(model: Any) -> None:
    model[0] = nn.Linear(4, 5)


def _assign(model: Any) -> None:
    for name in ("weight", "bias"):  # load_state_dict(assign=True) of torch 2.1 does this
        setattr(model[0], name, nn.Parameter(getattr(model[0], name).detach().clone()))


def _add(model: Any) -> None:
    model.scale = nn.Parameter(torch.ones(1))


def _reshape(model: Any) -> None:
    model[0].bias.data = torch.zeros(5, 1)[:, 0].view(1, 5)


def case_parameters_that_change(_: zenps.Job) -> None:
    """The next backward pass says which, on every rank, if one rank alone has changed them; a new GradientSync of the same
    name sums the model as it is."""
    changes: Dict[str, Any] = {
        "2.weight was replaced, added, or requires": _unfreeze,
        "0.weight was replaced": _replace,
        "0.bias was replaced": _assign,
        "scale was replaced, added": _add,
        "0.weight is of torch.float64, and was of torch.float32": lambda model: model.double(),
        "0.bias has shape [1, 5], and had [5]": _reshape,
    }
    for text, change in changes.items():
        for ranks, dense in (((0, 1), "zenps"), ((1,), "zenps"), ((1,), "torch")):
            model = net()
            if change is _unfreeze:
                model[2].requires_grad_(False)
                model[0].requires_grad_(True)
            sync = zt.GradientSync(model, job, dense=dense, name="changing")
            model(inputs(0)).sum().backward()
            model.zero_grad(set_to_none=True)
            if RANK in ranks:
                change(model)
            x = inputs(1).to(model[0].weight.dtype)
            refused(lambda: model(x).sum().backward(), "rank 0, 1: " if len(ranks) > 1 else "rank 1: ", text, "sync.close()")
            if RANK not in ranks:
                change(model)
            model.zero_grad(set_to_none=True)
            sync.close()
            sync = zt.GradientSync(model, job, dense=dense, name="changing")
            model(x.to(model[0].weight.dtype)).sum().backward()
            same_everywhere(*[each.grad for each in model.parameters() if each.grad is not None])
            sync.close()


def case_parameters_frozen_later(_: zenps.Job) -> None:
    model = net()
    sync = sync_of(model)
    model(inputs(0)).sum().backward()
    model[0].requires_grad_(False)
    model.zero_grad(set_to_none=True)
    model(inputs(1)).sum().backward()
    assert model[0].weight.grad is None
    same_everywhere(model[2].weight.grad)
    model[0].requires_grad_(True)
    model.zero_grad(set_to_none=True)
    model(inputs(1)).sum().backward()
    same_everywhere(*grads(model))
    sync.close()


def case_optimisers_of_other_parameters(_: zenps.Job) -> None:
    model, other = net(), net()
    sync = sync_of(model)
    strange = torch.optim.SGD(list(model.parameters()) + list(other.parameters()), 0.1)
    refused(lambda: sync.attach(strange), "attach: the optimiser steps a parameter of shape [5, 4] in group 0 of SGD")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sync.attach(optimizer)
    model(inputs(0)).sum().backward()
    optimizer.step()
    if RANK == 0:
        optimizer.add_param_group({"params": list(other.parameters())})
    optimizer.zero_grad()
    refused(lambda: model(inputs(1)).sum().backward(), "rank 0: the optimiser steps", "in group 1 of SGD", "drift apart")
    second = sync_of(other)  # sums its parameters from here on
    if RANK == 1:
        optimizer.add_param_group({"params": list(other.parameters())})
    (model(inputs(2)) + other(inputs(2))).sum().backward()
    optimizer.step()
    same_everywhere(*model.parameters(), *other.parameters())
    second.close()
    sync.close()


def case_optimisers_that_are_saved(_: zenps.Job) -> None:
    model = net()
    sync = sync_of(model, wait="step")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sync.attach(optimizer)
    file = io.BytesIO()
    torch.save(optimizer, file)
    assert b"zenps" not in file.getvalue()
    copied = copy.deepcopy(optimizer)
    copied.step()  # of parameters of its own, without gradients
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # it wraps step()
    for step in range(2):
        optimizer.zero_grad()
        model(inputs(step)).sum().backward()
        optimizer.step()
        scheduler.step()
        same_everywhere(*model.parameters())
    sync.close()


def case_modules_that_are_saved(_: zenps.Job) -> None:
    """A pickle, a copy, and what TorchScript compiles know nothing of zenps."""
    model = net()
    user: List[int] = []
    sync = sync_of(model)
    model.register_forward_hook(print)
    file = io.BytesIO()
    torch.save(model, file)
    assert b"zenps" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False) if "weights_only" in torch.load.__code__.co_varnames else torch.load(file)
    assert list(loaded._forward_hooks.values()) == [print] and not loaded._forward_pre_hooks, loaded._forward_hooks
    model._forward_hooks.popitem()
    file = io.BytesIO()
    torch.save(torch.optim.SGD(model.parameters(), 0.1), file)
    assert b"zenps" not in file.getvalue()
    for copied in (copy.deepcopy(model), copy.copy(model)):
        assert not copied._forward_hooks and not copied._forward_pre_hooks
    wanted = model(inputs(0))
    scripted, traced = torch.jit.script(model), torch.jit.trace(model, inputs(0))
    for made in (scripted, traced, loaded):
        made = made if made is not loaded else nn.Sequential(*loaded)
        assert torch.equal(made(inputs(0)), wanted)
    model(inputs(1)).sum().backward()
    same_everywhere(*grads(model))
    assert sync.stats.steps == 1 and not user
    model.zero_grad(set_to_none=True)
    scripted(inputs(2)).sum().backward()  # of the same parameters
    same_everywhere(*grads(model))
    sync.close()
    assert not model._forward_hooks and "__prepare_scriptable__" not in model.__dict__


def normed() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    model.register_buffer("odd", torch.tensor([True, False, True]))
    model.register_buffer("minus", torch.tensor([-0.0, float("nan")]))
    return model


def case_buffers(_: zenps.Job) -> None:
    """Running statistics are those of DistributedDataParallel, bit for bit, on each rank; and of rank 0 in evaluation, which
    one rank may do alone."""
    ours, theirs = normed(), normed()
    del theirs.odd  # gloo cannot broadcast it
    theirs = DistributedDataParallel(theirs)
    sync = sync_of(ours)
    for step in range(5):
        ours.zero_grad(set_to_none=True)
        theirs.zero_grad(set_to_none=True)
        if step == 2:
            with sync.no_sync(), theirs.no_sync():
                for model in (ours, theirs):
                    model(inputs(50)).sum().backward()
        for model in (ours, theirs):
            model(inputs(step)).sum().backward()
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            assert_bits(getattr(ours[1], name), getattr(theirs.module[1], name))
        assert_bits(ours[0].weight.grad, theirs.module[0].weight.grad)
    ours.eval()
    if RANK == 1:  # alone
        with torch.no_grad():
            ours(inputs(9))
    same_everywhere(ours[1].running_mean, ours[1].running_var, ours.minus)
    ours.train()
    if RANK == 0:
        ours.minus.fill_(-0.0)
        ours.odd.logical_not_()
    for step in range(2):
        ours(inputs(step)).sum().backward()
    assert torch.equal(torch.signbit(ours.minus), torch.tensor([True, True])), ours.minus
    assert ours.odd.tolist() == [False, True, False], ours.odd
    with sync.join():
        for step in range(1 + 2 * RANK):  # rank 0 leaves first, and its buffers stay behind
            ours.zero_grad(set_to_none=True)
            mean = ours[1].running_mean.clone()
            ours(inputs(step)).sum().backward()
            assert step < 2 or torch.equal(mean, last), (mean, last)
            last = ours[1].running_mean.clone()
    same_everywhere(ours[1].running_mean)
    ours(inputs(0)).sum().backward()
    ours[1].reset_running_stats()  # on all ranks: what a program writes stays
    ours.eval()
    with torch.no_grad():
        ours(inputs(0))
    assert not ours[1].running_mean.any() and not ours[1].num_batches_tracked
    sync.close()


def case_buffers_of_graphs(_: zenps.Job) -> None:
    """Buffers are not written while a graph holds them; and reach modules whose own forward() nobody calls."""
    model = normed()
    sync = sync_of(model)
    for step in range(3):
        model.zero_grad(set_to_none=True)
        losses = [model(inputs(10 * step + part)).sum() for part in range(12)]
        for loss in losses:
            loss.backward()
        same_everywhere(*grads(model))
    sync.close()
    model = normed()
    sync = sync_of(model)
    for step in range(3):
        model.zero_grad(set_to_none=True)
        model[2](model[1](model[0](inputs(step)))).sum().backward()
        same_everywhere(model[1].running_mean, model[1].running_var, *grads(model))
    sync.close()
    try:
        sync_of(torch.jit.script(normed()))
        raise AssertionError("a TorchScript module")
    except zenps.Unsupported as error:
        assert "torch.jit.script() is given" in str(error), error


def case_buffers_apart(_: zenps.Job) -> None:
    apart = normed()
    sync = sync_of(apart, broadcast_buffers=False)
    for step in range(2):
        apart(inputs(step)).sum().backward()
    with torch.no_grad():
        apart(inputs(3))
    assert len(set(job.gather(digest(apart[1].running_mean).encode()))) == 2
    sync.close()
    viewed = net()
    viewed.register_buffer("mask", torch.ones(1, 3).expand(5, 3))
    viewed.register_buffer("graph", torch.ones(3, 3).to_sparse())
    sync = sync_of(viewed, broadcast=False)  # left as they are
    viewed(inputs(0)).sum().backward()
    sync.close()
    refused_of = nn.BatchNorm1d(4)
    refused_of.register_buffer("seen", torch.zeros(10 + RANK))
    try:
        sync_of(refused_of)
        raise AssertionError("buffers of different shapes")
    except zenps.ShapeMismatch as error:
        assert "rank 0 has buffer seen [10]" in str(error), error


class Writing(nn.Module):
    """forward() writes a parameter: `how` says what."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.inner = nn.Linear(4, 4)
        self.mean = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.how = how
        if how == "spectral":
            nn.utils.spectral_norm(self.inner)
        if how == "weight":
            nn.utils.weight_norm(self.inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if self.how == "clip":
                self.inner.weight.clamp_(-0.1, 0.1)
            if self.how == "clip data":
                self.inner.weight.data.clamp_(-0.1, 0.1)
            if self.how == "drift":
                self.inner.bias.add_(x.mean(0))
            if self.how == "drift data":
                self.inner.bias.data.add_(x.mean(0))
            if self.how == "frozen drift":
                self.mean.lerp_(x.mean(0), 0.1)
        if self.how == "replace":
            self.inner.bias = nn.Parameter(self.inner.bias.detach() * 0.9)
        return self.inner(x - self.mean)


def case_forward_passes_that_write_parameters(_: zenps.Job) -> None:
    """What all ranks write alike is right; what makes them differ is refused, on every rank."""
    wanted = {
        "drift": "inner.bias is no longer the same",
        "drift data": "inner.bias is no longer the same",
        "frozen drift": "mean is no longer the same",
        "replace": "inner.bias was replaced",
    }
    for how in ("clip", "clip data", "spectral", "weight", *wanted):
        model = Writing(how)
        sync = sync_of(model)
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1)

        def step(number: int) -> None:
            optimizer.zero_grad(set_to_none=True)
            model(inputs(number)).pow(2).sum().backward()
            optimizer.step()

        if how in wanted:
            refused(lambda: step(0), wanted[how])
        else:
            for number in range(5):
                step(number)
            same_everywhere(*[each for each in model.parameters()], *[each for each in model.buffers()])
        sync.close()
    model = Writing("frozen drift")
    sync = sync_of(model, broadcast=False)  # they may differ
    model(inputs(0)).sum().backward()
    sync.close()


class Task(nn.Module):
    """A head on an encoder that other tasks share."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(16, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(ids)).sum()


def case_parameters_of_two_syncs(_: zenps.Job) -> None:
    """One gradient is summed once: a second GradientSync is refused, and one of both models trains as gloo's two do."""
    torch.manual_seed(5)
    encoder = nn.Embedding(5000, 16)
    tasks = nn.ModuleList([Task(encoder), Task(encoder)])
    pairs = [tasks, copy.deepcopy(tasks)]
    first = sync_of(tasks[0])
    words = f"GradientSync {first.name} sums parameter encoder.weight already, as its encoder.weight", "ModuleList"
    refused(lambda: sync_of(tasks[1]), *words)
    refused(lambda: sync_of(tasks[0]), *words)
    refused(lambda: zt.ddp(DistributedDataParallel(copy.copy(tasks[1])), job), *words)
    first.close()
    sync = sync_of(tasks)
    theirs = [DistributedDataParallel(each) for each in pairs[1]]
    optimizers = [torch.optim.SGD(pair.parameters(), 0.1) for pair in pairs]
    for step in range(3):
        ids = torch.arange(100) * (RANK + 1) + step
        for (a, b), optimizer in zip((tasks, theirs), optimizers):
            optimizer.zero_grad()
            (a(ids) + b(ids)).backward()
            optimizer.step()
    for own, wanted in zip(tasks.parameters(), pairs[1].parameters()):
        assert_bits(own, wanted)
    sync.close()
    refused(lambda: sync_of(theirs[0]), "a DistributedDataParallel, which sums gradients itself", "zt.ddp(model)")
    refused(lambda: zt.GradientSync(torch.optim.SGD(tasks.parameters(), 0.1), job), "a SGD; a torch.nn.Module")


def case_other_defaults(_: zenps.Job) -> None:
    """zenps's own tensors are of no program's default dtype, nor on its default device."""
    has_device = hasattr(torch, "set_default_device")  # torch 2.0
    for dtype, device in ((torch.float64, "cpu"), (torch.bfloat16, "cpu"), *([(torch.float32, "meta")] if has_device else [])):
        torch.set_default_dtype(dtype)
        if has_device:
            torch.set_default_device(device)
        try:
            _train_on_the_cpu()
        finally:
            torch.set_default_dtype(torch.float32)
            if has_device:
                torch.set_default_device(None)


class OnTheCpu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sparse, self.dense = (nn.Embedding(5000, 8, sparse=sparse, device="cpu") for sparse in (True, False))
        self.norm, self.out = nn.BatchNorm1d(16, device="cpu"), nn.Linear(16, 1, device="cpu")

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(torch.cat([self.sparse(ids), self.dense(ids)], 1))).sum()


def _train_on_the_cpu() -> None:
    ids = torch.arange(5 + RANK, device="cpu")
    for compress in (None, zt.TopK(0.5, min_numel=4, lr=1.0), zt.OkTopk(0.5, min_numel=4, lr=1.0)):
        model = OnTheCpu()
        theirs = None if model.out.weight.dtype == torch.bfloat16 else copy.deepcopy(model)
        sync = sync_of(model, compress=compress, broadcast=theirs is None)
        if theirs is not None:  # gloo of torch 1.13 has no bfloat16
            zt.broadcast_parameters(model, job=job)
            theirs.load_state_dict(model.state_dict())
        for _ in range(2):
            model.zero_grad()
            model(ids).backward()
        same_everywhere(*(each.grad.to_dense() for each in model.parameters()))
        if theirs is not None and compress is None:
            wrapped = DistributedDataParallel(theirs)
            state = zt.ddp(wrapped, job, name=f"defaults.{sync.name}")
            wrapped(ids).backward()
            assert_bits(model.out.bias.grad, theirs.out.bias.grad)
            state.close()
        sync.close()
    for value in (torch.ones(70, device="cpu"), torch.ones(3, 2, device="cpu").to_sparse(), torch.ones(3, 2, device="cpu").to_sparse(1)):
        zt.all_reduce(value, job=job)
        assert value.to_dense().eq(2).all() and value.device.type == "cpu"
    largest = torch.tensor([float(RANK), -1.0], device="cpu")
    zt.all_reduce(largest, "max", job=job)
    assert largest.tolist() == [1.0, -1.0]
    got = zt.broadcast_object({"a": torch.ones(2, dtype=torch.float32, device="cpu")} if RANK == 0 else None, job=job)["a"]
    assert got.dtype == torch.float32 and got.device.type == "cpu" and got.eq(1).all()
    rows = torch.eye(3, dtype=torch.float32, device="cpu").to_sparse()
    zt.broadcast_parameters({"rows": rows if RANK == 0 else rows * 0}, job=job)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2, device="cpu"))], 0.1 + RANK)
    zt.broadcast_optimizer_state(optimizer, job=job)
    assert optimizer.param_groups[0]["lr"] == 0.1


def case_names_of_parameters(_: zenps.Job) -> None:
    """A parameter may have any name: zenps's own tensors have others."""
    for name, path in (("control", "control"), ("dense", "dense.0"), ("early", "early.0")):
        module = nn.Module()
        table = nn.Parameter(torch.ones(64, 64))
        setattr(module, name, nn.ParameterList([table]) if "." in path else table)
        module.out, module.norm = nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64)
        sync = sync_of(module, tables=[path])
        module.norm(module.out(nn.functional.embedding(torch.arange(4) + RANK, table))).sum().backward()
        same_everywhere(*grads(module))
        sync.close()
    dotted = zt.horovod._Parameters([(".control", nn.Parameter(torch.ones(3)))])
    refused(lambda: sync_of(dotted), "'.control'", "begin with a dot")
    refused(lambda: zt.HookState(job, net(), name=sync_of(net(), broadcast=False).name), "has the name")
