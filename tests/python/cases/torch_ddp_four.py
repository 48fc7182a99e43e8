"""Broadcasts of parameters and buffers, and the communication hook, on four ranks."""

from __future__ import annotations

import copy
import importlib
import os
import time
from typing import Any, List, Tuple

import numpy as np
import torch
import torch.distributed as dist
from torch_ddp import ids_of, pair, raises
from torch_sync import RANK, ROUND_TIMEOUT, WORLD, job, same_everywhere

import zenps
import zenps.torch as zt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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


def case_patience_with_coordinators(_: zenps.Job) -> None:
    """Ranks are waited for longer than a coordinator of this host, and by a profile as long as that says."""
    jobs = importlib.import_module("zenps.torch.jobs")
    real, asked = jobs.core_init, []

    def refuse(*_: object, **named: object) -> None:
        asked.append((named.get("join_timeout"), named.get("refused_timeout"), named.get("round_timeout")))
        raise zenps.ConnectFailed("on purpose")

    jobs.core_init = refuse
    variables = ("ZENPS_JOIN_TIMEOUT", "ZENPS_ROUND_TIMEOUT", "ZENPS_PROFILE")
    former = {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        for named in ({}, {"join_timeout": 40}, {"refused_timeout": 5}):
            raises(zenps.ConnectFailed, lambda: zt.init(**named), "on purpose")
        for profile in ("none", "internet"):
            os.environ["ZENPS_PROFILE"] = profile
            raises(zenps.ConnectFailed, zt.init, "on purpose")
    finally:
        jobs.core_init = real
        os.environ.pop("ZENPS_PROFILE", None)
        os.environ.update(former)
    assert asked[:3] == [(300.0, 30.0, 1800.0), (40, None, 1800.0), (300.0, 5, 1800.0)], asked
    assert asked[3:] == [(300.0, 30.0, 1800.0), (None, 30.0, 1800.0)], asked


class Buffers(nn.Module):
    """With values that each rank has of its own."""

    def __init__(self, **buffers: torch.Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        for name, value in buffers.items():
            self.register_buffer(name, value)


def case_unequal_parameters(_: zenps.Job) -> None:
    """Every rank hears of the first difference, and nothing is written."""
    odd = RANK == 2
    models = [
        (nn.ModuleDict({"e": nn.Embedding(5000 + odd, 4), "o": nn.Linear(4, 2)}), ("e.weight", "[5000, 4]", "rank 2", "[5001, 4]")),
        (Buffers(seen=torch.zeros(10 + odd), mean=torch.arange(10.0)), ("seen float32 [10]", "rank 2", "seen float32 [11]")),
        (Buffers(mean=torch.ones(2), **({"more": torch.ones(1)} if RANK == 0 else {})), ("rank 0 has more float32 [1]", "rank 1")),
        (Buffers(mean=torch.ones(2, dtype=torch.float64 if odd else torch.float32)), ("float32 [2]", "float64 [2]")),
        (Buffers(**{"b" if odd else "a": torch.ones(2)}), ("a float32 [2]", "b float32 [2]")),
        (Buffers(mean=torch.ones(3 + odd, 0)), ("[3, 0]", "[4, 0]")),
        (Buffers(mean=torch.eye(2).to_sparse() if odd else torch.eye(2)), ("float32 [2, 2],", "sparse_coo")),
        (Buffers(mean=torch.empty(2, device="meta") if odd else torch.ones(2)), ("mean float32 [2]", "on meta")),
    ]
    for number, (model, words) in enumerate(models):
        before = copy.deepcopy(model.state_dict())
        raises(zenps.ShapeMismatch, lambda: zt.broadcast_parameters(model, job=job), *words)
        raises(zenps.ShapeMismatch, lambda: zt.broadcast_parameters(model.state_dict(), job=job), *words)
        if number:  # of parameters GradientSync says so itself
            raises(zenps.ShapeMismatch, lambda: zt.GradientSync(model, job, name=f"unequal.{number}"), "rank 0 has ")
        for name, value in model.state_dict().items():
            assert value.is_meta or torch.equal(value.to_dense(), before[name].to_dense())
    model = nn.Linear(2, 2)
    raises(zenps.ShapeMismatch, lambda: zt.broadcast_parameters(model, root=1 if odd else 0, job=job), "root 0", "root 1")
    optimizer = torch.optim.SGD(nn.Linear(2 + odd, 2).parameters(), lr=0.1)
    raises(zenps.ShapeMismatch, lambda: zt.broadcast_optimizer_state(optimizer, job=job), "[2, 2]", "[2, 3]")
    optimizer = (torch.optim.Adam if odd else torch.optim.SGD)(model.parameters(), lr=0.1)
    raises(zenps.ShapeMismatch, lambda: zt.broadcast_optimizer_state(optimizer, job=job), "SGD", "Adam")
    meta = Buffers(mean=torch.empty(2, device="meta"))
    raises(zenps.Unsupported, lambda: zt.broadcast_parameters(meta, job=job), "mean is on meta", "broadcast=False")


def case_buffers_of_all_kinds(_: zenps.Job) -> None:
    def made(rank: int) -> Buffers:
        torch.manual_seed(30 + rank)
        sparse = torch.randn(6, 5) * (torch.rand(6, 5) < 0.2 * (1 + rank))
        return Buffers(
            expanded=torch.full((1, 8), rank + 1.0).expand(16, -1),
            scattered=torch.randn(3, 1, 4, 1).expand(3, 5, 4, 2),
            transposed=torch.randn(4, 7).t(),
            steps=torch.tensor(rank),
            flag=torch.tensor([rank == 1, rank != 1]),
            empty=torch.zeros(0, 2),
            wave=torch.randn(5, dtype=torch.complex64),
            conjugate=torch.randn(5, dtype=torch.complex64).conj(),
            short=torch.randn(9).bfloat16(),
            coo=sparse.to_sparse(),
            uncoalesced=torch.sparse_coo_tensor([[1, 1, 3 + rank]], torch.ones(3) * (rank + 1), (9,)),
            csr=sparse.to_sparse_csr(),
            same_csr=torch.sparse_csr_tensor([0, 1, 2], [rank % 2, 1], [1.0 + rank, 2.0], (2, 2)),
            none=torch.zeros(4, 4).to_sparse(),
        )

    model, wanted = made(RANK), made(1)
    held = dict(model.named_buffers())
    zt.broadcast_parameters(model, root=1, job=job)
    for name, value in model.named_buffers():
        theirs = wanted.get_buffer(name)
        assert value is held[name] and value.layout == theirs.layout and value.shape == theirs.shape, name
        if value.layout == torch.strided:
            assert torch.equal(value, theirs), name
            continue
        assert torch.equal(value.to_dense(), theirs.to_dense()), name
        assert value.layout != torch.sparse_coo or value.is_coalesced() == theirs.is_coalesced(), name
    sync = zt.GradientSync(model, job, name="buffers")
    sync.close()
    mask = torch.arange(2.0).view(2, 1) * torch.ones(1, 3) if RANK == 0 else torch.ones(1, 3).expand(2, 3)
    if RANK:  # it has a value where rank 0 has two
        raises(zenps.Invalid, lambda: zt.broadcast_parameters({"mask": mask}, job=job), "mask", "expand()")
    else:
        zt.broadcast_parameters({"mask": mask}, job=job)


def case_unequal_all_reduces(_: zenps.Job) -> None:
    """Rounded sizes may be the same, and tensors may be others: both are an error at once, and on every rank."""
    start = time.monotonic()
    calls: List[Tuple[Any, str, str]] = [
        (torch.ones(100 + RANK), "sum", "rank 0 all_reduce(sum) of 100 values of f32, rank 1 all_reduce(sum) of 101 values"),
        (torch.ones(10 + 5000 * RANK), "sum", "of 10 values of f32, rank 1 all_reduce(sum) of 5010 values"),
        (torch.ones(7), "max" if RANK else "sum", "all_reduce(sum) of 7 values of f32, rank 1 all_reduce(max)"),
        (torch.ones(7, dtype=torch.float64 if RANK else torch.float32), "sum", "7 values of f32, rank 1 all_reduce(sum) of 7 values of f64"),
        (torch.eye(7 + RANK).to_sparse(), "sum", "of sparse [7, 7] of f32, rank 1 all_reduce(sum) of sparse [8, 8]"),
        (torch.eye(7).to_sparse() if RANK else torch.ones(49), "sum", "49 values of f32, rank 1 all_reduce(sum) of sparse [7, 7]"),
    ]  # fmt: skip
    for values, op, text in calls:
        raises(zenps.ShapeMismatch, lambda values=values, op=op: zt.all_reduce(values, op, job=job), text)
    assert time.monotonic() - start < ROUND_TIMEOUT
    many = [torch.full((n,), 1.0 + RANK) for n in range(1, 41)]
    works = [zt.all_reduce(each, async_op=True, job=job) for each in many]
    for work, each in reversed(list(zip(works, many))):
        assert work is not None and work.wait() and each.eq(10).all()


def case_zeros_in_max_and_min(_: zenps.Job) -> None:
    """As gloo has them: a zero is a value. NaN is left out of the comparison, since gloo's result depends on the order of ranks."""
    for n in (1, 200):
        for kind in range(4):
            values = torch.linspace(-3, 3, n) * RANK if kind % 2 else torch.zeros(n)
            if kind == 0 and RANK == 1:
                values.fill_(5.0)
            if kind == 2:
                values.fill_(-5.0 if RANK == 2 else -0.0)
            if kind == 3:
                values = -values.abs()
            for op, theirs in (("max", dist.ReduceOp.MAX), ("min", dist.ReduceOp.MIN)):
                got, wanted = values.clone(), values.clone()
                zt.all_reduce(got, op, job=job)
                dist.all_reduce(wanted, theirs)
                assert torch.equal(got, wanted), (n, kind, op, got, wanted)
                same_everywhere(got)
        holes = torch.zeros(n)
        holes[-1] = float("nan") if RANK == 3 else 1.0
        for op in ("max", "min"):
            got = holes.clone()
            zt.all_reduce(got, op, job=job)
            assert bool(got[-1].isnan()) and not got[:-1].any(), (op, got)
    rows = torch.sparse_coo_tensor(torch.tensor([[RANK, 9, 9]]), torch.tensor([[-1.0], [-0.5], [0.5 - RANK]]), (10, 1))
    zt.all_reduce(rows, "max", job=job)  # of a row that a rank lists twice it has the sum
    assert rows.to_dense().view(-1).tolist() == [-1.0] * 4 + [0.0] * 6


class Refused:
    """One rank's arguments are wrong: it says why, the others hear of it, and the next calls meet."""

    def __init__(self, among: Any) -> None:
        self.among, self.is_wrong, self.count = among, among.rank == among.world - 1, 0

    def __call__(self, text: str, right: Any, wrong: Any) -> None:
        kinds = (zenps.Invalid, zenps.Unsupported) if self.is_wrong else (zenps.ShapeMismatch,)
        try:
            (wrong if self.is_wrong else right)()
            said = "nothing"
        except kinds as error:
            said = str(error)
        assert text in said or (not self.is_wrong and "barrier" in said), (text, said)
        self.count += 1
        value = torch.tensor([float(self.count)])
        zt.all_reduce(value, job=self.among)
        assert value.item() == self.count * self.among.world
        assert self.among.sum(self.count) == [self.count * self.among.world]
        sent = np.full(3, self.count if self.among.rank == 0 else 0, "i4")
        self.among.broadcast(sent)
        assert sent.tolist() == [self.count] * 3


def case_refusals_of_one_rank(_: zenps.Job) -> None:
    numbers, model = np.ones(3, "f4"), nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for among in (job, job.group("refusals", [1, 2, 3])) if RANK else (job,):
        refused = Refused(among)

        def reduce(value: Any, among: Any = among, **more: Any) -> Any:
            return lambda: zt.all_reduce(value, job=among, **more)

        def parameters(source: Any, *root: int, among: Any = among) -> Any:
            return lambda: zt.broadcast_parameters(source, *root, job=among)

        one = reduce(torch.ones(3))
        refused("int64", one, reduce(torch.ones(3, dtype=torch.int64)))
        refused("nothing to sum", one, reduce(torch.ones(0)))
        refused("product", one, reduce(torch.ones(3), op="product"))
        refused("sparse_csr", one, reduce(torch.eye(3).to_sparse_csr()))
        refused("a torch.Tensor is wanted", one, reduce(numbers))
        refused("group must be None", one, reduce(torch.ones(3), group=1))
        refused("root 99", parameters(model), parameters(model, 99))
        refused("x is a ndarray; a tensor is wanted: torch.from_numpy()", parameters(model), parameters({"x": numbers}))
        refused("model is a OrderedDict", parameters(model), parameters({"model": model.state_dict()}))
        refused("use broadcast_optimizer_state(optimizer)", parameters(model), parameters(optimizer.state_dict()))
        refused("a SGD; a module", parameters(model), parameters(optimizer))
        refused("a Parameter; a module", parameters(model), parameters(model.weight))
        refused("item 0 is a tuple", parameters(model), parameters([(model.weight, model.bias)]))
        refused("a Linear; a torch.optim.Optimizer", *(lambda o=o, a=among: zt.broadcast_optimizer_state(o, job=a) for o in (optimizer, model)))
        refused("root 99", *(lambda root=root, a=among: zt.broadcast_object(1, root, job=a) for root in (None, 99)))
        refused("gather: a int; bytes are wanted", *(lambda each=each, a=among: a.gather(each) for each in (b"abc", 5)))
        refused("gather: a str; bytes are wanted", *(lambda each=each, a=among: a.gather(each) for each in (b"abc", "abc")))
        refused("sum: str; numbers are wanted", *(lambda each=each, a=among: a.sum(each) for each in (1.0, "1")))
        refused("contiguous", *(lambda each=each, a=among: a.broadcast(each) for each in (numbers, numbers[::2])))
        refused("complex64", *(lambda m=m, a=among: zt.GradientSync(m, a, name=f"one.{a.name}")
                               for m in (nn.Linear(3, 3), nn.Linear(3, 3).to(torch.complex64))))  # fmt: skip
    wrapped = DistributedDataParallel(nn.Linear(3, 3))
    refused = Refused(job)
    refused("dense 'rong'", *(lambda dense=dense: zt.ddp(wrapped, job, dense=dense) for dense in ("zenps", "rong")))
    refused("a Linear; a DistributedDataParallel", *(lambda each=each: zt.ddp(each, job) for each in (wrapped, wrapped.module)))


def case_parameters_as_an_iterator(_: zenps.Job) -> None:
    """A parameter of first dimension 2 is no pair of name and tensor."""
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, RANK)
    nn.init.constant_(model.bias, RANK)
    zt.broadcast_parameters(model.parameters(), 2, job=job)
    assert model.weight.eq(2).all() and model.bias.eq(2).all()
    zt.broadcast_parameters([("w", model.weight)], 1, job=job)
    for dtype in (torch.bool, torch.int32, torch.int16, torch.complex64, torch.bfloat16):
        flags = torch.full((3,), int(RANK == 0), dtype=dtype)
        job.broadcast(flags)
        assert flags.eq(1).all(), flags
    raises(zenps.Invalid, lambda: zt.all_reduce(torch.ones(3), job=optimizer_of(model)), "job: a SGD; a zenps.Job")


def optimizer_of(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), 0.1)


def case_sparse_dimensions(_: zenps.Job) -> None:
    """A sum has as many sparse dimensions as the tensor."""
    for whole, n in ((torch.eye(4), 2), (torch.eye(4), 1), (torch.tensor([0.0, 1.0, 0.0, 2.0]), 1), (torch.ones(3, 2, 2), 2),
                     (torch.arange(24.0).view(2, 3, 4), 3), (torch.zeros(3, 3), 2)):  # fmt: skip
        value = (whole * (RANK + 1)).to_sparse(n)
        zt.all_reduce(value, job=job)
        assert value.sparse_dim() == n and value.is_coalesced()
        assert torch.equal(value.to_dense(), whole * sum(range(1, WORLD + 1))), (whole, n, value)
    uneven = (torch.eye(4) * (RANK == 1)).to_sparse()
    zt.all_reduce(uneven, job=job)
    assert torch.equal(uneven.to_dense(), torch.eye(4)) and uneven.sparse_dim() == 2 and uneven._nnz() == 4
