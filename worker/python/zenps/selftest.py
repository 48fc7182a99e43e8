"""python -m zenps.selftest: as a rank of a job, sums gradients that every rank can compute, and compares the bits.

    zenpsrun -n 2 -- python -m zenps.selftest

Exit status 0 where all is well; rank 0 prints what ran.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Dict, List, Tuple

from . import _lib
from .job import Job, init

_STEPS = 5
_ROWS, _WIDTH = 4096, 8


def _random(seed: int) -> int:
    """One step of a 64-bit linear congruential generator."""
    return (seed * 6364136223846793005 + 1442695040888963407) % (1 << 64)


def _gradient(rank: int, step: int) -> Tuple["array[int]", "array[float]"]:
    """Rows unsorted and repeated; values whose sums round."""
    state = _random(rank * 1000003 + step + 1)
    ids, values = array("q"), array("f")
    for _ in range(200 + 50 * rank):
        state = _random(state)
        ids.append((state >> 33) % _ROWS if state >> 63 else (state >> 33) % 16)
        for _ in range(_WIDTH):
            state = _random(state)
            values.append((state >> 40) / (1 << 24) - 0.5)
    return ids, values


def _f32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def _expected(world: int, step: int) -> Dict[int, List[float]]:
    """The sum in rank order, a rank's repeated rows first, in their order; all in f32."""
    total: Dict[int, List[float]] = {}
    for rank in range(world):
        ids, values = _gradient(rank, step)
        own: Dict[int, List[float]] = {}
        for place, row in enumerate(ids):
            sums = own.setdefault(row, [0.0] * _WIDTH)
            for column in range(_WIDTH):
                sums[column] = _f32(sums[column] + values[place * _WIDTH + column])
        for row, sums in own.items():
            all_ranks = total.setdefault(row, [0.0] * _WIDTH)
            for column in range(_WIDTH):
                all_ranks[column] = _f32(all_ranks[column] + sums[column])
    return total


def check(job: Job) -> None:
    """Raises AssertionError, naming the row, where a sum is not what it must be."""
    tensor = job.tensor("zenps.selftest", _ROWS, _WIDTH, op="sum", values="raw", scheme="balanced")
    for step in range(_STEPS):
        ids, values = _gradient(job.rank, step)
        result = tensor.allreduce(values, ids).wait()
        expected = _expected(job.world, step)
        assert result.row_ids is not None
        if result.row_ids.tolist() != sorted(expected):
            raise AssertionError(f"step {step}: rows {result.row_ids.tolist()}; {sorted(expected)} were sent")
        for row, got in zip(result.row_ids.tolist(), result.values.tolist()):
            if struct.pack(f"{_WIDTH}f", *got) != struct.pack(f"{_WIDTH}f", *expected[row]):
                raise AssertionError(f"step {step}, row {row}: {got}; must be {expected[row]}")
    digests = job.gather(b"rank %d" % job.rank)
    if digests != [b"rank %d" % rank for rank in range(job.world)]:
        raise AssertionError(f"gather: {digests}")


def main() -> int:
    with init() as job:
        check(job)
        if job.rank == 0:
            found = _lib.library()
            print(
                f"zenps.selftest: {_STEPS} steps of {job.world} ranks and {job.servers} servers are right, bit for bit; "
                f"libzenps {found.version}, libfabric {found.fabric_version} ({found.fabric_source}), {job.provider}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
