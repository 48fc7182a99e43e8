"""A process group for torchft, PyTorch's library for training that goes on when replicas die:

    from zenps.torch.torchft import ProcessGroupZenps, average_gradients

    manager = torchft.Manager(pg=ProcessGroupZenps(timeout=timedelta(seconds=30)), min_replica_size=2, ...)
    optimizer = torchft.Optimizer(manager, optimizer)
    for batch in batches:
        optimizer.zero_grad()                          # begins a step: torchft agrees on who takes part
        loss(model(batch)).backward()
        average_gradients(manager, model)              # dense and sparse ones
        optimizer.step()                               # only where every sum of the step went well

Each quorum of torchft is a job of zenps of its own. Its ranks meet at the coordinator, a zenpsd that runs for longer than any
replica; no store is used. What an operation fails with (PeerLost, MissingRanks, ...) is its Work's exception, so the Manager
drops the step, and the next quorum is another job. :func:`zenps.torch.elastic` trains on without torchft, its lighthouse and
its votes.
"""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections import deque
from datetime import timedelta
from typing import Any, Deque, Dict, List, Optional, Sequence

import torch

try:
    from torchft.process_group import ProcessGroup as _TorchftProcessGroup
    from torchft.work import _DummyWork
except ImportError as missing:
    raise ImportError(
        f"zenps.torch.torchft needs torchft, which cannot be imported here ({missing}): pip install torchft, with torch 2.7 or "
        "later. zenps.torch.elastic() trains on when ranks die without it"
    ) from missing

from .. import init
from ..errors import Again, Closed, Invalid, Unsupported, ZenpsError
from ..job import Job
from . import works
from .works import Call, Completer, Part, Work

_NAME_MAX = 127  # bytes of a job's name
_SMALL = 1 << 20  # bytes of a gradient that travels with others


