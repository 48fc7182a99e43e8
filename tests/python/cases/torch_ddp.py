"""The communication hook of DistributedDataParallel, against gloo, on two ranks."""

from __future__ import annotations

import copy
import threading
from typing import Any, List, Sequence

import torch
import torch.distributed as dist
from torch_sync import RANK, ROUND_TIMEOUT, WORLD, Net, assert_bits, job, loss_of, near, same_everywhere

import zenps
import zenps.torch as zt
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

DENSE = "zenps"  # what sums dense gradients; torch_dense runs the cases with another
if not dist.is_initialized():
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)


def ddp(model: Any, *arguments: Any, **named: Any) -> zt.HookState:
    return zt.ddp(model, *arguments, **_named(named))


def hook_state(*arguments: Any, **named: Any) -> zt.HookState:
    return zt.HookState(job, *arguments, **_named(named))


def _named(named: Any) -> Any:
    """A name is used once with each DENSE."""
    if "name" in named:
        named["name"] += f".{DENSE}"
    return dict({"dense": DENSE}, **named)


def raises(kind: Any, call: Any, *words: str) -> None:
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error!r}"
        return
    raise AssertionError(f"no {kind.__name__}")


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
        state = ddp(ours, job, name=f"bits.{sparse}.{len(arguments)}")
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
        ddp(wrapped, job, name=f"three.{sparse}")
        sync = zt.GradientSync(models[1], job, dense=DENSE, name=f"three.sync.{sparse}")
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
    ddp(ours, job, name="accumulation")
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
    ddp(ours, job, name="join")
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
    ddp(ours, job, name="unused")
    for model in (gloo, ours):
        model(torch.ones(2, 3)).sum().backward()
    for wanted, own in zip(gloo.parameters(), ours.parameters()):
        assert_bits(own.grad, wanted.grad)


def case_all_reduce_of_many_lengths(_: zenps.Job) -> None:
    """Lengths that users choose share few tensors: a job may have 4,096 of them."""
    before = len(job._tensors)
    for n in [*range(1, 300), *range(1000, 100000, 997)]:
        values = torch.arange(1.0, n + 1) * (RANK + 1)
        zt.all_reduce(values, job=job)
        assert_bits(values, torch.arange(1.0, n + 1) * 3)
        least = -torch.arange(1.0, n + 1).view(1, -1).t() * (RANK + 1)
        zt.all_reduce(least, "max", job=job)  # padding is no value of the result
        assert_bits(least, -torch.arange(1.0, n + 1).view(-1, 1))
    assert len(job._tensors) - before < 200, len(job._tensors) - before
    before = len(job._tensors)
    for n in range(20, 60):
        rows = torch.sparse_coo_tensor(torch.tensor([[n - 1, RANK]]), torch.full((2, n), 2.0), (n, n))
        zt.all_reduce(rows, job=job)
        assert rows.is_coalesced() and rows._indices()[0].tolist() == [0, 1, n - 1] and rows.shape == (n, n)
        assert torch.equal(rows.to_dense()[n - 1], torch.full((n,), 4.0)) and float(rows.to_dense().sum()) == 8.0 * n
    assert len(job._tensors) - before < 20, len(job._tensors) - before
    try:
        zt.all_reduce(torch.eye(3).to_sparse_csr(), job=job)
        raise AssertionError("no error")
    except zenps.Unsupported as error:
        assert "layout torch.sparse_csr" in str(error)


def case_without_a_module(_: zenps.Job) -> None:
    """As Lightning registers the pair."""
    gloo, ours = pair(True)
    ours.register_comm_hook(hook_state(name="bare"), zt.hook)
    for model in (gloo, ours):
        model(ids_of(0, RANK)).pow(2).mean().backward()
    for wanted, own in zip(gloo.parameters(), ours.parameters()):
        assert_bits(own.grad.to_dense() + 0.0, wanted.grad.to_dense() + 0.0)
    try:
        ddp(nn.Linear(2, 2), job)
        raise AssertionError("a Linear is no DDP")
    except zenps.Invalid as error:
        assert "DistributedDataParallel" in str(error)


def case_failed_passes(_: zenps.Job) -> None:
    """A hook that fails, and a pass that fails in the user's code: the next pass is whole."""
    gloo, ours = pair(False)
    state = ddp(ours, job, name="failed")
    for model in (gloo, ours):
        model(ids_of(0, RANK)).pow(2).mean().backward()
        model.zero_grad(set_to_none=True)
    real = state._start_dense

    def broken(made: Any) -> None:
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
    state = ddp(wrapped, job, name="compressed", compress=compress)
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
        hook_state(compress=compress)
        raise AssertionError("no module")
    except zenps.Invalid as error:
        assert "module" in str(error)


