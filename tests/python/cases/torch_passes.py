"""GradientSync on two ranks in training loops of all kinds: several passes a step, unused branches, odd names."""

from __future__ import annotations

import copy
import logging
import unittest
from typing import Any, Callable, List

import torch
import torch.distributed as dist

import zenps
import zenps.torch as zt
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_sync import RANK, ROUND_TIMEOUT, WORLD, assert_bits, job, near, same_everywhere
from torch_sync import sync_of as sync_over
from zenps.torch.autograd import GradientHook
from zenps.torch.watch import Sent, contents

assert ROUND_TIMEOUT  # runner.py reads it here
DENSE = "zenps"  # what sums dense gradients; torch_dense runs the cases with another
if not dist.is_initialized():
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)


def sync_of(module: nn.Module, **arguments: Any) -> zt.GradientSync:
    return sync_over(module, dense=DENSE, **arguments)


class Lines(logging.Handler):
    """What the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: List[str] = []
        logging.getLogger("zenps").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def of(self, text: str) -> List[str]:
        return [line for line in self.lines if text in line]


def refused(call: Callable[[], Any], *texts: str) -> None:
    """On every rank, and with the same sentence."""
    try:
        call()
        said = "nothing"
    except (zenps.Invalid, zenps.Unsupported) as error:
        said = str(error)
    for text in texts:
        assert text in said, said
    assert len(set(job.gather(said.encode()))) == 1, said


def inputs(step: int, rank: int = RANK, n: int = 4) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(100 * step + rank))


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))


def grads(model: nn.Module) -> List[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


def case_tables_with_dense_gradients_and_an_empty_sum(_: zenps.Job) -> None:
    table = nn.Embedding(5000, 16)
    sync = sync_of(table)
    with sync.join():
        for _ in range(1 + RANK):
            table.zero_grad()
            table(torch.tensor([1, 2])).sum().backward()
            assert table.weight.grad[1].tolist() == [1.0] * 16
    sync.close()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(5000, 16, padding_idx=0), nn.Linear(16, 1)

        def forward(self, ids: Any, x: torch.Tensor) -> torch.Tensor:
            return self.out(x if ids is None else self.table(ids)).sum()

    model = Model()
    sync = sync_of(model)
    model(torch.tensor([0, 0]) if RANK else None, torch.ones(2, 16)).backward()
    assert model.table.weight.grad is not None and not model.table.weight.grad.any()
    sync.close()


def case_gradients_zeroed_by_hand(_: zenps.Job) -> None:
    """`.data` changes no version of a tensor."""
    for average in (True, False):
        log = Lines()
        model = nn.Linear(4, 1)
        sync = sync_of(model, average=average)
        for step in range(4):
            if step:
                for parameter in model.parameters():
                    parameter.grad.data.zero_()
            model(torch.full((2, 4), RANK + 1.0)).sum().backward()
            assert torch.equal(model.weight.grad, torch.full((1, 4), 3.0 if average else 6.0)), model.weight.grad
            for parameter in model.parameters():
                parameter.data -= 0.1 * parameter.grad.data
        assert not log.of("second time"), log.lines
        sync.close()


def case_two_passes_before_a_step(_: zenps.Job) -> None:
    """As a GAN does, and accumulation without no_sync(): the bits of DistributedDataParallel, and one line that says what
    it costs."""
    ours, theirs = net(), DistributedDataParallel(net())
    log = Lines()
    sync = sync_of(ours)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (ours, theirs)]
    for step in range(3):
        for model, optimizer in zip((ours, theirs), optimizers):
            optimizer.zero_grad()
            for part in range(3):
                model(inputs(3 * step + part)).sum().backward()
        for own, wanted in zip(ours.parameters(), theirs.parameters()):
            assert_bits(own.grad, wanted.grad)
        for optimizer in optimizers:
            optimizer.step()
    for own, wanted in zip(ours.parameters(), theirs.parameters()):
        assert_bits(own, wanted)
    assert len(log.of("summed a second time")) == 1, log.lines
    sync.close()


def case_two_losses_of_one_graph(_: zenps.Job) -> None:
    model = net()
    sync = sync_of(model)
    alone = copy.deepcopy(model)
    out = model(inputs(0))
    out.sum().backward(retain_graph=True)
    out.pow(2).sum().backward()
    for rank in range(WORLD):
        out = alone(inputs(0, rank))
        ((out.sum() + out.pow(2).sum()) / WORLD).backward()
    for own, wanted in zip(model.parameters(), alone.parameters()):
        near(own.grad, wanted.grad, 1e-5)
    same_everywhere(*grads(model))
    sync.close()


def case_the_flag_of_ddp(_: zenps.Job) -> None:
    model = net()
    sync = sync_of(model)
    alone = copy.deepcopy(model)
    for part in range(3):
        model.require_backward_grad_sync = part == 2
        model(inputs(part)).sum().backward()
        for rank in range(WORLD):
            (alone(inputs(part, rank)).sum() / WORLD).backward()
    assert sync.stats.steps == 1, sync.stats
    for own, wanted in zip(model.parameters(), alone.parameters()):
        near(own.grad, wanted.grad, 1e-5)
    sync.close()


def case_a_sum_that_is_summed_again(_: zenps.Job) -> None:
    """Refused where it is certain, and wrong; also when one rank alone knows."""
    for arguments in ({"average": False}, {"compress": zt.TopK(0.5, min_numel=8, start_iter=0)}):
        model = net()
        sync = sync_of(model, **arguments)
        model(inputs(0)).sum().backward()
        if RANK == 0:
            model.zero_grad(set_to_none=True)
        refused(lambda: model(inputs(1)).sum().backward(), "rank 1: gradient of", "already summed", "no_sync()")
        model.zero_grad(set_to_none=True)
        model(inputs(2)).sum().backward()
        with sync.no_sync():  # a pass in between changes nothing of it
            model(inputs(3)).sum().backward()
        refused(lambda: model(inputs(4)).sum().backward(), "rank 0, 1: gradient of", "already summed")
        model.zero_grad(set_to_none=False)
        with sync.no_sync():
            model(inputs(5)).sum().backward()
        model(inputs(6)).sum().backward()
        same_everywhere(*grads(model))
        sync.close()


def case_sums_of_one_rank(_: zenps.Job) -> None:
    """In a job of one rank a sum may be summed again: nothing is added to it."""
    model = net()
    sync = zt.GradientSync(model, job.group(f"alone{RANK}", [RANK]), average=False)
    alone = copy.deepcopy(model)
    for step in range(2):
        for each in (model, alone):
            each(inputs(step)).sum().backward()
    for own, wanted in zip(model.parameters(), alone.parameters()):
        near(own.grad, wanted.grad, 1e-6)
    sync.close()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.actor, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)
        self.table = nn.Embedding(50, 4)

    def forward(self, x: torch.Tensor, which: str) -> torch.Tensor:
        if which == "table":
            return self.table(x.argmax(1))
        return getattr(self, which)(x)


def case_gradients_of_unused_branches(_: zenps.Job) -> None:
    """The sum of an earlier pass is not summed again; what no_sync() has gathered is."""
    compressions = [{}, {"tables": ["table.weight"]}, {"compress": zt.TopK(0.5, min_numel=8, start_iter=0)}]
    for arguments in compressions:
        model = Branches()
        sync = sync_of(model, average=False, bucket_mb=1e-4, **arguments)
        model(inputs(0), "actor").sum().backward()
        model(inputs(0), "table").sum().backward()
        kept = [model.actor.weight.grad.clone(), model.table.weight.grad.clone()]
        for step in range(3):
            model.critic.zero_grad(set_to_none=True)
            model(inputs(step), "critic").sum().backward()
            assert_bits(model.actor.weight.grad, kept[0])
            assert_bits(model.table.weight.grad, kept[1])
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        kept = [model.actor.weight.grad.clone()]
        model.critic.zero_grad(set_to_none=True)
        model(inputs(3), "critic").sum().backward()
        assert_bits(model.actor.weight.grad, kept[0])
        same_everywhere(model.critic.weight.grad)
        if "compress" not in arguments:
            model.zero_grad(set_to_none=False)
            with sync.no_sync():
                model(inputs(4), "actor").sum().backward()
            model(inputs(5), "critic").sum().backward()
            wanted = sum(inputs(4, rank).sum(0) for rank in range(WORLD))
            near(model.actor.weight.grad, wanted.expand(4, 4), 1e-5)
        sync.close()


def case_optimisers_within_backward(_: zenps.Job) -> None:
    """torch's own recipe to save memory."""
    model = net()
    handles: List[GradientHook] = []

    def steps(parameter: torch.Tensor) -> Callable[[], None]:
        optimizer = torch.optim.SGD([parameter], 0.1)

        def step() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    for before in (True, False):
        if before:
            handles = [GradientHook(each, steps(each)) for each in model.parameters()]
        sync = sync_of(model)
        if not before:
            handles = [GradientHook(each, steps(each)) for each in model.parameters()]
        refused(lambda: model(inputs(0)).sum().backward(), "within backward()", "step when backward() has returned")
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)
        model(inputs(1)).sum().backward()
        same_everywhere(*grads(model))
        sync.close()


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise OverflowError("the user's own")


