"""Gradients that torch has on a GPU, on two ranks that share it: their sums have the bits of those on the CPU, and are made
without copies. FALLBACK: the same where zenps has no support for GPUs, through copies in host memory."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any, List, Tuple

import torch
import torch.distributed as dist

import zenps
import zenps.torch as zt
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_sync import ROUND_TIMEOUT, assert_bits, ids_of, job, near, reference, same_everywhere, sync_of
from zenps.torch import devices

warnings.simplefilter("ignore")
WORLD, RANK = job.world, job.rank
GPU, CPU = torch.device("cuda:0"), torch.device("cpu")
FALLBACK = os.environ.get("ZENPS_DEVICE_LIBRARY") == "/nowhere"


def made(rank: int, n: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(7000 * seed + rank))


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def of_all(rows: int, width: int, n: int, seed: int) -> List:
    return [(ids_of(rank, rows, n, seed), made(rank, n, width, seed)) for rank in range(WORLD)]


def spread(ids: torch.Tensor, values: torch.Tensor, rows: int) -> torch.Tensor:
    """A dense gradient; repeats are added up in order."""
    whole = torch.zeros(rows, values.shape[1])
    for i, row in enumerate(ids.tolist()):
        whole[row] += values[i]
    return whole


def case_dense(_: zenps.Job) -> None:
    for rows, width, n in ((1, 1, 1), (5003, 1, 400), (20011, 8, 900), (3001, 64, 3001)):
        tensor = job.tensor(f"dense{rows}", rows, width, op="sum")
        for step in range(3):
            parts = of_all(rows, width, n, step)
            mine = spread(*parts[RANK], rows).to(GPU)
            wanted = reference(rows, width, torch.float32, parts, mean=False)
            if step == 1:  # on a stream of its own, behind work that is not done
                other = torch.cuda.Stream()
                with torch.cuda.stream(other):
                    torch.cuda._sleep(20_000_000)
                    late = mine * 1.0
                    got = torch.empty_like(late)
                    tensor.allreduce(late, out=got, stream=stream()).wait()
                    assert_bits(got.cpu(), wanted)
            else:
                tensor.allreduce(mine, out=mine, stream=stream()).wait()
                assert_bits(mine.cpu(), wanted)


def case_rows(_: zenps.Job) -> None:
    rows, width, n = 30011, 16, 700
    for partitioner in ("stratified", "hierarchical"):
        tensor = job.tensor(f"rows-{partitioner}", rows, width, op="sum", partitioner=partitioner)
        for step in range(3):
            parts = of_all(rows, width, n, step)
            ids, values = (part.to(GPU) for part in parts[RANK])
            out = torch.empty(2000, dtype=torch.int64, device=GPU), torch.empty(2000, width, device=GPU)
            got = tensor.allreduce(values, ids, out=out, stream=stream()).wait()
            wanted = reference(rows, width, torch.float32, parts, mean=False)
            present = torch.unique(torch.cat([ids for ids, _ in parts]))
            assert torch.equal(out[0][: got.nnz].cpu(), present)
            assert_bits(out[1][: got.nnz].cpu(), wanted[present])
            host = tensor.allreduce(values, ids, out="rows", stream=stream()).wait()
            assert host.nnz == present.numel()


class Model(nn.Module):
    def __init__(self, sparse: bool, tables: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(4000 + 7 * i, 16, sparse=sparse) for i in range(tables))
        self.top = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(sum(table(ids) for table in self.tables)).mean()


def trained(model: nn.Module, device: torch.device, steps: int = 3) -> List[torch.Tensor]:
    """Gradients of each step are exact on any device: whole numbers."""
    made_of: List[torch.Tensor] = []
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = None
        loss = 0.0
        for i, table in enumerate(model.tables):
            ids = ids_of(RANK, table.num_embeddings, 300, 10 * step + i).to(device)
            weights = torch.randint(-8, 9, (300, 16), generator=torch.Generator().manual_seed(100 * step + 10 * i + RANK))
            loss = loss + (table(ids) * weights.to(device)).sum()
        for parameter in model.top.parameters():
            loss = loss + (parameter * (RANK + step + 1)).sum()
        loss.backward()
        made_of += [parameter.grad.to_dense().cpu().clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            assert parameter.grad.device.type == device.type
    return made_of


def case_place(_: zenps.Job) -> None:
    for _ in range(2):
        assert devices.place(job, GPU) == (CPU if FALLBACK else GPU)
        assert devices.place(job, CPU) == CPU
    assert devices.stream(torch.zeros(1)) is None
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        assert devices.stream(torch.zeros(1, device=GPU)) == other.cuda_stream


def summed(device: torch.device, gradients: List[Any], tables: Any, **arguments: Any) -> Tuple[int, List[torch.Tensor]]:
    """Bytes that a step copies, and its sums. gradients: dense, or (rows, ids, values)."""
    module = nn.ParameterList()
    for each in gradients:
        shape, values = ((each[0], each[2].shape[1]), each[2]) if isinstance(each, tuple) else (each.shape, each)
        module.append(nn.Parameter(torch.zeros(shape, dtype=values.dtype, device=device)))
    sync = sync_of(module, tables=tables, **arguments)
    for _ in range(2):
        loss = torch.zeros((), device=device)
        for parameter, each in zip(module, gradients):
            parameter.grad = None
            if isinstance(each, tuple):
                used = nn.functional.embedding(each[1].to(device), parameter, sparse=True)
                loss = loss + (used * each[2].to(device)).sum().float()
            else:
                loss = loss + (parameter * each.to(device)).sum().float()
        if device == GPU:
            torch.cuda._sleep(20_000_000)  # the gradients come late
        loss.backward()
    assert all(parameter.grad.device == device for parameter in module)
    assert [parameter.grad.is_sparse for parameter in module] == [isinstance(each, tuple) for each in gradients]
    sums = [parameter.grad.to_dense().cpu() for parameter in module]
    copied = sync.stats.copied_bytes // 2
    sync.close()
    return copied, sums


def check_copied(wanted: int, gradients: List[Any], tables: Any = "none", **arguments: Any) -> None:
    copied, sums = summed(GPU, gradients, tables, **arguments)
    assert (copied > 0) if FALLBACK else (copied == wanted), (copied, wanted)
    _, on_cpu = summed(CPU, gradients, tables, **arguments)
    for got, expected in zip(sums, on_cpu):
        assert_bits(got, expected)


def case_dense_is_summed_in_place(_: zenps.Job) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        check_copied(0, [made(RANK, 64, 64, 1).to(dtype)])
        check_copied(0, [made(RANK, 64, 64, 2).to(dtype)], average=False)
        check_copied(0, [spread(ids_of(RANK, 5000, 200, 3), made(RANK, 200, 16, 3), 5000).to(dtype)], ["0"])


def case_buckets_are_copied_on_the_gpu(_: zenps.Job) -> None:
    small = [made(RANK, 64, 64, 4), made(RANK, 1, 10, 5)]
    check_copied(2 * 4160 * 4, small)  # into a buffer, whose rows are of 64 values, and back
    check_copied(2 * 64 * 4, small[1:])


def case_rows_come_back_in_a_copy(_: zenps.Job) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for tables in (1, 2):
            own = [(6000 + i, ids_of(RANK, 6000, 300, 10 + i), made(RANK, 300, 16, i).to(dtype)) for i in range(tables)]
            sums = [torch.unique(torch.cat([ids_of(rank, 6000, 300, 10 + i) for rank in range(WORLD)])) for i in range(tables)]
            wanted = sum(each.numel() * (8 + 16 * own[0][2].element_size()) for each in sums)
            check_copied(wanted, own, [str(i) for i in range(tables)])


def case_a_stream_of_its_own(_: zenps.Job) -> None:
    gradients = [made(RANK, 64, 64, 6), made(RANK, 3, 5, 7), (5000, ids_of(RANK, 5000, 200, 8), made(RANK, 200, 8, 8))]
    _, wanted = summed(CPU, gradients, ["2"])
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        for _ in range(3):
            for got, expected in zip(summed(GPU, gradients, ["2"])[1], wanted):
                assert_bits(got, expected)


def case_sync(_: zenps.Job) -> None:
    for sparse in (False, True):
        for tables in (1, 3):
            torch.manual_seed(4)
            cpu = Model(sparse, tables)
            gpu = copy.deepcopy(cpu).to(GPU)
            syncs = sync_of(cpu), sync_of(gpu)
            for at, wanted in zip(trained(gpu, GPU), trained(cpu, torch.device("cpu"))):
                assert_bits(at, wanted)
            for sync in syncs:
                sync.close()


def case_training(_: zenps.Job) -> None:
    torch.manual_seed(5)
    model = Model(True, 2).to(GPU)
    sync = sync_of(model)
    optimizers = [torch.optim.SparseAdam(model.tables.parameters()), torch.optim.Adam(model.top.parameters())]
    for step in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(ids_of(RANK, 4000, 200, step).to(GPU)).backward()
        for optimizer in optimizers:
            optimizer.step()
    same_everywhere(*[parameter.detach().cpu() for parameter in model.parameters()])
    sync.close()


def case_autocast(_: zenps.Job) -> None:
    torch.manual_seed(6)
    model = Model(False, 1).to(GPU)
    sync = sync_of(model, compress=zt.TopK(0.05, min_numel=1000, start_iter=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(ids_of(RANK, 4000, 200, step).to(GPU))
        loss.backward()
        optimizer.step()
    same_everywhere(*[parameter.detach().cpu() for parameter in model.parameters()])
    sync.close()


def case_collectives(_: zenps.Job) -> None:
    for op in ("sum", "avg", "max", "min"):
        for own in (made(RANK, 64, 64, 20), made(RANK, 64, 37, 21).t(), made(RANK, 1, 7, 22)[0]):
            values = [own.clone(), own.to(GPU)]
            at = values[1].data_ptr()
            for value in values:
                zt.all_reduce(value, op, job=job)
            assert values[1].device == GPU and values[1].data_ptr() == at
            assert_bits(values[1].cpu(), values[0])
    ids, own = ids_of(RANK, 500, 60, 23), made(RANK, 60, 4, 23)
    rows = [torch.sparse_coo_tensor(ids[None].to(device), own.to(device), (500, 4)) for device in (CPU, GPU)]
    for value in rows:
        zt.all_reduce(value, job=job)
    assert rows[1].device == GPU and rows[1].is_coalesced()
    assert_bits(rows[1].to_dense().cpu(), rows[0].to_dense())
    state = {"a": torch.full((3,), float(RANK), device=GPU), "b": torch.full((2, 2), RANK, device=GPU)}
    zt.broadcast_parameters(state, 1, job=job)
    assert state["a"].tolist() == [1.0] * 3 and state["b"].tolist() == [[1, 1]] * 2


def case_ddp(_: zenps.Job) -> None:
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    torch.manual_seed(8)
    module = Model(False, 2).to(GPU)
    models = DistributedDataParallel(copy.deepcopy(module)), DistributedDataParallel(module)
    zt.ddp(models[1], job, dense="zenps", name="cuda.ddp")
    optimizers = [torch.optim.SGD(model.parameters(), 0.3) for model in models]
    for step in range(4):
        ids = torch.randperm(4000, generator=torch.Generator().manual_seed(10 * step + RANK))[:50].to(GPU)
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad(set_to_none=True)
            model(ids).pow(2).mean().backward()
        for wanted, own in zip(*(model.parameters() for model in models)):
            near(own.grad.cpu(), wanted.grad.cpu(), 1e-5)
        for optimizer in optimizers:
            optimizer.step()
    same_everywhere(*[parameter.detach().cpu() for parameter in module.parameters()])
    even = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(3)]).to(GPU)
    model = DistributedDataParallel(even, gradient_as_bucket_view=True)
    state = zt.ddp(model, job, dense="zenps", name="cuda.even")
    for step in range(3):
        model.zero_grad(set_to_none=True)
        model(made(RANK, 8, 64, 30 + step).to(GPU)).pow(2).mean().backward()
    same_everywhere(*[parameter.grad.cpu() for parameter in even.parameters()])
    assert (state.stats.copied_bytes > 0) == FALLBACK, state.stats
    sparse = nn.Embedding(4500, 8, sparse=True).to(GPU)
    model = DistributedDataParallel(sparse)
    zt.ddp(model, job, name="cuda.sparse")
    for step in range(3):
        sparse.weight.grad = None
        parts = of_all(4500, 8, 200, 40 + step)
        (model(parts[RANK][0].to(GPU)) * parts[RANK][1].to(GPU)).sum().backward()
        assert_bits(sparse.weight.grad.to_dense().cpu(), reference(4500, 8, torch.float32, parts))
    dist.destroy_process_group()