def same_steps(gloo: nn.Module, ours: nn.Module, steps: int, input_of: Any) -> None:
    """Both give the same gradients in each of the steps."""
    for step in range(steps):
        for model in (gloo, ours):
            model.zero_grad(set_to_none=True)
            model(input_of(step)).pow(2).mean().backward()
        for wanted, own in zip(gloo.parameters(), ours.parameters()):
            assert (wanted.grad is None) == (own.grad is None)
            if wanted.grad is not None:
                assert_bits(own.grad.to_dense() + 0.0, wanted.grad.to_dense() + 0.0)
        with torch.no_grad():
            for each in (*gloo.parameters(), *ours.parameters()):
                each -= 0.01 * each.grad if each.grad is not None and not each.grad.is_sparse else 0.0


def case_static_graph(_: zenps.Job) -> None:
    """In its first pass DDP calls the hook from a callback of its own, and waits there."""
    for sparse, cap in ((False, 25), (True, 25), (False, 0.01)):
        gloo, ours = pair(sparse, static_graph=True, bucket_cap_mb=cap)
        state = ddp(ours, job)
        same_steps(gloo, ours, 4, lambda step: ids_of(step, RANK))
        assert state.stats.steps == 4
    gloo, ours = pair(False)
    ours.register_comm_hook(hook_state(name="static.bare"), zt.hook)
    for each in (gloo, ours):
        each._set_static_graph()  # after the hook
    same_steps(gloo, ours, 3, lambda step: ids_of(step, RANK))


