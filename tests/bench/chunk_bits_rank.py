"""A rank of a round of chunked top-k: bits of an entry sent, and bits of a parameter received. Needs numpy.

    zenpsrun -n 20 --servers 2 --prefix=no -- python3 tests/bench/chunk_bits_rank.py [--common 0.5] [--values N]

Each rank has normal gradients. `common` is the share of their variance that is the same on all ranks. 64 of each 4096 values travel.
"""

import argparse

import numpy as np

import zenps


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--common", type=float, default=0.5)
    options.add_argument("--values", type=int, default=1 << 20)
    arguments = options.parse_args()
    n, common = arguments.values, arguments.common
    with zenps.init() as job:
        parts = [np.random.default_rng(seed).standard_normal(n) for seed in (1, 100 + job.rank)]
        gradient = (common**0.5 * parts[0] + (1 - common) ** 0.5 * parts[1]).astype(np.float32)
        for values in ("qsgd2", "qsgd4"):
            selection = zenps.Sparsifier(n, kind="buckets", k=64, bucket=4096).select(gradient)
            request = job.tensor(values, n, 1, values=values, op="mean").allreduce(selection.values, selection.row_ids, out="rows")
            request.wait()
            cost = request.stats
            if job.rank == 0:
                print(f"{job.world} ranks, common {common:g}, {values}: {8 * cost.payload_out / selection.nnz:.2f} bits an entry sent, "
                      f"{8 * cost.payload_in / n:.2f} bits a parameter received", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
