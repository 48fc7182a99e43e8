"""Elastic jobs: from one generation to the next. A trainer is a loop:

    job, step = zenps.init(min_world=2, max_world=4), 0
    while True:
        try:
            ...                                      # open tensors; broadcast the state from job.generation.source
            step = job.generation.step
            while step < steps and not job.changed:
                ...                                  # compute, allreduce(), wait(), apply the sums
                step += 1
        except zenps.ZenpsError as error:
            if not error.recoverable:
                raise
        if step == steps:
            break
        job.next(step)

:func:`zenps.torch.elastic` is that loop for a model of PyTorch.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from . import _abi, _calls, _lib, collectives
from .errors import Busy, Closed, Invalid, ZenpsError

if TYPE_CHECKING:
    from .job import Job


@dataclass(frozen=True)
class Generation:
    """One of the worlds that an elastic job has in turn: zenps_generation_t.

    number: 1 for the first; 0: the job is not elastic. rank, world: of this process, in it. source: the rank whose state the
    others take: of those that were there before, the one with the most steps, the lowest of several; in the first
    generation, of all ranks. step: steps that `source` has completed, as it said.
    """

    number: int
    rank: int
    world: int
    source: int
    step: int


def _of(raw: _abi.Generation) -> Generation:
    return Generation(raw.number, raw.rank, raw.world, raw.source, raw.step)


def _raw() -> _abi.Generation:
    made = _abi.Generation()
    made.struct_size = ctypes.sizeof(made)
    return made


def generation_of(handle: int, job: str) -> Generation:
    raw = _raw()
    _lib.check(_lib.load().zenps_job_generation(handle, ctypes.byref(raw)), job)
    return _of(raw)


def _begin(job: "Job") -> None:
    """No call of another thread comes into the library from here on; those that are inside are ended."""
    with job._using():
        if job.generation.number == 0:
            raise Invalid(f"job {job.name} is not elastic: max_world (ZENPS_MAX_WORLD_SIZE) makes it so", job=job.name)
        with job._state:
            if job._moving:
                raise Busy(f"job {job.name}: another thread is in next() already", job=job.name)
            job._moving = True
            job._inside += 1  # this thread, until next() is over
            for request in job._requests:
                _lib.load().zenps_cancel(request)


def _alone(job: "Job", requests: Dict[int, Any]) -> None:
    """Returns when no other thread is inside; `requests` gets the job's, which nobody else frees then."""
    while True:
        with job._state:
            if job._inside == 1:
                requests.update(job._requests)
                job._requests.clear()
                return
            job._alone.clear()
        job._alone.wait(_calls.SLICE_MS / 1000)


def next_generation(job: "Job", step: int) -> Generation:
    """:meth:`zenps.Job.next`."""
    if not 0 <= step < 1 << 64:
        raise Invalid(f"job {job.name}: next() with step {step}; must be 0 to 2^64 - 1", job=job.name)
    _begin(job)
    lib = _lib.load()
    requests: Dict[int, Any] = {}
    try:
        _alone(job, requests)
        while requests:
            request, borrowed = requests.popitem()
            lib.zenps_request_free(request)
            del borrowed
    except BaseException:  # Ctrl-C: the job is where it was
        with job._state:
            job._requests.update(requests)
            job._moving = False
        job._leave()
        raise
    raw = _raw()
    handle: Optional[int] = None

    def move() -> Tuple[Optional[int], Optional[ZenpsError]]:
        moved = ctypes.c_void_p(job._handle)
        status = lib.zenps_job_next(ctypes.byref(moved), step, ctypes.byref(raw))
        return moved.value, _lib.error_of(lib.zenps_last_error().contents, job.name) if status else None

    def close(late: Tuple[Optional[int], Optional[ZenpsError]]) -> None:
        lib.zenps_close(late[0])

    try:
        handle, error = _calls.interruptible(move, close)
        if error is not None:
            raise error
    finally:
        with job._state:
            job._moving = False
            job._handle = handle or 0
            if handle is None:
                job._closed = True
            else:
                _settle(job, _of(raw), lib)
        job._leave()
        job._unwatch()
    return job.generation


def _settle(job: "Job", generation: Generation, lib: Any) -> None:
    job.generation = generation
    job.rank, job.world = generation.rank, generation.world
    job.servers = lib.zenps_servers(job._handle)
    job._tensors, job._groups = {}, {}
    job._collective = collectives.Collective(job)
    if job._log is not None:
        job._log.rank = job.rank


def check(job: "Job", number: Optional[int], what: str) -> None:
    """Raises Closed where `what` is of another generation than the job's."""
    if job._moving:
        raise Closed(f"job {job.name} is on its way to its next generation", job=job.name)
    if number is not None and number != job.generation.number:
        raise Closed(
            f"{what} is closed: it was of generation {number} of job {job.name}, which is in generation "
            f"{job.generation.number}; open it anew",
            job=job.name,
        )