def case_failed_passes_of_inner_modules(_: zenps.Job) -> None:
    """Where nobody calls the module's own forward(), the next pass raises what the failed one left, and the one after that
    is right."""
    model = net()
    sync = sync_of(model)
    try:
        model[2](Broken.apply(model[0](inputs(0)))).sum().backward()
        raise AssertionError("no error")
    except (OverflowError, RuntimeError) as error:
        assert "user's own" in str(error), error
    refused(lambda: model[2](model[0](inputs(1))).sum().backward(), "the backward pass before this one failed")
    model.zero_grad(set_to_none=True)
    model[2](model[0](inputs(2))).sum().backward()
    same_everywhere(*grads(model))
    assert sync.stats.steps == 1, sync.stats
    sync.close()


def case_long_and_odd_names(_: zenps.Job) -> None:
    names = ["n" * 200, "n" * 199 + "m", "\u00e9" * 100, "a\tb", "a\nb", "@c"]
    model = nn.Module()
    for name in names:
        model.register_parameter(name, nn.Parameter(torch.zeros(5000, 4)))
    sync = sync_of(model, tables=names)
    sum((at + 1) * getattr(model, name)[at].sum() for at, name in enumerate(names)).backward()
    for at, name in enumerate(names):
        assert getattr(model, name).grad[at].tolist() == [at + 1.0] * 4, name
    sync.close()
    zt.GradientSync(net(), job, name="\t" + "long " * 50).close()


