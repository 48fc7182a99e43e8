"""Jobs: a process's membership in a training run."""

from __future__ import annotations

import asyncio
import atexit
import collections
import ctypes
import os
import sys
import threading
import weakref
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

from . import _abi, _calls, _lib, _log, elastic
from .elastic import Generation
from .errors import Closed, Forked, Invalid, ZenpsError
from .group import Group
from .request import Request, RequestStats
from .scope import Scope
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


class _State:
    """The lock of a job's counts. The garbage collector runs `__del__()` of requests on any thread, also on one that has the lock.
    So those requests wait until it is released."""

    def __init__(self, released: Callable[[], None]) -> None:
        self.lock, self._released = threading.Lock(), released

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self._released()


class Job(Scope):
    """This process's membership in a job as one of `world` ranks; :func:`zenps.init` makes it.

    A context manager. Open until ``close()``, or the end of the interpreter; a child of fork() has no job, only a
    :class:`Forked` error for every call. Any thread may call anything.

    rank, world: this process's number, and how many there are; of an elastic job in its present `generation`. servers:
    for how many it has room (`server_places`), or with how many it began, if that is more. round_timeout: seconds.
    """

    def __init__(self, options: _abi.Options, log: Optional[_log.Sink]) -> None:
        self._pid = os.getpid()
        self._state = _State(self._reap)
        self._dropped: Deque[Tuple[int, int]] = collections.deque()  # requests without an owner, and their generations
        self._closed = False
        self._forked = False
        self._inside = 0  # threads in a call of the library
        self._left = threading.Event()
        self._moving = False  # a thread is in next()
        self._alone = threading.Event()
        self._requests: Dict[int, Any] = {}  # each with the memory that the library reads and writes until it is freed
        self._tensors: Dict[int, Tensor] = {}
        self._stats = Totals()
        self._watched: Dict[Any, Tuple[Request[Any], asyncio.AbstractEventLoop]] = {}
        self._loops: Dict[asyncio.AbstractEventLoop, int] = {}
        self._groups: Dict[int, Group] = {}
        self._job = self
        super().__init__()
        self._log = log
        self.name: str = ""
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
        self.round_timeout: float = lib.zenps_round_timeout_ms(self._handle) / 1000
        self.name = lib.zenps_job_name(self._handle).decode()
        self.provider: str = lib.zenps_provider(self._handle).decode()
        self.generation: Generation = elastic.generation_of(self._handle, self.name)

    # The library's calls. A job that is closed while threads are inside is destroyed by the last one that leaves.

    def _enter(self, generation: Optional[int] = None, what: str = "") -> None:
        """generation: that `what`, which is used, belongs to."""
        if self._forked:
            raise Forked(
                f"job {self.name}: process {os.getpid()} is a child of {self._pid}, which opened it; open one after fork()",
                job=self.name,
            )
        with self._state:
            if self._closed:
                raise Closed(f"job {self.name} is closed", job=self.name)
            elastic.check(self, generation, what)
            self._inside += 1

    def _leave(self) -> None:
        with self._state:
            self._inside -= 1
            last = self._closed and self._inside == 0
            if self._moving and self._inside == 1:
                self._alone.set()
        if last:
            self._destroy()

    @contextmanager
    def _using(self, generation: Optional[int] = None, what: str = "") -> Iterator[None]:
        self._enter(generation, what)
        try:
            yield
        finally:
            self._leave()

    def _blocking(self, call: Callable[[], T], generation: Optional[int] = None, what: str = "") -> T:
        """A call that waits for other processes; Ctrl-C leaves it behind on a thread of its own."""

        def inside() -> T:
            with self._using(generation, what):
                return call()

        return _calls.interruptible(inside)

    def _free(self, request: int, generation: int) -> None:
        """Of `__del__()`: does not wait for a lock, which this thread may have."""
        if not self._forked:
            self._dropped.append((request, generation))
            self._reap()

    def _reap(self) -> None:
        """Frees the requests that were dropped. Whoever takes one from `_requests` frees it. Another one may be where one of an
        earlier generation was."""
        while self._dropped and self._state.lock.acquire(blocking=False):
            taken: List[Tuple[int, Any]] = []
            try:
                while self._dropped:
                    request, generation = self._dropped.popleft()
                    is_open = not self._closed or self._inside > 0
                    if is_open and request in self._requests and generation == self.generation.number:
                        taken.append((request, self._requests.pop(request)))
                        self._inside += 1
            finally:
                self._state.lock.release()
            while taken:
                request, borrowed = taken.pop()
                _lib.load().zenps_request_free(request)
                del borrowed
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
        """Cancels what is in flight, and leaves the job. Results that there are stay valid. A second call does nothing.

        What this rank pushed last goes with it: a server that is lost then costs ranks which have not read that step's sum
        the step. Ranks that call :meth:`barrier` first leave no such moment."""
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
            self._unwatch()

    def next(self, step: int) -> Generation:
        """Takes an elastic job (:func:`zenps.init` with max_world or min_world) to its next generation, and says which that
        is. All ranks call it, when an error was `recoverable`, or `changed` is True. `step`: how many steps this process has
        completed, which its state is of; the state that all go on with is that of rank `generation.source`.

        The Job is the same afterwards, with another rank, world and generation. Its tensors, groups and requests are closed,
        and say so; results that there are stay valid. Returns at once when all ranks of the last generation have called
        this and none is missing, or max_world are there; else join_wait after the first of them did, when at least
        min_world are there.

        MissingRanks: fewer than min_world were there in time. On any failure, and on Ctrl-C, the job is closed; Invalid, and
        nothing happens: it is not elastic. elastic.py has a trainer's loop.
        """
        return elastic.next_generation(self, step)

    @property
    def changed(self) -> bool:
        """Whether the job goes no further: it has failed, or a rank is lost, has left or moved on; or newcomers wait, and
        there is room for them; or it has lost servers, and others are there. Then all ranks of an elastic job call next():
        one that goes on meanwhile fails in its next step. Costs next to nothing."""
        with self._using():
            return bool(_lib.load().zenps_job_changed(self._handle))

    def _silence(self) -> None:
        """No callback into an interpreter that may be about to end."""
        with self._state:
            if self._inside == 0 or self._moving:
                return
            self._inside += 1
        _lib.load().zenps_set_log(self._handle, _abi.LogFn(0), None)
        self._leave()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        try:
            self._blame(error)
        finally:
            self.close()

    def fail(self, text: str) -> None:
        """Tells the coordinator why this rank gives up, ahead of :meth:`close`. Operators read `text` (one line, up to 400
        bytes) as the job's cause, unless an earlier error of zenps stands. Exceptions that leave the program, or a `with`
        block of the job, are told by zenps."""
        with self._using():
            _lib.check(_lib.load().zenps_job_fail(self._handle, text.encode(errors="replace")), self.name)

    def _blame(self, error: Optional[BaseException]) -> None:
        """Tells of an exception that the trainer did not catch. Ctrl-C and an asyncio cancellation are no failures."""
        if isinstance(error, SystemExit):
            what = "exit" if error.code not in (None, 0) else ""
        else:
            what = type(error).__name__ if isinstance(error, Exception) and not isinstance(error, ZenpsError) else ""
        if not what or self._closed or self._forked:
            return
        try:
            text = ": ".join([what, *str(error).splitlines()[:1]])
        except Exception:  # pylint: disable=broad-except # the trainer's own __str__
            text = what
        with suppress(ZenpsError):
            self.fail(text)

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
            self._drop(loop, descriptor)

    def _unwatch(self) -> None:
        """Of a generation that is over: its futures are resolved, and its descriptor is asked for no more."""
        self._look()
        with self._state:
            loops, self._loops = self._loops, {}
        for loop, descriptor in loops.items():
            if loop.is_closed():
                os.close(descriptor)
            else:
                loop.call_soon_threadsafe(self._drop, loop, descriptor)

    @staticmethod
    def _drop(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)

    def group(self, name: str, ranks: Sequence[int]) -> Group:
        """Opens a group of some ranks, which alone do so, each with the same ranks in any order; returns when all have. The
        same name again gives the same Group."""
        numbers = sorted(ranks)
        raw = (ctypes.c_int * max(len(numbers), 1))(*numbers)
        text = _calls.text(name, "group name")

        def open_it() -> int:
            handle = ctypes.c_void_p()
            lib = _lib.load()
            _lib.check(lib.zenps_group_open(self._handle, text, raw, len(numbers), ctypes.byref(handle)), self.name)
            assert handle.value is not None
            return handle.value

        generation = self.generation.number
        handle = self._blocking(open_it, generation, f"group {name}")
        return self._groups.setdefault(handle, Group(self, handle, name, numbers, generation))

    @property
    def stats(self) -> Totals:
        """What the operations that have finished cost so far."""
        with self._state:
            return Totals(**vars(self._stats))

    def __repr__(self) -> str:
        return f"<zenps.Job {self.name!r}: rank {self.rank} of {self.world}{', closed' if self._closed else ''}>"


