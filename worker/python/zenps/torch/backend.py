"""The backend "zenps" of torch.distributed, in Python alone:

    import zenps.torch                                  # registers it; torch 2.15 finds an installed zenps by itself
    torch.distributed.init_process_group("zenps")       # under zenpsrun, or torchrun with ZENPS_COORDINATOR

Rank and world are those of torch. Each group is a job of zenps of its own, at the coordinator that zenps.init() finds.
"""

from __future__ import annotations

import os
import uuid
from datetime import timedelta
from typing import Any, Optional

from torch import distributed

from ..errors import Unsupported
from .operations import Operations

NAME = "zenps"
_DEVICES = ["cpu", "cuda"]


class ZenpsBackend(Operations, distributed.ProcessGroup):  # type: ignore[misc]
    """The process group that init_process_group("zenps") and new_group() make. job: the job behind it."""

    _needs = "the process group was destroyed or aborted; call init_process_group() again"

    def __init__(self, job: str, rank: int, world: int, timeout: timedelta) -> None:
        super().__init__(rank, world)
        self._begin()
        self._names = {"name": "", "desc": ""}
        self._open(job, rank, world, timeout)

    @property
    def job(self) -> Any:
        return self._current()

    # torch keeps these two in the backends of a group, of which one in Python has none.

    @property
    def group_name(self) -> str:
        return self._names["name"]

    @property
    def group_desc(self) -> str:
        return self._names["desc"]

    def getGroupName(self) -> str:
        return self._names["name"]

    def setGroupName(self, name: str) -> None:
        self._names["name"] = name

    def getGroupDesc(self) -> str:
        return self._names["desc"]

    def setGroupDesc(self, description: str) -> None:
        self._names["desc"] = description

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def __repr__(self) -> str:
        return f"ZenpsBackend({self._job!r})"

    def __del__(self) -> None:
        """destroy_process_group() of torch 1.13 only drops the group."""
        if getattr(self, "_job", None) is not None:
            self._leave()


def job_name(group: str, incarnation: str) -> str:
    """Of a process group. The run's name comes first, so that tokens for jobs of that name hold here, too."""
    run = os.environ.get("ZENPS_JOB") or os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return f"{'torch' if run == 'none' else run}/{group}/{incarnation}"


def _create(options: Any, _: Optional[Any] = None) -> ZenpsBackend:
    """Called by torch on each rank of a group."""
    others = getattr(options, "process_group", None)
    if others is not None and others._device_types:
        raise Unsupported(f"backend zenps for one kind of device beside others ({others._device_types}): give all devices one "
                          'backend, init_process_group("zenps"), and other groups theirs by new_group(backend=...)')  # fmt: skip
    store, rank = options.store, options.group_rank
    # A store may outlive a process group, and the next one then finds the keys of this one. Each rank counts its own.
    key = f"zenps/{store.add(f'zenps/made/{rank}', 1)}"
    if rank == 0:
        store.set(key, uuid.uuid4().hex[:12])
    store.wait([key], options.timeout)
    name = job_name(options.group_id, store.get(key).decode())
    return ZenpsBackend(name, rank, options.group_size, options.timeout)


def register() -> None:
    """Once; importing zenps.torch does it."""
    if NAME.upper() in distributed.Backend._plugins:
        return
    try:
        distributed.Backend.register_backend(NAME, _create, extended_api=True, devices=_DEVICES)
    except TypeError:  # torch before 2.0 has no devices
        distributed.Backend.register_backend(NAME, _create, extended_api=True)