def case_a_sparse_gradient_in_a_bucket(_: zenps.Job) -> None:
    log = Lines()
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(50, 4))
    sync = sync_of(model)
    for _ in range(2):
        model.w.grad = None
        nn.functional.embedding(torch.tensor([RANK]), model.w, sparse=True).sum().backward()
        assert model.w.grad.is_sparse and model.w.grad.to_dense()[:3].tolist() == [[0.5] * 4, [0.5] * 4, [0.0] * 4]
    assert len(log.of('tables=["auto", "w"]')) == 1, log.lines
    sync.close()


def _clip(model: nn.Module) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def _replace(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.grad * 0.5


def _scale_one(model: nn.Module) -> None:
    if RANK == 1:
        next(model.parameters()).grad.mul_(0.5)


def case_gradients_changed_in_flight(_: zenps.Job) -> None:
    """The bits of gloo, or an error on every rank that names the parameter: with wait="step", and in hooks behind zenps's."""
    for average in (True, False):
        for change in (_clip, _replace, _scale_one):
            ours = nn.Sequential(nn.Embedding(5000, 4), nn.Linear(4, 5), nn.Linear(5, 1))
            sync = sync_of(ours, wait="step", average=average)
            optimizer = torch.optim.SGD(ours.parameters(), 0.1)
            sync.attach(optimizer)
            before = [parameter.detach().clone() for parameter in ours.parameters()]
            ours(torch.arange(50) + RANK).sum().backward()
            change(ours)
            refused(optimizer.step, "gradient of 0.weight", "in flight", "sync.wait()")
            for own, wanted in zip(ours.parameters(), before):
                assert_bits(own, wanted)
            optimizer.zero_grad()
            theirs = DistributedDataParallel(copy.deepcopy(ours))
            for model in (ours, theirs):
                model(torch.arange(50) + RANK).sum().backward()
            sync.wait()
            for own, wanted in zip(ours.parameters(), theirs.parameters()):
                near(own.grad, wanted.grad * (1 if average else WORLD))
            change(ours)
            optimizer.step()
            sync.close()
    model = net()
    sync = sync_of(model, wait="step")
    model(inputs(0)).sum().backward()
    with sync.no_sync():
        model(inputs(1)).sum().backward()
    refused(sync.wait, "gradient of 0.weight, 0.bias, 2.weight, 2.bias", "in flight", "sync.wait()")
    sync.close()
    if hasattr(torch.amp, "GradScaler"):  # of torch 2.3, for the CPU
        model = net()
        sync = sync_of(model, wait="step")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        sync.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(model(inputs(0)).sum()).backward()
        refused(lambda: scaler.step(optimizer), "gradient of 0.weight", "in flight", "sync.wait()")
        scaler.update()
        optimizer.zero_grad()
        scaler.scale(model(inputs(0)).sum()).backward()
        sync.wait()
        scaler.step(optimizer)
        same_everywhere(*model.parameters())
        sync.close()

    def halve(parameter: Any) -> Callable[[], None]:
        def change() -> None:
            parameter.grad.mul_(0.5)

        return change

    for compress in (None, zt.TopK(0.5, min_numel=4, lr=1.0)):
        model = net()
        sync = sync_of(model, compress=compress)
        hooks = [GradientHook(each, halve(each)) for each in model.parameters()]
        refused(lambda: model(inputs(0)).sum().backward(), "was changed while", "must be registered before")  # noqa: B023
        for hook in hooks:
            hook.remove()
        model.zero_grad(set_to_none=True)
        model(inputs(0)).sum().backward()
        sync.close()


def _flat_gradients(*models: nn.Module) -> torch.Tensor:
    """One buffer for the gradients of all models, which are views of it."""
    parameters = [each for model in models for each in model.parameters()]
    flat = torch.zeros(sum(each.numel() for each in parameters))
    at = 0
    for each in parameters:
        each.grad = flat[at : at + each.numel()].view_as(each)
        at += each.numel()
    return flat


def _wide(sparse: bool = False) -> nn.Module:
    """A table, parameters that are summed where they are, and others."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(5000, 64, sparse=sparse), nn.Linear(64, 64), nn.Linear(64, 1))


def _change_one(grad: torch.Tensor) -> None:
    grad.view(-1)[-1] += 1.0


def _change_unseen(grad: torch.Tensor) -> None:
    grad.data.view(-1)[-1] += 1.0


def _data(grad: torch.Tensor) -> torch.Tensor:
    return grad.data._values() if grad.is_sparse else grad.data


def _halve_unseen(grad: torch.Tensor) -> None:
    _data(grad).mul_(0.5)


def _negate_unseen(grad: torch.Tensor) -> None:
    _data(grad).mul_(-1.0)


def _clamp_unseen(grad: torch.Tensor) -> None:
    _data(grad).clamp_(-1e-3, 1e-3)


def _replace_unseen(grad: torch.Tensor) -> None:
    grad.data = grad.data * 0.5


def _replace_twice_unseen(grad: torch.Tensor) -> None:
    """The second replacement may get the memory that the first one freed."""
    _replace_unseen(grad)
    _replace_unseen(grad)


def case_gradients_that_share_a_buffer(_: zenps.Job) -> None:
    """torch counts the writes to all of them in one version. A write to one gradient is no change of its neighbours."""
    rows = torch.arange(50) + RANK
    ours, other = _wide(), net()
    theirs = DistributedDataParallel(copy.deepcopy(ours))
    flat = _flat_gradients(ours, other)
    first = sync_of(ours, wait="step", bucket_mb=0.001)
    second = sync_of(other, wait="step")
    for _step in range(2):
        flat.zero_()
        theirs.zero_grad()
        ours(rows).sum().backward()
        other(inputs(0)).sum().backward()
        second.wait()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 1e-3)
        first.wait()
        theirs(rows).sum().backward()
        for own, wanted in zip(ours.parameters(), theirs.parameters()):
            assert flat.data_ptr() <= own.grad.data_ptr() < flat.data_ptr() + 4 * flat.numel()
            assert_bits(own.grad, wanted.grad)
    for change in (_change_one, _change_unseen, _halve_unseen, _negate_unseen):
        for name, parameter in ours.named_parameters():
            flat.zero_()
            ours(rows).sum().backward()
            if RANK == 1:
                change(parameter.grad)
            refused(first.wait, f"gradient of {name} was changed", "in flight")
    first.close()
    second.close()
    model = net()
    flat = _flat_gradients(model)
    sync = sync_of(model, average=False)
    model(inputs(0)).sum().backward()
    refused(lambda: model(inputs(1)).sum().backward(), "was already summed")
    flat.zero_()
    model(inputs(1)).sum().backward()
    sync.close()


def case_gradients_changed_through_data(_: zenps.Job) -> None:
    """`.grad.data` has a version of its own. Steps 1, 2, 4 and so on notice each write, every step a write to all gradients,
    and each replaced one."""
    for sparse in (False, True):
        model = _wide(sparse)
        sync = sync_of(model, wait="step")
        parameters = dict(model.named_parameters())

        def wrong(names: List[str], change: Callable[[torch.Tensor], None], said: str) -> None:
            model.zero_grad()
            model(torch.arange(50)).sum().backward()
            for name in names if RANK == 1 else []:
                change(parameters[name].grad)
            refused(sync.wait, f"{said} was changed", "in flight")  # noqa: B023

        for step in range(1, 5):
            model.zero_grad()
            if step != 3:
                for name in parameters:
                    wrong([name], _halve_unseen, f"gradient of {name}")
                wrong(list(parameters), _clamp_unseen, "gradient of 0.weight, 1.weight, 1.bias, 2.weight, 1 more")
            else:
                wrong(list(parameters), _halve_unseen, "")
            for replace in (_replace_unseen, _replace_twice_unseen):
                for name in parameters:
                    wrong([name], replace, f"gradient of {name}")
            model.zero_grad()
            model(torch.arange(50) + RANK).sum().backward()
            sync.wait()
            same_everywhere(*(each.grad.to_dense() for each in parameters.values()))
        sync.close()


def case_checksums_of_gradients(_: zenps.Job) -> None:
    """They differ after each change of scale and of signs, of gradients of whole rows of the checksum and of others."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        for shape in ((1024, 1024), (512, 1024), (2048,), (256, 256), (62, 1024), (1000, 1000), (3,)):
            half = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
            for grad in (half, torch.cat([half, -half]), torch.ones(shape, dtype=dtype)):
                before = contents(grad)
                assert torch.equal(contents(grad.clone()), before)
                for factor in (0.5, 0.25, 0.3, 2.0**-7, 2.0**-16, -1.0):
                    assert not torch.equal(contents(grad * factor), before), (dtype, shape, factor)
                for at in (0, -1):
                    changed = grad.clone()
                    changed.view(-1)[at] *= -1.0
                    assert not torch.equal(contents(changed), before), (dtype, shape, at)
    strided = torch.zeros(1 << 17, dtype=torch.float64)[::2]
    assert torch.equal(contents(strided), contents(strided.clone()))
    assert not contents(torch.zeros(0)).any()


def case_replaced_gradients_in_used_memory(_: zenps.Job) -> None:
    """A second replacement does not get the memory that was sent."""
    for _attempt in range(8):
        grad = torch.randn(100_000)
        sent = Sent(grad, False)
        _replace_twice_unseen(grad)
        assert sent.is_changed(grad)


def case_hooks_that_change_gradients_through_data(_: zenps.Job) -> None:
    """Behind GradientSync's, also of gradients that are summed where they are."""
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise unittest.SkipTest(f"torch {torch.__version__} has no such hooks; 2.1 is wanted")
    model = _wide()
    sync = sync_of(model, bucket_mb=1e-6)  # each parameter alone: its sum starts ahead of the hook
    for name, parameter in model.named_parameters():
        handle = parameter.register_post_accumulate_grad_hook(lambda each: _halve_unseen(each.grad) if RANK else None)
        said = f"gradient of {name} was changed"
        refused(lambda: model(torch.arange(50)).sum().backward(), said, "must be registered before")
        handle.remove()
        model.zero_grad()
    sync.close()


def case_a_step_without_sums(_: zenps.Job) -> None:
    """An attached optimiser does not step with the gradients of one rank."""
    model = net()
    sync = sync_of(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sync.attach(optimizer)
    with sync.no_sync():
        model(inputs(0)).sum().backward()
    refused(optimizer.step, "within no_sync() alone: gradients of 0.weight")
    optimizer.zero_grad()
    optimizer.step()  # of gradients that were dropped
    with sync.no_sync():
        model(inputs(0)).sum().backward()
    model(inputs(1)).sum().backward()
    optimizer.step()
    same_everywhere(*model.parameters())
    sync.close()


def case_arguments_that_are_wrong(_: zenps.Job) -> None:
    """Each gets the sentence that says what would be right; of use on no tensor, a line in the log."""
    model = net()
    refused(lambda: sync_of(model, scheme="rong"), "there is no scheme 'rong'")
    refused(lambda: sync_of(nn.Embedding(5000, 4), dense_scheme="rong"), "there is no scheme 'rong'")
    log = Lines()
    sync = sync_of(model, scheme="sparse-ps")
    assert len(log.of("scheme= is of tables")) == 1, log.lines
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    refused(lambda: sync.attach([optimizer]), "attach: a list; optimisers are wanted", "attach(first, second)")  # type: ignore
    refused(lambda: zt.GradientSync(net(), optimizer), "job: a SGD; a zenps.Job")  # type: ignore
    refused(lambda: zt.GradientSync(model.parameters(), job), "a generator; a torch.nn.Module")  # type: ignore
    sync.close()


def case_a_rank_that_gives_a_step_up(_: zenps.Job) -> None:
    """After backward() and before the wait: nobody waits for it, and training goes on."""
    model = net()
    sync = sync_of(model, wait="step")
    model(inputs(0)).sum().backward()
    if RANK:
        sync.drop()
    else:
        try:
            sync.wait()  # the sum may have been there
        except zenps.Canceled as error:
            assert "rank 1" in str(error), error
    model(inputs(1)).sum().backward()
    sync.wait()
    same_everywhere(*grads(model))
    sync.close()
