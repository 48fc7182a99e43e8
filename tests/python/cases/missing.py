"""A rank that does not come before the deadline."""

import pathlib
import sys
import time

import zenps

ROUND_TIMEOUT = 10


def case_missing(job):
    tensor = job.tensor("missing", 1000, op="sum")
    folder = pathlib.Path(sys.argv[2])
    if job.rank != 2:
        error = tensor.allreduce([1.0], [1]).exception()
        assert isinstance(error, zenps.MissingRanks) and error.missing_ranks == (2,), repr(error)
        assert error.step == 0 and "2" in str(error)
        (folder / f"{job.rank}.failed").touch()
    # The step has failed on all ranks alike, for the one that comes late, too.
    else:
        while len(list(folder.glob("*.failed"))) < 2:
            time.sleep(0.02)
        assert tensor.allreduce([1.0], [1]).exception() is not None
