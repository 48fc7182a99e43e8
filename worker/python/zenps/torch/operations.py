"""The operations of a process group of torch.distributed, over a job of zenps."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import weakref
from collections import deque
from datetime import timedelta
from typing import Any, Callable, Deque, List, Optional, Sequence

import torch

from .. import init
from ..errors import Closed, Invalid, Unsupported, ZenpsError
from ..job import Job
from . import copies, jobs
from .collective import Call, Compared, compared
from .works import Completer, Work

_NAME_MAX = 127  # bytes of a job's name
_KEPT = 64  # Works: torch 1.13 waits in C++ for a few, without a reference to the object that knows how


class Operations:
    """The operations of :class:`.backend.ZenpsBackend` and :class:`.torchft.ProcessGroupZenps`, by torch's names.

    Sums are those of zenps: in the order of ranks, the same bits on all of them. Ranks call operations in the same order,
    with as many tensors, of the same shape, dtype and layout; ShapeMismatch on all ranks where they do not. Arguments that
    zenps does not take raise Invalid or Unsupported, a NotImplementedError, at once, and ShapeMismatch on the other ranks. All
    other errors are the Work's.
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

    def _start(self, what: str, plan: Callable[[Job], List[Call]], value: Any) -> Work:
        """plan: checks the arguments, and gives a call for each tensor; the other ranks hear what it raises. Errors of the job
        are the Work's."""
        job = self._current()
        request: Optional[Compared] = None
        error: Optional[ZenpsError] = None
        try:
            with job._collective.refusing():
                calls = plan(job)
            self._sweep()
            request = compared(job, calls, what)
        except (Invalid, Unsupported):
            raise
        except ZenpsError as failure:
            error = failure
        work = Work(request, value, functools.partial(_tell, weakref.ref(self), job), self._completer, error)
        self._flying.append(work)  # a request that is dropped is given up, and a Work may be
        return work

    def _sweep(self) -> None:
        while self._flying and self._flying[0].is_completed():
            self._kept.append(self._flying.popleft())

    # Sums.

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        """In place; of sparse tensors, which are coalesced then."""
        return self._start("allreduce", lambda job: [copies.reduce(each, _op(opts), job) for each in tensors], tensors)

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def allreduce_sparse(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: List[torch.Tensor], opts: Any) -> Work:
        """In place, on the root alone."""

        def plan(job: Job) -> List[Call]:
            root = _root("reduce", opts, job)
            return [copies.reduce_to(root, each, _op(opts), job) for each in tensors]

        return self._start("reduce", plan, tensors)

    def reduce_scatter(self, output_tensors: List[torch.Tensor], input_tensors: List[List[torch.Tensor]], opts: Any = None) -> Work:
        def plan(job: Job) -> List[Call]:
            _check_count("reduce_scatter", output_tensors, input_tensors)
            _check_dense("reduce_scatter", [*output_tensors, *(each for inputs in input_tensors for each in inputs)])
            calls = []
            for output, inputs in zip(output_tensors, input_tensors):
                _check_parts("reduce_scatter: inputs", inputs, output, job.world)
                own = torch.cat([each.detach().reshape(-1) for each in inputs])
                calls.append(copies.reduce_scatter(output, own, _op(opts), job))
            return calls

        return self._start("reduce_scatter", plan, output_tensors)

    def reduce_scatter_single_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None) -> Work:
        def plan(job: Job) -> List[Call]:
            _check_count("reduce_scatter", outputs, inputs)
            _check_dense("reduce_scatter", [*outputs, *inputs])
            for output, own in zip(outputs, inputs):
                _check_whole("reduce_scatter: the input", own, output, job.world)
            return [copies.reduce_scatter(output, own.detach().reshape(-1), _op(opts), job) for output, own in zip(outputs, inputs)]

        return self._start("reduce_scatter", plan, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [own], opts)

    # Copies.

    def broadcast(self, tensor_list: List[torch.Tensor], opts: Any) -> Work:
        def plan(job: Job) -> List[Call]:
            root = _root("broadcast", opts, job)
            _check_dense("broadcast", tensor_list)
            what = f"broadcast from rank {root}"
            return [copies.copy(what, each if job.rank == root else None, [each], job) for each in tensor_list]

        return self._start("broadcast", plan, tensor_list)

    def allgather(self, output_tensors: List[List[torch.Tensor]], input_tensor: List[torch.Tensor], opts: Any = None) -> Work:
        def plan(job: Job) -> List[Call]:
            _check_count("allgather", output_tensors, input_tensor)
            _check_dense("allgather", [*input_tensor, *(each for outputs in output_tensors for each in outputs)])
            for outputs, own in zip(output_tensors, input_tensor):
                _check_parts("allgather: outputs", outputs, own, job.world)
            return [copies.copy("allgather", own, outputs, job) for outputs, own in zip(output_tensors, input_tensor)]

        return self._start("allgather", plan, output_tensors)

    def allgather_coalesced(self, output_lists: List[List[torch.Tensor]], input_list: List[torch.Tensor], opts: Any = None) -> Work:
        """output_lists: of each rank, a tensor for each input."""
        work = self.allgather([[each[at] for each in output_lists if at < len(each)] for at in range(len(input_list))], input_list)
        work._value = output_lists
        return work

    def all_gather_single_coalesced(self, output_tensors: List[torch.Tensor], input_tensors: List[torch.Tensor],
                                    opts: Any = None) -> Work:  # fmt: skip
        def plan(job: Job) -> List[Call]:
            _check_count("allgather", output_tensors, input_tensors)
            _check_dense("allgather", [*output_tensors, *input_tensors])
            for output, own in zip(output_tensors, input_tensors):
                _check_whole("allgather: the output", output, own, job.world)
            return [copies.gather(output, own, job) for output, own in zip(output_tensors, input_tensors)]

        return self._start("allgather", plan, output_tensors)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [own], opts)

    def gather(self, output_tensors: List[List[torch.Tensor]], input_tensors: List[torch.Tensor], opts: Any) -> Work:
        """An allgather, of which the root alone keeps the result."""

        def plan(job: Job) -> List[Call]:
            root = _root("gather", opts, job)
            if job.rank == root:
                _check_count("gather", output_tensors, input_tensors)
            _check_dense("gather", input_tensors)
            calls = []
            for i, own in enumerate(input_tensors):
                outputs = output_tensors[i] if job.rank == root else [torch.empty_like(own) for _ in range(job.world)]
                _check_parts("gather: outputs", outputs, own, job.world)
                calls.append(copies.copy(f"gather to rank {root}", own, outputs, job))
            return calls

        return self._start("gather", plan, output_tensors)

    def scatter(self, output_tensors: List[torch.Tensor], input_tensors: List[List[torch.Tensor]], opts: Any) -> Work:
        """A broadcast of all parts, of which each rank keeps its own."""

        def plan(job: Job) -> List[Call]:
            root = _root("scatter", opts, job)
            if job.rank == root:
                _check_count("scatter", output_tensors, input_tensors)
            _check_dense("scatter", output_tensors)
            calls = []
            for i, output in enumerate(output_tensors):
                if job.rank == root:
                    _check_parts("scatter: inputs", input_tensors[i], output, job.world)
                own = torch.stack([each.detach() for each in input_tensors[i]]) if job.rank == root else None
                calls.append(copies.scatter(root, own, output, job))
            return calls

        return self._start("scatter", plan, output_tensors)

    def barrier(self, opts: Any = None) -> Work:
        return self._start("barrier", lambda _: [copies.barrier()], None)

    # Names that other versions of torch use.

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _root(what: str, opts: Any, job: Job) -> int:
    root = int(opts.rootRank)
    if not 0 <= root < job.world:
        raise Invalid(f"{what}: root {root}; must be 0 to {job.world - 1}")
    return root


