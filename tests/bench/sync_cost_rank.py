#!/usr/bin/env python3
"""What GradientSync and DDP's hook cost beyond the library's own rounds: one rank.

  zenpsrun -n 4 --servers 2 -- python3 tests/bench/sync_cost_rank.py [--rows 60000] [--width 64] [--turns 7] [--steps 20]

Trains a sparse embedding with a perceptron, three times on the same batches, in turns: "by hand" coalesces the gradient and calls
zenps.Tensor.allreduce() on it and on one flat buffer of the rest, which is what calls of the C API would do; "sync" is
zenps.torch.GradientSync; "hook" is DistributedDataParallel with zenps.torch.ddp(). Prints a table: the median over turns of a step's
milliseconds, and its ratio to "by hand" in the same turn. PYTHONPATH has worker/python; ZENPS_LIBRARY names libzenps.so.
"""

import argparse
import copy
import socket
import statistics
import time

import torch
import torch.distributed as dist

import zenps.torch as zt
from torch import nn


class Model(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.Embedding(rows, width, sparse=True)
        self.layers = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids):
        return self.layers(self.table(ids))


class ByHand:
    """The rounds alone, in the order in which backward() has the gradients."""

    def __init__(self, model, job):
        self.model, self.table = model, model.table.weight
        self.rest = [parameter for parameter in model.layers.parameters()]
        n = sum(parameter.numel() for parameter in self.rest)
        self.flat = torch.zeros(-(-n // 64), 64)
        self.sums = job.tensor("by hand/rest", *self.flat.shape)
        self.rows = job.tensor("by hand/table", *self.table.shape)

    def __call__(self, ids):
        self.model(ids).pow(2).mean().backward()
        parts = self.flat.view(-1)
        at = 0
        for parameter in self.rest:
            parts[at : at + parameter.numel()] = parameter.grad.view(-1)
            at += parameter.numel()
        rest = self.sums.allreduce(self.flat.numpy(), out=self.flat.numpy())
        grad = self.table.grad.coalesce()
        rows = self.rows.allreduce(grad.values().numpy(), grad.indices()[0].numpy(), out="rows").wait()
        ids, values = torch.from_dlpack(rows.row_ids), torch.from_dlpack(rows.values)
        self.table.grad = torch.sparse_coo_tensor(ids.unsqueeze(0), values, self.table.shape)
        rest.wait()
        at = 0
        for parameter in self.rest:
            parameter.grad.view(-1).copy_(parts[at : at + parameter.numel()])
            at += parameter.numel()


def gloo(job):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(job.sum(probe.getsockname()[1] if job.rank == 0 else 0)[0])
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=job.rank, world_size=job.world)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rows", 60000), ("width", 64), ("batch", 512), ("turns", 7), ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(1)
    job = zt.init()
    gloo(job)
    torch.manual_seed(1)
    models = [Model(args.rows, args.width)]
    models += [copy.deepcopy(models[0]) for _ in range(2)]
    by_hand = ByHand(models[0], job)
    zt.GradientSync(models[1], job, name="sync")
    wrapped = nn.parallel.DistributedDataParallel(models[2])
    zt.ddp(wrapped, job, name="hook")
    runs = {
        "by hand": by_hand,
        "sync": lambda ids: models[1](ids).pow(2).mean().backward(),
        "hook": lambda ids: wrapped(ids).pow(2).mean().backward(),
    }
    optimizers = {name: torch.optim.SGD(model.parameters(), 0.1) for name, model in zip(runs, models)}
    times = {name: [] for name in runs}
    for turn in range(args.turns + 1):  # the first makes buffers
        for name, step in runs.items():
            generator = torch.Generator().manual_seed(100 * turn + job.rank)
            batches = [torch.randint(args.rows, (args.batch,), generator=generator) for _ in range(args.steps)]
            job.barrier()
            begin = time.perf_counter()
            for ids in batches:
                optimizers[name].zero_grad(set_to_none=True)
                step(ids)
                optimizers[name].step()
            job.barrier()
            if turn:
                times[name].append((time.perf_counter() - begin) / args.steps * 1000)
    for first, other in zip(models[0].parameters(), models[1].parameters()):
        assert torch.allclose(first, other, atol=1e-5), "by hand and sync trained different models"
    if job.rank == 0:
        print(f"{job.world} ranks, {args.rows} x {args.width}, batches of {args.batch}; {args.turns} turns of {args.steps} steps\n")
        print("| synchronised by | ms a step | over by hand |\n|---|---:|---:|")
        for name, own in times.items():
            ratio = statistics.median(each / base for each, base in zip(own, times["by hand"]))
            print(f"| {name} | {statistics.median(own):.2f} | {ratio:.3f} |")
    dist.destroy_process_group()
    job.close()


if __name__ == "__main__":
    main()
