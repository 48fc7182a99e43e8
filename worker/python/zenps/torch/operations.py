"""The operations of a process group of torch.distributed, over a job of zenps."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import weakref
from collections import deque
from datetime import timedelta
from typing import Any, Deque, Iterator, List, Optional, Sequence

import torch

from .. import init
from ..errors import Closed, Invalid, Unsupported, ZenpsError
from ..job import Job
from . import copies, jobs
from .copies import Call, Part
from .works import Completer, Work

_NAME_MAX = 127  # bytes of a job's name
_KEPT = 64  # Works: torch 1.13 waits in C++ for a few, without a reference to the object that knows how


class Operations:
    """The operations of :class:`.backend.ZenpsBackend` and :class:`.torchft.ProcessGroupZenps`, by torch's names.

    Sums are those of zenps: in the order of ranks, the same bits on all of them. Ranks call operations in the same order,
    with tensors of the same shape, dtype and layout; ShapeMismatch on all ranks where they do not. Arguments that zenps
    does not take raise Invalid or Unsupported, a NotImplementedError, at once. All other errors are the Work's.
    """

    _job: Optional[Job]
    _error: Optional[Exception]
    _flying: Deque[Work]
    _kept: Deque[Work]
    _completer: Completer

    def _begin(self) -> None:
        """Of the object."""
        self._job = None
        self._error = None
        self._flying = deque()
        self._kept = deque(maxlen=_KEPT if torch.__version__.startswith("1.") else 0)
        self._completer = Completer()

    # The job.

    def _open(self, name: str, rank: int, world: int, timeout: timedelta, **options: Any) -> None:
        """Joins the job; returns when all ranks are there. timeout: for that, and for each operation."""
        self._leave()
        self._error = None
        if len(name.encode()) > _NAME_MAX:
            first, _, rest = name.partition("/")
            name = f"{first[:_NAME_MAX - 65]}/{hashlib.sha256(rest.encode()).hexdigest()}"
        seconds = timeout.total_seconds()
        if "ZENPS_REFUSED_TIMEOUT" not in os.environ:
            options["refused_timeout"] = min(seconds, jobs.REFUSED)
        job = init(job=name, rank=rank, world=world, join_timeout=seconds, round_timeout=seconds, **options)
        if job.generation.number:
            job.close()
            raise Invalid(f"job {name} is elastic, since ZENPS_MIN_WORLD_SIZE or ZENPS_MAX_WORLD_SIZE is set: unset them; the "
                          "ranks of a process group are fixed")  # fmt: skip
        self._job = job

    def _leave(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.close()
        self._flying.clear()
        self._kept.clear()

    def abort(self, errored: bool = True) -> None:
        """Ends what is in flight, here and on the other ranks, with an error. Operations raise from then on."""
        job = self._job
        if errored and job is not None:
            self._failed(job, Closed(f"job {job.name}: the process group was aborted", job=job.name))
        self._leave()

    def shutdown(self) -> None:
        """Leaves the job."""
        self._leave()

    def errored(self) -> Optional[Exception]:
        """The first error of an operation in this job."""
        return self._error

    def _failed(self, job: Job, error: ZenpsError) -> None:
        """Of an earlier job it says nothing."""
        if self._error is None and job is self._job:
            self._error = error

    def _current(self) -> Job:
        if self._job is None:
            raise Closed(f"{type(self).__name__}: there is no job: {self._needs}")
        return self._job

    _needs = "the process group was destroyed or aborted"

    # Operations in flight.

    def _start(self, calls: Sequence[Call], value: Any) -> Work:
        """Errors of the job are the Work's; those of the arguments are raised."""
        job = self._current()
        failed = functools.partial(_tell, weakref.ref(self), job)
        parts: List[Part] = []
        error: Optional[ZenpsError] = None
        try:
            self._sweep()
            for at, call in enumerate(calls):
                with job._collective.refusing(len(calls) - at):
                    parts.append(call(job))
        except (Invalid, Unsupported):
            raise
        except ZenpsError as failure:
            error = failure
        work = Work(parts, value, failed, self._completer, error)
        self._flying.append(work)  # a request that is dropped is given up, and a Work may be
        return work

    def _sweep(self) -> None:
        while self._flying and self._flying[0].is_completed():
            self._kept.append(self._flying.popleft())

    @contextlib.contextmanager
    def _refusing(self, tensors: Sequence[Any]) -> Iterator[Job]:
        """Around checks of an operation's arguments, which has a call for each tensor: the other ranks hear what they raise."""
        job = self._current()
        with job._collective.refusing(len(tensors)):
            yield job

    # Sums.

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        """In place; of sparse tensors, which are coalesced then."""
        op = _op(opts)
        return self._start([functools.partial(copies.reduce, each, op) for each in tensors], tensors)

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def allreduce_sparse(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: List[torch.Tensor], opts: Any) -> Work:
        """In place, on the root alone."""
        with self._refusing(tensors):
            root = self._root("reduce", opts)
        return self._start([functools.partial(copies.reduce_to, root, each, _op(opts)) for each in tensors], tensors)

    def reduce_scatter(self, output_tensors: List[torch.Tensor], input_tensors: List[List[torch.Tensor]], opts: Any = None) -> Work:
        calls = []
        with self._refusing(output_tensors) as job:
            _check_dense("reduce_scatter", [*output_tensors, *(each for inputs in input_tensors for each in inputs)])
            for output, inputs in zip(output_tensors, input_tensors):
                _check_parts("reduce_scatter: inputs", inputs, output, job.world)
                own = torch.cat([each.detach().reshape(-1) for each in inputs])
                calls.append(functools.partial(copies.reduce_scatter, output, own, _op(opts)))
        return self._start(calls, output_tensors)

    def reduce_scatter_single_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None) -> Work:
        calls = []
        with self._refusing(outputs) as job:
            _check_dense("reduce_scatter", [*outputs, *inputs])
            for output, own in zip(outputs, inputs):
                _check_whole("reduce_scatter: the input", own, output, job.world)
                calls.append(functools.partial(copies.reduce_scatter, output, own.detach().reshape(-1), _op(opts)))
        return self._start(calls, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [own], opts)

    # Copies.

    def broadcast(self, tensor_list: List[torch.Tensor], opts: Any) -> Work:
        with self._refusing(tensor_list) as job:
            root = self._root("broadcast", opts)
            _check_dense("broadcast", tensor_list)
        what = f"broadcast from rank {root}"
        calls = [functools.partial(copies.copy, what, each if job.rank == root else None, [each]) for each in tensor_list]
        return self._start(calls, tensor_list)

    def allgather(self, output_tensors: List[List[torch.Tensor]], input_tensor: List[torch.Tensor], opts: Any = None) -> Work:
        calls = []
        with self._refusing(input_tensor) as job:
            _check_dense("allgather", [*input_tensor, *(each for outputs in output_tensors for each in outputs)])
            for outputs, own in zip(output_tensors, input_tensor):
                _check_parts("allgather: outputs", outputs, own, job.world)
                calls.append(functools.partial(copies.copy, "allgather", own, outputs))
        return self._start(calls, output_tensors)

    def allgather_coalesced(self, output_lists: List[List[torch.Tensor]], input_list: List[torch.Tensor], opts: Any = None) -> Work:
        """output_lists: of each rank, a tensor for each input."""
        work = self.allgather([list(each) for each in zip(*output_lists)], input_list)
        work._value = output_lists
        return work

    def all_gather_single_coalesced(self, output_tensors: List[torch.Tensor], input_tensors: List[torch.Tensor],
                                    opts: Any = None) -> Work:  # fmt: skip
        calls = []
        with self._refusing(input_tensors) as job:
            _check_dense("allgather", [*output_tensors, *input_tensors])
            for output, own in zip(output_tensors, input_tensors):
                _check_whole("allgather: the output", output, own, job.world)
                calls.append(functools.partial(copies.gather, output, own))
        return self._start(calls, output_tensors)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [own], opts)

    def gather(self, output_tensors: List[List[torch.Tensor]], input_tensors: List[torch.Tensor], opts: Any) -> Work:
        """An allgather, of which the root alone keeps the result."""
        calls = []
        with self._refusing(input_tensors) as job:
            root = self._root("gather", opts)
            _check_dense("gather", input_tensors)
            for i, own in enumerate(input_tensors):
                outputs = output_tensors[i] if job.rank == root else [torch.empty_like(own) for _ in range(job.world)]
                _check_parts("gather: outputs", outputs, own, job.world)
                calls.append(functools.partial(copies.copy, f"gather to rank {root}", own, outputs))
        return self._start(calls, output_tensors)

    def scatter(self, output_tensors: List[torch.Tensor], input_tensors: List[List[torch.Tensor]], opts: Any) -> Work:
        """A broadcast of all parts, of which each rank keeps its own."""
        calls = []
        with self._refusing(output_tensors) as job:
            root = self._root("scatter", opts)
            _check_dense("scatter", output_tensors)
            for i, output in enumerate(output_tensors):
                if job.rank == root:
                    _check_parts("scatter: inputs", input_tensors[i], output, job.world)
                own = torch.stack([each.detach() for each in input_tensors[i]]) if job.rank == root else None
                calls.append(functools.partial(copies.scatter, root, own, output))
        return self._start(calls, output_tensors)

    def barrier(self, opts: Any = None) -> Work:
        return self._start([copies.barrier], None)

    # Names that other versions of torch use.

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _root(self, what: str, opts: Any) -> int:
        root, world = int(opts.rootRank), self._current().world
        if not 0 <= root < world:
            raise Invalid(f"{what}: root {root}; must be 0 to {world - 1}")
        return root