_jobs: Dict[Tuple[Any, ...], Job] = {}
_guard = threading.Lock()
_opening: Dict[Tuple[Any, ...], threading.Lock] = {}  # one for each key: several ranks may be threads of one process


def init(coordinator: Optional[str] = None, job: Optional[str] = None, rank: Optional[int] = None,
         world: Optional[int] = None, *, provider: Optional[str] = None, interface: Optional[str] = None,
         subnet: Optional[str] = None, join_timeout: Optional[float] = None, round_timeout: Optional[float] = None,
         threads: Optional[int] = None, device: Optional[int] = None, log: Optional[str] = "zenps",
         min_world: Optional[int] = None, max_world: Optional[int] = None, join_wait: Optional[float] = None,
         server_places: Optional[int] = None, refused_timeout: Optional[float] = None) -> Job:  # fmt: skip
    """Joins a job; returns when all ranks are there and servers own its partitions, or raises an error that names who is
    missing. A second call with the same arguments gives the same Job, until it is closed.

    None: the environment's, ZENPS_* first, then what torchrun, mpirun or srun set; zenps(7) lists them. coordinator:
    "host:port", or several with commas in between, of which one leads. job: name of the run. join_timeout,
    round_timeout: seconds. threads: that encode and decode. device: number of the GPU that gradients are on. log: the
    logger of `logging` that gets the library's lines, from level
    ZENPS_LOG_LEVEL on, with `rank` and `component` in each record; None: stderr.

    min_world, max_world: either makes the job elastic: its ranks may change while it goes on (:meth:`Job.next`), never
    fewer than min_world (None: ZENPS_MIN_WORLD_SIZE, 1), nor more than max_world (None: ZENPS_MAX_WORLD_SIZE, `world`);
    `rank` and `world` are wishes then. join_wait: seconds that ranks which are there wait for more. All ranks agree on them.

    server_places: how many servers the job has room for, which come while it runs (None: ZENPS_SERVER_PLACES, else as the
    coordinator's job.server_places says, else as many as it begins with). All ranks agree on it.

    refused_timeout: seconds for which an address of this host is tried at which no coordinator listens (None:
    ZENPS_REFUSED_TIMEOUT, else join_timeout, else 30). ConnectFailed then says what to start; the log does so after 2 s.
    """
    key = (coordinator, job, rank, world, provider, interface, subnet, join_timeout, round_timeout, threads, device, log,
           min_world, max_world, join_wait, server_places, refused_timeout)  # fmt: skip
    with _guard:
        for other in [other for other, opened in _jobs.items() if opened.closed]:  # of a process that joins many, one by one
            del _jobs[other]
        opening = _opening.setdefault(key, threading.Lock())
    with opening:
        known = _jobs.get(key)
        if known is not None and not known.closed and not known._forked:
            return known
        options = _abi.Options()
        _lib.load().zenps_options_init(ctypes.byref(options), ctypes.sizeof(options))
        options.coordinator, options.job = _calls.text(coordinator, "coordinator"), _calls.text(job, "job")
        options.provider, options.interface = _calls.text(provider, "provider"), _calls.text(interface, "interface")
        options.subnet = _calls.text(subnet, "subnet")
        for name, number, least in (("rank", rank, 0), ("world", world, 1), ("threads", threads, 1), ("device", device, 0),
                                    ("min_world", min_world, 1), ("max_world", max_world, 1),
                                    ("server_places", server_places, 1)):  # fmt: skip
            if number is None:
                continue
            if not least <= number < 1 << 31:
                raise Invalid(f"{name} {number}; must be {least} or more, or None for the environment's")
            setattr(options, name, number)
        options.join_timeout_ms = _calls.milliseconds(join_timeout, "join_timeout")
        options.refused_timeout_ms = _calls.milliseconds(refused_timeout, "refused_timeout")
        options.join_wait_ms = _calls.milliseconds(join_wait, "join_wait")
        options.round_timeout_ms = _calls.milliseconds(round_timeout, "round_timeout")
        sink = None if log is None else _log.Sink(log)
        if sink is not None:
            options.log = sink.callback
        try:
            opened = Job(options, sink)
        except ZenpsError as error:
            if sink is not None:
                sink.close()
            raise error.with_traceback(None) from None  # the frames inside say nothing more
        with _guard:
            _jobs[key] = opened
        _open_jobs.add(opened)
        return opened


_open_jobs: "weakref.WeakSet[Job]" = weakref.WeakSet()


def _close_all() -> None:
    # The interpreter keeps the exception that ended the program; a prompt keeps those that did not.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for job in list(_open_jobs):
        try:
            job._blame(error)
        finally:
            job.close()


def _in_child() -> None:
    global _guard
    _guard = threading.Lock()
    _opening.clear()
    for job in list(_open_jobs):
        job._forked = True
    _jobs.clear()
    _open_jobs.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_in_child)
