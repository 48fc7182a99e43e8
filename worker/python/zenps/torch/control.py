"""What ranks tell each other once a step besides gradients: parameters that got none, and ranks that have no data."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, List, Optional, Sequence, Tuple

import torch

from ..arrays import Rows
from ..errors import ShapeMismatch, ZenpsError
from ..request import Request
from ..tensor import Tensor
from . import convert
from .jobs import Ranks, numbered

_LEFT = 0  # row: ranks that have run out of data
_REFUSED = 1  # row: ranks that refuse the step
_WRITTEN = 2  # row: ranks on which forward() has written parameters
_UNUSED = 3  # row _UNUSED + i: ranks on which parameter i got no gradient; behind the last one, a row for each rank


@dataclass
class SyncStats:
    """Totals on this rank: steps that went well; bytes that the fabric was given and gave; bytes that were copied where
    a gradient could not be handed over in place."""

    steps: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    copied_bytes: int = 0


class Control:
    """A tensor of a row per parameter and a row per rank. Most rows are zero, so a step's round is all but empty. With a quorum
    it has a second row per rank, and a rank that refuses the step is named."""

    _world: int
    _rank: int

    def __init__(self, name: str, n_parameters: int) -> None:
        self._name = convert.tensor_name(name)
        self._rows = _UNUSED + n_parameters
        self._names = False  # the ranks that refuse
        self.requests: List[Request[Rows]] = []
        self.tensors: List[Tensor] = []
        self._unused: List[int] = []
        self._said: List[int] = []  # the rows of the next round
        self.left = 0
        self.refused = 0
        self.written = 0
        self.given_up: List[int] = []  # ranks that have left the step before its end, by place
        self.refused_by: List[int] = []  # by place; with a quorum

    def open(self, job: Ranks, **options: Any) -> int:
        """The tensor, in the job as it is now; gives its next step. options: others of the tensor."""
        self._names = bool(options.get("quorum"))
        tensor = job.tensor(self._name, self._rows + (1 + self._names) * job.world, 1, "f32", op="sum", values="raw", scheme="balanced", **options)
        self.tensors = [tensor]
        self._world, self._rank = job.world, job.rank
        self.requests = []
        return tensor.next_step

    def say(self, unused: Sequence[int], *, leaving: bool = False, written: bool = False) -> None:
        """What the next round says. `unused`: indices of parameters without a gradient here; `leaving`: this rank has none at
        all, nor data; `written`: forward() has written parameters here."""
        self._said = [_LEFT] * leaving + [_WRITTEN] * written
        if not leaving:
            self._said += [_UNUSED + index for index in unused]

    def start(self, step: int, refused: bool) -> None:
        """`refused`: all ranks are to raise an error, and nothing else is said."""
        self._start(step, [_REFUSED] + [self._rows + self._world + self._rank] * self._names if refused else self._said)

    def _start(self, step: int, rows: Sequence[int]) -> None:
        ids = torch.tensor(rows, dtype=torch.int64, device="cpu")
        ones = torch.ones(ids.shape[0], dtype=torch.float32, device="cpu")
        arrays = convert.array(ones, (ids.shape[0], 1)), convert.array(ids, (ids.shape[0],))
        self.requests = [self.tensors[0].allreduce(*arrays, step=step, out="rows")]

    def cancel(self, step: Optional[int]) -> None:
        """Gives the step's round up, on all ranks: the others may wait in it, though this rank has not started it. A round that
        ends all the same says so. None: no rank waits."""
        if not self.requests and self.tensors and step is not None:
            with suppress(ZenpsError):  # the job has ended, or the generation, and nobody waits
                self._start(step, [self._rows + self._rank])
        for request in self.requests:
            request.cancel()

    def read(self) -> None:
        """After the round: how many ranks have left, refused or written, and what nobody used."""
        rows = self.requests[0].wait()
        assert rows.row_ids is not None
        counts = dict(zip(rows.row_ids.tolist(), rows.values.data.cast("B").cast("f").tolist() if rows.nnz else []))
        self.left = int(counts.pop(_LEFT, 0))
        self.refused, self.written = int(counts.pop(_REFUSED, 0)), int(counts.pop(_WRITTEN, 0))
        places = [row - self._rows for row in counts if row >= self._rows]
        self.given_up = [place for place in places if place < self._world]
        self.refused_by = [place - self._world for place in places if place >= self._world]
        self._unused = [row - _UNUSED for row, count in counts.items() if row < self._rows and count >= self._world - self.left]

    def used(self, index: int) -> bool:
        return index not in self._unused

    @property
    def scale(self) -> float:
        """What turns a mean over all ranks into one over those that have not left."""
        return self._world / (self._world - self.left) if 0 < self.left < self._world else 1.0


def difference(one: List[str], other: List[str]) -> Optional[Tuple[str, str]]:
    """The first entries in which the lists differ; None: they are the same."""
    for pair in zip_longest(one, other, fillvalue="none"):
        if pair[0] != pair[1]:
            return pair
    return None


def agree(job: Ranks, what: str, own: Optional[List[str]]) -> None:
    """Raises ShapeMismatch on every rank where ranks' lists `own` are not the same; the text has the first difference."""
    lists = [part.decode().split("\0") for part in job.gather("\0".join(own or []).encode())]
    for rank, theirs in enumerate(lists):
        found = difference(lists[0], theirs)
        if found:
            raise ShapeMismatch(f"job {job.name}: {what}: rank {numbered(job, 0)} has {found[0]}, rank {numbered(job, rank)} has {found[1]}",
                                job=job.name)  # fmt: skip
