"""Horovod's names, for trainers that were written for it:

    import zenps.torch.horovod as hvd              # was: import horovod.torch as hvd
    ... zenpsrun -n 4 -- python train.py           # was: horovodrun -np 4 python train.py

Sums are those of :class:`zenps.torch.GradientSync`: gradients are final when backward() returns, so synchronize() and
skip_synchronize() have nothing left to do. Horovod's other names are not attributes of this module.
"""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack, contextmanager
from typing import Any, Iterable, Iterator, List, Optional, Set, Tuple, TypeVar

import torch

from ..errors import Invalid
from ..job import Job
from . import collective, jobs
from .autograd import GradientHook, queue_callback
from .sync import GradientSync
from .tables import MIN_ROWS

Average, Sum, Min, Max = "mean", "sum", "min", "max"
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
_job: Optional[Job] = None
_numbers = itertools.count()


class Compression:
    """What gradients travel as."""

    none, fp16, bf16 = None, "f16", "bf16"


def init(*arguments: Any, **named: Any) -> None:
    """Joins the job, with the arguments of :func:`zenps.torch.init`; none: all from the environment."""
    global _job
    _job = jobs.init(*arguments, **named)


def is_initialized() -> bool:
    return _job is not None and not _job.closed


def _current() -> Job:
    if _job is None or _job.closed:
        raise Invalid("there is no job: call init() first, and nothing after shutdown()")
    return _job


def shutdown() -> None:
    _current().close()


def rank() -> int:
    return _current().rank


def size() -> int:
    return _current().world


def _of_host(what: str, names: Iterable[str]) -> int:
    _current()
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    raise Invalid(f"{what} of this host is not in the environment: zenpsrun, torchrun, mpirun and srun set it")


