"""The operations of a process group, of one tensor each: sums, and copies of bytes. They are checked here, and begin later."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional

import torch

from ..arrays import Array, Rows
from ..errors import Unsupported
from ..job import Job
from . import collective, convert, devices
from .collective import Call, Started, Turn

_WIDTH = 64  # values of f64 in a row of copied bytes
_ROW = 8 * _WIDTH  # bytes
_COMBINE: Dict[str, Any] = {
    "sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum,
    "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
}  # fmt: skip


def nbytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def barrier() -> Call:
    """Ends when all ranks have called it."""
    return Call("barrier")


def copy(what: str, own: Optional[torch.Tensor], outputs: List[torch.Tensor], job: Job) -> Call:
    """Bytes of dense tensors from one rank, or all, to all: the `own` of ranks that give one become the outputs, in the
    order of ranks. The tensor of zenps rounds their number up, so that calls of many sizes share few tensors."""
    size = nbytes(outputs[0])
    call = f"{what} of {size} bytes of {str(outputs[0].dtype)[6:]}"
    if not size:
        return Call(call)
    rows = -(-size // _ROW)
    room = 1 << (rows - 1).bit_length()
    sent: List[Any] = []
    if own is not None:
        octets = torch.zeros(rows * _ROW, dtype=torch.uint8, device="cpu")
        octets[:size] = convert.octets(collective.plain(own.detach()))
        first = job.rank * room
        sent = [Array(octets.data_ptr(), "f64", (rows, _WIDTH), owner=octets), range(first, first + rows)]

    def finish(result: Rows) -> None:
        received = convert.tensor_of(result.values, torch.float64).view(-1).view(torch.uint8)
        with torch.no_grad():
            for i, output in enumerate(outputs):
                octets = received[i * rows * _ROW : i * rows * _ROW + size]
                output.copy_(octets.view(output.dtype).view(output.shape))
                devices.settle(output)

    def begin(turn: Turn) -> Started:
        tensor = job.tensor(turn.name(f"copies/{room}"), job.world * room, _WIDTH, "f64", op="sum", scheme="balanced", values="raw")
        return tensor.allgather(*sent, step=turn.step), finish

    return Call(call, begin)


def _then(copied: Call, result: Callable[[], torch.Tensor], output: torch.Tensor) -> Call:
    """The same, which then puts a result of the copies in its place."""
    if copied.begin is None:
        return copied
    begin: Callable[[Turn], Started] = copied.begin

    def begin_copies(turn: Turn) -> Started:
        request, put = begin(turn)

        def finish(rows: Rows) -> None:
            put(rows)
            with torch.no_grad():
                output.copy_(result().view(output.shape))
            devices.settle(output)

        return request, finish

    return Call(copied.text, begin_copies)


def reduce(tensor: torch.Tensor, op: Any, job: Job) -> Call:
    """In place, in the order of ranks. Sums that zenps has not are made here, of copies: those of integers, and products. Of
    an empty tensor: an error where another rank has values."""
    if not tensor.numel():
        return Call("all_reduce() of 0 values")
    if tensor.is_complex() and not tensor.is_sparse and collective.op_word(op) in ("sum", "avg"):
        tensor = torch.view_as_real(tensor)
    if tensor.is_sparse or collective.is_summed(tensor.dtype, op):
        return collective.reduction(job, tensor, op)
    return _combined("allreduce", tensor, tensor, slice(None), op, job)


def _combined(what: str, own: torch.Tensor, output: torch.Tensor, part: slice, op: Any, job: Job) -> Call:
    """A part of the values of all ranks, combined here."""
    word = collective.op_word(op)
    combine: Any = _COMBINE.get(word)
    bits = word in ("band", "bor", "bxor")
    floats = own.is_floating_point() or own.is_complex()
    if combine is None or (bits and floats) or (own.is_complex() and word in ("min", "max")):
        raise Unsupported(f"{what}: {word} of {own.dtype}; zenps has sum, avg, min and max of floats, and product, and sum, min, "
                          "max, product, band, bor and bxor of integers", job=job.name)  # fmt: skip
    every = [torch.empty(own.shape, dtype=own.dtype, device="cpu") for _ in range(job.world)]
    copied = copy(f"{what}({word})", own, every, job)
    return _then(copied, lambda: functools.reduce(combine, (each.view(-1)[part] for each in every)), output)


def reduce_to(root: int, tensor: torch.Tensor, op: Any, job: Job) -> Call:
    """As reduce(), but other ranks keep their values."""
    if tensor.is_sparse or job.rank == root:
        return reduce(tensor, op, job)
    return reduce(tensor.detach().clone(), op, job)


def reduce_scatter(output: torch.Tensor, own: torch.Tensor, op: Any, job: Job) -> Call:
    """own: a block of values for each rank, of which this rank's are summed into `output`. Bits are those of reduce()."""
    n = output.numel()
    if not n:
        return Call("reduce_scatter() of 0 values")
    if own.is_complex() and collective.op_word(op) in ("sum", "avg"):
        own, output, n = torch.view_as_real(own), torch.view_as_real(output), 2 * n
    if not collective.is_summed(own.dtype, op):
        return _combined("reduce_scatter", own, output, slice(job.rank * n, (job.rank + 1) * n), op, job)
    word, dtype = collective.op_name(op), convert.dtype_name(own.dtype, "reduce_scatter: the tensor")
    width = convert.LANE if n > convert.LANE else 1
    rows = convert.rounded(-(-n // width))
    blocks = own.detach().to(devices.place(job, own.device)).reshape(job.world, n)
    if n < rows * width:
        blocks = torch.nn.functional.pad(blocks, (0, rows * width - n))
    blocks = blocks.contiguous()
    summed = torch.empty(rows * width, dtype=own.dtype, device=blocks.device)
    array, ids = convert.array(blocks, (job.world * rows, width)), collective.all_rows(word, job.world * rows, blocks.device)

    def finish(_: Any) -> None:
        with torch.no_grad():
            output.copy_(summed[:n].view(output.shape))
        devices.settle(output)

    def begin(turn: Turn) -> Started:
        tensor = collective.opened(job, turn, f"reduce_scatter/{word}.{dtype}.{rows}x{width}", word, job.world * rows, width, dtype)
        wanted, out = range(job.rank * rows, (job.rank + 1) * rows), convert.array(summed, (rows, width))
        return tensor.reduce_scatter(array, ids, rows=wanted, step=turn.step, out=out, stream=devices.stream(blocks)), finish

    return Call(f"reduce_scatter({word}) of {job.world} blocks of {n} values of {dtype}", begin)


def gather(output: torch.Tensor, own: torch.Tensor, job: Job) -> Call:
    """Copies of all ranks' values, one behind the other."""
    whole = torch.empty((job.world, own.numel()), dtype=own.dtype, device="cpu")
    return _then(copy("allgather", own.reshape(-1), list(whole.unbind(0)), job), lambda: whole, output)


def scatter(root: int, own: Optional[torch.Tensor], output: torch.Tensor, job: Job) -> Call:
    """This rank's part of the root's values, which all get."""
    whole = torch.empty((job.world, *output.shape), dtype=output.dtype, device="cpu")
    return _then(copy(f"scatter from rank {root}", own, [whole], job), lambda: whole[job.rank], output)
