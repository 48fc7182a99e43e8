#!/usr/bin/env python3
"""A rank that sums round after round; tests/bench/beside runs two of each of two jobs.

  beside_rank.py FLAG OUT ROWS TOUCHED

Sums lists of TOUCHED rows of 4 floats of a tensor of ROWS rows, or dense arrays where TOUCHED is 0, while the file FLAG is there, and
waits while it is not; for ever where FLAG is "-", and ends when the file FLAG.end is there. Writes a line for each round to OUT.RANK: when it
began (monotonic ns), how long it took (ns), and how it ended (OK, or the error's name).
"""
import array
import os
import random
import sys
import time

import zenps

WIDTH = 4


def main():
    flag, out, rows, touched = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with zenps.init() as job, open(f"{out}.{job.rank}", "w", buffering=1) as log:
        table = job.tensor("gradient", rows=rows, width=WIDTH)
        rng = random.Random(job.rank)
        ids = array.array("q", sorted(rng.sample(range(rows), touched))) if touched else None
        values = array.array("f", [1.0 + job.rank]) * (WIDTH * (touched or rows))
        gradient = memoryview(values).cast("B").cast("f", [touched or rows, WIDTH])
        while not os.path.exists(f"{out}.end"):
            if flag != "-" and not os.path.exists(flag):
                time.sleep(0.01)
                continue
            begin = time.monotonic_ns()
            try:
                (table.allreduce(gradient, ids) if touched else table.allreduce(gradient)).wait()
                end = "OK"
            except zenps.ZenpsError as error:
                end = type(error).__name__
                if end not in ("QuotaExceeded", "PeerLost", "MissingRanks"):
                    raise
            print(begin, time.monotonic_ns() - begin, end, file=log)
            if end == "PeerLost" or end == "MissingRanks":
                return  # the other one has seen the end first


main()
