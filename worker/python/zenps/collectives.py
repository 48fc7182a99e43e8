"""Collectives for what is small: bytes of every rank, and sums of a few numbers."""

from __future__ import annotations

import collections
import struct
import threading
from typing import TYPE_CHECKING, Deque, List, Optional, Sequence

from . import arrays
from .errors import Invalid, ShapeMismatch

if TYPE_CHECKING:
    from .arrays import Rows
    from .request import Request
    from .scope import Scope
    from .tensor import Tensor

_ROW = 64  # bytes: 8 values of f64, whose bits an allgather copies
_ROWS_PER_RANK = (1 << 20) + 1
_IN_FLIGHT = 16  # a tensor has at most 32 steps in flight


class Gathering:
    """A gather() in flight. Called, it waits, and gives the bytes of every rank, by rank."""

    def __init__(self, request: "Request[Rows]", world: int) -> None:
        self.request = request
        self._world = world

    def __call__(self, timeout: Optional[float] = None) -> List[bytes]:
        gathered = self.request.wait(timeout).values.tobytes()
        parts, at = [], 0
        for _ in range(self._world):
            (length,) = struct.unpack_from("<q", gathered, at)
            parts.append(gathered[at + _ROW : at + _ROW + length])
            at += _ROW + -(-length // _ROW) * _ROW
        return parts


class Collective:
    """The tensor behind Job.gather() and Job.sum(). Rank r gives the rows from r * _ROWS_PER_RANK on: its number of bytes,
    then the bytes. All ranks call in the same order."""

    def __init__(self, scope: "Scope") -> None:
        self._scope = scope
        self._tensor: Optional["Tensor"] = None
        self._lock = threading.Lock()
        self._in_flight: Deque["Request[Rows]"] = collections.deque()

    def gather(self, data: bytes) -> List[bytes]:
        return self._start(data)()

    def begin(self, data: bytes) -> Gathering:
        """gather() that does not wait. The 17th in flight waits for the first."""
        while self._in_flight and (len(self._in_flight) >= _IN_FLIGHT or self._in_flight[0].done()):
            self._in_flight.popleft().exception()
        gathering = self._start(data)
        self._in_flight.append(gathering.request)
        return gathering

    def _start(self, data: bytes) -> Gathering:
        data = bytes(data)
        if len(data) > _ROW * (_ROWS_PER_RANK - 1):
            raise Invalid(f"gather of {len(data)} bytes; at most {_ROW * (_ROWS_PER_RANK - 1)} a rank")
        scope = self._scope
        block = struct.pack("<q", len(data)).ljust(_ROW, b"\0") + data
        block = block.ljust(-(-len(block) // _ROW) * _ROW, b"\0")
        first = scope.rank * _ROWS_PER_RANK
        n = len(block) // _ROW
        with self._lock:
            if self._tensor is None:
                self._tensor = scope.tensor("zenps.gather", scope.world * _ROWS_PER_RANK, _ROW // 8, "f64", op="sum",
                                            scheme="balanced", values="raw")  # fmt: skip
            values = arrays.Array(arrays.of(block, "u8").address, "f64", (n, _ROW // 8), block)
            request = self._tensor.allgather(values, range(first, first + n))
        return Gathering(request, scope.world)

    def sum(self, numbers: Sequence[float]) -> List[float]:
        form = f"<{len(numbers)}d"
        parts = self.gather(struct.pack(form, *numbers))
        counts = [len(part) // 8 for part in parts]
        if len(set(counts)) > 1:
            raise ShapeMismatch(f"sum: ranks give different counts of numbers, by rank {counts}", job=self._scope._job.name)
        sums = [0.0] * len(numbers)
        for part in parts:
            sums = [total + number for total, number in zip(sums, struct.unpack(form, part))]
        return sums
