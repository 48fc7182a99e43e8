"""Outer steps that do not wait for the slowest ranks (outer.py): who closes a step, and how a late rank catches up.

One party decides who is late, the server of a tensor (<zenps/zenps.h>, quorum). So each tensor of an outer step has late
ranks of its own, the same on all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch

from ..arrays import Rows
from ..errors import Invalid
from ..group import Group
from ..request import Request
from ..tensor import Tensor
from . import convert
from .control import SyncStats
from .jobs import Ranks, generation

GRACE = 10.0  # seconds, where a quorum is given alone
KEPT = 16  # outer steps of which servers keep the sums for late ranks
_MOST = 86400.0  # seconds


@dataclass
class OuterStats(SyncStats):
    """Totals on this rank, of all fragments. steps: outer steps that went well.

    late: those that closed without this rank. late_ranks, contributors: of the last one, the late ranks in ascending order, and
    the number of ranks whose mean it is. They are the same on all ranks.
    """

    late: int = 0
    late_ranks: Tuple[int, ...] = ()
    contributors: int = 0


@dataclass(frozen=True)
class Quorum:
    """ranks: so many close an outer step; 0: all are needed. grace_ms: time of the others after that."""

    ranks: int = 0
    grace_ms: int = 0

    def options(self, grace: bool = True) -> Dict[str, Any]:
        """Of a tensor."""
        return {"quorum": self.ranks, "grace_ms": self.grace_ms if grace else 0} if self.ranks else {}


def quorum_of(name: str, job: Ranks, ranks: Optional[int], grace: Optional[float], schemes: Dict[str, Optional[str]]) -> Quorum:
    """Of OuterSync's arguments. schemes: those that were asked for, by argument. Raises Invalid."""
    what = f"OuterSync {name}"
    if ranks is None:
        if grace is not None:
            raise Invalid(f"{what}: a grace of {grace} s without a quorum; give quorum=, 1 to {job.world} ranks")
        return Quorum()
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= job.world:
        raise Invalid(f"{what}: quorum {ranks} of {job.world} ranks; must be 1 to {job.world}, or None to wait for all")
    grace = GRACE if grace is None else grace
    if not 0 <= grace <= _MOST:
        raise Invalid(f"{what}: grace {grace}; must be 0 to {_MOST:.0f} seconds")
    if isinstance(job, Group):
        raise Invalid(f"{what}: quorum {ranks} of group {job.name}; a quorum is for all ranks of a job: give the job, or leave it out")
    if generation(job):
        raise Invalid(f"{what}: quorum {ranks} in elastic job {job.name}; a quorum is for a job of fixed ranks. Leave it out: an elastic "
                      "job goes on without a silent rank after control.dead")  # fmt: skip
    for argument, scheme in schemes.items():
        if scheme is not None and scheme != "balanced":
            raise Invalid(f"{what}: quorum {ranks} with {argument} {scheme!r}; rounds with a quorum have the scheme 'balanced': leave it out")
    return Quorum(ranks, round(1000 * grace))


class Pace:
    """Tells a rank that was late when the others have begun the next outer step, so that it begins, too.

    A round for each outer step, in which ranks say that they have begun it. A late rank asks ahead of that, and says nothing.
    Nobody waits for such a round.
    """

    _tensor: Tensor
    _rank: int

    def __init__(self, name: str, quorum: Quorum) -> None:
        self._name, self._quorum = convert.tensor_name(name), quorum
        self._step: Optional[int] = None  # of the newest request
        self._requests: List[Request[Rows]] = []
        self.tensors: List[Tensor] = []

    def open(self, job: Ranks) -> None:
        # Two at least: a rank that asks is one, and another begins.
        ranks = min(max(2, self._quorum.ranks), job.world)
        self._tensor = job.tensor(self._name, job.world, 1, "f32", op="sum", values="raw", scheme="balanced",
                                  quorum=ranks)  # fmt: skip
        self.tensors, self._rank = [self._tensor], job.rank

    def begin(self, step: int) -> None:
        """This rank begins the outer step."""
        if self._step != step:
            self._start(step, [self._rank])

    def has_begun(self, step: int) -> bool:
        """Whether a quorum is there, and one of it has begun the step. Does not wait."""
        if self._step != step:
            self._start(step, [])
        request = self._requests[-1]
        return request.done() and request.exception() is None and request.wait().nnz > 0

    def _start(self, step: int, rows: List[int]) -> None:
        self._requests = [each for each in self._requests if not each.done()]
        for each in self._requests[:-KEPT]:  # the others are too late for it
            each.cancel()
        ids = torch.tensor(rows, dtype=torch.int64, device="cpu")
        ones = torch.ones(ids.shape[0], dtype=torch.float32, device="cpu")
        arrays = convert.array(ones, (ids.shape[0], 1)), convert.array(ids, (ids.shape[0],))
        self._requests.append(self._tensor.allreduce(*arrays, step=step, out="rows"))
        self._step = step

    def cancel(self) -> None:
        for each in self._requests:
            each.cancel()
