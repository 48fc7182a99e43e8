"""GradientSync on four ranks."""

from __future__ import annotations

import copy
import hashlib
import warnings
from typing import Any, List

import torch

import zenps
import zenps.torch as zt
from torch import nn
from torch.utils.checkpoint import checkpoint

warnings.simplefilter("ignore")
torch.set_num_threads(1)
ROUND_TIMEOUT = 240
job = zenps.init(round_timeout=ROUND_TIMEOUT)  # runner.py has this timeout, too
WORLD, RANK = job.world, job.rank
_count = 0


def sync_of(module: nn.Module, **arguments: Any) -> zt.GradientSync:
    global _count
    _count += 1
    return zt.GradientSync(module, job, name=f"m{_count}", **arguments)


def digest(*tensors: torch.Tensor) -> str:
    made = hashlib.sha1()
    for tensor in tensors:
        made.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def same_everywhere(*tensors: torch.Tensor) -> None:
    digests = job.gather(digest(*tensors).encode())
    assert len(set(digests)) == 1, digests


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def assert_bits(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, (got.shape, wanted.shape, got.dtype)
    assert torch.equal(bits(got), bits(wanted)), (got, wanted)


def near(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-6) -> None:
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    worst = float((got - wanted).abs().max()) if got.numel() else 0.0
    assert worst <= tolerance * max(1.0, float(wanted.abs().max())), worst


def ids_of(rank: int, rows: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, rows, (n,), generator=torch.Generator().manual_seed(1000 * seed + rank))


def reference(rows: int, width: int, dtype: torch.dtype, parts: List[Any], mean: bool = True) -> torch.Tensor:
    """Own repeats in order of appearance, ranks in rank order, from +0.0; of halves in floats, rounded once."""
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    total = torch.zeros(rows, width, dtype=wide)
    for ids, values in parts:
        own = torch.zeros(rows, width, dtype=wide)
        for i, row in enumerate(ids.tolist()):
            own[row] += values[i].to(wide)
        total += own
    return (total * (1.0 / WORLD) if mean else total).to(dtype)


def case_exact(_: zenps.Job) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for width in (1, 7, 64):
            table = nn.Embedding(5000, width, sparse=True).to(dtype)
            sync = sync_of(table)
            parts = []
            for rank in range(WORLD):
                generator = torch.Generator().manual_seed(rank)
                weights = torch.randn(300, width, generator=generator, dtype=torch.float32).to(dtype)
                parts.append((ids_of(rank, 400, 300), weights))
            ids, weights = parts[RANK]
            for _ in range(2):  # the second run gives the same bits
                table.weight.grad = None
                (table(ids) * weights).sum().backward()
                grad = table.weight.grad
                assert grad is not None and grad.is_coalesced()
                if dtype in (torch.float32, torch.float64):
                    assert_bits(grad.to_dense(), reference(5000, width, dtype, parts))
                same_everywhere(grad._indices(), grad._values())
            if dtype in (torch.bfloat16, torch.float16):
                near(grad.to_dense().float(), reference(5000, width, dtype, parts).float(), 0.02)
            sync.close()


def case_corners(_: zenps.Job) -> None:
    rows = 4096
    table = nn.Embedding(rows, 2, sparse=True)
    sync = sync_of(table, average=False)
    values = {0: [[1.0, -1.0]], rows - 1: [[float("nan"), float("inf")]], 7: [[-0.0, 3.0]]}
    for row, value in values.items():
        table.weight.grad = None
        mine = torch.tensor([row] if RANK == 1 else [], dtype=torch.int64)
        (table(mine) * torch.tensor(value)[: mine.numel()]).sum().backward()
        grad = table.weight.grad
        assert grad is not None and grad._indices().tolist() == [[row]], grad
        wanted = torch.zeros(1, 2) + torch.tensor(value)
        assert torch.equal(grad._values().isnan(), wanted.isnan())
        assert torch.equal(grad._values().nan_to_num(), wanted.nan_to_num())
    table.weight.grad = None
    table(torch.tensor([], dtype=torch.int64)).sum().backward()  # nobody has a row
    assert table.weight.grad is None or table.weight.grad._nnz() == 0
    sync.close()
    padded = nn.Embedding(rows, 2, sparse=True, padding_idx=0)
    sync = sync_of(padded)
    ids = torch.zeros(5, dtype=torch.int64) if RANK == 2 else torch.tensor([3, RANK + 10, 0])
    padded(ids).sum().backward()  # a rank whose batch is all padding
    assert padded.weight.grad is not None
    assert padded.weight.grad._indices()[0].tolist() == [3, 10, 11, 13], padded.weight.grad
    sync.close()


class Net(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4500, 8, sparse=sparse)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(ids))
        return self.out(hidden[:, -1])


