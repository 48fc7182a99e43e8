"""The work of zenps-perf, done by Gloo through PyTorch: all_reduce of a dense or of a sparse tensor.

Row numbers and values are zenps-perf's own, and so is the JSON that rank 0 prints. Needs RANK, WORLD_SIZE, MASTER_ADDR,
MASTER_PORT and GLOO_SOCKET_IFNAME in the environment."""
import argparse
import json
import lzma
import os
import time
import zlib

import numpy as np
import torch
import torch.distributed as dist

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1


def mix64(x):
    """MurmurHash3's finaliser, of a number or of an array of uint64."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, None):
        x = x ^ (x >> (33 if isinstance(x, int) else np.uint64(33)))
        if factor:
            x = x * factor & WORD if isinstance(x, int) else x * np.uint64(factor)
    return x


def random_words(seed, first, n):
    """Words `first` to `first + n` of the splitmix64 generator that starts at `seed`."""
    z = np.uint64(seed) + (np.arange(first + 1, first + n + 1, dtype=np.uint64)) * np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Input:
    def __init__(self, args, world):
        self.args, self.world, self.samples, self.rows = args, world, None, args.rows
        if args.trace:
            opener = lzma.open if args.trace.endswith(".xz") else open
            with opener(args.trace, "rt") as lines:
                self.samples = [np.array(line.split(), dtype=np.int64) for line in lines if line.strip()]
            self.rows = args.rows or 1 + max(int(sample.max()) for sample in self.samples)

    def touched(self, step, rank):
        args = self.args
        if self.samples:
            first = (step * self.world + rank) * args.batch
            return np.unique(np.concatenate([self.samples[(first + i) % len(self.samples)] for i in range(args.batch)]))
        wanted = max(1, round(args.density * self.rows))
        if wanted == self.rows:
            return np.arange(self.rows)
        if wanted > self.rows // 2:
            raise SystemExit("gloo-rival: a density between 0.5 and 1 is not supported: use 1")
        seed = mix64(args.seed ^ mix64(step * self.world + rank + 1))
        drawn, n_drawn = np.empty(0, dtype=np.int64), 0
        while True:  # the first `wanted` distinct draws, as many words as that takes
            words = random_words(seed, n_drawn, max(1024, wanted // 4 if n_drawn else wanted))
            n_drawn += len(words)
            half = np.uint64(32)
            low = (words & np.uint64(0xFFFFFFFF)) * np.uint64(self.rows) >> half
            drawn = np.concatenate([drawn, (((words >> half) * np.uint64(self.rows) + low) >> half).astype(np.int64)])
            rows, first = np.unique(drawn, return_index=True)
            if len(rows) >= wanted:
                return np.sort(rows[np.argsort(first)[:wanted]])

    def values(self, step, rank, rows):
        key = mix64((self.args.seed + step * GOLDEN + (rank << 40)) & WORD)
        elements = rows.astype(np.uint64)[:, None] * np.uint64(self.args.width) + np.arange(self.args.width, dtype=np.uint64)
        return (((mix64(np.uint64(key) ^ elements) >> np.uint64(40)).astype(np.float64) + 0.5) * 2.0**-23 - 1).astype(np.float32)


def verify(given, step, rank, result, digest):
    """As zenps-perf does: ranks take turns in checking all of a result, and a digest tells whether all have the same.
    Whether this one is right, and the digest of all results so far."""
    if result.is_sparse:
        result = result.coalesce()
        rows, values = result.indices()[0].numpy(), result.values().numpy()
    else:
        rows, values = slice(None), result.numpy().reshape(given.rows, -1)
    for array in (values,) if isinstance(rows, slice) else (rows, values):
        digest = zlib.crc32(np.ascontiguousarray(array), digest)
    if step % given.world != rank:
        return True, digest
    total = np.zeros((given.rows, given.args.width))
    for r in range(given.world):
        touched = given.touched(step, r)
        total[touched] += given.values(step, r, touched)
    total[rows] -= values.reshape(-1, given.args.width)
    return bool(np.abs(total, out=total).max(initial=0) < 1e-4), digest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["dense", "sparse"], default="dense")
    for name, kind, default in (("rows", int, 0), ("width", int, 1), ("density", float, 0.01), ("batch", int, 128), ("steps", int, 5),
                                ("warmup", int, 1), ("seed", int, 1), ("trace", str, None)):
        parser.add_argument("--" + name, type=kind, default=default)
    parser.add_argument("--verify", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    given = Input(args, world)
    timeline, cpu, nnz, good, digest = [], 0.0, 0, True, 0
    with np.errstate(over="ignore"):
        for step in range(args.warmup + args.steps):
            rows = given.touched(step, rank)
            values = given.values(step, rank, rows)
            if args.how == "dense":
                tensor = torch.zeros(given.rows, args.width)
                tensor[torch.from_numpy(rows)] = torch.from_numpy(values)
            else:
                tensor = torch.sparse_coo_tensor(torch.from_numpy(rows)[None], torch.from_numpy(values), (given.rows, args.width))
                tensor = tensor.coalesce()
            del values
            dist.barrier()
            start_s, start_cpu = time.monotonic(), time.process_time()
            dist.all_reduce(tensor)
            ms, cpu_ms = (time.monotonic() - start_s) * 1000, (time.process_time() - start_cpu) * 1000
            dist.barrier()  # nobody checks, or makes the next gradient, while others are still timed
            if step >= args.warmup:
                cpu += cpu_ms
                timeline.append({"start_s": start_s, "ms": ms})
                nnz += len(rows)
            if args.verify:
                right, digest = verify(given, step, rank, tensor, digest)
                good &= right
    slowest = torch.tensor([step["ms"] for step in timeline], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    digests = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(digests, torch.tensor([digest]))
    good &= len({int(one) for one in digests}) == 1
    sums = torch.tensor([cpu, float(nnz), float(not good)], dtype=torch.float64)
    dist.all_reduce(sums)
    if rank == 0:
        ordered = sorted(slowest.tolist())
        for step, ms in zip(timeline, slowest.tolist()):
            step["ms"] = ms
        print(json.dumps({"rows": given.rows, "density": sums[1].item() / world / args.steps / given.rows,
                          "cpu_ms": sums[0].item() / world / args.steps, "verified": sums[2].item() == 0 if args.verify else None,
                          "timeline": timeline, "median_ms": ordered[(len(ordered) - 1) // 2]}))


if __name__ == "__main__":
    main()
