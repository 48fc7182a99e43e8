"""Groups of parameters that are summed in one tensor of zenps: a round each a step.

A group's step: `start()` gives the gradients that are there to zenps, and returns at once; `wait()` returns when the sum
is here; `apply()` makes it the parameters' gradients. Between start() and wait() nobody may change the gradients.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from ..arrays import Array
from ..parts import Part
from ..request import Request
from ..tensor import Tensor
from . import convert, devices
from .dense import Choice, Reduction
from .jobs import Ranks
from .tables import Slot, based

Used = Callable[[Slot], bool]
_PART = 4096  # values; a smaller parameter is copied in less time than a part of its own takes
_ALONE = 1 << 20  # bytes in host memory, from which on a copy takes longer than a collective of its own


class Group:
    """What sync.py knows of a group. asks: the tensors that it sums in, for :meth:`zenps.Job.tensors`, whose answer goes to
    opened() ahead of the first step."""

    tensor: Tensor  # where there is one

    def __init__(self, slots: List[Slot], asks: List[Dict[str, Any]]) -> None:
        self.slots = slots
        self.asks = asks
        for ask in asks:
            ask["name"] = convert.tensor_name(ask["name"])
        self.stale: Set[int] = set()  # indices of parameters whose gradients are no part of this step
        self.copies = False  # whether no sum of this step may be where its gradient is
        self.copied_bytes = 0
        self.requests: List[Request[Any]] = []
        self.tensors: List[Tensor] = []

    def opened(self, tensors: List[Tensor]) -> None:
        """These are what `asks` was answered with."""
        (self.tensor,) = tensors

    def gradient(self, slot: Slot) -> Optional[torch.Tensor]:
        """What the step sums of a parameter."""
        return None if slot.index in self.stale else slot.parameter.grad

    def start(self, step: int) -> None:
        """Starts the step's round of the gradients that the parameters have now; of none for those that have None."""
        raise NotImplementedError

    def written(self) -> Set[int]:
        """Addresses of the gradients in flight that the sums will be written to."""
        return set()

    def skip(self) -> None:
        """The step has failed before start() was called."""

    def wait(self) -> None:
        """Returns when the sum is here, or raises what the round failed with."""
        for request in self.requests:
            request.wait()

    def cancel(self) -> None:
        """Gives the round up, on all ranks."""
        for request in self.requests:
            request.cancel()

    def stop(self) -> None:
        """cancel(), but what a residual has selected waits for a decision."""
        self.cancel()

    def apply(self, used: Used, scale: float) -> None:
        """After wait(): sets `.grad` of each parameter that any rank used, to the sum times `scale`."""
        raise NotImplementedError

    def _place(self) -> torch.device:
        """In which memory zenps gets the gradients, which are where the parameters are."""
        return devices.place(self.tensor.job, self.slots[0].parameter.device)

    def _moved(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The tensor on that device: itself, or a copy, which is counted."""
        if tensor.device == device:
            return tensor
        self.copied_bytes += tensor.numel() * tensor.element_size()
        return tensor.to(device)


def open_all(job: Ranks, groups: Sequence[Group]) -> None:
    """All tensors of the groups, at once."""
    tensors = iter(job.tensors([ask for group in groups for ask in group.asks]))
    for group in groups:
        group.tensors = [next(tensors) for _ in group.asks]
        group.opened(group.tensors)


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return tensor if scale == 1.0 else tensor.mul_(scale)


def give(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Makes `value` the gradient; into the tensor that is there where it has the same layout and is dense."""
    value = value.to(parameter.device)
    grad = parameter.grad
    if grad is not None and not grad.is_sparse and not value.is_sparse:
        if grad.data_ptr() != value.data_ptr():
            grad.copy_(value.view_as(grad))
        return
    parameter.grad = value


class TableGroup(Group):
    """Tables of one dtype and width: rows of one tensor, each table's from its base on.

    One table's gradient is handed over as it is: dense in place, sparse without a copy, and its result has the layout
    that the gradient had. Of several, row numbers and values are concatenated. All that where they are, in host memory or
    a GPU's. How many rows a sum has shows when it is there: they come in memory of the library's on the host, and go to
    the GPU in one copy each of row numbers and values. Where the job takes nothing from the GPU (devices.py), rows go
    through host memory on their way in, too.
    """

    def __init__(self, name: str, slots: List[Slot], **options: object) -> None:
        first = slots[0].parameter
        self.width = slots[0].width
        self.dtype = first.dtype
        rows = slots[-1].base + slots[-1].rows
        dtype = convert.dtype_name(first.dtype, f"parameter {slots[0].name}")
        super().__init__(slots, [dict(options, name=name, rows=rows, width=self.width, dtype=dtype)])
        self._layout = {slot.index: slot.sparse for slot in slots}  # of each gradient: whether it is sparse
        self._dense: Optional[torch.Tensor] = None  # one table's gradient, which the sum goes into

    def start(self, step: int) -> None:
        grads = [self.gradient(slot) for slot in self.slots]
        for slot, grad in zip(self.slots, grads):
            if grad is not None:
                self._layout[slot.index] = grad.is_sparse
        self._dense = None
        if len(grads) == 1 and grads[0] is not None and not grads[0].is_sparse:
            self._dense = self._contiguous(grads[0].detach())
            array = convert.array(self._dense, (self.tensor.rows, self.width))
            self.requests = [self.tensor.allreduce(array, step=step, out=array, stream=devices.stream(self._dense))]
            return
        place = self._place()
        parts = [self._rows(slot, grad, place) for slot, grad in zip(self.slots, grads) if grad is not None]
        if not parts:
            self.requests = [self.tensor.allreduce(step=step, out="rows")]
            return
        ids, values = parts[0] if len(parts) == 1 else self._joined(parts)
        arrays = convert.array(values, (ids.shape[0], self.width)), convert.array(ids, (ids.shape[0],))
        self.requests = [self.tensor.allreduce(*arrays, step=step, out="rows", stream=devices.stream(values))]

    def written(self) -> Set[int]:
        return set() if self._dense is None else {self._dense.data_ptr()}

    def _contiguous(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient where zenps may sum it in place. In a shared storage it stays as it is: checks compare its values."""
        made = grad.to(self._place(), copy=self.copies or convert.shares_storage(grad)).contiguous()
        if made.data_ptr() != grad.data_ptr():
            self.copied_bytes += made.numel() * made.element_size()
        return made

    def _rows(self, slot: Slot, grad: torch.Tensor, place: torch.device) -> Tuple[torch.Tensor, torch.Tensor]:
        grad = grad.detach()
        if grad.is_sparse:
            ids, values = convert.split_sparse(grad, slot.parameter.shape, self.width)
        else:
            ids, values = convert.nonzero_rows(grad, self.width)
        return self._moved(ids + slot.base if slot.base else ids, place), self._moved(values, place)

    def _joined(self, parts: Sequence[Tuple[torch.Tensor, torch.Tensor]]) -> Tuple[torch.Tensor, torch.Tensor]:
        ids, values = torch.cat([ids for ids, _ in parts]), torch.cat([values for _, values in parts])
        self.copied_bytes += 8 * ids.numel() + values.numel() * values.element_size()
        return ids, values

    def apply(self, used: Used, scale: float) -> None:
        if self._dense is not None:
            give(self.slots[0].parameter, _scaled(self._dense, scale))
            self._dense = None
            return
        ids, values = convert.rows_of(self.requests[0].wait(), self.dtype)
        edges = torch.tensor([slot.base for slot in self.slots] + [self.tensor.rows], dtype=torch.int64, device="cpu")
        at = torch.searchsorted(ids, edges).tolist()
        device = self.slots[0].parameter.device
        ids, values = self._moved(ids, device), _scaled(self._moved(values, device), scale)
        for slot, begin, end in zip(self.slots, at, at[1:]):
            if begin == end and not used(slot):
                continue
            own = ids[begin:end] - slot.base if slot.base else ids[begin:end]
            if self._layout[slot.index]:
                made = convert.sparse(own, values[begin:end], slot.parameter.shape)
            else:
                made = convert.dense(own, values[begin:end], slot.parameter.detach())
            give(slot.parameter, made)


class DenseGroup(Group):
    """Parameters of one dtype and device in one tensor of zenps: those that fill rows first, then the others end to end.

    In host memory each gradient that fills rows is a part of the round, and summed where it is. The others are copied to a
    buffer that is summed in place, as all are on a GPU; in host memory where the job takes nothing from their GPU. One
    parameter alone is summed where it is, if its size is one that is quick to encode.
    """

    def __init__(self, name: str, slots: List[Slot], **options: object) -> None:
        slots = sorted(slots, key=lambda slot: not _fills_rows(slot))
        slots = based(slots, [slot.numel for slot in slots])
        first = slots[0].parameter
        self.numel = slots[-1].base + slots[-1].numel
        shape = convert.lanes(self.numel) if len(slots) == 1 else None
        self._in_place = shape is not None
        self._n_whole = 0 if self._in_place else sum(map(_fills_rows, slots))
        self._shape = shape or (-(-self.numel // convert.LANE), convert.LANE)
        dtype = convert.dtype_name(first.dtype, f"parameter {slots[0].name}")
        rows, width = self._shape
        super().__init__(slots, [dict(options, name=name, rows=rows, width=width, dtype=dtype)])
        self._sizes = {slot.index: slot.numel for slot in slots}
        self._dtype = first.dtype
        self._buffer: Optional[torch.Tensor] = None
        self._sums: List[Tuple[Slot, torch.Tensor]] = []  # where each sum will be, as one row of values

    def gradient(self, slot: Slot) -> Optional[torch.Tensor]:
        """Of a parameter that has changed its shape None: its rank refuses the step, when all rounds have started."""
        grad = super().gradient(slot)
        return grad if grad is not None and grad.numel() == self._sizes[slot.index] else None

    def _is_plain(self, grad: torch.Tensor) -> bool:
        """Whether it can be summed where it is."""
        is_array = not grad.is_sparse and grad.is_contiguous() and not grad.requires_grad
        is_own = is_array and not self.copies and not convert.shares_storage(grad)  # Checks compare the values of others.
        return is_own and grad.dtype == self._dtype and grad.device == self._place()

    def written(self) -> Set[int]:
        return {value.data_ptr() for _, value in self._sums}

    def start(self, step: int) -> None:
        if self._n_whole and self._place().type == "cpu":
            self._start_parts(step)
            return
        summed = self._chosen()
        array = convert.array(summed, self._shape)
        self.requests = [self.tensor.allreduce(array, step=step, out=array, stream=devices.stream(summed))]

    def _chosen(self) -> torch.Tensor:
        """What is summed: one gradient, or the buffer."""
        grad = self.gradient(self.slots[0])
        if self._in_place and grad is not None and self._is_plain(grad):
            self._sums = [(self.slots[0], grad.detach().view(-1))]
            return grad.detach()
        self._sums = []
        return self._filled(self._place(), self.slots)

    def _start_parts(self, step: int) -> None:
        self._sums = []
        parts: List[Part] = []
        outs: List[Array] = []
        for slot in self.slots[: self._n_whole]:
            grad = self.gradient(slot)
            value = self._whole(slot, grad)
            self._sums.append((slot, value))
            rows = self._sizes[slot.index] // convert.LANE
            outs.append(convert.array(value, (rows, convert.LANE)))
            parts.append(Part(slot.base // convert.LANE, rows, None if grad is None else outs[-1]))
        if self._n_whole < len(self.slots):
            first = self.slots[self._n_whole].base // convert.LANE
            rows = self._shape[0] - first
            outs.append(convert.array(self._filled(self._place(), self.slots[self._n_whole :]), (rows, convert.LANE)))
            parts.append(Part(first, rows, outs[-1]))
        self.requests = [self.tensor.allreduce_parts(parts, step=step, out=outs)]

    def _whole(self, slot: Slot, grad: Optional[torch.Tensor]) -> torch.Tensor:
        """A gradient where it is, or a copy; memory for the sum where there is none."""
        if grad is None:
            return torch.empty(self._sizes[slot.index], dtype=self._dtype, device="cpu")
        if self._is_plain(grad):
            return grad.detach().view(-1)
        self.copied_bytes += 2 * grad.numel() * grad.element_size()
        return _dense(grad).to(self._dtype).clone(memory_format=torch.contiguous_format).view(-1)

    def _filled(self, place: torch.device, slots: Sequence[Slot]) -> torch.Tensor:
        """The buffer, with the gradients of these."""
        base = slots[0].base
        if self._buffer is None or self._buffer.device != place:
            n = self._shape[0] * self._shape[1] - base
            self._buffer = torch.zeros(n, dtype=self._dtype, device=place)
        for slot in slots:
            part = self._buffer[slot.base - base : slot.base - base + self._sizes[slot.index]]
            self._sums.append((slot, part))
            grad = self.gradient(slot)
            if grad is None:
                part.zero_()
            else:
                part.copy_(_dense(grad).reshape(-1))
        self.copied_bytes += 2 * self._buffer.numel() * self._buffer.element_size()
        return self._buffer

    def apply(self, used: Used, scale: float) -> None:
        for slot, flat in self._sums:
            part = _scaled(flat, scale).view(slot.parameter.shape)
            grad = slot.parameter.grad
            if not used(slot):
                continue
            if grad is not None and grad.is_sparse:
                ids, values = convert.nonzero_rows(part, slot.width)
                slot.parameter.grad = convert.sparse(ids, values, slot.parameter.shape).to(slot.parameter.device)
            elif grad is None:
                slot.parameter.grad = part.clone().to(slot.parameter.device)
            else:
                give(slot.parameter, part)
        self._sums = []
        if self._in_place and self.copies:
            self._buffer = None


def _fills_rows(slot: Slot) -> bool:
    return slot.numel >= _PART and slot.numel % convert.LANE == 0


def _is_large(slot: Slot) -> bool:
    return bool(slot.parameter.device.type == "cpu" and slot.numel * slot.parameter.element_size() >= _ALONE)


def apart(slots: List[Slot]) -> List[List[Slot]]:
    """A bucket in parts for a process group: each large gradient in host memory alone, where it is, then the others."""
    parts = [[slot] for slot in slots if _is_large(slot)] + [[slot for slot in slots if not _is_large(slot)]]
    return [part for part in parts if part]


def _dense(grad: torch.Tensor) -> torch.Tensor:
    return grad.detach().to_dense() if grad.is_sparse else grad.detach()


class TorchGroup(DenseGroup):
    """The same parameters, whose sum is a collective of a process group of torch.distributed. On every rank such groups start
    in the same order: sync.py sees to that."""

    def __init__(self, name: str, slots: List[Slot], choice: Choice, average: bool) -> None:
        super().__init__(name, slots)
        self.asks = []
        self._name, self._choice, self._average = name, choice, average
        self._device = slots[0].parameter.device
        self._in_place, self._shape = len(slots) == 1, (self.numel, 1)
        self._reduction: Optional[Reduction] = None

    def opened(self, tensors: List[Tensor]) -> None:
        pass

    def _place(self) -> torch.device:
        return self._device

    def start(self, step: int) -> None:
        try:
            chosen = self._chosen()
        except BaseException:
            self.skip()
            raise
        # `data` has a version of its own: writes of the process group are no changes by the program.
        self._reduction = Reduction(chosen.data, self._choice, self._average)

    def skip(self) -> None:
        """The others wait for this rank's part of the collective."""
        zeros = torch.zeros(self.numel, dtype=self._dtype, device=self._device)
        Reduction(zeros, self._choice, self._average)

    def wait(self) -> None:
        assert self._reduction is not None
        self._reduction.wait(self._name)

    def cancel(self) -> None:
        """Nothing ends a collective. Where it may still write to memory, that memory is dropped."""
        if self._reduction is not None and not self._reduction.done():
            self._buffer = None
            if self._in_place:
                self.slots[0].parameter.grad = None
        self._reduction, self._sums = None, []