def batch(step: int, rank: int, n: int = 8) -> Any:
    generator = torch.Generator().manual_seed(7919 * step + rank)
    ids = torch.randint(0, 4500, (n, 6), generator=generator)
    return ids, (ids.sum(1) % 5)


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    ids, labels = batch(step, rank)
    return nn.functional.cross_entropy(model(ids), labels)


def train(optimizer_of: Any, sparse: bool, steps: int = 12, **arguments: Any) -> None:
    """GradientSync against one process that has the batches of all ranks."""
    torch.manual_seed(5 if RANK == 0 else 99)  # the broadcast makes the others rank 0's
    model = Net(sparse)
    sync = sync_of(model, **arguments)
    alone = copy.deepcopy(model)
    ours, theirs = optimizer_of(model), optimizer_of(alone)
    for step in range(steps):
        for each in ours + theirs:
            each.zero_grad(set_to_none=True)
        loss_of(model, step, RANK).backward()
        if arguments.get("wait") == "step":
            sync.wait()
        total = sum(loss_of(alone, step, rank) for rank in range(WORLD)) / WORLD
        total.backward()
        for each in ours + theirs:
            each.step()
    for own, wanted in zip(model.parameters(), alone.parameters()):
        near(own, wanted, 2e-5)
    same_everywhere(*model.parameters())
    sync.close()


def case_optimisers(_: zenps.Job) -> None:
    train(lambda m: [torch.optim.SGD(m.parameters(), 0.5)], sparse=True)
    train(lambda m: [torch.optim.SGD(m.parameters(), 0.5, momentum=0.9)], sparse=False)
    train(lambda m: [torch.optim.Adagrad(m.parameters(), 0.1)], sparse=True)
    train(lambda m: [torch.optim.Adam(m.parameters(), 1e-3)], sparse=False)
    dense = lambda m: [p for n, p in m.named_parameters() if "embedding" not in n]  # noqa: E731
    both = lambda m: [torch.optim.SparseAdam(list(m.embedding.parameters()), 1e-3), torch.optim.Adam(dense(m), 1e-3)]  # noqa: E731
    train(both, sparse=True)


def case_wait_in_step(_: zenps.Job) -> None:
    model = Net(True)
    sync = sync_of(model, wait="step")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sync.attach(optimizer)
    alone = copy.deepcopy(model)
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, step, RANK).backward()
        optimizer.step()
        alone.zero_grad(set_to_none=True)
        (sum(loss_of(alone, step, rank) for rank in range(WORLD)) / WORLD).backward()
        with torch.no_grad():
            for parameter in alone.parameters():
                parameter -= 0.1 * parameter.grad.to_dense()
    for own, wanted in zip(model.parameters(), alone.parameters()):
        near(own, wanted, 1e-5)
    loss_of(model, 0, RANK).backward()
    try:
        loss_of(model, 0, RANK).backward()
        raise AssertionError("a second backward pass while sums were in flight")
    except zenps.Invalid as error:
        assert "in flight" in str(error), error
    sync.close()


def case_zero_rows_of_lazy_optimisers(_: zenps.Job) -> None:
    """SparseAdam decays the moments of rows that are there: a row of zeros must come back."""
    table = nn.Embedding(4096, 2, sparse=True)
    sync = sync_of(table, keep_zero_rows=True)
    (table(torch.tensor([5, RANK])) * torch.tensor([[0.0], [1.0]])).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad._indices()[0].tolist() == [0, 1, 2, 3, 5], table.weight.grad
    sync.close()


def case_accumulation(_: zenps.Job) -> None:
    for sparse in (False, True):
        model = Net(sparse)
        sync = sync_of(model)
        alone = copy.deepcopy(model)
        for step in range(4):
            with sync.no_sync():
                loss_of(model, step, RANK).backward()
        loss_of(model, 4, RANK).backward()
        for step in range(5):
            (sum(loss_of(alone, step, rank) for rank in range(WORLD)) / WORLD).backward()
        for own, wanted in zip(model.parameters(), alone.parameters()):
            near(own.grad.to_dense(), wanted.grad.to_dense(), 1e-5)
        loss_of(model, 5, RANK).backward()  # a mean may be summed again
        (sum(loss_of(alone, 5, rank) for rank in range(WORLD)) / WORLD).backward()
        for own, wanted in zip(model.parameters(), alone.parameters()):
            near(own.grad.to_dense(), wanted.grad.to_dense(), 1e-5)
        model.zero_grad(set_to_none=False)
        loss_of(model, 5, RANK).backward()  # training goes on
        sync.close()


