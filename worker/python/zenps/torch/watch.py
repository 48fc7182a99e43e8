"""Notices what a training program does to parameters: it replaces them, changes their kind, or writes them in forward()."""

from __future__ import annotations

import functools
import inspect
import weakref
import zlib
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from ..errors import Invalid
from . import convert
from .tables import Slot

_SAMPLED = 1 << 16  # values of a parameter that a checksum covers
_SHOWN = 4  # names in an error
_FRAMES = 24  # from a GradScaler to here: schedulers, profilers and hooks wrap step()
_FOLLOWS = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # hooks stay when a parameter changes its device

_every: "weakref.WeakSet[Watch]" = weakref.WeakSet()  # of the GradientSyncs that are open


class Watch:
    """Watches the parameters of one GradientSync's module. name: the GradientSync's."""

    def __init__(self, name: str, module: torch.nn.Module, slots: Iterable[Slot]) -> None:
        self._of = name
        self._module = module
        every = [(slot.parameter, slot.name) for slot in slots]
        self._opened = [(each, name, each.dtype, each.shape, each.device) for each, name in every]
        self._known = {id(parameter) for parameter, _ in every}
        self._sums_before: List[int] = []
        self._writing: Set[int] = set()  # places of parameters that forward passes have written since the last step
        self.written: List[int] = []  # those of the step before

    def open(self) -> None:
        """The GradientSync is made."""
        _every.add(self)

    def close(self) -> None:
        _every.discard(self)

    def _parameters(self) -> Iterator[Tuple[torch.nn.Module, str, torch.nn.Parameter]]:
        for module in self._module.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    yield module, name, parameter

    def _name(self, module: torch.nn.Module, name: str) -> str:
        path = next((path for path, each in self._module.named_modules() if each is module), "")
        return f"{path}.{name}" if path else name

    def changes(self) -> List[str]:
        """What is not as it was when the parameters were opened, in words. Parameters that are frozen, or gone, since
        then are no change: they get no gradients."""
        found = []
        for parameter, name, dtype, shape, device in self._opened:
            if parameter.dtype != dtype:
                found.append(f"{name} is of {parameter.dtype}, and was of {dtype}")
            elif parameter.shape != shape:
                found.append(f"{name} has shape {list(parameter.shape)}, and had {list(shape)}")
            elif not _FOLLOWS and parameter.device != device:
                found.append(f"{name} is on {parameter.device}, and was on {device}")
        for module, name, parameter in self._parameters():
            if id(parameter) not in self._known and parameter.requires_grad and parameter.numel():
                found.append(f"{self._name(module, name)} was replaced, added, or requires a gradient only since")
        return few(found)

    @staticmethod
    def strangers(optimizers: Sequence[Any]) -> List[str]:
        """Parameters that these optimisers step and no open GradientSync sums, in words."""
        known = [watch._known for watch in _every]
        found = []
        for optimizer in optimizers:
            for at, group in enumerate(optimizer.param_groups):
                for parameter in group["params"]:
                    if any(id(parameter) in each for each in known):
                        continue
                    if parameter.requires_grad and parameter.numel():
                        kind = type(optimizer).__name__
                        found.append(f"a parameter of shape {list(parameter.shape)} in group {at} of {kind}")
        return few(found)

    @staticmethod
    def check_alone(what: str, parameters: Iterable[Tuple[str, torch.Tensor]]) -> None:
        """Invalid if an open GradientSync sums one of these: two sums of one gradient would overwrite each other."""
        for name, parameter in parameters:
            for each in _every:
                for known, known_name, _, _, _ in each._opened:
                    if known is parameter:
                        raise Invalid(f"{what}: GradientSync {each._of} sums parameter {name} already, as its {known_name}: "
                                      "close() that one first. One GradientSync of torch.nn.ModuleList([a, b]) sums models a "
                                      "and b that share parameters")  # fmt: skip

    # Parameters that forward() writes.

    def before_forward(self) -> None:
        self._sums_before = self.checksums()

    def after_forward(self) -> None:
        if self._sums_before:
            pairs = zip(self._sums_before, self.checksums())
            self._writing.update(at for at, (before, after) in enumerate(pairs) if before != after)
        self._sums_before = []

    def take_written(self) -> bool:
        """Whether forward passes since the last call have written parameters: `written`."""
        self.written, self._writing = sorted(self._writing), set()
        return bool(self.written)

    def checksums(self) -> List[int]:
        """One for each parameter, of at most _SAMPLED of its values."""
        return [zlib.crc32(_sample(each).data) for _, _, each in self._parameters()]

    def first_difference(self, places: Sequence[int], sums: Sequence[Sequence[int]]) -> str:
        """The name of the first parameter at these places of which checksums of ranks differ; "" where none does."""
        every = list(self._parameters())
        for at in places:
            if len({each[at] if at < len(each) else None for each in sums}) > 1:
                return self._name(*every[at][:2]) if at < len(every) else f"parameter {at}"
        return ""


def is_in_scaler() -> bool:
    """Whether a GradScaler's step() has called this: it has unscaled the gradients before."""
    frame = inspect.currentframe()
    for _ in range(_FRAMES):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return False
        if frame.f_code.co_name == "step" and any(kind.__name__ == "GradScaler" for kind in type(frame.f_locals.get("self")).__mro__):
            return True
    return False


def few(found: List[str]) -> List[str]:
    more = len(found) - _SHOWN
    return found if more <= 0 else [*found[:_SHOWN], f"{more} more"]


