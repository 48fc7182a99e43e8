"""Collectives for what is small: bytes of every rank, and sums of a few numbers."""

from __future__ import annotations

import collections
import contextlib
import struct
import threading
from typing import TYPE_CHECKING, Any, Deque, Iterator, List, Optional, Sequence

from . import arrays
from .errors import Invalid, ShapeMismatch, Unsupported, ZenpsError

if TYPE_CHECKING:
    from .arrays import Rows
    from .request import Request
    from .scope import Scope
    from .tensor import Tensor

_ROW = 64  # bytes: 8 values of f64, whose bits an allgather copies
_ROWS_PER_RANK = (1 << 20) + 1
_MOST = _ROW * (_ROWS_PER_RANK - 1)  # bytes of a rank
_IN_FLIGHT = 16  # a tensor has at most 32 steps in flight


class Gathering:
    """A gather() in flight. Called, it waits, and gives the bytes of every rank, by rank; or raises ShapeMismatch with what a
    rank refused the call for."""

    def __init__(self, request: "Request[Rows]", scope: "Scope") -> None:
        self.request = request
        self._scope = scope

    def __call__(self, timeout: Optional[float] = None) -> List[bytes]:
        gathered = self.request.wait(timeout).values.tobytes()
        parts, at, refusal = [], 0, ""
        for place in range(self._scope.world):
            (sent,) = struct.unpack_from("<q", gathered, at)
            length = sent if sent >= 0 else -1 - sent
            parts.append(gathered[at + _ROW : at + _ROW + length])
            if sent < 0 and not refusal:
                refusal = f"rank {self._scope._numbered(place)} refuses its call: {parts[-1].decode(errors='replace')}"
            at += _ROW + -(-length // _ROW) * _ROW
        if refusal:
            name = self._scope._job.name
            raise ShapeMismatch(f"job {name}: {refusal}", job=name)
        return parts


class Collective:
    """The tensor behind Job.gather() and Job.sum(). Rank r gives the rows from r * _ROWS_PER_RANK on: its number of bytes,
    then the bytes. All ranks call in the same order. A rank with wrong arguments gives -1 - that number, and the reason. Its
    call is used up, so later calls of all ranks still meet."""

    def __init__(self, scope: "Scope") -> None:
        self._scope = scope
        self._tensor: Optional["Tensor"] = None
        self._lock = threading.Lock()
        self._in_flight: Deque["Request[Rows]"] = collections.deque()
        self.compared: Deque[Any] = collections.deque()  # sums in flight that a gather compares: zenps.torch.all_reduce()'s

    def gather(self, data: bytes) -> List[bytes]:
        with self.refusing():
            try:
                data = bytes(memoryview(data))
            except (TypeError, ValueError):
                raise Invalid(f"gather: a {type(data).__name__}; bytes are wanted") from None
            if len(data) > _MOST:
                raise Invalid(f"gather of {len(data)} bytes; at most {_MOST} a rank")
        return self._start(data)()

    @contextlib.contextmanager
    def refusing(self, calls: int = 1) -> Iterator[None]:
        """Around checks of a call's arguments, ahead of its gather: what they raise the other ranks raise, too. calls: how many
        gathers the others wait for."""
        try:
            yield
        except (Invalid, Unsupported) as error:
            said: int = getattr(error, "said", 0)  # within these checks
            error.said = max(said, calls)  # type: ignore[union-attr]
            with contextlib.suppress(ZenpsError):  # of a job that has ended
                for _ in range(said, calls):
                    self.begin(str(error).encode(errors="replace")[:_MOST], refused=True)
            raise

    def begin(self, data: bytes, refused: bool = False) -> Gathering:
        """gather() that does not wait. The 17th in flight waits for the first."""
        while self._in_flight and (len(self._in_flight) >= _IN_FLIGHT or self._in_flight[0].done()):
            self._in_flight.popleft().exception()
        gathering = self._start(data, refused)
        self._in_flight.append(gathering.request)
        return gathering

    def _start(self, data: bytes, refused: bool = False) -> Gathering:
        scope = self._scope
        block = struct.pack("<q", -1 - len(data) if refused else len(data)).ljust(_ROW, b"\0") + data
        block = block.ljust(-(-len(block) // _ROW) * _ROW, b"\0")
        first = scope.rank * _ROWS_PER_RANK
        n = len(block) // _ROW
        with self._lock:
            if self._tensor is None:
                self._tensor = scope.tensor("zenps.gather", scope.world * _ROWS_PER_RANK, _ROW // 8, "f64", op="sum",
                                            scheme="balanced", values="raw")  # fmt: skip
            values = arrays.Array(arrays.of(block, "u8").address, "f64", (n, _ROW // 8), block)
            request = self._tensor.allgather(values, range(first, first + n))
        return Gathering(request, scope)

    def sum(self, numbers: Sequence[float]) -> List[float]:
        form = f"<{len(numbers)}d"
        with self.refusing():
            try:
                packed = struct.pack(form, *numbers)
            except struct.error:
                raise Invalid(f"sum: {', '.join(type(each).__name__ for each in numbers)}; numbers are wanted") from None
        parts = self.gather(packed)
        counts = [len(part) // 8 for part in parts]
        if len(set(counts)) > 1:
            raise ShapeMismatch(f"sum: ranks give different counts of numbers, by rank {counts}", job=self._scope._job.name)
        sums = [0.0] * len(numbers)
        for part in parts:
            sums = [total + number for total, number in zip(sums, struct.unpack(form, part))]
        return sums