class ProcessGroupZenps(_TorchftProcessGroup):  # type: ignore[misc]
    """torchft's ProcessGroup over zenps: allreduce and allreduce_coalesced of dense and of sparse COO tensors (SUM, AVG, MIN,
    MAX; float32, float64, bfloat16, float16), broadcast, allgather, allgather_into_tensor_coalesced, barrier. Everything else
    raises NotImplementedError.

    timeout: for replicas to meet in configure(), and for each operation, whose deadline that is; set_timeout() changes it for
    the next quorum. coordinator: "host:port" of a zenpsd; None: ZENPS_COORDINATOR. options: others of :func:`zenps.init`
    (provider, interface, subnet, threads, log). Sums are the same bits on every replica. Replicas call operations in the
    same order, with tensors of the same shape, dtype and layout.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), coordinator: Optional[str] = None, **options: Any) -> None:
        super().__init__(0, 1)
        for name in {"job", "rank", "world", "min_world", "max_world", "join_wait", "join_timeout", "round_timeout"} & set(options):
            raise Invalid(f"ProcessGroupZenps: {name} is the quorum's; timeout is how long replicas wait for each other")
        self._timeout = timeout
        self._options = dict(options, coordinator=coordinator)
        self._job: Optional[Job] = None
        self._error: Optional[Exception] = None
        self._handle = uuid.uuid4().hex
        self._flying: Deque[Work] = deque()
        self._completer = Completer()

    # From one quorum to the next.

    def configure(self, store_addr: str, replica_id: str, rank: int, world_size: int, quorum_id: Optional[int] = None,
                  group_rank: Optional[int] = None, group_world_size: Optional[int] = None,
                  global_ranks: Optional[List[int]] = None) -> None:  # fmt: skip
        """Leaves the job of the last quorum, and joins that of this one, whose name is `store_addr`: the Manager puts the
        quorum's number and `group_rank` in it. Returns when all replicas are there; MissingRanks says who is not."""
        self._open(store_addr, rank, world_size)

    def get_reconfigure_handle(self) -> str:
        """For newer torchft, which has reconfigure() in the place of configure()."""
        return self._handle

    def reconfigure(self, opts: Any) -> Any:
        """The same from the handles of all replicas, in the order of ranks, and the quorum's number."""
        handles = list(opts.handles)
        if self._handle not in handles:
            raise Invalid(f"ProcessGroupZenps: quorum {opts.uuid} of {len(handles)} replicas lacks this one's handle")
        self._open(f"{opts.uuid}/{handles[0]}", handles.index(self._handle), len(handles))
        return _DummyWork(None)

    def _open(self, quorum: str, rank: int, world: int) -> None:
        self._leave()
        self._error = None
        name = f"torchft/{quorum}"
        if len(name.encode()) > _NAME_MAX:
            name = f"torchft/{hashlib.sha256(quorum.encode()).hexdigest()}"
        seconds = self._timeout.total_seconds()
        job = init(job=name, rank=rank, world=world, join_timeout=seconds, round_timeout=seconds, **self._options)
        if job.generation.number:
            job.close()
            raise Invalid(f"job {name} is elastic, since ZENPS_MIN_WORLD_SIZE or ZENPS_MAX_WORLD_SIZE is set: unset them, "
                          "torchft itself decides who takes part")  # fmt: skip
        self._job = job

    def _leave(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.close()
        self._flying.clear()

    def abort(self, errored: bool = True) -> None:
        """Ends what is in flight, here and on the other replicas, with an error. Operations raise until configure()."""
        job = self._job
        if errored and job is not None:
            self._failed(job, Closed(f"job {job.name}: the process group was aborted", job=job.name))
        self._leave()

    def shutdown(self) -> None:
        self._leave()

    def errored(self) -> Optional[Exception]:
        """The first error since configure()."""
        return self._error

    def _failed(self, job: Job, error: ZenpsError) -> None:
        """Of an earlier quorum it says nothing."""
        if self._error is None and job is self._job:
            self._error = error

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def size(self) -> int:
        return self._current().world

    def getBackendName(self) -> str:
        return "torchft-zenps"

    def __repr__(self) -> str:
        return f"ProcessGroupZenps({self._job!r})"

    def _current(self) -> Job:
        if self._job is None:
            raise Closed("ProcessGroupZenps: there is no job: call configure() first, and again after abort()")
        return self._job

    # Operations.

    def _start(self, calls: Sequence[Call], value: Any) -> Work:
        """Errors of the job are the Work's; those of the arguments are raised."""
        job = self._current()
        failed = functools.partial(self._failed, job)
        parts: List[Part] = []
        try:
            self._sweep()
            for call in calls:
                parts.append(self._issue(job, call, parts))
        except (Invalid, Unsupported):
            raise
        except ZenpsError as error:
            return Work(parts, value, failed, self._completer, error)
        work = Work(parts, value, failed, self._completer)
        self._flying.append(work)  # a request that is dropped is given up, and a Work may be
        return work

    def _sweep(self) -> None:
        while self._flying and self._flying[0].is_completed():
            self._flying.popleft().complete()

    def _issue(self, job: Job, call: Call, parts: Sequence[Part]) -> Part:
        """A tensor of zenps, which those of one shape and dtype share, has a few operations in flight: of more, some wait for
        the oldest."""
        while True:
            try:
                return call(job)
            except Again:
                if self._flying:
                    self._flying.popleft().complete()
                elif parts:
                    next((request for request, _ in parts if not request.done()), parts[-1][0]).exception()
                else:
                    raise

    def allreduce(self, tensors: List[torch.Tensor], opts: Any) -> Work:
        """In place; of sparse tensors, which are coalesced then."""
        op = getattr(opts, "reduceOp", opts)
        return self._start([functools.partial(works.reduce, each, op) for each in tensors], tensors)

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any) -> Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensor_list: List[torch.Tensor], opts: Any) -> Work:
        job, root = self._current(), int(opts.rootRank)
        if not 0 <= root < job.world:
            raise Invalid(f"broadcast: root {root}; must be 0 to {job.world - 1}")
        _check_dense("broadcast", tensor_list)
        what = f"broadcast from rank {root}"
        calls = [functools.partial(works.copy, what, each if job.rank == root else None, [each]) for each in tensor_list]
        return self._start(calls, tensor_list)

    def allgather(self, output_tensors: List[List[torch.Tensor]], input_tensor: List[torch.Tensor], opts: Any = None) -> Work:
        job, calls = self._current(), []
        _check_dense("allgather", input_tensor)
        for outputs, own in zip(output_tensors, input_tensor):
            if [works.nbytes(each) for each in outputs] != [works.nbytes(own)] * job.world:
                raise Invalid(f"allgather: {len(outputs)} outputs; {job.world} of {works.nbytes(own)} bytes each are wanted")
            calls.append(functools.partial(works.copy, "allgather", own, outputs))
        return self._start(calls, output_tensors)

    def allgather_into_tensor_coalesced(self, output_tensors: List[torch.Tensor], input_tensors: List[torch.Tensor],
                                        opts: Any = None) -> Work:  # fmt: skip
        world = self._current().world
        if any(each.numel() % world for each in output_tensors):
            raise Invalid(f"allgather: each output is to have a multiple of {world} values, as many as there are replicas")
        work = self.allgather([list(each.view(world, -1).unbind(0)) for each in output_tensors], input_tensors)
        work._value = output_tensors
        return work

    def barrier(self, opts: Any = None) -> Work:
        job = self._current()
        marks = torch.zeros(job.world, dtype=torch.int64, device="cpu")
        return self._start([functools.partial(works.copy, "barrier", marks[job.rank], list(marks.unbind(0)))], None)

    def alltoall_base(self, *_: Any, **__: Any) -> Any:
        raise _none("alltoall", "allgather() where it is small, or torchft's ProcessGroupGloo")

    def reduce_scatter(self, *_: Any, **__: Any) -> Any:
        raise _none("reduce_scatter", "allreduce(), and the part of its result that is wanted")

    def reduce_scatter_tensor_coalesced(self, *_: Any, **__: Any) -> Any:
        raise _none("reduce_scatter", "allreduce(), and the part of its result that is wanted")

    def send(self, *_: Any, **__: Any) -> Any:
        raise _none("send", "torchft's HTTPTransport for checkpoints, and broadcast() for what all are to have")

    def recv(self, *_: Any, **__: Any) -> Any:
        raise _none("recv", "torchft's HTTPTransport for checkpoints, and broadcast() for what all are to have")