class Odd(nn.Module):
    """Every kind of parameter that is not simply used once."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(4200, 4, sparse=True, mode="sum")
        self.tied = nn.Embedding(4100, 4, sparse=True)
        self.unused = nn.Embedding(4100, 4, sparse=True)
        self.sometimes = nn.Embedding(4100, 4)
        self.small = nn.Embedding(10, 4, sparse=True)
        self.frozen = nn.Linear(4, 4)
        self.frozen.weight.requires_grad_(False)
        self.wide = nn.Linear(4, 4).double()
        self.twice = nn.Linear(4, 4)
        self.branch = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor, rank: int) -> torch.Tensor:
        x = self.bag(ids.view(2, -1)) + self.tied(ids[:2]) + self.small(ids[:2] % 10)
        if rank % 2:
            x = x + self.sometimes(ids[:2]) + self.branch(x)
        x = self.twice(torch.tanh(self.twice(self.frozen(x))))
        logits = x @ self.tied.weight[:50].t() if rank == 3 else x.sum(1, keepdim=True)  # tied: dense on one rank
        return logits.sum() + self.wide(x.double()).sum().float()


def case_odd_parameters(_: zenps.Job) -> None:
    for fuse in (True, False):
        torch.manual_seed(3)
        model = Odd()
        sync = sync_of(model, fuse_tables=fuse)
        alone = copy.deepcopy(model)
        for step in range(2):
            model.zero_grad(set_to_none=True)
            alone.zero_grad(set_to_none=True)
            loss = model(ids_of(RANK, 4000, 8, step), RANK)
            loss.backward(retain_graph=step == 1)
            (sum(alone(ids_of(rank, 4000, 8, step), rank) for rank in range(WORLD)) / WORLD).backward()
            wanted = dict(alone.named_parameters())
            for name, own in model.named_parameters():
                if wanted[name].grad is None:
                    assert own.grad is None, name
                    continue
                assert own.grad is not None, name
                near(own.grad.to_dense(), wanted[name].grad.to_dense(), 1e-5)
            assert model.bag.weight.grad.is_sparse and model.small.weight.grad.is_sparse
            assert not model.sometimes.weight.grad.is_sparse
            assert model.tied.weight.grad.is_sparse == (RANK != 3)
        model.zero_grad(set_to_none=True)
        loss.backward()  # of the graph that was retained
        near(model.twice.weight.grad, alone.twice.weight.grad, 1e-5)
        sync.close()


def case_join_of_uneven_inputs(_: zenps.Job) -> None:
    model = Net(True)
    sync = sync_of(model)
    alone = copy.deepcopy(model)
    optimizer, theirs = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(alone.parameters(), 0.1)
    counts = [3, 5, 0, 4]
    with sync.join():
        for step in range(counts[RANK]):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, step, RANK).backward()
            optimizer.step()
    for step in range(max(counts)):
        there = [rank for rank in range(WORLD) if counts[rank] > step]
        theirs.zero_grad(set_to_none=True)
        (sum(loss_of(alone, step, rank) for rank in there) / len(there)).backward()
        theirs.step()
    for own, wanted in zip(model.parameters(), alone.parameters()):
        near(own, wanted, 1e-5)
    loss_of(model, 9, RANK).backward()  # all ranks go on together
    same_everywhere(model.out.weight.grad)
    sync.close()


def case_failed_and_partial_passes(_: zenps.Job) -> None:
    """A pass that failed in the user's own code, on all ranks, and one for the inputs alone, leave nothing behind."""
    model = Net(True)
    sync = sync_of(model)
    output = model(batch(0, RANK)[0])
    torch.autograd.grad(output.sum(), [model.out.weight], retain_graph=True)  # no hook: nothing is summed
    assert sync.stats.steps == 0

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise OverflowError("the user's own")

    hidden, _ = model.lstm(Broken.apply(model.embedding(batch(0, RANK)[0])))
    try:
        model.out(hidden[:, -1]).sum().backward()
        raise AssertionError("no error")
    except (OverflowError, RuntimeError) as error:
        assert "user's own" in str(error)
    model.zero_grad(set_to_none=True)
    if RANK == 1:  # of this rank alone, before any gradient was there: the others wait, and its next pass is theirs
        try:
            Broken.apply(model(batch(0, RANK)[0])).sum().backward()
            raise AssertionError("no error")
        except (OverflowError, RuntimeError) as error:
            assert "user's own" in str(error)
    loss_of(model, 1, RANK).backward()
    alone = copy.deepcopy(model)
    alone.zero_grad(set_to_none=True)
    (sum(loss_of(alone, 1, rank) for rank in range(WORLD)) / WORLD).backward()
    near(model.out.weight.grad, alone.out.weight.grad, 1e-5)
    sync.close()


