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

import uuid
from datetime import timedelta
from typing import Any, Dict, List, Optional

import torch

try:
    from torchft.process_group import ProcessGroup as _TorchftProcessGroup
    from torchft.work import _DummyWork
except ImportError as missing:
    raise ImportError(
        f"zenps.torch.torchft needs torchft, which cannot be imported here ({missing}): pip install torchft, with torch 2.7 or "
        "later. zenps.torch.elastic() trains on when ranks die without it"
    ) from missing

from ..errors import Invalid
from . import copies
from .operations import Operations

_SMALL = 1 << 20  # bytes of a gradient that travels with others


class ProcessGroupZenps(Operations, _TorchftProcessGroup):  # type: ignore[misc]
    """torchft's ProcessGroup over zenps, with the operations of :class:`zenps.torch.operations.Operations`.

    timeout: the deadline of configure(), where replicas meet, and of each operation. set_timeout() changes it for the next
    quorum. coordinator: "host:port" of a zenpsd; None: ZENPS_COORDINATOR. options: others of :func:`zenps.init`
    (provider, interface, subnet, threads, log).
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), coordinator: Optional[str] = None, **options: Any) -> None:
        super().__init__(0, 1)
        for name in {"job", "rank", "world", "min_world", "max_world", "join_wait", "join_timeout", "round_timeout"} & set(options):
            raise Invalid(f"ProcessGroupZenps: {name} is the quorum's; timeout is how long replicas wait for each other")
        self._timeout = timeout
        self._options = dict(options, coordinator=coordinator)
        self._handle = uuid.uuid4().hex
        self._begin()

    # From one quorum to the next.

    def configure(self, store_addr: str, replica_id: str, rank: int, world_size: int, quorum_id: Optional[int] = None,
                  group_rank: Optional[int] = None, group_world_size: Optional[int] = None,
                  global_ranks: Optional[List[int]] = None) -> None:  # fmt: skip
        """Leaves the job of the last quorum, and joins that of this one, whose name is `store_addr`: the Manager puts the
        quorum's number and `group_rank` in it. Returns when all replicas are there; MissingRanks says who is not."""
        self._open(f"torchft/{store_addr}", rank, world_size, self._timeout, **self._options)

    def get_reconfigure_handle(self) -> str:
        """For newer torchft, which has reconfigure() in the place of configure()."""
        return self._handle

    def reconfigure(self, opts: Any) -> Any:
        """The same from the handles of all replicas, in the order of ranks, and the quorum's number."""
        handles = list(opts.handles)
        if self._handle not in handles:
            raise Invalid(f"ProcessGroupZenps: quorum {opts.uuid} of {len(handles)} replicas lacks this one's handle")
        name = f"torchft/{opts.uuid}/{handles[0]}"
        self._open(name, handles.index(self._handle), len(handles), self._timeout, **self._options)
        return _DummyWork(None)

    _needs = "call configure() first, and again after abort()"

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def size(self) -> int:
        return self._current().world

    def getBackendName(self) -> str:
        return "torchft-zenps"

    def __repr__(self) -> str:
        return f"ProcessGroupZenps({self._job!r})"


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
        if gradient.is_sparse or copies.nbytes(gradient) >= _SMALL:
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
