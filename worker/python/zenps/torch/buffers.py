"""Buffers of a module, such as the running statistics of BatchNorm, which are to be rank 0's in each forward pass.

DistributedDataParallel broadcasts them ahead of a forward pass. Here they travel at the end of a backward pass, beside
the gradients, and are copied into the module ahead of the next forward pass. So forward passes wait for nobody: rank 0
may evaluate alone, and ranks may run different numbers of forward passes. Only buffers that rank 0 has changed travel.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ..arrays import Rows
from ..request import Request
from ..tensor import Tensor
from . import convert
from .jobs import Ranks

_ROW = 64  # bytes: 8 values of f64, whose bits an allgather copies
_HERE = 0  # the row that rank 0 sends in each step in which it has data
_MISSED = 8  # backward passes in a row without a forward pass: its hook is not called any more


class _Place:
    """A buffer's place in the module, and in its section: from value `at` on."""

    def __init__(self, name: str, module: torch.nn.Module, key: str, buffer: torch.Tensor, at: int) -> None:
        self.name, self.module, self.key, self.at = name, module, key, at
        self.dtype, self.shape, self.numel = buffer.dtype, buffer.shape, buffer.numel()
        self.version = (0, 0)  # of the buffer when the copy came

    def now(self) -> Optional[torch.Tensor]:
        """The buffer; None where it has become another kind of tensor, which is not copied."""
        buffers = self.module._buffers  # of some modules no dict
        buffer = buffers[self.key] if self.key in buffers else None
        if buffer is None or buffer.dtype != self.dtype or buffer.shape != self.shape or not _is_plain(buffer):
            return None
        return buffer.detach()

    def described(self) -> str:
        return f"buffer {self.name} {list(self.shape)} {str(self.dtype)[6:]}"


def _is_plain(buffer: torch.Tensor) -> bool:
    """Whether it can be copied into: dense, and no expanded view, whose values share memory."""
    if buffer.layout != torch.strided:
        return False
    return buffer.is_contiguous() or all(stride or size == 1 for size, stride in zip(buffer.shape, buffer.stride()))


def _version(buffer: Optional[torch.Tensor]) -> Tuple[int, int]:
    return (0, 0) if buffer is None else (buffer.data_ptr(), buffer._version)