def _tell(group: "weakref.ref[Operations]", job: Job, error: ZenpsError) -> None:
    """A Work does not keep its process group."""
    there = group()
    if there is not None:
        there._failed(job, error)


def _op(opts: Any) -> Any:
    return "sum" if opts is None else getattr(opts, "reduceOp", opts)


def _check_dense(what: str, tensors: List[torch.Tensor]) -> None:
    if any(each.layout != torch.strided for each in tensors):
        raise Unsupported(f"{what}: a sparse tensor; use allreduce() of it, or {what} its indices and values")


def _check_parts(what: str, parts: Sequence[torch.Tensor], one: torch.Tensor, world: int) -> None:
    """A tensor of one rank, and one for each rank."""
    if [copies.nbytes(each) for each in parts] != [copies.nbytes(one)] * world or any(each.dtype != one.dtype for each in parts):
        found = sorted({f"{copies.nbytes(each)} bytes of {str(each.dtype)[6:]}" for each in parts})
        raise Invalid(f"{what}: {len(parts)} of {' and '.join(found) or 'nothing'}; {world} of {copies.nbytes(one)} bytes of "
                      f"{str(one.dtype)[6:]} each are wanted")  # fmt: skip


def _check_whole(what: str, whole: torch.Tensor, one: torch.Tensor, world: int) -> None:
    """A tensor of one rank, and one of all ranks."""
    if whole.numel() != world * one.numel() or whole.dtype != one.dtype:
        raise Invalid(f"{what} has {whole.numel()} values of {str(whole.dtype)[6:]}; {world} times {one.numel()} of "
                      f"{str(one.dtype)[6:]} are wanted, one part for each rank")  # fmt: skip


def _none(name: str, what: str, instead: str) -> Any:
    def refused(self: Operations, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no {what}: use {instead}")

    refused.__name__ = name
    return refused


_GATHER = "allgather() where it is small, or a group of another backend"
_BETWEEN_TWO = "broadcast() for what all are to have, or a group of another backend"
for _name, _what, _instead in (
    ("alltoall", "alltoall", _GATHER),
    ("alltoall_base", "alltoall", _GATHER),
    ("all_to_all_single", "alltoall", _GATHER),
    ("send", "send", _BETWEEN_TWO),
    ("recv", "recv", _BETWEEN_TWO),
    ("recv_anysource", "recv", _BETWEEN_TWO),
    ("monitored_barrier", "monitored_barrier", "barrier(), whose error names the missing ranks"),
    ("gather_single", "gather_single", "gather()"),
    ("start_coalescing", "coalescing of single calls on a device", "the coalesced forms"),
    ("end_coalescing", "coalescing of single calls on a device", "the coalesced forms"),
):
    setattr(Operations, _name, _none(_name, _what, _instead))
