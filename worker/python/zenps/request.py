"""Operations in flight."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Generator, Generic, Optional, Tuple, TypeVar

from . import _abi, _lib
from ._calls import SLICE_MS
from .arrays import Rows
from .errors import Closed, Invalid, ZenpsError

if TYPE_CHECKING:
    from .tensor import Tensor

R = TypeVar("R")


@dataclass(frozen=True)
class RequestStats:
    """What one finished operation cost on this rank: zenps_request_stats_t. Bytes are those that the fabric was given and
    gave; times are seconds, and phases overlap, so that they need not add up to `total`. scheme: that it ran under; step: whose sum it is.
    late: a quorum closed the step without this rank. late_ranks: all of those, as the job numbers them, the same on every rank."""

    bytes_out: int
    bytes_in: int
    payload_out: int
    payload_in: int
    nnz_in: int
    nnz_out: int
    total: float
    encode: float
    push: float
    wait: float
    pull: float
    decode: float
    shared_out: int
    shared_in: int
    scheme: str
    step: int
    late: bool
    late_ranks: Tuple[int, ...]


class Request(Generic[R]):
    """One operation in flight, or done. Made by the methods of :class:`zenps.Tensor`.

    ``wait()`` gives its result or raises its error; so does ``await request`` in asyncio. A request has a deadline of its
    own, the job's round_timeout. Who drops a request that is not done gives the operation up, on all ranks. Any thread
    may wait; several may wait for one request.
    """

    def __init__(self, tensor: "Tensor", step: int, handle: int, borrowed: Any, collect: Callable[[int], R]) -> None:
        self.tensor = tensor
        self.step = step
        self._job = tensor.job
        self._asks = tensor._generation, f"tensor {tensor.name}"
        self._handle: Optional[int] = handle
        self._borrowed = borrowed  # arrays and structures that the library reads and writes until it is done
        self._collect = collect
        self._lock = threading.Lock()
        self._result: Optional[R] = None
        self._kept: Optional[int] = None
        self._error: Optional[ZenpsError] = None
        self._stats: Optional[RequestStats] = None

    def _poll(self, timeout_ms: int) -> bool:
        """Whether it is done, after waiting that long."""
        if self._handle is None:
            return True
        lib = _lib.load()
        with self._lock:
            if self._handle is None:
                return True
            try:
                self._job._enter(*self._asks)
            except Closed:
                what = "closed" if self._job.closed else "went on to its next generation"
                text = f"job {self._job.name}: {what} while step {self.step} of tensor {self.tensor.name} was in flight"
                self._fail(Closed(text, job=self._job.name, tensor=self.tensor.name, step=self.step))
                return True
            try:
                status = lib.zenps_wait(self._handle, timeout_ms) if timeout_ms else lib.zenps_test(self._handle)
                if status == _abi.Status.IN_PROGRESS:
                    return False
                if status == _abi.Status.ERR_FORKED:
                    _lib.raise_last(self._job.name)
                self._finish(status)
            finally:
                self._job._leave()
        return True

    def _fail(self, error: ZenpsError) -> None:
        self._error = error
        self._handle = None
        self._borrowed = None

    def _finish(self, status: int) -> None:
        """Takes all that is to be known of it, and frees it, but for a result that is kept."""
        assert self._handle is not None
        lib, handle = _lib.load(), self._handle
        if status == 0:
            self._stats = self._read_stats(handle, self.tensor.quorum > 0)
            try:
                self._result = self._collect(handle)
                self._mark_late()
            except ZenpsError as error:
                self._error = error
        else:
            self._error = _lib.error_of(lib.zenps_last_error().contents, self._job.name)
        self._job._finished(self._stats)
        self._handle = None
        self._borrowed = None
        if status == _abi.Status.ERR_TRUNCATED:
            self._kept = handle
        else:
            self._job._free(handle, self._asks[0])

    def _mark_late(self) -> None:
        """Says so in the result, or in each of its parts."""
        if self._stats is None or not self._stats.late:
            return
        for rows in self._result if isinstance(self._result, list) else [self._result]:
            if isinstance(rows, Rows):
                rows.late = True

    @staticmethod
    def _read_late(handle: int) -> Tuple[int, ...]:
        n, call = ctypes.c_uint32(), _lib.load().zenps_request_late
        _lib.check(call(handle, None, 0, ctypes.byref(n)))
        ranks = (ctypes.c_int * n.value)()
        if n.value:
            _lib.check(call(handle, ranks, n.value, ctypes.byref(n)))
        return tuple(ranks)

    @staticmethod
    def _read_stats(handle: int, has_quorum: bool) -> RequestStats:
        raw = _abi.RequestStats()
        raw.struct_size = ctypes.sizeof(raw)
        _lib.check(_lib.load().zenps_request_stats(handle, ctypes.byref(raw)))
        late = Request._read_late(handle) if has_quorum else ()
        return RequestStats(
            raw.bytes_out, raw.bytes_in, raw.payload_out, raw.payload_in, raw.nnz_in, raw.nnz_out, raw.total_ns / 1e9,
            raw.encode_ns / 1e9, raw.push_ns / 1e9, raw.wait_ns / 1e9, raw.pull_ns / 1e9, raw.decode_ns / 1e9,
            raw.shared_out, raw.shared_in, (raw.scheme or b"").decode(), raw.step,
            bool(raw.late), late,
        )  # fmt: skip

    def done(self) -> bool:
        return self._poll(0)

    def _wait(self, timeout: Optional[float]) -> None:
        """Waits in slices, in between which Python handles signals. Ctrl-C gives the operation up, on all ranks."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                left_ms = SLICE_MS if deadline is None else int(min(SLICE_MS, max(0.0, deadline - time.monotonic()) * 1000))
                if self._poll(left_ms):
                    return
                if deadline is not None and left_ms == 0:
                    raise TimeoutError(
                        f"step {self.step} of tensor {self.tensor.name} is still in flight after {timeout} s"
                    )
        except (KeyboardInterrupt, SystemExit):
            self.cancel()
            raise

    def wait(self, timeout: Optional[float] = None) -> R:
        """The result, as the method that made the request says. Raises the operation's error, or TimeoutError where it is
        not done after `timeout` seconds: it then goes on, and can be waited for again."""
        self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def exception(self, timeout: Optional[float] = None) -> Optional[ZenpsError]:
        """The same, but gives the operation's error, None where it went well."""
        self._wait(timeout)
        return self._error

    def fetch(self, out: Any = "rows") -> R:
        """After Truncated, before the job is closed: the result, which the library has kept, as `out` says: "rows", or a
        pair of larger arrays. The request then is one that went well."""
        with self._lock, self._job._using(*self._asks):
            if self._kept is None:
                raise Invalid(f"step {self.step} of tensor {self.tensor.name} has kept no result: it was not truncated")
            grad, collect = self.tensor._result(out, False, 0, None)
            _lib.check(_lib.load().zenps_request_fetch(self._kept, ctypes.byref(grad)), self._job.name)
            self._stats = self._read_stats(self._kept, self.tensor.quorum > 0)
            self._result = collect(self._kept)  # type: ignore[assignment]
            self._error = None
            self._job._free(self._kept, self._asks[0])
            self._kept = None
        return self._result  # type: ignore[return-value]

    def cancel(self) -> None:
        """Gives the operation up, on all ranks, where it fails with :class:`Canceled`. Nothing, where it is done."""
        with self._lock:
            if self._handle is None:
                return
            try:
                self._job._enter(*self._asks)
            except ZenpsError:
                return
            try:
                _lib.load().zenps_cancel(self._handle)
            finally:
                self._job._leave()

    def stream_wait(self, stream: int) -> None:
        """What is submitted to this CUDA stream (a cudaStream_t as an integer) from here on waits for the operation; no
        thread does. Not a stream that the operation itself was given. The job must not be closed before the stream has come
        there. An operation that fails lets the stream go, too: ask wait() what became of it. Unsupported: the driver lets no
        stream wait for memory."""
        with self._lock:
            if self._handle is None:
                return
            with self._job._using(*self._asks):
                _lib.check(_lib.load().zenps_request_stream_wait(self._handle, stream), self._job.name)

    @property
    def stats(self) -> Optional[RequestStats]:
        """What it cost; None before it is done, and where it failed."""
        return self._stats

    def __await__(self) -> Generator[Any, None, R]:
        if not self.done():
            future = self._job._watch(self, asyncio.get_running_loop())
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.wait()

    def __del__(self) -> None:
        for handle in (getattr(self, "_handle", None), getattr(self, "_kept", None)):
            if handle is not None:
                self._job._free(handle, self._asks[0])

    def __repr__(self) -> str:
        state = "in flight" if self._handle is not None else "failed" if self._error is not None else "done"
        return f"<zenps.Request step {self.step} of {self.tensor.name}: {state}>"


def wait_all(requests: "Tuple[Request[Any], ...]", timeout: Optional[float] = None) -> None:
    """Waits for all of them, or `timeout` seconds; then raises the first error in their order, if any failed."""
    deadline = None if timeout is None else time.monotonic() + timeout
    failure: Optional[ZenpsError] = None
    for request in requests:
        error = request.exception(None if deadline is None else max(0.0, deadline - time.monotonic()))
        failure = failure or error
    if failure is not None:
        raise failure