def case_reentrant_checkpoint(_: zenps.Job) -> None:
    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = checkpoint(self.first, x.requires_grad_())
            return checkpoint(self.second, x)

    model = Segments()
    sync = sync_of(model)
    alone = copy.deepcopy(model)
    inputs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(rank)) for rank in range(WORLD)]
    model(inputs[RANK]).pow(2).sum().backward()
    (sum(alone(each).pow(2).sum() for each in inputs) / WORLD).backward()
    for own, wanted in zip(model.parameters(), alone.parameters()):
        near(own.grad, wanted.grad, 1e-5)
    assert sync.stats.steps == 1, sync.stats
    sync.close()


def case_refusals(_: zenps.Job) -> None:
    """The same sentence on every rank."""
    tests = [
        (lambda: sync_of(nn.Linear(3, 3 + (RANK == 2))), zenps.ShapeMismatch, "rank 2 has dense"),
        (lambda: sync_of(nn.Linear(3, 3), wait="never"), zenps.Invalid, 'must be "backward" or "step"'),
        (lambda: sync_of(nn.Linear(3, 3), bucket_mb=0), zenps.Invalid, "bucket_mb 0"),
        (lambda: sync_of(nn.Linear(3, 3), tables=["weigth"]), zenps.Invalid, "names of parameters such as weight"),
        (lambda: sync_of(nn.Linear(3, 3).to(torch.complex64)), zenps.Unsupported, "complex64"),
        (lambda: sync_of(nn.ReLU()), zenps.Invalid, "no parameter"),
        (lambda: zt.all_reduce(torch.zeros(3), op="product"), zenps.Unsupported, "product"),
        (lambda: zt.all_reduce(torch.zeros(3, dtype=torch.int64)), zenps.Unsupported, "int64"),
        (lambda: zt.all_reduce(torch.zeros(3), group=1), zenps.Unsupported, "group"),
        (lambda: zt.broadcast_object(object(), job=job), zenps.Unsupported, "object"),
        (lambda: zt.TopK(1.5), zenps.Invalid, "density 1.5"),
        (lambda: zt.DGC(momentum=1.0), zenps.Invalid, "momentum 1.0"),
    ]
    for call, kind, text in tests:
        try:
            call()
            raise AssertionError(f"no {kind.__name__} of {text}")
        except kind as error:
            assert text in str(error), error
    first = zt.GradientSync(nn.Linear(3, 3), job, name="taken")
    try:
        zt.GradientSync(nn.Linear(3, 3), job, name="taken")
        raise AssertionError("two of one name")
    except zenps.Invalid as error:
        assert "taken" in str(error)
    first.close()
    zt.GradientSync(nn.Linear(3, 3), job, name="taken").close()


def case_collectives(_: zenps.Job) -> None:
    value = torch.full((5, 3), float(RANK + 1))
    zt.all_reduce(value, job=job)
    assert torch.equal(value, torch.full((5, 3), 10.0))
    for op, wanted in (("max", 4.0), ("min", 1.0), ("avg", 2.5)):
        value = torch.full((1000,), float(RANK + 1), dtype=torch.float64)
        work = zt.all_reduce(value, op=op, async_op=True, job=job)
        assert work is not None and work.wait() and work.is_completed()
        assert torch.equal(value, torch.full((1000,), wanted, dtype=torch.float64)), (op, value)
    rows = torch.sparse_coo_tensor(torch.tensor([[RANK, 9, 9]]), torch.ones(3, 2), (10, 2))
    zt.all_reduce(rows, job=job)
    assert rows.is_coalesced() and rows._indices()[0].tolist() == [0, 1, 2, 3, 9]
    assert rows.to_dense()[9].tolist() == [8.0, 8.0]
    if RANK == 2:
        rows.zero_()  # every dimension is a sparse one then
    options = torch.distributed.AllreduceOptions()  # hold the op in an object of another class
    zt.all_reduce(rows, options.reduceOp, job=job)
    assert rows.is_coalesced() and rows.to_dense()[9].tolist() == [24.0, 24.0]
    transposed = torch.full((3, 4), float(RANK)).t()
    zt.all_reduce(transposed, job=job)
    assert torch.equal(transposed, torch.full((4, 3), 6.0))
    held = {"a": [1, 2.5, None, "x", True], "b": (torch.arange(6.0).view(2, 3), torch.tensor(3)), 7: {}}
    got = zt.broadcast_object(held if RANK == 1 else None, root=1, job=job)
    assert got["a"] == held["a"] and torch.equal(got["b"][0], held["b"][0]) and got["b"][1].item() == 3 and got[7] == {}
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (RANK + 1))
    for _ in range(RANK + 1):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    zt.broadcast_parameters(model, root=2, job=job)
    zt.broadcast_optimizer_state(optimizer, root=2, job=job)
    state = optimizer.state_dict()
    assert abs(state["param_groups"][0]["lr"] - 0.3) < 1e-12 and int(state["state"][0]["step"]) == 3
    same_everywhere(model.weight, state["state"][0]["exp_avg"], state["state"][1]["exp_avg_sq"])


