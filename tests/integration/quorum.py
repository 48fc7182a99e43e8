"""A rank of quorum.sh: quorum.py FOLDER. Sends what it has, and keeps what came too late.

Does steps as long as FOLDER/most allows, and writes its counts to FOLDER/rank-N. At the end it prints what it has
given, what it has kept, and what the sums have brought: whole numbers, so that they add up exactly.
"""

import array
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "worker" / "python"))
import zenps  # noqa: E402

ROWS = 6000


def read_most(folder: pathlib.Path) -> int:
    """Steps that the ranks may do so far; 0: no more."""
    return int((folder / "most").read_text() or "1")


def write(folder: pathlib.Path, rank: int, text: str) -> None:
    part = folder / f"rank-{rank}.part"
    part.write_text(text)
    part.rename(folder / f"rank-{rank}")


def gradient(rank: int, step: int) -> int:
    return 1 + rank + step % 7


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    job = zenps.init()
    rank = job.rank
    tensor = job.tensor("w", ROWS, op="sum", quorum=job.world - 1, grace_ms=int(sys.argv[2]))
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    given = kept = brought = 0
    step = late = skipped = 0
    while True:
        write(folder, rank, f"steps {step} late {late} skipped {skipped}")
        while (most := read_most(folder)) and step >= most:
            time.sleep(0.02)
        if most == 0:
            break
        kept += gradient(rank, step)
        given += gradient(rank, step)
        try:
            rows = tensor.allreduce(array.array("f", [float(kept)]) * ROWS, step=step, out="dense").wait()
        except zenps.Stale:
            skipped += 1
        else:
            values = rows.values.data
            assert values[0, 0] == values[ROWS - 1, 0], "rows differ"
            brought += int(values[0, 0])
            late += rows.late
            if not rows.late:
                kept = 0
        step += 1
    print(f"rank {rank}: given {given} kept {kept} brought {brought} late {late} skipped {skipped}", flush=True)
    job.close()


main()