def _tell(group: "weakref.ref[Operations]", job: Job, error: ZenpsError) -> None:
    """A Work does not keep its process group."""
    there = group()
    if there is not None:
        there._failed(job, error)


def _op(opts: Any) -> Any:
    return "sum" if opts is None else getattr(opts, "reduceOp", opts)


def _check_count(what: str, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    if len(outputs) != len(inputs):
        raise Invalid(f"{what}: {len(outputs)} outputs and {len(inputs)} inputs; one output for each input is wanted")


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


def _none(name: str, what: str, instead: str, is_heard: bool) -> Any:
    """is_heard: all ranks call it, so the others hear of the refusal."""

    def refused(self: Operations, *_: Any, **__: Any) -> Any:
        heard = self._job._collective.refusing() if is_heard and self._job is not None else contextlib.nullcontext()
        with heard:
            raise Unsupported(f"{type(self).__name__} has no {what}: use {instead}")

    refused.__name__ = name
    return refused


_GATHER = "allgather() where it is small, or a group of another backend"
_BETWEEN_TWO = "broadcast() for what all are to have, or a group of another backend"
for _name, _what, _instead, _is_heard in (
    ("alltoall", "alltoall", _GATHER, True),
    ("alltoall_base", "alltoall", _GATHER, True),
    ("all_to_all_single", "alltoall", _GATHER, True),
    ("send", "send", _BETWEEN_TWO, False),
    ("recv", "recv", _BETWEEN_TWO, False),
    ("recv_anysource", "recv", _BETWEEN_TWO, False),
    ("monitored_barrier", "monitored_barrier", "barrier(), whose error names the missing ranks", True),
    ("gather_single", "gather_single", "gather()", True),
    ("gather_into_tensor", "gather_into_tensor", "gather()", True),
    ("_start_coalescing", "coalescing of single calls on a device", "the coalesced forms", True),
    ("_end_coalescing", "coalescing of single calls on a device", "the coalesced forms", False),
):
    setattr(Operations, _name, _none(_name, _what, _instead, _is_heard))
