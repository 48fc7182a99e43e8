"""Jobs: a process's membership in a training run."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import threading
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, TypeVar

from . import _abi, _calls, _lib, _log, _options, arrays, collectives
from .errors import Closed, Forked, Invalid, ZenpsError
from .request import Request, RequestStats
from .tensor import Tensor

T = TypeVar("T")


@dataclass
class Totals:
    """What the finished operations of a job cost on this rank. Bytes, seconds."""

    requests: int = 0
    failed: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    payload_out: int = 0
    payload_in: int = 0
    total: float = 0.0


class Job:
    """This process's membership in a job as one of `world` ranks; :func:`zenps.init` makes it.

    A context manager. Open until ``close()``, or the end of the interpreter; a child of fork() has no job, only a
    :class:`Forked` error for every call. Any thread may call anything.
    """

    def __init__(self, options: _abi.Options, name: Optional[str], log: Optional[_log.Sink]) -> None:
        self._pid = os.getpid()
        self._state = threading.Lock()
        self._closed = False
        self._forked = False
        self._inside = 0  # threads in a call of the library
        self._left = threading.Event()
        self._requests: Set[int] = set()
        self._tensors: Dict[int, Tensor] = {}
        self._stats = Totals()
        self._watched: Dict[Any, Tuple[Request[Any], asyncio.AbstractEventLoop]] = {}
        self._loops: Dict[asyncio.AbstractEventLoop, int] = {}
        self._collective = collectives.Collective(self)
        self._log = log
        self.name: str = name or ""
        lib = _lib.load()

        def open_it() -> int:
            handle = ctypes.c_void_p()
            _lib.check(lib.zenps_open(ctypes.byref(options), ctypes.byref(handle)), self.name)
            assert handle.value is not None
            return handle.value

        self._handle: int = _calls.interruptible(open_it, lib.zenps_close)
        self.rank: int = lib.zenps_rank(self._handle)
        if log is not None:
            log.rank = self.rank
        self.world: int = lib.zenps_world(self._handle)
        self.servers: int = lib.zenps_servers(self._handle)
        self.provider: str = lib.zenps_provider(self._handle).decode()

    # The library's calls. A job that is closed while threads are inside is destroyed by the last one that leaves.

    def _enter(self) -> None:
        if self._forked:
            raise Forked(
                f"job {self.name}: process {os.getpid()} is a child of {self._pid}, which opened it; open one after fork()",
                job=self.name,
            )
        with self._state:
            if self._closed:
                raise Closed(f"job {self.name} is closed", job=self.name)
            self._inside += 1

    def _leave(self) -> None:
        with self._state:
            self._inside -= 1
            last = self._closed and self._inside == 0
        if last:
            self._destroy()

    @contextmanager
    def _using(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _blocking(self, call: Callable[[], T]) -> T:
        """A call that waits for other processes; Ctrl-C leaves it behind on a thread of its own."""

        def inside() -> T:
            with self._using():
                return call()

        return _calls.interruptible(inside)

    def _free(self, request: int) -> None:
        """Whoever takes it from the set frees it."""
        if self._forked:
            return
        with self._state:
            if request not in self._requests:
                return
            self._requests.remove(request)
            self._inside += 1
        _lib.load().zenps_request_free(request)
        self._leave()

    def _finished(self, stats: Optional[RequestStats]) -> None:
        totals = self._stats
        with self._state:
            if stats is None:
                totals.failed += 1
                return
            totals.requests += 1
            totals.bytes_out += stats.bytes_out
            totals.bytes_in += stats.bytes_in
            totals.payload_out += stats.payload_out
            totals.payload_in += stats.payload_in
            totals.total += stats.total

    def _destroy(self) -> None:
        lib = _lib.load()
        for request in list(self._requests):
            lib.zenps_request_free(request)
        self._requests.clear()
        lib.zenps_close(self._handle)
        if self._log is not None:
            self._log.close()
        self._left.set()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Cancels what is in flight, and leaves the job. Results that there are stay valid. A second call does nothing."""
        if self._forked:
            return
        with self._state:
            first, self._closed = not self._closed, True
            last = first and self._inside == 0
            if first:
                for request in self._requests:
                    _lib.load().zenps_cancel(request)
        if last:
            self._destroy()
        elif first and not self._left.wait(1.0):  # threads in waits leave within a slice; others at their deadline
            self._silence()
        if first:
            self._look()

    def _silence(self) -> None:
        """No callback into an interpreter that may be about to end."""
        with self._state:
            if self._inside == 0:
                return
            self._inside += 1
        _lib.load().zenps_set_log(self._handle, _abi.LogFn(0), None)
        self._leave()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # asyncio: one descriptor says that requests have completed, whoever waits for them.

    def fileno(self) -> int:
        """An eventfd that becomes readable when requests have completed; read it, then ask yours whether they are done.
        The job's own. It serves one reader: who awaits requests leaves it to zenps."""
        with self._using():
            return int(_lib.load().zenps_get_fd(self._handle))

    def _watch(self, request: Request[Any], loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        """On the loop's thread: a future that is resolved when the request is done."""
        future: "asyncio.Future[None]" = loop.create_future()
        with self._state:
            self._watched[future] = (request, loop)
            known = loop in self._loops
            over = [each for each in self._loops if each.is_closed()]
            for each in over:
                os.close(self._loops.pop(each))
        if not known:
            # A duplicate, since the loop may look at it until it hears that the job is closed.
            self._loops[loop] = os.dup(self.fileno())
            loop.add_reader(self._loops[loop], self._on_readable, self._loops[loop])
        self._look()  # it may have completed before the descriptor was asked for
        return future

    def _on_readable(self, descriptor: int) -> None:
        try:
            os.read(descriptor, 8)
        except BlockingIOError:  # another loop has read it
            pass
        self._look()

    def _look(self) -> None:
        """Resolves the futures of requests that are done, on whichever loops they are."""
        for future, (request, loop) in list(self._watched.items()):
            if future.cancelled() or request.done():
                self._watched.pop(future, None)
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._resolve, loop, future)

    def _resolve(self, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
        """On the loop's thread, which is told no more of this job when it waits for nothing."""
        if not future.done():
            future.set_result(None)
        with self._state:
            watches = any(each is loop for _, each in list(self._watched.values()))
            descriptor = None if watches else self._loops.pop(loop, None)
        if descriptor is not None:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    # What a user calls.

    def tensor(self, name: str, rows: int, width: int = 1, dtype: str = "f32", *, op: str = "mean",
               scheme: Optional[str] = None, values: Optional[str] = None, codec: Optional[str] = None, k: int = 0,
               density: float = 0.0, partitions: int = 0, keep_zero_rows: bool = False, contributed: bool = False,
               **more: Any) -> Tensor:  # fmt: skip
        """Opens a tensor of rows x width values: "f32", "f64", "bf16" or "f16". The first rank to do so registers it, the
        others must agree in every argument (ShapeMismatch). The same name again gives the same Tensor.

        op: "mean" (the sum times 1 / world), "mean_present" (1 / ranks that contribute), "sum", "max", "min". scheme: how rounds are carried out; None: ZENPS_SCHEME,
        "balanced". values: what values travel as, "raw", "bf16", "f16", "qsgd2", "qsgd4", "qsgd8". codec: "auto", "paper",
        "coo". k, density: rows that lossy schemes keep. keep_zero_rows: rows of zeros that a rank lists are sent and in the
        result. contributed: Rows.contributed says which rows of this rank's
        gradient the result is made of. More: every other member of zenps_tensor_options_t by its name, with the words for
        its constants in lower case; <zenps/zenps.h> says what they do.
        """
        options = _abi.TensorOptions()
        lib = _lib.load()
        lib.zenps_tensor_options_init(ctypes.byref(options), ctypes.sizeof(options))
        words = dict(more, op=op, scheme=scheme, values=values, codec=codec, k=k, density=density, partitions=partitions)
        _options.fill(options, dict(words, keep_zero_rows=int(keep_zero_rows), contributed=int(contributed)))
        kind = _options.dtype(dtype)
        if not 1 <= rows <= 1 << 40 or not 1 <= width <= 1 << 20:
            raise Invalid(f"tensor {name}: {rows} rows of {width} values; must be 1 to 2^40, and 1 to 2^20")

        def open_it() -> int:
            handle = ctypes.c_void_p()
            status = lib.zenps_tensor_open(
                self._handle, name.encode(), rows, width, kind, ctypes.byref(options), ctypes.byref(handle)
            )
            _lib.check(status, self.name)
            assert handle.value is not None
            return handle.value

        handle = self._blocking(open_it)
        with self._using():
            made = Tensor(self, handle)
        made.name, made.contributed = name, contributed
        return self._tensors.setdefault(handle, made)

    def barrier(self) -> None:
        """Returns when all ranks have called it. Collective: all ranks in the same order."""
        self._blocking(lambda: _lib.check(_lib.load().zenps_barrier(self._handle), self.name))

    def broadcast(self, buffer: Any, root: int = 0) -> None:
        """Copies the bytes of `buffer` from rank `root` to all, in place. An array in host memory, contiguous, as many
        bytes on all ranks. Collective."""
        array = arrays.of(buffer, "u8")
        if array.device is not None:
            raise Invalid("broadcast: the buffer is in the memory of a GPU; one in host memory is wanted")
        if array.readonly and self.rank != root:
            raise Invalid("broadcast: the buffer is read-only, and is to be written on this rank")
        n_bytes = array.nbytes
        lib = _lib.load()
        self._blocking(lambda: _lib.check(lib.zenps_broadcast(self._handle, array.address, n_bytes, root), self.name))

    def gather(self, data: bytes) -> List[bytes]:
        """The `data` of every rank, by rank; of any length up to 64 MiB each. One round; for what is small. Collective."""
        return self._collective.gather(data)

    def sum(self, *numbers: float) -> List[float]:
        """The sum of each number over all ranks, added in rank order. One round; for a few. Collective; all ranks give as
        many."""
        return self._collective.sum(numbers)

    @property
    def stats(self) -> Totals:
        """What the operations that have finished cost so far."""
        with self._state:
            return Totals(**vars(self._stats))

    def __repr__(self) -> str:
        return f"<zenps.Job {self.name!r}: rank {self.rank} of {self.world}{', closed' if self._closed else ''}>"


_jobs: Dict[Tuple[Any, ...], Job] = {}
_opening = threading.Lock()


def init(coordinator: Optional[str] = None, job: Optional[str] = None, rank: Optional[int] = None,
         world: Optional[int] = None, *, provider: Optional[str] = None, interface: Optional[str] = None,
         subnet: Optional[str] = None, join_timeout: Optional[float] = None, round_timeout: Optional[float] = None,
         threads: Optional[int] = None, device: Optional[int] = None, log: Optional[str] = "zenps") -> Job:  # fmt: skip
    """Joins a job; returns when all ranks are there and servers own its partitions, or raises an error that names who is
    missing. A second call with the same arguments gives the same Job, until it is closed.

    None: the environment's, ZENPS_* first, then what torchrun, mpirun or srun set; zenps(7) lists them. coordinator:
    "host:port". job: name of the run. join_timeout, round_timeout: seconds. threads: that encode and decode. device:
    number of the GPU that gradients are on. log: the logger of `logging` that gets the library's lines, from level
    ZENPS_LOG_LEVEL on, with `rank` and `component` in each record; None: stderr.
    """
    key = (coordinator, job, rank, world, provider, interface, subnet, join_timeout, round_timeout, threads, device, log)
    with _opening:
        known = _jobs.get(key)
        if known is not None and not known.closed and not known._forked:
            return known
        options = _abi.Options()
        _lib.load().zenps_options_init(ctypes.byref(options), ctypes.sizeof(options))
        options.coordinator, options.job = _calls.text(coordinator), _calls.text(job)
        options.provider, options.interface = _calls.text(provider), _calls.text(interface)
        options.subnet = _calls.text(subnet)
        for name, number, least in (("rank", rank, 0), ("world", world, 1), ("threads", threads, 1), ("device", device, 0)):
            if number is None:
                continue
            if not least <= number < 1 << 31:
                raise Invalid(f"{name} {number}; must be {least} or more, or None for the environment's")
            setattr(options, name, number)
        options.join_timeout_ms = _calls.milliseconds(join_timeout, "join_timeout")
        options.round_timeout_ms = _calls.milliseconds(round_timeout, "round_timeout")
        sink = None if log is None else _log.Sink(log)
        if sink is not None:
            options.log = sink.callback
        try:
            opened = Job(options, job or os.environ.get("ZENPS_JOB"), sink)
        except ZenpsError:
            if sink is not None:
                sink.close()
            raise
        _jobs[key] = opened
        _open_jobs.add(opened)
        return opened


_open_jobs: "weakref.WeakSet[Job]" = weakref.WeakSet()


def _close_all() -> None:
    for job in list(_open_jobs):
        job.close()


def _in_child() -> None:
    global _opening
    _opening = threading.Lock()
    for job in list(_open_jobs):
        job._forked = True
    _jobs.clear()
    _open_jobs.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_in_child)
