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
    """A buffer's place in the module, and its rows in the tensor."""

    def __init__(self, name: str, module: torch.nn.Module, key: str, buffer: torch.Tensor, base: int) -> None:
        self.name, self.module, self.key, self.base = name, module, key, base
        self.dtype, self.shape = buffer.dtype, buffer.shape
        self.size = buffer.numel() * buffer.element_size()
        self.rows = -(-self.size // _ROW)

    def now(self) -> Optional[torch.Tensor]:
        """The buffer; None where it has become another kind of tensor, which is not copied."""
        buffers = self.module._buffers  # of a TorchScript module no dict
        buffer = buffers[self.key] if self.key in buffers else None
        fits = buffer is not None and _is_plain(buffer) and (buffer.dtype, buffer.shape) == (self.dtype, self.shape)
        return buffer.detach() if buffer is not None and fits else None

    def described(self) -> str:
        return f"buffer {self.name} {list(self.shape)} {str(self.dtype)[6:]}"


def _is_plain(buffer: torch.Tensor) -> bool:
    """Whether it can be copied into: dense, and no expanded view, whose values share memory."""
    if buffer.layout != torch.strided:
        return False
    return all(stride or size == 1 for size, stride in zip(buffer.shape, buffer.stride()))


class Buffers:
    """Of one module. places: in order of registration; the same on all ranks."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name = convert.tensor_name(f"{name}/buffers")
        self.places: List[_Place] = []
        self.rows = 1
        self.tensors: List[Tensor] = []
        seen = set()
        for path, each in module.named_modules():
            for key, buffer in each._buffers.items():
                if buffer is None or id(buffer) in seen or not buffer.numel() or not _is_plain(buffer):
                    continue
                seen.add(id(buffer))
                place = _Place(f"{path}.{key}" if path else key, each, key, buffer, self.rows)
                self.places.append(place)
                self.rows += place.rows
        self._copy = torch.zeros(0, dtype=torch.uint8)  # of rank 0's, rows of _ROW bytes
        self._is_root = False
        self._is_known = False  # on rank 0: the other ranks have the copy
        self._due = False  # the copy is not in the module yet
        self._versions: List[Tuple[int, int]] = []  # of the buffers when the copy came
        self._missed = _MISSED  # backward passes since the last forward pass
        self._request: Optional[Request[Rows]] = None
        self._sent: Any = None

    def ask(self) -> Dict[str, Any]:
        """The tensor, for Job.tensors()."""
        return {"name": self.name, "rows": self.rows, "width": _ROW // 8, "dtype": "f64", "op": "sum", "scheme": "balanced",
                "values": "raw"}  # fmt: skip

    def opened(self, tensor: Tensor, job: Ranks) -> None:
        self.tensors, self._is_root = [tensor], job.rank == 0
        self._copy = torch.zeros(self.rows * _ROW, dtype=torch.uint8)
        self._is_known = self._due = False

    def start(self, step: int, leaving: bool) -> Request[Rows]:
        """The round of a step; rank 0 gives what it has changed, unless it is `leaving`, without data of its own."""
        spans = []
        if self._is_root and not leaving:
            spans = [torch.tensor([_HERE])] + [torch.arange(each.base, each.base + each.rows) for each in self._changed()]
        ids = torch.cat(spans) if spans else torch.zeros(0, dtype=torch.int64)
        values = self._copy.view(-1, _ROW).index_select(0, ids)
        self._sent = values.view(-1).view(torch.float64) if spans else torch.zeros(0, dtype=torch.float64)
        arrays = convert.array(self._sent, (ids.shape[0], _ROW // 8)), convert.array(ids, (ids.shape[0],))
        self._request = self.tensors[0].allgather(*arrays, step=step)
        return self._request

    def _changed(self) -> List[_Place]:
        """Those whose bits are not those of the copy, which then has them."""
        changed = []
        for place, host in self._on_host():
            copy = self._bytes_of(place)
            if not self._is_known or not _same_bits(host, copy):
                copy.copy_(host)
                changed.append(place)
        self._is_known = True
        return changed

    def _on_host(self) -> List[Tuple[_Place, torch.Tensor]]:
        """The bytes of each buffer, in host memory; from a GPU in one copy for each dtype."""
        found: List[Tuple[_Place, torch.Tensor]] = []
        elsewhere: Dict[Tuple[Any, ...], List[Tuple[_Place, torch.Tensor]]] = {}
        for place in self.places:
            buffer = place.now()
            if buffer is None:
                continue
            if buffer.device.type == "cpu":
                found.append((place, convert.octets(buffer.contiguous())))
            else:
                elsewhere.setdefault((buffer.dtype, buffer.device), []).append((place, buffer))
        for pairs in elsewhere.values():
            flat = torch.cat([buffer.reshape(-1) for _, buffer in pairs]).cpu()
            parts = convert.octets(flat).split([place.size for place, _ in pairs])
            found.extend((place, part) for (place, _), part in zip(pairs, parts))
        return found

    def _bytes_of(self, place: _Place) -> torch.Tensor:
        return self._copy[place.base * _ROW : place.base * _ROW + place.size]

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
        octets = convert.octets(convert.tensor_of(rows.values, torch.float64))
        self._copy.view(-1, _ROW).index_copy_(0, ids, octets.view(-1, _ROW))
        self._due = True
        self._versions = [_version(place.now()) for place in self.places]
        if self._missed > _MISSED:
            self._copy_in(lambda buffer: buffer.data)

    def cancel(self) -> None:
        """Gives the round up, on all ranks; the next one has all buffers."""
        if self._request is not None:
            self._request.cancel()
            self._request, self._is_known = None, self._is_known and not self._is_root

    def before_forward(self) -> None:
        """Copies rank 0's buffers into the module, those that differ."""
        self._missed = 0
        if self._due:
            self._copy_in(lambda buffer: buffer)

    def _copy_in(self, writable: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """A buffer that the program has written since the copy came stays as it is: it was reset, or loaded. writable:
        gives the tensor to copy into; `.data` where a graph may hold the buffer, which sees no new version then."""
        self._due = False
        versions = {place.name: version for place, version in zip(self.places, self._versions)}
        with torch.no_grad():
            for place, host in self._on_host():
                copy = self._bytes_of(place)
                buffer = place.now()
                if buffer is None or _version(buffer) != versions[place.name] or _same_bits(host, copy):
                    continue
                made = torch.empty(place.shape, dtype=place.dtype)
                convert.octets(made).copy_(copy)
                writable(buffer).copy_(made)


def _version(buffer: Optional[torch.Tensor]) -> Tuple[int, int]:
    return (0, 0) if buffer is None else (buffer.data_ptr(), buffer._version)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of two tensors of bytes; eight at once, which is many times faster."""
    n = one.numel() // 8 * 8
    if one.storage_offset() % 8 or other.storage_offset() % 8:
        return bool(torch.equal(one, other))
    return bool(torch.equal(one[:n].view(torch.int64), other[:n].view(torch.int64)) and torch.equal(one[n:], other[n:]))