def _sample(parameter: torch.Tensor) -> Any:
    flat = parameter.detach()
    if flat.layout != torch.strided:
        flat = flat._values()
    flat = flat.reshape(-1)
    return convert.octets_array(convert.on_host(flat[:: max(1, flat.numel() // _SAMPLED)]).contiguous())


_COLUMNS = 1 << 10
_GROUP = 31  # rows
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _stored(grad: torch.Tensor) -> torch.Tensor:
    """The values that a gradient has memory for."""
    return grad.detach() if grad.layout == torch.strided else grad._values()


def _versions(grad: torch.Tensor) -> Tuple[int, int]:
    """Of the gradient, and of its values: a write to the values of a sparse one moves no version but theirs."""
    return grad._version, _stored(grad)._version


@functools.lru_cache(maxsize=256)
def _weights(rows: int, device: torch.device) -> torch.Tensor:
    """Random odd numbers below 2**32, one for each row, always the same ones. Of 1, 3, 5, 7 signs + - - + make a zero."""
    generator = torch.Generator(device="cpu").manual_seed(1)
    weights = torch.randint(1 << 31, (rows, 1), generator=generator, dtype=torch.int64, device="cpu")
    return weights.mul_(2).add_(1).to(device)


def contents(grad: torch.Tensor) -> torch.Tensor:
    """A checksum of all values of a gradient, where the gradient is: sums of the values' bits in columns. Rows are first
    summed in groups, in the values' own width. A group has an odd number of rows: with an even one, sums of changed signs
    and of halved values could wrap to those before. Then groups, and the rows left, are weighted and summed in 64 bits:
    without weights a gradient [g, -g] would have the sum of its negative. An exchange of rows within a group goes unnoticed."""
    bits = _stored(grad).reshape(-1).view(_BITS[grad.element_size()])
    rows = bits.numel() // _COLUMNS
    groups = rows // _GROUP
    grouped, whole = groups * _GROUP * _COLUMNS, rows * _COLUMNS
    parts = [bits[grouped:whole].view(-1, _COLUMNS)]
    if groups:
        parts.append(bits[:grouped].view(_GROUP, groups, _COLUMNS).sum(0, dtype=bits.dtype))
    sums = torch.cat(parts)
    if sums.dtype == torch.int64:
        sums = sums.view(torch.int32)  # signs of float64 have the highest bit, which has no place in a sum of 64 bits
    weighted = sums.to(torch.int64).mul_(_weights(len(sums), sums.device)).sum(0)
    return torch.cat([weighted, bits[whole:].to(torch.int64)])


class Sent:
    """A gradient in flight. is_noted: its values are compared, too: `.grad.data` writes them without a new version. Of a
    shared storage only the values tell, since a write to another tensor moves the version."""

    def __init__(self, grad: torch.Tensor, is_noted: bool) -> None:
        is_shared = convert.shares_storage(grad)
        self._grad = grad
        self._memory = _stored(grad)  # kept, so that no other tensor gets its address
        self._address = self._memory.data_ptr()  # `.grad.data = other` moves it, and no version
        self._versions = None if is_shared else _versions(grad)
        self._contents = contents(grad) if is_shared or is_noted else None

    def is_changed(self, now: Optional[torch.Tensor]) -> bool:
        """Whether the program has written, or replaced, the gradient."""
        if now is not self._grad or _stored(now).data_ptr() != self._address:
            return True
        if self._versions is not None and _versions(now) != self._versions:
            return True
        return self._contents is not None and not torch.equal(self._contents, contents(now))


Leftover = Tuple[Any, Optional[int], torch.Tensor]  # a version of None: the storage is shared, and all values are compared


class Leftovers:
    """Finds gradients that are certain to hold the sum of an earlier pass. Such a gradient is the same tensor of the same
    version, and a sample of it has the values of the sum. The version alone says too little: `.grad.data.zero_()` does not
    change it. In a shared storage all values must be those of the sum."""

    _PLACES = 64

    def __init__(self) -> None:
        self._left: Dict[int, Leftover] = {}

    def clear(self) -> None:
        self._left.clear()

    def record(self, slot: Slot) -> None:
        """The gradient holds a sum now."""
        grad = slot.parameter.grad
        if grad is None:
            self._left.pop(slot.index, None)
            return
        is_shared = convert.shares_storage(grad)
        values = contents(grad) if is_shared else self._sample(grad).clone()
        self._left[slot.index] = weakref.ref(grad), None if is_shared else grad._version, values

    def is_same_tensor(self, slot: Slot) -> bool:
        """Whether the gradient is the tensor that a sum was left in, whatever is in it now."""
        left = self._left.get(slot.index)
        return left is not None and slot.parameter.grad is not None and left[0]() is slot.parameter.grad

    def holds(self, slot: Slot) -> bool:
        """Whether the gradient is certain to hold a sum, which is not zero."""
        if not self.is_same_tensor(slot):
            return False
        grad = slot.parameter.grad
        _, version, left = self._left[slot.index]
        assert grad is not None
        if version is not None and grad._version != version:
            return False
        sample = self._sample(grad)
        now = contents(grad) if version is None else sample
        return now.shape == left.shape and bool((sample != 0).any()) and torch.equal(now, left)

    def _sample(self, grad: torch.Tensor) -> torch.Tensor:
        values = grad.detach()
        values = values._values() if values.is_sparse else values
        if not values.is_contiguous():
            values = values.flatten()
        flat = values.view(-1)
        return flat[:: max(1, flat.numel() // self._PLACES)][: self._PLACES]
