"""A rank that does not come before the deadline."""

import zenps

ROUND_TIMEOUT = 2


def case_missing(job):
    tensor = job.tensor("missing", 1000, op="sum")
    if job.rank != 2:
        error = tensor.allreduce([1.0], [1]).exception()
        assert isinstance(error, zenps.MissingRanks) and error.missing_ranks == (2,), repr(error)
        assert error.step == 0 and "2" in str(error)
    # The step has failed on all ranks alike, for the one that comes late, too.
    else:
        import time

        time.sleep(2 * ROUND_TIMEOUT)
        assert tensor.allreduce([1.0], [1]).exception() is not None