class _Section:
    """The buffers of one dtype, end to end, in host memory: rows of _ROW bytes from row `base` of the tensor on. copy:
    rank 0's; own: this rank's, when fill() read them. Both also as rows of bits."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.places: List[_Place] = []
        self.numel = self.base = self.rows = 0

    def add(self, name: str, module: torch.nn.Module, key: str, buffer: torch.Tensor) -> _Place:
        self.places.append(_Place(name, module, key, buffer, self.numel))
        self.numel += buffer.numel()
        return self.places[-1]

    def place(self, base: int) -> int:
        """Gives the row behind the last."""
        size = torch.empty(0, dtype=self.dtype, device="cpu").element_size()
        self.base, self.rows = base, -(-self.numel * size // _ROW)
        self.copy, self.own = (torch.zeros(self.rows * _ROW // size, dtype=self.dtype, device="cpu") for _ in range(2))
        self.copied_bits, self.own_bits = _bits(self.copy), _bits(self.own)
        return base + self.rows

    def fill(self) -> None:
        """Reads the buffers: those on one device at once. One that is not copied counts as the copy."""
        parts = []
        for place in self.places:
            buffer = place.now()
            parts.append(self.copy[place.at : place.at + place.numel] if buffer is None else buffer)
        if len({part.device for part in parts}) > 1:
            parts = [convert.on_host(part) for part in parts]
        self.own[: self.numel].copy_(torch.cat([part.reshape(-1) for part in parts]))

    def changed(self) -> torch.Tensor:
        """Rows, from 0 on, in which the buffers that were read are not the copy."""
        return (self.own_bits != self.copied_bits).any(1).nonzero().view(-1)


class Buffers:
    """Of one module. places: in order of registration; the same on all ranks."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name = convert.tensor_name(f"{name}/.buffers")
        self.places: List[_Place] = []
        self.tensors: List[Tensor] = []
        sections: Dict[torch.dtype, _Section] = {}
        seen = set()
        for path, each in module.named_modules():
            for key, buffer in each._buffers.items():
                if buffer is None or id(buffer) in seen or not buffer.numel() or not _is_plain(buffer):
                    continue
                seen.add(id(buffer))
                section = sections.setdefault(buffer.dtype, _Section(buffer.dtype))
                self.places.append(section.add(f"{path}.{key}" if path else key, each, key, buffer))
        self._sections = list(sections.values())
        self._rows = 1
        for section in self._sections:
            self._rows = section.place(self._rows)
        self._is_root = False
        self._is_known = False  # on rank 0: the other ranks have the copy
        self._due = False  # the copy is not in the module yet
        self._missed = _MISSED  # backward passes since the last forward pass
        self._request: Optional[Request[Rows]] = None
        self._sent: Any = None

    def ask(self) -> Dict[str, Any]:
        """The tensor, for Job.tensors()."""
        return {"name": self.name, "rows": self._rows, "width": _ROW // 8, "dtype": "f64", "op": "sum",
                "scheme": "balanced", "values": "raw"}  # fmt: skip

    def opened(self, tensor: Tensor, job: Ranks) -> None:
        self.tensors, self._is_root = [tensor], job.rank == 0
        self._is_known = self._due = False

    def start(self, step: int, leaving: bool) -> Request[Rows]:
        """The round of a step; rank 0 gives what it has changed, unless it is `leaving`, without data of its own."""
        ids, bits = [], []
        if self._is_root and not leaving:
            ids = [torch.tensor([_HERE], dtype=torch.int64, device="cpu")]
            bits = [torch.zeros(1, _ROW // 8, dtype=torch.int64, device="cpu")]
            for section in self._sections:
                section.fill()
                rows = section.changed() if self._is_known else torch.arange(section.rows, dtype=torch.int64, device="cpu")
                section.copied_bits.copy_(section.own_bits)
                ids.append(rows + section.base)
                bits.append(section.own_bits[rows])
            self._is_known = True
        sent = torch.cat(ids) if ids else torch.zeros(0, dtype=torch.int64, device="cpu")
        self._sent = torch.cat(bits).view(torch.float64) if bits else torch.zeros(0, dtype=torch.float64, device="cpu")
        arrays = convert.array(self._sent, (sent.shape[0], _ROW // 8)), convert.array(sent, (sent.shape[0],))
        self._request = self.tensors[0].allgather(*arrays, step=step)
        return self._request

    def finish(self) -> None:
        """After the round: the copy has what rank 0 sent, and goes to the module ahead of its next forward pass."""
        assert self._request is not None
        rows, self._request, self._sent = self._request.wait(), None, None
        self._missed += 1
        if self._is_root or not rows.nnz:  # rank 0 has left join(): each rank keeps its own
            self._due = False
            return
        assert rows.row_ids is not None
        ids = convert.tensor_of(rows.row_ids, torch.int64)
        bits = convert.tensor_of(rows.values, torch.float64).view(torch.int64)
        for section in self._sections:
            edges = torch.tensor([section.base, section.base + section.rows], dtype=torch.int64, device="cpu")
            begin, end = torch.searchsorted(ids, edges).tolist()
            section.copied_bits.index_copy_(0, ids[begin:end] - section.base, bits[begin:end])
        self._due = True
        for place in self.places:
            place.version = _version(place.now())
        if self._missed > _MISSED:
            self._copy_in(lambda buffer: buffer.data)

    def cancel(self) -> None:
        """Gives the round up, on all ranks; the next one has all buffers."""
        if self._request is not None:
            self._request.cancel()
            self._request, self._is_known = None, False

    def before_forward(self) -> None:
        """Copies rank 0's buffers into the module, those that differ."""
        self._missed = 0
        if self._due:
            self._copy_in(lambda buffer: buffer)

    def _copy_in(self, writable: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """A buffer that the program has written since the copy came stays as it is: it was reset, or loaded. writable:
        gives the tensor to copy into; `.data` where a graph may hold the buffer, which sees no new version then."""
        self._due = False
        with torch.no_grad():
            for section in self._sections:
                section.fill()
                if not section.changed().numel():
                    continue
                for place in section.places:
                    buffer, part = place.now(), slice(place.at, place.at + place.numel)
                    if buffer is None or _version(buffer) != place.version:
                        continue
                    if not _same_bits(section.copy[part], section.own[part]):
                        writable(buffer).copy_(section.copy[part].view(place.shape))


def _bits(values: torch.Tensor) -> torch.Tensor:
    """The same memory as rows of _ROW bytes."""
    return convert.octets(values).view(torch.int64).view(-1, _ROW // 8)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Also of NaNs, and zeros of both signs."""
    return bool(torch.equal(convert.octets(one), convert.octets(other)))
