"""What zenps.torch hands over of gradients in a GPU's memory, where that is the emulated one: torch takes its addresses for
host memory, but touches nothing there, and the stream that is given is one that gets to its work late."""

from __future__ import annotations

import ctypes
import logging
from array import array
from contextlib import contextmanager
from typing import Any, Iterator, List

import torch
from device import GPU
from torch_sync import ROUND_TIMEOUT, assert_bits, ids_of, job, reference  # noqa: F401

import zenps
import zenps.torch as zt
from core import raises
from torch import nn
from zenps.torch import convert, devices
from zenps.torch.groups import DenseGroup, Group, TableGroup, open_all
from zenps.torch.tables import Slot

WORLD, RANK = job.world, job.rank
CODES = {torch.float32: "f", torch.float64: "d", torch.int64: "q"}
_on_gpu: set = set()


def _array(tensor: torch.Tensor, shape: Any) -> zenps.Array:
    device = 0 if tensor.data_ptr() in _on_gpu else None
    return zenps.Array(tensor.data_ptr(), convert._NAMES[tensor.dtype], shape, owner=tensor, device=device)


convert.array = _array
devices.stream = lambda tensor: GPU.stream if tensor.data_ptr() in _on_gpu else None


def there(values: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape in the emulated GPU's memory, full of zeros until late() has come to pass."""
    at = GPU.upload(array(CODES[values.dtype], bytes(values.numel() * values.element_size())))
    memory = (ctypes.c_ubyte * (values.numel() * values.element_size())).from_address(at)
    made = torch.frombuffer(memory, dtype=values.dtype).view(values.shape)
    _on_gpu.add(at)
    return made


def back(tensor: torch.Tensor) -> torch.Tensor:
    numbers = GPU.download(tensor.data_ptr(), CODES[tensor.dtype], tensor.numel())
    return torch.tensor(numbers, dtype=tensor.dtype).view(tensor.shape)


@contextmanager
def late(*pairs: Any) -> Iterator[None]:
    """The values come into tensors that there() made by work on the stream that begins when the context ends."""
    GPU.hold(True)
    kept = []
    for tensor, values in pairs:
        numbers = array(CODES[values.dtype], values.reshape(-1).tolist())
        kept.append(numbers)
        GPU.do(GPU.ops.copy, tensor.data_ptr(), numbers.buffer_info()[0], len(numbers) * numbers.itemsize, GPU.stream)
    try:
        yield
    finally:
        GPU.hold(False)
        GPU.sync(GPU.stream)


def made(rank: int, n: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(7000 * seed + rank))


def opened(group: Group) -> Group:
    open_all(job, [group])
    return group


def check_stream(request: Any) -> None:
    """Its work is in the order of the stream, which is held."""
    assert not request.done()
    raises(zenps.Invalid, lambda: request.stream_wait(GPU.stream), "would wait for itself")


def summed(group: Group, *pairs: Any) -> None:
    with late(*pairs):
        group.start(0)
        check_stream(group.requests[0])
    group.wait()
    group.apply(lambda _: True, 1.0)
    assert group.copied_bytes == 0


def dense_sum(rows: int, width: int, seed: int) -> torch.Tensor:
    return reference(rows, width, torch.float32, [(torch.arange(rows), made(rank, rows, width, seed)) for rank in range(WORLD)])


def case_dense_in_place(_: zenps.Job) -> None:
    for kind, rows in ((DenseGroup, 64), (TableGroup, 300)):
        parameter = nn.Parameter(torch.zeros(rows, 64))
        group = opened(kind(f"placed.{rows}", [Slot("p", parameter, 0, 0)], op="mean"))
        own = made(RANK, rows, 64, 1)
        parameter.grad = at = there(own)
        summed(group, (at, own))
        assert parameter.grad is at
        assert_bits(back(at), dense_sum(rows, 64, 1))


def case_rows(_: zenps.Job) -> None:
    rows, width, n = 700, 8, 100
    parts = [(ids_of(rank, rows, n, 2), made(rank, n, width, 2)) for rank in range(WORLD)]
    ids, values = parts[RANK]
    parameter = nn.Parameter(torch.zeros(rows, width))
    group = opened(TableGroup("placed.rows", [Slot("p", parameter, 0, 0, True)], op="mean"))
    ids_there, values_there = there(ids), there(values)
    parameter.grad = convert.sparse(ids_there, values_there, parameter.shape)
    summed(group, (ids_there, ids), (values_there, values))
    grad = parameter.grad
    assert grad.is_sparse and grad.is_coalesced()
    assert_bits(grad.to_dense(), reference(rows, width, torch.float32, parts))


def case_all_reduce(_: zenps.Job) -> None:
    own = made(RANK, 96, 64, 3)  # rows that need no padding: that would be torch's work, in memory that it cannot read here
    value = there(own)
    with late((value, own)):
        work = zt.all_reduce(value, "avg", job=job, async_op=True)
        check_stream(work._request._started[0][0])
    work.wait()
    assert_bits(back(value), dense_sum(96, 64, 3))


class Bucket:
    """What DDP gives its hook, of a dense parameter."""

    def __init__(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        self._parameter, self._gradient = parameter, gradient

    def index(self) -> int:
        return 1

    def is_last(self) -> bool:
        return False

    def buffer(self) -> torch.Tensor:
        return self._gradient.view(-1)

    def parameters(self) -> List[nn.Parameter]:
        return [self._parameter]

    def gradients(self) -> List[torch.Tensor]:
        return [self._gradient]


def case_bucket(_: zenps.Job) -> None:
    state = zt.HookState(job, name="placed.ddp")
    state._complete = lambda: None  # this thread lets the stream go, and then waits
    own = made(RANK, 64, 64, 4)
    value = there(own)
    with late((value, own)):
        future = zt.hook(state, Bucket(nn.Parameter(torch.zeros(64, 64)), value))
        check_stream(state._buckets[0].requests[0])
    zt.HookState._complete(state)
    assert future.value().data_ptr() == value.data_ptr() and state.stats.copied_bytes == 0
    assert_bits(back(value), dense_sum(64, 64, 4))


@contextmanager
def logged() -> Iterator[List[str]]:
    lines: List[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("zenps")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def case_place(_: zenps.Job) -> None:
    value = there(torch.zeros(4))
    assert devices.refusal(job, _array(value, (4,))) is None
    other = devices.refusal(job, zenps.Array(value.data_ptr(), "f32", (4,), device=7))
    assert isinstance(other, zenps.Unsupported) and "GPU 7" in str(other), other
    raises(zenps.Invalid, lambda: devices.refusal(job, zenps.Array(id(job), "f32", (4,), device=0)), "not in the memory")
    with logged() as lines:
        for _ in range(2):
            assert devices.place(job, torch.device("cpu")) == devices.HOST
            assert devices.place(job, torch.device("meta")) == devices.HOST
    assert len(lines) == 1 and "gradients on meta go through copies in host memory" in lines[0], lines