def _none(what: str, instead: str) -> NotImplementedError:
    return NotImplementedError(f"ProcessGroupZenps has no {what}: use {instead}")


def _check_dense(what: str, tensors: List[torch.Tensor]) -> None:
    if any(each.is_sparse for each in tensors):
        raise Unsupported(f"{what}: a sparse tensor; use allreduce() of it, or {what} its indices and values")


def average_gradients(manager: Any, module: torch.nn.Module) -> None:
    """Makes every gradient of the module the mean of those of all replicas that take part in the step, by
    `manager.allreduce()`, and waits for it; what fails, the manager knows, and the optimiser's step is left out.

    Sparse gradients (`nn.Embedding(sparse=True)`) travel, and stay, sparse; dense ones of less than 1 MB travel together.
    A parameter that this replica did not use gives zeros, so all replicas sum the same. Between backward() and the
    optimiser's step; torchft's own wrappers leave sparse gradients to the process group as well, but sum one at a time.
    """
    layers = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    tables = {id(each.weight) for each in module.modules() if isinstance(each, layers) and each.sparse}
    sums: List[Any] = []
    together: Dict[Any, List[torch.Tensor]] = {}
    for parameter in module.parameters():
        if not parameter.requires_grad or not parameter.numel():
            continue
        if parameter.grad is None:
            parameter.grad = _nothing(parameter, id(parameter) in tables)
        gradient = parameter.grad
        if gradient.is_sparse or works.nbytes(gradient) >= _SMALL:
            sums.append(manager.allreduce(gradient))
        else:
            together.setdefault((gradient.dtype, gradient.device), []).append(gradient)
    flats = [(torch.cat([each.reshape(-1) for each in gradients]), gradients) for gradients in together.values()]
    sums += [manager.allreduce(flat) for flat, _ in flats]
    for each in sums:
        each.wait()
    for flat, gradients in flats:
        for gradient, part in zip(gradients, flat.split([each.numel() for each in gradients])):
            gradient.copy_(part.view(gradient.shape))


def _nothing(parameter: torch.Tensor, sparse: bool) -> torch.Tensor:
    if not sparse:
        return torch.zeros_like(parameter, requires_grad=False)
    values = torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device)
    ids = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    return torch.sparse_coo_tensor(ids, values, parameter.shape, device=parameter.device)