def case_infinities_reach_every_rank(_: zenps.Job) -> None:
    """What a GradScaler looks for."""
    model = Net(True)
    sync = sync_of(model)
    loss = loss_of(model, 0, RANK) * (float("inf") if RANK == 1 else 1024.0)
    loss.backward()
    for parameter in model.parameters():
        grad = parameter.grad._values() if parameter.grad.is_sparse else parameter.grad
        assert not bool(torch.isfinite(grad).all())
    sync.close()


def case_grad_scaler(_: zenps.Job) -> None:
    """Ranks skip the same steps, and their scales stay alike. torch 2.3 and later have one for the CPU."""
    scaler_class = getattr(torch.amp, "GradScaler", None)
    if scaler_class is None:
        return
    model = Net(False)
    sync = sync_of(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scaler = scaler_class("cpu", init_scale=1024.0)
    for step in range(4):
        before = digest(*model.parameters())
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, step, RANK)
        scaler.scale(loss * (float("inf") if step == 1 and RANK == 3 else 1.0)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert (digest(*model.parameters()) == before) == (step == 1), step
        assert scaler.get_scale() == (1024.0 if step < 1 else 512.0)
        same_everywhere(*model.parameters())
    sync.close()


def case_half_buckets(_: zenps.Job) -> None:
    """Dense buckets of bf16 and f16: sums in floats, rounded once."""
    for dtype in (torch.bfloat16, torch.float16):
        model = nn.ParameterList([nn.Parameter(torch.zeros(13, 7)), nn.Parameter(torch.zeros(500))]).to(dtype)
        sync = sync_of(model)
        for size, parameter in ((91, model[0]), (500, model[1])):
            parts = [torch.randn(size, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(WORLD)]
            wanted = torch.zeros(size)
            for part in parts:
                wanted += part.float()
            model.zero_grad(set_to_none=True)
            (parameter.view(-1) * parts[RANK]).sum().backward()
            assert_bits(parameter.grad.view(-1), (wanted / WORLD).to(dtype))
        assert model[0].grad is None  # of a pass in which nobody used it
        sync.close()


def case_groups(_: zenps.Job) -> None:
    """Models that are replicated in pairs of ranks."""
    for name, mine in (("halves", [[0, 1], [2, 3]][RANK // 2]), ("odd", [[0, 2], [1, 3]][RANK % 2])):
        group = job.group(f"{name}{mine[0]}", mine)
        torch.manual_seed(RANK)
        model = Net(True)
        sync = zt.GradientSync(model, group)
        alone = copy.deepcopy(model)
        with sync.join():
            if RANK == mine[1]:
                loss_of(model, 0, RANK).backward()
                loss_of(alone, 0, RANK).backward()
                near(model.out.weight.grad, alone.out.weight.grad, 1e-6)
        loss_of(model, 1, RANK).backward()
        alone.load_state_dict(model.state_dict())
        alone.zero_grad(set_to_none=True)
        (sum(loss_of(alone, 1, rank) for rank in mine) / 2).backward()
        near(model.out.weight.grad, alone.out.weight.grad, 1e-5)
        got = zt.broadcast_object({"from": RANK}, root=mine[1], job=group)
        assert got == {"from": mine[1]}
        try:
            zt.broadcast_object(None, root=(mine[0] + 1 if name == "odd" else (mine[0] + 2) % 4), job=group)
            raise AssertionError("a root that is no member")
        except zenps.Invalid as error:
            assert "must be one of" in str(error), error
        sync.close()
