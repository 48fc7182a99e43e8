"""The job that functions of zenps.torch use where none is given."""

from __future__ import annotations

import os
import weakref
from typing import Any, Optional, Set, Union

from .. import init as core_init
from ..errors import Invalid, ZenpsError
from ..group import Group
from ..job import Job, _open_jobs
from . import launch

Ranks = Union[Job, Group]  # the gradients of these are summed

_current: Optional[Job] = None
names: "weakref.WeakKeyDictionary[Ranks, Set[str]]" = weakref.WeakKeyDictionary()  # of GradientSyncs and HookStates
PATIENCE = {"join_timeout": 300.0, "round_timeout": 1800.0}  # seconds: rank 0 may validate for half an hour, as under DDP
REFUSED = 30.0  # seconds: a zenpsd of this host starts at once


def init(*arguments: Any, **named: Any) -> Job:
    """Joins a job. Takes the arguments of :func:`zenps.init`. Calls without a job then use this one. A second call with the
    same arguments gives the same Job.

    Without an argument or variable join_timeout is 300 s (ZENPS_JOIN_TIMEOUT), and round_timeout 1800 s
    (ZENPS_ROUND_TIMEOUT), as torch's. A profile (ZENPS_PROFILE) sets the former, and not the latter. It gives up an address of this host after 30 s if no coordinator listens there. The
    loss of a rank ends a round at once. Only a rank that lives and does not push makes the others wait so long.

    Under torchrun on one host, without a coordinator, rank 0 starts one with a server for this run (launch.py)."""
    global _current
    asked = arguments[0] if arguments else named.get("coordinator")
    if launch.is_needed(asked):
        launch.start()
    if not {"join_timeout", "refused_timeout"} & set(named):
        if not {"ZENPS_JOIN_TIMEOUT", "ZENPS_REFUSED_TIMEOUT"} & set(os.environ):
            named["refused_timeout"] = REFUSED
    has_profile = os.environ.get("ZENPS_PROFILE", "") not in ("", "none")
    for name, seconds in PATIENCE.items():
        if f"ZENPS_{name.upper()}" not in os.environ and not (has_profile and name == "join_timeout"):
            named.setdefault(name, seconds)
    try:
        _current = core_init(*arguments, **named)
    except ZenpsError as error:
        raise error.with_traceback(None) from None
    return _current


def current(job: Optional[Ranks] = None) -> Ranks:
    """`job`, which may be a group of one, or the last one that init() gave, or the only one that is open, or one from the environment."""
    if isinstance(job, (Job, Group)):
        return job
    if job is not None:
        raise Invalid(f"job: a {type(job).__name__}; a zenps.Job, or a group of one, is wanted")
    if _current is not None and not _current.closed:
        return _current
    others = [each for each in _open_jobs if not each.closed]
    return others[0] if len(others) == 1 else init()


def whole(job: Ranks) -> Job:
    """The job, or that of a group."""
    return job.job if isinstance(job, Group) else job


def generation(job: Ranks) -> int:
    """Of an elastic job, or of the job of a group, that it is in; else 0."""
    return whole(job).generation.number


def numbered(job: Ranks, place: int) -> int:
    """A rank of a group, or job, as the job numbers it."""
    return job._numbered(place)
