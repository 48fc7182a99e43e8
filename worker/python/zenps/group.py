"""Groups: some ranks of a job, with tensors, barriers and sums of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from . import _lib
from .scope import Scope

if TYPE_CHECKING:
    from .job import Job


class Group(Scope):
    """Some ranks of a job; :meth:`zenps.Job.group` opens it. A grid of tensor and data parallelism is one job with a group
    for each row of the grid, and one for each column; all share the job's engine and links.

    ranks: numbers in the job, ascending; rank: this one's place among them; world: how many. Names of tensors are the
    group's own. Sums and means are of its ranks, in their order. Errors name ranks as the job numbers them. A rank that
    dies ends the whole job. Of an elastic job a group ends with the generation that it was opened in.
    """

    def __init__(self, job: "Job", handle: int, name: str, ranks: Sequence[int], generation: int) -> None:
        self._job = job
        self._group = handle
        self._generation = generation
        self._words = f"group {name}"
        self.name = name
        self.ranks = tuple(ranks)
        self._first = self.ranks[0]
        self.rank = self.ranks.index(job.rank)
        self.world = len(self.ranks)
        super().__init__()

    @property
    def job(self) -> "Job":
        return self._job

    def _numbered(self, place: int) -> int:
        return self.ranks[place]

    def close(self) -> None:
        """No tensor is opened in the group any more, and no barrier held; its tensors go on. When all of its ranks have
        closed it the name may be used for other ranks. The job closes groups that are left open."""
        job, handle = self._job, self._group
        if self._generation != job.generation.number:
            return
        job._blocking(lambda: _lib.check(_lib.load().zenps_group_close(handle), job.name), self._generation, self._words)
        job._groups.pop(handle or 0, None)

    def __repr__(self) -> str:
        return f"<zenps.Group {self.name!r} of {self._job.name!r}: rank {self.rank} of {self.world}>"