class Checkpointed(nn.Module):
    """Its last bucket is made in a backward pass within the backward pass, whose end comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(60, 60) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.second, checkpoint(self.first, x, use_reentrant=True), use_reentrant=True)
        return self.third(x)


def case_checkpoints(_: zenps.Job) -> None:
    for arguments in ({}, {"static_graph": True}, {"bucket_cap_mb": 0.01}, {"bucket_cap_mb": 0.01, "static_graph": True}):
        torch.manual_seed(14)
        module = Checkpointed()
        gloo = DistributedDataParallel(copy.deepcopy(module), **arguments)
        ours = DistributedDataParallel(module, **arguments)
        state = ddp(ours, job)
        same_steps(gloo, ours, 4, lambda step: torch.full((3, 60), 1.0 + step + RANK, requires_grad=True))
        assert state.stats.steps == 4


class Bucket:
    """What DDP gives its hook, of parameters end to end."""

    def __init__(self, buffer: torch.Tensor, *parameters: nn.Parameter) -> None:
        self._buffer, self._parameters = buffer, parameters

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> List[nn.Parameter]:
        return list(self._parameters)

    def gradients(self) -> List[torch.Tensor]:
        """As torch has them: of a real buffer with complex parameters, too short and in the wrong place."""
        parts, at = [], 0
        for each in self._parameters:
            parts.append(self._buffer.view(-1)[at : at + each.numel()].view(each.shape))
            at += each.numel()
        return parts


def case_complex_bucket(_: zenps.Job) -> None:
    """The whole bucket is summed, or an error says why not."""
    state = hook_state(name="complex.bucket")
    for dtype, real in ((torch.complex64, torch.float32), (torch.complex128, torch.float64)):
        parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((3,), (0,), (), (4500, 2))]
        own = torch.arange(9004, dtype=real) + 0.5
        wanted = torch.view_as_complex(torch.stack([own, -own], -1) * (sum(range(1, WORLD + 1)) / WORLD))
        for as_real in (True, False):
            buffer = torch.view_as_complex(torch.stack([own, -own], -1) * (RANK + 1.0))
            future = zt.hook(state, Bucket(torch.view_as_real(buffer) if as_real else buffer, *parameters))
            assert future.wait().dtype == (real if as_real else dtype)
            assert_bits(torch.view_as_real(buffer), torch.view_as_real(wanted))
    wrong = Bucket(torch.ones(7), nn.Parameter(torch.zeros(5)))
    raises(zenps.Unsupported, lambda: zt.hook(state, wrong), "7 values", "parameters have 5")
    gradient = torch.ones(2)  # with its parameter, as torch.compile's reducer in Python calls hooks
    raises(zenps.Unsupported, lambda: zt.hook(state, (gradient, nn.Parameter(gradient))), "python_reducer", "optimize_ddp")


class Odd(nn.Module):
    """Parameters of many kinds."""

    def __init__(self, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.empty = nn.Parameter(torch.zeros(0))
        self.scalar = nn.Parameter(torch.ones(()))
        self.odd = nn.ParameterList([nn.Parameter(torch.linspace(1, 2, 70).to(dtype)) for dtype in dtypes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x.contiguous(memory_format=torch.channels_last)).sum() * self.scalar + self.empty.sum()
        for each in self.odd:
            product = each * (RANK + 1.5)
            y = y + (product.real * 3 + product.imag).sum() if each.is_complex() else y + product.float().sum()
        return y


def case_kinds_of_parameters(_: zenps.Job) -> None:
    dtypes = [torch.float64, torch.float16]
    if torch.__version__ > "2":  # gloo of 1.13 lacks these
        dtypes += [torch.bfloat16, torch.complex64, torch.complex128]
    for arguments in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}, {"static_graph": True}):
        module = Odd(dtypes)
        gloo = DistributedDataParallel(copy.deepcopy(module), **arguments)
        ours = DistributedDataParallel(module, **arguments)
        ddp(ours, job)
        for step in range(3):
            for model in (gloo, ours):
                model.zero_grad(set_to_none=True)
                model(torch.full((2, 3, 5, 5), 1.0 + step + RANK)).backward()
            for wanted, own in zip(gloo.parameters(), ours.parameters()):
                assert own.grad.stride() == wanted.grad.stride()
                assert_bits(*(torch.view_as_real(each.grad) if each.is_complex() else each.grad for each in (own, wanted)))


def case_two_models(_: zenps.Job) -> None:
    """Each has a state and a name of its own, the same on all ranks."""
    torch.manual_seed(15)
    modules = [nn.Linear(6, 4) for _ in range(2)]
    gloos = [DistributedDataParallel(copy.deepcopy(each)) for each in modules]
    ours = [DistributedDataParallel(each) for each in modules]
    states = [ddp(each, job) for each in ours]
    assert states[0].name != states[1].name and all(each.name.startswith("ddp") for each in states)
    assert job.gather(states[1].name.encode()) == [states[1].name.encode()] * WORLD
    x = torch.full((2, 6), RANK + 1.0)
    for first, second in (gloos, ours):
        for _ in range(2):
            (first(x).sum() * 2 + second(x).pow(2).sum()).backward()
    for wanted, own in zip(gloos, ours):
        for a, b in zip(wanted.parameters(), own.parameters()):
            assert_bits(b.grad, a.grad)
    assert set(states[0].tensors).isdisjoint(states[1].tensors)
    raises(zenps.Invalid, lambda: ddp(ours[0], job), states[0].name, "one hook")
    other = DistributedDataParallel(nn.Linear(6, 4))
    raises(zenps.Invalid, lambda: zt.ddp(other, job, name=states[0].name), states[0].name, "another (name=)")
    state = ddp(other, job, name="two.named")
    state.close()
    hook_state(name="two.named").close()
    shared = hook_state(name="two.shared")
    both = [DistributedDataParallel(nn.Linear(6, 4)) for _ in range(2)]
    for each in both:
        each.register_comm_hook(shared, zt.hook)
    raises(zenps.Invalid, lambda: sum(each(x).sum() for each in both).backward(), "two.shared", "of its own")
    of_module = hook_state(both[0].module, name="two.of_module")
    other = DistributedDataParallel(nn.Linear(6, 4))
    other.register_comm_hook(of_module, zt.hook)
    raises(zenps.Invalid, lambda: other(x).sum().backward(), "none of its module's")


def case_changed_parameters(_: zenps.Job) -> None:
    """What DDP would not synchronise is refused on every rank, by the next pass."""
    x = torch.ones(2, 6)

    def made(**arguments: Any) -> Any:
        module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 2))
        module[1].requires_grad_(False)
        wrapped = DistributedDataParallel(module, **arguments)
        ddp(wrapped, job)
        wrapped(x).sum().backward()
        return wrapped

    def refused(wrapped: Any, *words: str) -> None:
        raises(zenps.Invalid, lambda: wrapped(x.to(next(wrapped.parameters()).dtype)).sum().backward(), *words)

    wrapped = made()
    wrapped.module[1].requires_grad_(True)
    refused(wrapped, "parameter 1.weight", "frozen", "wrap the model anew")
    wrapped.module[1].requires_grad_(False)
    wrapped(x).sum().backward()  # it goes on
    wrapped.module[2] = nn.Linear(4, 3)
    refused(wrapped, "parameter 2.weight", "was not there")
    wrapped = made()
    wrapped.module.double()
    refused(wrapped, "parameter 0.weight", "float32", "float64")
    wrapped = made()
    with torch.no_grad():  # an evaluation
        wrapped.module[1].requires_grad_(True)
        wrapped(x)
    wrapped = made(find_unused_parameters=True)
    wrapped.module[0].requires_grad_(False)  # DDP itself can do that
    wrapped(x).sum().backward()


def case_passes_of_all_kinds(_: zenps.Job) -> None:
    """Gradients that are asked for, second derivatives, a pass in another thread: as gloo has them."""
    torch.manual_seed(16)
    gloo = DistributedDataParallel(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)))
    ours = DistributedDataParallel(copy.deepcopy(gloo.module))
    ddp(ours, job)
    x = torch.full((3, 5), RANK + 0.5, requires_grad=True)
    for model in (gloo, ours):
        model(x).sum()  # no backward pass
        with model.no_sync():
            torch.autograd.grad(model(x).sum(), x)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (model(x).sum() + slope.pow(2).sum()).backward()
        loss = model(x).pow(2).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    for wanted, own in zip(gloo.parameters(), ours.parameters()):
        assert_bits(own.grad, wanted.grad)