def local_rank() -> int:
    """This rank's number on its host, as the launcher gave it."""
    return _of_host("the rank's number", ("ZENPS_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                          "SLURM_LOCALID"))  # fmt: skip


def local_size() -> int:
    """Ranks on this host, as the launcher gave it."""
    return _of_host("the number of ranks", ("ZENPS_LOCAL_WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                            "MPI_LOCALNRANKS"))  # fmt: skip


def _op(average: Optional[bool], op: Optional[str]) -> str:
    if average is not None and op is not None:
        raise Invalid("allreduce: average and op say the same; give one of them")
    return op or (Sum if average is False else Average)


def allreduce_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, *,
               op: Optional[str] = None) -> torch.Tensor:  # fmt: skip
    """The mean (or what `op` says) of all ranks' tensors, in place. name: see :func:`zenps.torch.all_reduce`."""
    collective.all_reduce(tensor, _op(average, op), name=name, job=_current())
    return tensor


def allreduce(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, *,
              op: Optional[str] = None) -> torch.Tensor:  # fmt: skip
    """As allreduce_(), in a tensor of its own. Autograd does not see it."""
    return allreduce_(tensor.detach().clone(), average, name, op=op)


def broadcast_parameters(params: collective.Named, root_rank: int = 0) -> None:
    collective.broadcast_parameters(params, root_rank, job=_current())


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    collective.broadcast_optimizer_state(optimizer, root_rank, job=_current())


def broadcast_object(obj: Any = None, root_rank: int = 0) -> Any:
    """Of numbers, strings, tensors, and lists and dicts of these: nothing is pickled."""
    return collective.broadcast_object(obj, root_rank, job=_current())


class _Parameters(torch.nn.Module):  # type: ignore[misc]
    """An optimiser's parameters as the module that GradientSync wants."""

    def __init__(self, named: List[Tuple[str, torch.nn.Parameter]]) -> None:
        super().__init__()
        self._named = named

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[Tuple[str, torch.nn.Parameter]]:
        return iter(self._named)


class _Passes:
    """Has the last of `n` backward passes a step summed, and the others not. Made before the GradientSync, so that in each
    hook it comes first."""

    def __init__(self, parameters: List[torch.nn.Parameter], n: int) -> None:
        self.n = n
        self.sync: Optional[GradientSync] = None
        self._local = ExitStack()
        self._done = 0  # passes of this step, with the one under way
        self._seen: Set[int] = set()  # parameters that have got a gradient in the pass under way
        self._is_under_way = False
        self._hooks = [GradientHook(parameter, self._counter(i)) for i, parameter in enumerate(parameters)]

    def _counter(self, i: int) -> Any:
        def count() -> None:
            if not self._is_under_way or i in self._seen:  # a pass that failed has not ended
                self._is_under_way = queue_callback(self._end)
                self._seen = set()
                self._done += 1
                if self._done == self.n:
                    self._local.close()
            self._seen.add(i)

        return count

    def _end(self) -> None:
        self._is_under_way = False

    def begin(self) -> None:
        """Of a step."""
        self._done, self._is_under_way = 0, False
        self._local.close()
        if self.sync is not None and self.n > 1:
            self._local.enter_context(self.sync.no_sync())

    def check(self) -> None:
        if 0 < self._done < self.n:
            raise Invalid(f"step() after {self._done} backward passes; backward_passes_per_step is {self.n}: gradients are not summed")


class _Distributed(torch.optim.Optimizer):  # type: ignore[misc]
    """What DistributedOptimizer() adds to the class of an optimiser."""

    sync: GradientSync
    _passes: _Passes

    def synchronize(self) -> None:
        """Waits for the sums, which backward() has done unless wait="step" was given."""
        self.sync.wait()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        yield

    def step(self, closure: Any = None) -> Any:
        if closure is None:
            self._passes.check()
            self.synchronize()
        result = super().step(closure)
        self._passes.begin()
        return result

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        self.sync._before_forward()  # it drops the remains of a failed pass
        self._passes.begin()
        super().zero_grad(*arguments, **named)


def DistributedOptimizer(optimizer: Optimizer, named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
                         compression: Optional[str] = Compression.none, backward_passes_per_step: int = 1,
                         op: str = Average, **arguments: Any) -> Optimizer:  # fmt: skip
    """The optimiser, whose parameters' gradients are summed over all ranks from now on. It is the same object, of a class
    that is derived from its own: schedulers that refer to it stay right.

    arguments: GradientSync's. tables: None: the matrices of MIN_ROWS rows or more. Collective; ranks make optimisers in the
    same order.
    """
    if op not in (Average, Sum):
        raise Invalid(f"DistributedOptimizer: op {op!r}; must be Average or Sum")
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        raise Invalid(f"DistributedOptimizer: backward_passes_per_step {backward_passes_per_step!r}; must be 1 or more")
    if isinstance(optimizer, _Distributed):
        raise Invalid("DistributedOptimizer: the optimiser is one already")
    own = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
    names = {id(parameter): name for name, parameter in named_parameters or ()}
    if named_parameters is None:
        names = {id(parameter): str(i) for i, parameter in enumerate(own)}
    missing = [tuple(parameter.shape) for parameter in own if id(parameter) not in names]
    if missing:
        raise Invalid(f"DistributedOptimizer: named_parameters lacks {len(missing)} of the optimiser's, of shapes {missing[:3]}")
    named = [(names[id(parameter)], parameter) for parameter in own]
    if len(dict(named)) < len(named):
        raise Invalid("DistributedOptimizer: two parameters of named_parameters have one name")
    if arguments.get("tables") is None:
        arguments["tables"] = [name for name, each in named if each.dim() == 2 and each.shape[0] >= MIN_ROWS]
    arguments.setdefault("name", f"horovod.{next(_numbers)}")
    passes = _Passes(own if backward_passes_per_step > 1 else [], backward_passes_per_step)
    passes.sync = GradientSync(_Parameters(named), _current(), average=op == Average, values=compression, broadcast=False,
                               **arguments)  # fmt: skip
    passes.begin()
    own_class = type(optimizer)
    made: Any = optimizer
    made.__class__ = type(own_class.__name__, (_Distributed, own_class), {})
    made.sync, made._passes = passes.sync, passes
    return optimizer
