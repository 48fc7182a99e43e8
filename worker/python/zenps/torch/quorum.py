"""Outer steps that do not wait for the slowest ranks (outer.py): who closes a step, and how a late rank catches up.

One party decides who is late, the server of a tensor (<zenps/zenps.h>, quorum). So each tensor of an outer step has late
ranks of its own, the same on all ranks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch

from ..arrays import Rows
from ..errors import Invalid
from ..job import Job
from ..request import Request
from ..tensor import Tensor
from . import convert
from .control import SyncStats
from .jobs import Ranks, generation, whole

GRACE = 10.0  # seconds, where a quorum is given alone
KEPT = 16  # outer steps of which servers keep the sums for late ranks
_MOST = 86400.0  # seconds
_MOST_RANKS = 4096  # of any generation of an elastic job


@dataclass
class OuterStats(SyncStats):
    """Totals on this rank, of all fragments. steps: outer steps that went well.

    late: steps that closed without this rank.
    late_ranks: ranks that were late in any sum of the last step, as the job numbers them, ascending. The same on all ranks.
    contributors: the number of the other ranks. The same on all ranks.
    """

    late: int = 0
    late_ranks: Tuple[int, ...] = ()
    contributors: int = 0


@dataclass(frozen=True)
class Quorum:
    """ranks: so many close an outer step; 0: all are needed. grace_ms: time of the others after that. patience: seconds that a round
    of Pace lasts."""

    ranks: int = 0
    grace_ms: int = 0
    patience: float = 0.0

    def options(self, world: int, grace: bool = True) -> Dict[str, Any]:
        """Options of a tensor of `world` ranks. All are needed if they are fewer than the quorum."""
        return {"quorum": min(self.ranks, world), "grace_ms": self.grace_ms if grace else 0} if self.ranks else {}


def quorum_of(name: str, job: Ranks, ranks: Optional[int], grace: Optional[float], schemes: Dict[str, Optional[str]]) -> Quorum:
    """Of OuterSync's arguments. schemes: those that were asked for, by argument. Raises Invalid."""
    what = f"OuterSync {name}"
    most = _MOST_RANKS if isinstance(job, Job) and generation(job) else job.world
    if ranks is None:
        if grace is not None:
            raise Invalid(f"{what}: a grace of {grace} s without a quorum; give quorum=, 1 to {most} ranks")
        return Quorum()
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= most:
        raise Invalid(f"{what}: quorum {ranks} of {most} ranks; must be 1 to {most}, or None to wait for all")
    grace = GRACE if grace is None else grace
    if not 0 <= grace <= _MOST:
        raise Invalid(f"{what}: grace {grace}; must be 0 to {_MOST:.0f} seconds")
    timeout = whole(job).round_timeout
    if grace >= timeout:
        raise Invalid(f"{what}: a grace of {grace:g} s with a round_timeout of {timeout:g} s; an outer step closes at its "
                      "deadline at the latest. Take a shorter grace, or a longer round_timeout (zt.init(), ZENPS_ROUND_TIMEOUT)")  # fmt: skip
    for argument, scheme in schemes.items():
        if scheme is not None and scheme != "balanced":
            mend = "leave it out" if argument == "scheme" else "take a selection of each rank, such as ChunkTopK() or TopK()"
            raise Invalid(f"{what}: quorum {ranks} with {argument} {scheme!r}; rounds with a quorum have the scheme 'balanced': {mend}")
    return Quorum(ranks, round(1000 * grace), timeout / 2)


class Pace:
    """Tells a rank that was late when the others have begun the next outer step, so that it begins, too.

    Each rank has a tensor with a round for each outer step. Ranks that begin the step say so in all tensors. A late rank asks in its
    own ahead of that, and says nothing. So one rank at most asks in a round, and others that begin close it. Nobody waits for such
    a round. It is given up ahead of its deadline, since one that fails there is an error of the job.
    """

    _job: Ranks

    def __init__(self, name: str, quorum: Quorum) -> None:
        self._name, self._quorum = name, quorum
        self._asked: Optional[Request[Rows]] = None
        self._step: Optional[int] = None  # of the ask
        self._requests: List[Tuple[float, Request[Rows]]] = []  # each with the time of its end
        self.tensors: List[Tensor] = []

    def open(self, job: Ranks) -> None:
        self._job = job
        # Of two ranks neither may give up alone. There a grace ends a round without an error.
        of_two = {"quorum": 1, "grace_ms": int(1000 * self._quorum.patience)}
        options: Dict[str, Any] = of_two if job.world == 2 else {"quorum": max(2, self._quorum.ranks)}
        self.tensors = [job.tensor(convert.tensor_name(f"{self._name}/{place}"), 1, 1, "f32", op="sum", values="raw", scheme="balanced",
                                   **options) for place in range(job.world)]  # fmt: skip

    def begin(self, step: int) -> None:
        """This rank begins the outer step."""
        for place in range(self._job.world):
            if place != self._job.rank or self._step != step:
                self._start(place, step, [0])

    def has_begun(self, step: int) -> bool:
        """Whether, with this rank, a quorum has begun the step. Does not wait. After half a round_timeout the answer stays no."""
        if self._step != step:
            self._asked, self._step = self._start(self._job.rank, step, []), step
        asked = self._asked
        return asked is not None and asked.done() and asked.exception() is None and asked.wait().nnz > 0

    def tend(self) -> None:
        """Gives up what is about to expire, and what the others are too late for."""
        now, most = time.monotonic(), KEPT * self._job.world
        self._requests = [each for each in self._requests if not each[1].done()]
        for i, (end, request) in enumerate(self._requests):
            if (now >= end and self._job.world > 2) or i < len(self._requests) - most:
                request.cancel()

    def _start(self, place: int, step: int, rows: List[int]) -> Request[Rows]:
        ids = torch.tensor(rows, dtype=torch.int64, device="cpu")
        ones = torch.ones(ids.shape[0], dtype=torch.float32, device="cpu")
        arrays = convert.array(ones, (ids.shape[0], 1)), convert.array(ids, (ids.shape[0],))
        request = self.tensors[place].allreduce(*arrays, step=step, out="rows")
        self._requests.append((time.monotonic() + self._quorum.patience, request))
        return request

    def cancel(self) -> None:
        for _end, request in self._requests:
            request.cancel()
