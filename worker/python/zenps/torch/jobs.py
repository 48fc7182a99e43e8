"""The job that functions of zenps.torch use where none is given."""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from .. import init as core_init
from ..errors import ZenpsError
from ..group import Group
from ..job import Job, _open_jobs

Ranks = Union[Job, Group]  # the gradients of these are summed

_current: Optional[Job] = None
PATIENCE = 300.0  # seconds: ranks of a training run start, and reach a round, minutes apart
REFUSED = 30.0  # seconds: a zenpsd of this host, by contrast, starts at once


def init(*arguments: Any, **named: Any) -> Job:
    """Joins a job, as :func:`zenps.init` does, whose arguments it takes; join_timeout and round_timeout are 300 s where
    neither the call nor the environment (ZENPS_JOIN_TIMEOUT, ZENPS_ROUND_TIMEOUT) says otherwise. An address of this host
    at which no coordinator listens is given up after 30 s all the same. The job is then that of
    every call here without one. A second call with the same arguments gives the same Job."""
    global _current
    if not {"join_timeout", "refused_timeout"} & set(named):
        if not {"ZENPS_JOIN_TIMEOUT", "ZENPS_REFUSED_TIMEOUT"} & set(os.environ):
            named["refused_timeout"] = REFUSED
    for name in ("join_timeout", "round_timeout"):
        if f"ZENPS_{name.upper()}" not in os.environ:
            named.setdefault(name, PATIENCE)
    try:
        _current = core_init(*arguments, **named)
    except ZenpsError as error:
        raise error.with_traceback(None) from None
    return _current


def current(job: Optional[Ranks] = None) -> Ranks:
    """`job`, which may be a group of one, or the last one that init() gave, or the only one that is open, or one from the environment."""
    if job is not None:
        return job
    if _current is not None and not _current.closed:
        return _current
    others = [each for each in _open_jobs if not each.closed]
    return others[0] if len(others) == 1 else init()


def generation(job: Ranks) -> int:
    """Of an elastic job, or of the job of a group, that it is in; else 0."""
    return (job.job if isinstance(job, Group) else job).generation.number


def numbered(job: Ranks, place: int) -> int:
    """A rank of a group, or job, as the job numbers it."""
    return job.ranks[place] if isinstance(job, Group) else place
