"""Gradients that torch has on a GPU, on two ranks that share it."""

from __future__ import annotations

import copy
import warnings
from typing import List

import torch
import torch.distributed as dist

import zenps
import zenps.torch as zt
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_sync import ROUND_TIMEOUT, assert_bits, ids_of, job, near, reference, same_everywhere, sync_of

warnings.simplefilter("ignore")
WORLD, RANK = job.world, job.rank
GPU = torch.device("cuda:0")


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
    value = torch.arange(1000, dtype=torch.float32, device=GPU) * (RANK + 1)
    zt.all_reduce(value, job=job)
    assert value.device.type == "cuda"
    same_everywhere(value.cpu())


def case_ddp(_: zenps.Job) -> None:
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    torch.manual_seed(8)
    module = Model(False, 2).to(GPU)
    models = DistributedDataParallel(copy.deepcopy(module)), DistributedDataParallel(module)
    zt.ddp(models[1], job, name="cuda.ddp")
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
    dist.destroy_process_group()
