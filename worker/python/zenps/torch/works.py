"""Operations in flight as a Work of torch.distributed, and what starts them: sums, and copies of bytes."""

from __future__ import annotations

import queue
import threading
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch.distributed.distributed_c10d import Work as _TorchWork

from ..arrays import Array, Rows
from ..errors import ShapeMismatch, ZenpsError
from ..job import Job
from . import collective, convert

_WIDTH = 64  # values of f64 in a row of what is copied
_ROW = 8 * _WIDTH  # bytes
Part = Tuple[Any, Callable[[Any], None]]  # a request, and what is done with its result
Call = Callable[[Job], Part]  # starts one


class Completer:
    """A thread that waits for Works whose futures somebody wants, and that nobody waits for by wait()."""

    def __init__(self) -> None:
        self._works: "queue.SimpleQueue[Work]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def complete(self, work: "Work") -> None:
        self._works.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=_complete_all, args=(self._works,), name="zenps.works", daemon=True)
            self._thread.start()


class Work(_TorchWork):  # type: ignore[misc]
    """Operations in flight, as a Work. It is complete when wait() says so, or when somebody has asked for its future."""

    def __init__(self, parts: Sequence[Part], value: Any, failed: Callable[[ZenpsError], None], completer: Completer,
                 error: Optional[ZenpsError] = None) -> None:  # fmt: skip
        """value: of its future. failed: is told the error."""
        super().__init__()
        self._failed, self._completer = failed, completer
        self._parts = list(parts)
        self._value = value
        self._error = error
        self._lock = threading.Lock()
        self._finished = False
        self._future: Optional[torch.futures.Future[Any]] = None
        if error is not None:
            self._finish(error)

    def _finish(self, error: Optional[ZenpsError]) -> None:
        """Once; results are put in place by whoever comes first."""
        with self._lock:
            if self._finished:
                return
            try:
                for request, finish in self._parts if error is None else []:
                    finish(request.wait())
            except ZenpsError as failure:
                error = failure
            if error is not None:
                self._failed(error)
            self._parts, self._error, self._finished = [], error, True
            future = self._future
        if future is not None:
            self._resolve(future)

    def _resolve(self, future: "torch.futures.Future[Any]") -> None:
        if self._error is None:
            future.set_result(self._value)
        else:
            future.set_exception(self._error)

    def complete(self, seconds: Optional[float] = None) -> None:
        """Returns when it is over, well or not. TimeoutError: it is still in flight."""
        error: Optional[ZenpsError] = None
        for request, _ in list(self._parts):
            error = error or request.exception(seconds)
        self._finish(error)

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        self.complete(None if timeout is None or not timeout else timeout.total_seconds())
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> "torch.futures.Future[Any]":
        with self._lock:
            first = self._future is None
            if self._future is None:
                self._future = torch.futures.Future()
            future, finished = self._future, self._finished
        if first and finished:
            self._resolve(future)
        elif first:
            self._completer.complete(self)
        return future

    def is_completed(self) -> bool:
        return self._finished or all(request.done() for request, _ in list(self._parts))

    def is_success(self) -> bool:
        return self._finished and self._error is None

    def exception(self) -> Optional[ZenpsError]:
        return self._error

    def result(self) -> Any:
        self.wait()
        return self._value

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()


def _complete_all(works: "queue.SimpleQueue[Work]") -> None:
    while True:
        works.get().complete()


def reduce(tensor: torch.Tensor, op: Any, job: Job) -> Part:
    if not tensor.numel():
        return collective.all_reduce_nothing(job), lambda _: None
    work = collective.all_reduce(tensor, op, async_op=True, job=job)
    assert work is not None
    return work._request, work._finish


def nbytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def copy(what: str, own: Optional[torch.Tensor], outputs: List[torch.Tensor], job: Job) -> Part:
    """Bytes of dense tensors from one rank, or all, to all: the `own` of ranks that give one become the outputs, in the
    order of ranks. ShapeMismatch on all ranks, and no output is written, where `what`, sizes or dtypes differ. Each rank
    has a row to say what it calls, and rows for its bytes behind these. The tensor rounds their number up, so that ranks
    of other sizes meet."""
    size = nbytes(outputs[0])
    rows = -(-size // _ROW)
    room = 1 << max(rows - 1, 0).bit_length()
    tensor = job.tensor(f"copies/{room}", job.world * (1 + room), _WIDTH, "f64", op="sum", scheme="balanced", values="raw")
    call = f"{what} of {size} bytes of {str(outputs[0].dtype)[6:]}"
    sent = torch.zeros((1 + rows) * _ROW if own is not None else _ROW, dtype=torch.uint8, device="cpu")
    sent[: len(call)] = torch.frombuffer(bytearray(call.encode()), dtype=torch.uint8)
    ids = torch.tensor([job.rank], dtype=torch.int64, device="cpu")
    if own is not None and size:
        sent[_ROW : _ROW + size] = own.detach().cpu().contiguous().view(-1).view(torch.uint8)
        first = job.world + job.rank * room
        ids = torch.cat([ids, torch.arange(first, first + rows, dtype=torch.int64, device="cpu")])
    n = ids.shape[0]
    request = tensor.allgather(Array(sent.data_ptr(), "f64", (n, _WIDTH), owner=sent), convert.array(ids, (n,)))

    def finish(result: Rows) -> None:
        received = convert.tensor_of(result.values, torch.float64).view(torch.uint8).view(-1, _ROW)
        calls = [bytes(row.tolist()).rstrip(b"\0").decode() for row in received[: job.world]]
        for rank, other in enumerate(calls):
            if other != calls[0]:
                raise ShapeMismatch(f"job {job.name}: rank 0 calls {calls[0]}, rank {rank} {other}; it must be the same on all "
                                    "ranks", job=job.name)  # fmt: skip
        with torch.no_grad():
            for i, output in enumerate(outputs if size else []):
                first = job.world + i * rows
                octets = received[first : first + rows].reshape(-1)[:size]
                output.copy_(octets.view(output.dtype).view(output.shape))

    return request, finish
