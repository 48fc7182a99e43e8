#!/usr/bin/env python3
"""Compares the costs of a training step by who sums the dense gradients: one rank.

  zenpsrun -n 2 --servers 1 -- python3 tests/bench/dense_cost_rank.py [--turns 9] [--steps 6] [--rows 60000] [--layers 5] [--ways torch]

Two models, each trained in every way on the same batches, in turns: "dense" is a perceptron of about a million parameters a layer;
"mixed" has a sparse embedding in front of it. The ways: DistributedDataParallel alone over Gloo; the same under zenps.torch.ddp();
zenps.torch.GradientSync; these with dense="torch" and dense="zenps". Prints a table: medians over turns of a step's wall time and of
the rank's processor time in milliseconds, and their ratios to DistributedDataParallel alone in the same turn, with the load average.
PYTHONPATH has worker/python; ZENPS_LIBRARY names libzenps.so.
"""

import argparse
import copy
import os
import statistics
import time

import torch
import torch.distributed as dist
from sync_cost_rank import gloo

import zenps.torch as zt
from torch import nn

WIDTH = 1024


class Model(nn.Module):
    def __init__(self, rows, layers):
        super().__init__()
        self.table = nn.Embedding(rows, WIDTH // 16, sparse=True) if rows else None
        first = nn.Linear(WIDTH // 16, WIDTH)
        hidden = [layer for _ in range(layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.layers = nn.Sequential(first, nn.ReLU(), *hidden, nn.Linear(WIDTH, 1))

    def forward(self, ids):
        x = self.table(ids) if self.table is not None else torch.sin(ids.unsqueeze(1) * torch.arange(1.0, WIDTH // 16 + 1))
        return self.layers(x)


def ways(module, job, prefix, part):
    """Each has a copy of the module: what is called, and the parameters. Only those with `part` in their names, and DDP alone."""
    made = {}
    for name, dense in (("DDP alone", None), ('ddp(), "torch"', "torch"), ('ddp(), "zenps"', "zenps")):
        if dense is not None and part not in name:
            continue
        wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(module))
        if dense is not None:
            zt.ddp(wrapped, job, dense=dense, name=f"{prefix}.hook.{dense}")
        made[name] = wrapped
    schemes = [("torch", None), ("zenps", "balanced"), ("zenps", "ring"), ("zenps", "dense-split")]
    for dense, scheme in schemes:
        name = f'GradientSync, "{dense}"' + (f", {scheme}" if scheme else "")
        if part not in name:
            continue
        made[name] = copy.deepcopy(module)
        zt.GradientSync(made[name], job, dense=dense, dense_scheme=scheme, name=f"{prefix}.{dense}.{scheme}")
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rows", 60000), ("layers", 5), ("batch", 64), ("turns", 9), ("steps", 6)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--ways", default="", help="part of the names of those to run beside DDP alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    job = zt.init()
    gloo(job)
    for label, rows in (("dense", 0), ("mixed", args.rows)):
        torch.manual_seed(1)
        models = ways(Model(rows, args.layers), job, label, args.ways)
        optimizers = {name: torch.optim.SGD(model.parameters(), 0.01) for name, model in models.items()}
        times = {name: [] for name in models}
        for turn in range(args.turns + 1):  # the first makes buffers
            for name, model in models.items():
                generator = torch.Generator().manual_seed(100 * turn + job.rank)
                batches = [torch.randint(args.rows, (args.batch,), generator=generator) for _ in range(args.steps)]
                job.barrier()
                begin, used = time.perf_counter(), time.process_time()
                for ids in batches:
                    optimizers[name].zero_grad(set_to_none=True)
                    model(ids).pow(2).mean().backward()
                    optimizers[name].step()
                used = time.process_time() - used
                job.barrier()
                if turn:
                    scale = 1000 / args.steps
                    times[name].append(((time.perf_counter() - begin) * scale, used * scale))
        first, *others = models.values()
        for other in others:
            for a, b in zip(first.parameters(), other.parameters()):
                assert torch.allclose(a, b, atol=1e-5), "two ways trained different models"
        if job.rank == 0:
            n = sum(parameter.numel() for parameter in first.parameters())
            print(f"{label}, {n} parameters, {job.world} ranks, {args.turns} turns of {args.steps} steps; load {os.getloadavg()[0]:.0f}\n")
            print("| way | ms a step | ratio | processor ms a step | ratio |\n|---|---:|---:|---:|---:|")
            for name, own in times.items():
                wall, cpu = ([each[kind] for each in own] for kind in (0, 1))
                bases = [[each[kind] for each in times["DDP alone"]] for kind in (0, 1)]
                ratios = [statistics.median(a / b for a, b in zip(mine, base)) for mine, base in zip((wall, cpu), bases)]
                print(f"| {name} | {statistics.median(wall):.1f} | {ratios[0]:.3f} | {statistics.median(cpu):.1f} | {ratios[1]:.3f} |")
            print()
    dist.destroy_process_group()
    job.close()


if __name__ == "__main__":
    main()
