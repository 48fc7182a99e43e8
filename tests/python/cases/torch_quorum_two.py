"""OuterSync with a quorum of one on two ranks: neither of the two may give up alone."""

from __future__ import annotations

import torch
from torch_quorum import Training, answered
from torch_sync import RANK, ROUND_TIMEOUT, job, same_everywhere

import zenps

assert ROUND_TIMEOUT  # runner.py has this timeout, too


def case_catches_up_of_two(_: zenps.Job) -> None:
    """The late rank asks, and hears of the other's step."""
    training = Training(every=4, select=None, quorum=1)
    outer = training.outer
    training.together([1])
    assert outer.stats.late_ranks == (1,)
    if RANK == 1:
        assert not outer._pace.has_begun(outer._step)
        outer._pace.tend()
        job.barrier()
        answered(outer)
        before = {name: value.clone() for name, value in outer.start.items()}
        training.local()
        assert training.count(outer.step(), before) and outer.local_steps == 8 and training.step == 5
    else:
        job.barrier()
        training.once()
    same_everywhere(*outer.start.values())
    training.check()
    outer.close()


def case_an_ask_of_two_ends_by_itself(_: zenps.Job) -> None:
    """The round of an ask ends in time without the other rank, and without an error."""
    training = Training(every=1, select=None, quorum=1)
    pace = training.outer._pace
    assert pace is not None and training.outer._quorum.patience == ROUND_TIMEOUT / 2
    tensor = job.tensor(f"short.{training.outer.name}", 1, 1, "f32", op="sum", values="raw", scheme="balanced", quorum=1, grace_ms=10)
    pace.tensors[1].close()
    pace.tensors[1] = tensor
    if RANK == 1:
        assert not pace.has_begun(0)
        answered(training.outer)
        assert pace._asked.exception() is None and not pace.has_begun(0)
    job.barrier()
    training.together([1])
    same_everywhere(*training.outer.start.values())
    assert torch.isfinite(training.outer.start["out.bias"]).all()
    training.outer.close()
