"""A bucket of DistributedDataParallel: where its gradients are, and its rounds; and when DDP waits for it."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any, ContextManager, List, Tuple

import torch

from ..arrays import Rows
from ..errors import Unsupported
from ..request import Request
from . import convert
from .compress import Cut
from .dense import Reduction

_anomaly = threading.Lock()  # the mode is one of all threads
Part = Tuple[torch.Tensor, torch.Tensor]  # a parameter, and where its gradient is


def _without_stacks() -> ContextManager[Any]:
    """Spares anomaly mode the text of Python's stack, which takes most of its time."""
    tracing = sys.modules.get("torch.fx.traceback")
    override = getattr(tracing, "override_stack_trace", None) or getattr(tracing, "preserve_node_meta", None)
    made: ContextManager[Any] = contextlib.nullcontext() if override is None else override()
    return made


def in_node() -> bool:
    """Whether this thread is in a node of a backward pass: False between passes, and in callbacks at the end of one."""
    current = getattr(torch._C, "_current_autograd_node", None)
    if current is not None:
        return current() is not None
    # Before torch 2.1 only anomaly mode tells: a node that is made within another one has that as its parent.
    with _anomaly:
        before = torch.is_anomaly_enabled()
        if not before:
            torch.set_anomaly_enabled(True, False)
        try:
            with torch.enable_grad(), _without_stacks():
                made = torch.zeros(1, dtype=torch.float32, device="cpu", requires_grad=True).view(1)
            return made.grad_fn.metadata.get("parent_") is not None
        finally:
            if not before:
                torch.set_anomaly_enabled(False)


class Bucket:
    """The rounds of one bucket, and the future that DDP waits for.

    flat: the buffer as real numbers, of which a complex one has two. It is a sparse tensor where the buffer is.
    """

    def __init__(self, bucket: Any) -> None:
        self.buffer: torch.Tensor = bucket.buffer()
        self.is_last = bool(bucket.is_last())
        self.parameters: List[torch.Tensor] = list(bucket.parameters())
        self._bucket = bucket
        self.flat = self.buffer
        if not self.buffer.is_sparse:
            self.flat = (torch.view_as_real(self.buffer) if self.buffer.is_complex() else self.buffer).detach().view(-1)
        on_cpu = self.buffer.device.type == "cpu"
        self.future: Any = torch.futures.Future() if on_cpu else torch.futures.Future(devices=[self.buffer.device])
        self.requests: List[Request[Rows]] = []
        self.reductions: List[Reduction] = []
        self.copies: List[Tuple[torch.Tensor, torch.Tensor]] = []  # of the sum, and where in the buffer it goes
        self.cuts: List[Tuple[Cut, List[torch.Tensor]]] = []  # each with the parts of the buffer that it sums

    def parts(self) -> List[Part]:
        """Each parameter, and its part of `flat`. Parameters lie end to end: bucket.gradients() counts a complex number as one
        where the buffer has two. Unsupported where the parts are not the whole bucket."""
        parts, at = [], 0
        for parameter, gradient in zip(self.parameters, self._bucket.gradients()):
            n = parameter.numel() * (2 if parameter.is_complex() else 1)
            part = self.flat[at : at + n]
            if n and not parameter.is_complex() and gradient.data_ptr() != part.data_ptr():
                raise Unsupported(f"DDP has a gradient at value {gradient.storage_offset()} of a bucket; value {at} is expected, "
                                  "behind the parameter before it: another torch than zenps knows")  # fmt: skip
            parts.append((parameter, part))
            at += n
        if at != self.flat.numel():
            raise Unsupported(f"a bucket of DDP has {self.flat.numel()} values, and its parameters have {at}: another torch "
                              "than zenps knows")  # fmt: skip
        return parts

    def result(self) -> torch.Tensor:
        """Waits for the sums."""
        for request in self.requests:
            rows = request.wait()
        if self.buffer.is_sparse:
            return self._sparse(rows) if self.requests else self.buffer
        for summed, part in self.copies:
            part.copy_(summed.view(-1)[: part.numel()])
        for cut, parts in self.cuts:
            for part, (ids, values) in zip(parts, cut.finish(1.0)):
                part.zero_()
                part[ids.to(part.device)] = values.to(part.device, part.dtype)
        return self.buffer

    def _sparse(self, rows: Rows) -> torch.Tensor:
        ids, values = (each.to(self.buffer.device) for each in convert.rows_of(rows, real_of(self.buffer.dtype)))
        if self.buffer.is_complex():
            values = torch.view_as_complex(values.view(values.shape[0], values.shape[1] // 2, 2))
        return convert.sparse(ids, values, self.buffer.shape)

    def cancel(self) -> None:
        for request in self.requests:
            request.cancel()
        for cut, _ in self.cuts:
            cut.cancel()

    def complete(self, result: torch.Tensor) -> None:
        """What DDP waits for; it takes an exception for a tensor, so it always gets one."""
        self.future.set_result(result)


def real_of(dtype: torch.dtype) -> torch.dtype:
    """Of a complex dtype, that of its parts."""
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
