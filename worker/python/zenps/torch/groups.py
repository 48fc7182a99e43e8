"""Groups of parameters that are summed in one tensor of zenps: a round each a step.

A group's step: `start()` gives the gradients that are there to zenps, and returns at once; `wait()` returns when the sum
is here; `apply()` makes it the parameters' gradients. Between start() and wait() nobody may change the gradients.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from ..arrays import Rows
from ..request import Request
from ..tensor import Tensor
from . import convert, devices
from .jobs import Ranks
from .tables import Slot

Used = Callable[[Slot], bool]


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
        self.copied_bytes = 0
        self.requests: List[Request[Rows]] = []
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

    def wait(self) -> None:
        """Returns when the sum is here, or raises what the round failed with."""
        for request in self.requests:
            request.wait()

    def cancel(self) -> None:
        """Gives the round up, on all ranks."""
        for request in self.requests:
            request.cancel()

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

    def _contiguous(self, grad: torch.Tensor) -> torch.Tensor:
        made = grad.to(self._place()).contiguous()
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
    """Parameters of one dtype and device, end to end in a buffer there that is summed in place; one alone is summed where
    it is, if its size is one that is quick to encode. In host memory where the job takes nothing from their GPU."""

    def __init__(self, name: str, slots: List[Slot], **options: object) -> None:
        first = slots[0].parameter
        self.numel = slots[-1].base + slots[-1].numel
        shape = convert.lanes(self.numel) if len(slots) == 1 else None
        self._in_place = shape is not None
        self._shape = shape or (-(-self.numel // convert.LANE), convert.LANE)
        dtype = convert.dtype_name(first.dtype, f"parameter {slots[0].name}")
        rows, width = self._shape
        super().__init__(slots, [dict(options, name=name, rows=rows, width=width, dtype=dtype)])
        self._buffer: Optional[torch.Tensor] = None
        self._summed: Optional[torch.Tensor] = None

    def start(self, step: int) -> None:
        grad = self.gradient(self.slots[0])
        place = self._place()
        if self._in_place and grad is not None and _plain(grad, place):
            self._summed = grad.detach()
        else:
            self._summed = self._filled(place)
        array = convert.array(self._summed, self._shape)
        self.requests = [self.tensor.allreduce(array, step=step, out=array, stream=devices.stream(self._summed))]

    def _filled(self, place: torch.device) -> torch.Tensor:
        if self._buffer is None or self._buffer.device != place:
            first = self.slots[0].parameter
            self._buffer = torch.zeros(self._shape[0] * self._shape[1], dtype=first.dtype, device=place)
        for slot in self.slots:
            part = self._part(self._buffer, slot)
            grad = self.gradient(slot)
            if grad is None:
                part.zero_()
            else:
                part.copy_((grad.detach().to_dense() if grad.is_sparse else grad.detach()).reshape(-1))
        self.copied_bytes += 2 * self._buffer.numel() * self._buffer.element_size()
        return self._buffer

    def _part(self, buffer: torch.Tensor, slot: Slot) -> torch.Tensor:
        return buffer.view(-1)[slot.base : slot.base + slot.numel]

    def apply(self, used: Used, scale: float) -> None:
        assert self._summed is not None
        _scaled(self._summed, scale)
        for slot in self.slots:
            grad = slot.parameter.grad
            if not used(slot):
                continue
            part = self._part(self._summed, slot).view(slot.parameter.shape)
            if grad is not None and grad.is_sparse:
                ids, values = convert.nonzero_rows(part, slot.width)
                slot.parameter.grad = convert.sparse(ids, values, slot.parameter.shape).to(slot.parameter.device)
            elif grad is None:
                slot.parameter.grad = part.clone().to(slot.parameter.device)
            else:
                give(slot.parameter, part)
        self._summed = None


def _plain(grad: torch.Tensor, place: torch.device) -> bool:
    """Whether zenps can sum it where it is."""
    return not grad.is_sparse and grad.device == place and grad.is_contiguous()
