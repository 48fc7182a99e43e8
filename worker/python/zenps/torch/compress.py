"""Gradients of large dense parameters cut to their greatest entries, with a residual that keeps the rest.

Each parameter has a residual of its own (<zenps/sparsify.h>), so nothing depends on how parameters are put in buckets:
per step its gradient is added to the residual, the greatest magnitudes of that are sent, and leave it. Nothing is lost:
what was sent plus the residual is the sum of all gradients, to the rounding of the additions.

    sync = zt.GradientSync(model, compress=zt.DGC(density=0.001))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from .. import arrays
from ..arrays import Rows
from ..errors import Invalid
from ..job import Job
from ..sparsify import Sparsifier
from . import convert
from .collective import all_reduce
from .groups import DenseGroup, Group, Used, give
from .tables import Slot, based

_LOSSY = ("oktopk", "gtopk", "topka", "topkdsa", "gaussiank")  # schemes that keep k rows


@dataclass(frozen=True)
class Compression:
    """How large parameters are cut.

    density: share of a parameter's entries that a step sends. kind: how they are found, "topk", "sampled", "reused",
    "gaussian" or "buckets" (zenps_sparsify_t). momentum: DGC's momentum correction; the optimiser must then have none.
    warmup: densities before that, `warmup_steps` steps of each. min_numel: parameters of fewer entries stay dense.
    start_iter: the first steps, which are dense. clip_norm: L2 norm to which each rank's gradient of a parameter is cut.
    scaler: the torch.cuda.amp.GradScaler of the run: residuals are kept unscaled, and a step whose sum is not finite
    leaves them as they are but for what it added. scheme: None: ZENPS_SCHEME, "balanced". values: what values travel as.
    period: steps from one exact threshold to the next ("reused"). bucket, k: "buckets": the k greatest of each `bucket`
    consecutive entries; density is then not used.
    """

    density: float = 0.01
    kind: str = "sampled"
    momentum: float = 0.0
    warmup: Tuple[float, ...] = ()
    warmup_steps: int = 100
    min_numel: int = 65536
    start_iter: int = 2
    clip_norm: Optional[float] = None
    scaler: Any = None
    scheme: Optional[str] = None
    values: Optional[str] = None
    period: int = 0
    bucket: int = 0
    k: int = 0

    def __post_init__(self) -> None:
        for density in (self.density, *self.warmup):
            if not 0 < density <= 1:
                raise Invalid(f"density {density}; must be over 0, and at most 1")
        if not 0 <= self.momentum < 1:
            raise Invalid(f"momentum {self.momentum}; must be at least 0, and less than 1")
        if self.warmup and (self.warmup_steps < 1 or self.lossy or self.kind == "buckets"):
            raise Invalid("warmup needs warmup_steps of 1 or more, a scheme that keeps every row, and not the kind buckets")
        if self.start_iter < 0 or self.min_numel < 0:
            raise Invalid(f"start_iter {self.start_iter}, min_numel {self.min_numel}; must be at least 0")

    @property
    def lossy(self) -> bool:
        """Whether the scheme drops rows, too."""
        return self.scheme is not None and self.scheme.partition(":")[0] in _LOSSY

    def __str__(self) -> str:
        """Without the scaler, which ranks need not have alike in text."""
        return str({name: value for name, value in vars(self).items() if name != "scaler"})

    def split(self, slots: Sequence[Slot]) -> Tuple[List[Slot], List[Slot]]:
        """Those that stay dense, and those that are cut; each with bases of their own."""
        small = [slot for slot in slots if slot.numel < self.min_numel]
        large = [slot for slot in slots if slot.numel >= self.min_numel]
        return based(small, [slot.numel for slot in small]), based(large, [slot.numel for slot in large])

    def density_of(self, step: int) -> Optional[float]:
        """Of the step that is the sync's `step`-th; None: it is dense."""
        if step < self.start_iter:
            return None
        at = (step - self.start_iter) // self.warmup_steps if self.warmup else 0
        return self.warmup[at] if at < len(self.warmup) else self.density

    def entries(self, numel: int, density: float) -> int:
        """To send of a parameter."""
        if self.kind == "buckets":
            size = self.bucket or 512
            return -(-numel // size) * (self.k or max(1, round(density * size)))
        return max(1, round(density * numel))

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises Invalid where momentum would be applied twice."""
        for group in optimizer.param_groups:
            if self.momentum and group.get("momentum", 0):
                raise Invalid(
                    f"the optimiser has a momentum of {group['momentum']}, and compress one of {self.momentum}, which takes "
                    "its place; give the optimiser 0"
                )


def _with(more: Dict[str, Any], **defaults: Any) -> Dict[str, Any]:
    return {**defaults, **more}


def TopK(density: float, kind: str = "sampled", **more: Any) -> Compression:
    """The greatest `density` of each parameter's entries. [SparCML section 2.2]"""
    return Compression(density=density, kind=kind, **more)


def DGC(density: float = 0.001, momentum: float = 0.9, warmup: Tuple[float, ...] = (0.25, 0.0625, 0.0156, 0.004),
        **more: Any) -> Compression:  # fmt: skip
    """Deep Gradient Compression: sampled thresholds, momentum correction, momentum factor masking, and a warm-up of
    densities; `clip_norm` is its local clipping. The optimiser has no momentum. [DGC, which Zen section 3.4 uses]"""
    return Compression(density=density, momentum=momentum, warmup=warmup, **more)


def OkTopk(density: float = 0.01, period: int = 32, **more: Any) -> Compression:
    """Ok-Topk: thresholds that are exact every `period` steps, and an allreduce that keeps the greatest sums; what it
    drops stays in the residuals. [Ok-Topk algorithms 1 and 2]"""
    return Compression(density=density, period=period, **_with(more, kind="reused", scheme="oktopk"))


def GTopk(density: float = 0.01, **more: Any) -> Compression:
    """gTop-k: exact selection, and a tree of sums that are cut to k. [Ok-Topk section 2]"""
    return Compression(density=density, **_with(more, kind="topk", scheme="gtopk"))


def Gaussiank(density: float = 0.01, **more: Any) -> Compression:
    """Thresholds from a normal distribution's, and an allgather. [Ok-Topk section 2]"""
    return Compression(density=density, **_with(more, kind="gaussian", scheme="agsparse"))


def Buckets(k: int = 4, bucket: int = 512, values: Optional[str] = "qsgd4", **more: Any) -> Compression:
    """The k greatest of each `bucket` consecutive entries, which travel as levels of 4 bits. [SparCML section 8.3]"""
    return Compression(density=k / bucket, k=k, bucket=bucket, values=values, **_with(more, kind="buckets"))


class CompressedGroup(Group):
    """Parameters of a bucket, whose selections are rows of one tensor over all their entries; `first` sums them while
    steps are dense."""

    def __init__(self, job: Job, name: str, first: DenseGroup, compress: Compression, op: str) -> None:
        super().__init__(first.slots)
        self._first = first
        self._compress = compress
        self._steps = 0
        self._dense = False
        self._selected: List[Sparsifier] = []  # that have a selection which is neither committed nor canceled
        dtype = first.slots[0].parameter.dtype
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32  # of residuals and sums
        word = convert.dtype_name(self._dtype, name)
        density = compress.density
        k = sum(compress.entries(slot.numel, density) for slot in self.slots) if compress.lossy else 0
        self._tensor = job.tensor(name, first.numel, 1, word, op=op, scheme=compress.scheme, values=compress.values, k=k,
                                  contributed=compress.lossy)  # fmt: skip
        self._sparsifiers = [self._sparsifier(slot, word, density) for slot in self.slots]

    def _sparsifier(self, slot: Slot, dtype: str, density: float) -> Sparsifier:
        compress = self._compress
        buckets = compress.kind == "buckets"
        return Sparsifier(slot.numel, dtype, kind=compress.kind, k=compress.k if buckets else 0,
                          density=0.0 if buckets and compress.k else density,
                          residual="global" if compress.lossy else "sent", momentum=compress.momentum,
                          clip_norm=compress.clip_norm or 0.0, period=compress.period, bucket=compress.bucket,
                          capped=compress.lossy, seed=slot.index)  # fmt: skip

    def start(self, step: int) -> None:
        density = self._compress.density_of(self._steps)
        self._dense = density is None
        if density is None:
            self._first.start(step)
            self.requests = self._first.requests
            return
        scale = 1.0 if self._compress.scaler is None else float(self._compress.scaler.get_scale())
        parts: List[Tuple[torch.Tensor, torch.Tensor]] = []
        for slot, sparsifier in zip(self.slots, self._sparsifiers):
            parts.append(self._select(slot, sparsifier, density, scale))
        ids, values = torch.cat([ids for ids, _ in parts]), torch.cat([values for _, values in parts])
        self.copied_bytes += 8 * ids.numel() + values.numel() * values.element_size()
        pair = convert.array(values, (values.shape[0], 1)), convert.array(ids, (ids.shape[0],))
        self.requests = [self._tensor.allreduce(*pair, step=step, out="rows")]

    def _select(self, slot: Slot, sparsifier: Sparsifier, density: float, scale: float) -> Tuple[torch.Tensor, torch.Tensor]:
        grad = slot.parameter.grad
        if grad is None:
            flat = torch.zeros(slot.numel, dtype=self._dtype)
        else:
            whole = grad.detach().to_dense() if grad.is_sparse else grad.detach()
            flat = convert.on_host(whole).to(self._dtype).reshape(-1).contiguous()
        if self._compress.scaler is not None:
            if not bool(torch.isfinite(flat).all()):
                # Every rank sees it in the sum, and skips the step; the residual must not.
                return torch.tensor([slot.base]), torch.tensor([float("nan")], dtype=self._dtype)
            flat = flat / scale
        if self._compress.warmup:
            sparsifier.k = self._compress.entries(slot.numel, density)
        rows = sparsifier.select(convert.array(flat, (slot.numel,)))
        self._selected.append(sparsifier)
        ids, values = convert.rows_of(rows, self._dtype)
        return ids + slot.base, values.view(-1)

    def cancel(self) -> None:
        super().cancel()
        for request in self.requests:
            request.exception()  # the selections' arrays are the library's until then
        self._keep_all()

    def _keep_all(self) -> None:
        """Ends selections that have not gone into a sum."""
        for sparsifier in self._selected:
            sparsifier.cancel()
        self._selected = []

    def apply(self, used: Used, scale: float) -> None:
        self._steps += 1
        if self._dense:
            self._first.apply(used, scale)
            return
        rows = self.requests[0].wait()
        ids, values = convert.rows_of(rows, self._dtype)
        values = values.view(-1)
        scaler = self._compress.scaler
        if scaler is not None and not bool(torch.isfinite(values).all()):
            self._keep_all()
        else:
            for slot, sparsifier in zip(self.slots, self._sparsifiers):
                if sparsifier in self._selected:
                    sparsifier.commit(self._sent(rows, slot))
            self._selected = []
        factor = scale if scaler is None else scale * float(scaler.get_scale())
        edges = torch.tensor([slot.base for slot in self.slots] + [self._tensor.rows])
        at = torch.searchsorted(ids, edges).tolist()
        for slot, begin, end in zip(self.slots, at, at[1:]):
            if begin == end and not used(slot):
                continue
            made = torch.zeros(slot.numel, dtype=self._dtype)
            made[ids[begin:end] - slot.base] = values[begin:end] * factor
            give(slot.parameter, made.view(slot.parameter.shape).to(slot.parameter.dtype))

    def _sent(self, rows: Rows, slot: Slot) -> Optional[Rows]:
        """Of a lossy scheme's result, the entries of this rank and parameter that it is made of."""
        if rows.contributed is None:
            return None
        sent = convert.tensor_of(rows.contributed, torch.int64)
        own = sent[(sent >= slot.base) & (sent < slot.base + slot.numel)] - slot.base
        return Rows(own.shape[0], convert.array(own, (own.shape[0],)), arrays.new("f32", (0,)))

    def state_dict(self, job: Optional[Job]) -> Dict[str, Any]:
        """By parameter, with tensors; `job`: the residuals of all its ranks on rank 0, and zeros on the others."""
        states: Dict[str, Any] = {}
        for slot, sparsifier in zip(self.slots, self._sparsifiers):
            state = dict(sparsifier.state_dict(), steps=self._steps)
            for name in ("residual", "velocity"):
                if state[name] is None:
                    continue
                state[name] = torch.frombuffer(bytearray(state[name]), dtype=self._dtype)
                if job is not None:
                    all_reduce(state[name], job=job)
                    if job.rank:
                        state[name].zero_()
            states[slot.name] = state
        return states

    def load_state_dict(self, states: Dict[str, Any]) -> None:
        for slot, sparsifier in zip(self.slots, self._sparsifiers):
            state = dict(states[slot.name])
            self._steps = int(state.pop("steps"))
            for name in ("residual", "velocity"):
                if state[name] is not None:
                    held = convert.array(state[name].contiguous(), (state[name].numel(),))
                    state[name] = held.tobytes()
            sparsifier.load_state_dict(state)
