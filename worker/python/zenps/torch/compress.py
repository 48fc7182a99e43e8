"""Gradients of large dense parameters cut to their greatest entries, with a residual that keeps the rest.

Each parameter has a residual of its own (<zenps/sparsify.h>), so nothing depends on how parameters are put in buckets:
per step its gradient is added to the residual, the greatest magnitudes of that are sent, and leave it. Nothing is lost:
what was sent plus the residual is the sum of all gradients, to the rounding of the additions.

    sync = zt.GradientSync(model, compress=zt.DGC(density=0.001))
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch

from .. import arrays
from ..arrays import Rows
from ..errors import Invalid
from ..request import Request
from ..sparsify import Sparsifier
from ..tensor import Tensor
from . import convert
from .collective import all_reduce
from .groups import DenseGroup, Group, Used, give
from .jobs import Ranks
from .tables import Slot, based

Compress = Union[None, str, "Compression"]
_LOSSY = ("oktopk", "gtopk", "topka", "topkdsa", "gaussiank")  # schemes that keep k rows


@dataclass(frozen=True)
class Compression:
    """How large parameters are cut.

    density: share of a parameter's entries in a step's message.
    kind: the way to find them: "topk", "sampled", "reused", "gaussian" or "buckets" (zenps_sparsify_t).
    momentum: DGC's momentum correction. The optimiser must then have none.
    warmup: densities before that, `warmup_steps` steps of each.

    min_numel: smaller parameters stay dense.
    start_iter: number of dense steps at the start.

    clip_norm: greatest L2 norm of each rank's gradient of a parameter.
    scaler: the torch.cuda.amp.GradScaler of the run. Residuals are kept unscaled. A step with a sum that is not finite
        adds its gradients to them, and takes nothing out.
    scheme: a name. None: ZENPS_SCHEME, else "balanced".
    values: the form of values on the way.
    lr: the learning rate, or a function that gives the next step's. None: the rate of the attached optimiser. Residuals
        hold rate times gradient, so a late entry counts at the rate of its own step [SparCML algorithm 1, Ok-Topk
        algorithm 2]. With a constant, such as 1.0, residuals do not follow the rate.
    period: steps between exact thresholds ("reused").
    bucket, k: "buckets" sends the k greatest of each `bucket` consecutive entries. It does not use density.
    decay: share of the residual that a step leaves before it adds the gradient; over 0, at most 1.
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
    lr: Union[None, float, Callable[[], float]] = None
    decay: float = 1.0

    def __post_init__(self) -> None:
        for density in (self.density, *self.warmup):
            if not 0 < density <= 1:
                raise Invalid(f"density {density}; must be over 0, and at most 1")
        if not 0 <= self.momentum < 1:
            raise Invalid(f"momentum {self.momentum}; must be at least 0, and less than 1")
        if not 0 < self.decay <= 1:
            raise Invalid(f"decay {self.decay}; must be over 0, and at most 1")
        if self.warmup and (self.warmup_steps < 1 or self.lossy or self.kind == "buckets"):
            raise Invalid("warmup needs warmup_steps of 1 or more, a scheme that keeps every row, and not the kind buckets")
        if self.start_iter < 0 or self.min_numel < 0:
            raise Invalid(f"start_iter {self.start_iter}, min_numel {self.min_numel}; must be at least 0")

    @property
    def lossy(self) -> bool:
        """Whether the scheme drops rows, too."""
        return self.scheme is not None and self.scheme.partition(":")[0] in _LOSSY

    def __str__(self) -> str:
        """Without objects, which ranks need not have alike in text."""
        return str({name: value for name, value in vars(self).items() if name not in ("scaler", "lr")})

    def rate(self) -> Optional[float]:
        """The learning rate now; None where `lr` does not say it."""
        return None if self.lr is None else float(self.lr() if callable(self.lr) else self.lr)

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

    def check_optimizer(self, optimizer: torch.optim.Optimizer, cut: Mapping[int, str]) -> None:
        """Raises Invalid where momentum would be applied twice. cut: names of the compressed parameters, by id."""
        for group in optimizer.param_groups if self.momentum else []:
            name = next((cut[id(each)] for each in group["params"] if id(each) in cut), None)
            if name is None:
                continue
            if group.get("momentum", 0):
                raise Invalid(
                    f"the optimiser has a momentum of {group['momentum']} for {name}, and compress one of {self.momentum}, which "
                    "takes its place; give the optimiser 0 there. Parameters that are not compressed keep theirs, in another group"
                )
            if group.get("betas", (0,))[0]:
                raise Invalid(
                    f"the optimiser has betas {group['betas']} for {name}, whose first is a momentum, and compress one of "
                    f"{self.momentum}; give the optimiser betas=(0.0, {group['betas'][1]}), or take a compressor without "
                    "momentum, such as TopK"
                )


_WARMUP = (0.25, 0.0625, 0.0156, 0.004)


def _with(more: Dict[str, Any], **defaults: Any) -> Dict[str, Any]:
    return {**defaults, **more}


def TopK(density: float, kind: str = "sampled", **more: Any) -> Compression:
    """The greatest `density` of each parameter's entries. [SparCML section 2.2]"""
    return Compression(density=density, kind=kind, **more)


def DGC(density: float = 0.001, momentum: float = 0.9, warmup: Optional[Tuple[float, ...]] = None, **more: Any) -> Compression:
    """Deep Gradient Compression: sampled thresholds, momentum correction, momentum factor masking, and a warm-up of
    densities, by default those of _WARMUP above `density`; `clip_norm` is its local clipping. The optimiser has no momentum.
    [DGC, which Zen section 3.4 uses]"""
    if warmup is None:
        warmup = tuple(each for each in _WARMUP if each > density)
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
    if not 1 <= k <= bucket:
        raise Invalid(f"k {k} of each {bucket} consecutive entries; k must be 1 to {max(bucket, 1)}, the size of a chunk")
    return Compression(density=k / bucket, k=k, bucket=bucket, values=values, **_with(more, kind="buckets"))


def ChunkTopK(k: int = 64, chunk: int = 4096, values: Optional[str] = "qsgd2", **more: Any) -> Compression:
    """Buckets with SparseLoCo's numbers: 64 of each 4096 consecutive entries of a parameter, 1.6%, which travel as levels of
    2 bits. An entry takes some 9.8 bits with its place. A shorter last chunk has its share of k, rounded up. [SparseLoCo,
    arXiv 2508.15706, with decay=0.95, for outer gradients]"""
    return Buckets(k, chunk, values, **more)


_BY_NAME: Dict[str, Callable[[], Compression]] = {
    "topk": lambda: TopK(0.01), "dgc": DGC, "oktopk": OkTopk, "gtopk": GTopk, "gaussiank": Gaussiank, "buckets": Buckets,
    "chunktopk": ChunkTopK,
}  # fmt: skip


def compression(asked: Compress) -> Optional[Compression]:
    """As it is, or that of a name with its defaults: "topk" is TopK(0.01), "dgc" is DGC(). Raises Invalid for all else."""
    if asked is None or isinstance(asked, Compression):
        return asked
    if isinstance(asked, str) and asked.lower() in _BY_NAME:
        return _BY_NAME[asked.lower()]()
    names = ", ".join(f'"{name}"' for name in sorted(_BY_NAME))
    raise Invalid(f"compress {asked!r}; must be None, a Compression such as zenps.torch.TopK(0.01), or one of {names}")


def width_of(dtype: torch.dtype) -> torch.dtype:
    """What residuals and sums of a parameter are made in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Residual(Sparsifier):
    """A parameter's sparsifier, and the learning rate that its residual is for."""

    rate: Optional[float] = None

    @property
    def values(self) -> torch.Tensor:
        """The residual itself."""
        return convert.tensor_of(self.residual, torch.float64 if self.dtype == "f64" else torch.float32)

    def at_rate(self, rate: float) -> None:
        """Has the residual times the new rate be what it was times the old one."""
        if self.rate is not None and self.rate != rate:
            self.values.mul_(self.rate / rate)
        self.rate = rate


def sparsifier_of(compress: Compression, numel: int, dtype: torch.dtype, seed: int) -> Residual:
    """For a parameter; `seed` is the same on all ranks, and another for each."""
    buckets = compress.kind == "buckets"
    word = convert.dtype_name(width_of(dtype), "a residual")
    return Residual(numel, word, kind=compress.kind, k=compress.k if buckets else 0,
                    density=0.0 if buckets and compress.k else compress.density,
                    residual="global" if compress.lossy else "sent", momentum=compress.momentum,
                    clip_norm=compress.clip_norm or 0.0, period=compress.period, bucket=compress.bucket,
                    capped=compress.lossy, decay=compress.decay, seed=seed)  # fmt: skip


class Cut:
    """Selections of several parameters, which are rows of one tensor over all their entries, end to end: one round.

    ask: the tensor, for Job.tensors(); it is `tensor` from then on.
    """

    tensor: Tensor

    def __init__(self, name: str, sparsifiers: List[Residual], compress: Compression, op: str) -> None:
        self._compress = compress
        self._sparsifiers = sparsifiers
        self._edges = [0]
        for sparsifier in sparsifiers:
            self._edges.append(self._edges[-1] + sparsifier.n)
        self._dtype = torch.float64 if sparsifiers[0].dtype == "f64" else torch.float32
        k = sum(compress.entries(each.n, compress.density) for each in sparsifiers) if compress.lossy else 0
        self.ask: Dict[str, Any] = {
            "name": name, "rows": self._edges[-1], "width": 1, "dtype": sparsifiers[0].dtype, "op": op,
            "scheme": compress.scheme, "values": compress.values, "k": k, "contributed": compress.lossy,
        }  # fmt: skip
        self._selected: List[Residual] = []  # with a selection that is neither committed nor canceled
        self._request: Optional[Request[Rows]] = None

    def start(self, gradients: Sequence[Optional[torch.Tensor]], density: float, step: Optional[int],
              idle: Collection[int] = (), rates: Optional[Sequence[Optional[float]]] = None) -> Request[Rows]:  # fmt: skip
        """The round of the parameters' gradients, or zeros for None. They may change when it returns. idle: places of
        parameters that send nothing, not even of their residuals. rates: learning rates of the parameters that have one;
        None: what the compression says. At rate 0 a gradient counts for nothing, and nothing is sent."""
        scale = 1.0 if self._compress.scaler is None else float(self._compress.scaler.get_scale())
        nothing = torch.zeros(0, dtype=torch.int64, device="cpu"), torch.zeros(0, dtype=self._dtype, device="cpu")
        rates = rates or [self._compress.rate()] * len(self._sparsifiers)
        parts = []
        for at, (base, sparsifier, gradient, rate) in enumerate(zip(self._edges, self._sparsifiers, gradients, rates)):
            if at in idle or rate == 0:
                parts.append(nothing)
                continue
            if rate is not None:
                sparsifier.at_rate(rate)
            parts.append(self._select(base, sparsifier, gradient, density, scale))
        ids, values = torch.cat([ids for ids, _ in parts]), torch.cat([values for _, values in parts])
        pair = convert.array(values, (values.shape[0], 1)), convert.array(ids, (ids.shape[0],))
        self._request = self.tensor.allreduce(*pair, step=step, out="rows")
        return self._request

    def _select(self, base: int, sparsifier: Residual, gradient: Optional[torch.Tensor], density: float,
                scale: float) -> Tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        if gradient is None:
            flat = torch.zeros(sparsifier.n, dtype=self._dtype, device="cpu")
        else:
            whole = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
            flat = convert.on_host(whole).to(self._dtype).reshape(-1).contiguous()
        if self._compress.scaler is not None:
            if not bool(torch.isfinite(flat).all()):
                # Every rank sees it in the sum, and skips the step; the residual must not.
                at = torch.tensor([base], dtype=torch.int64, device="cpu")
                return at, torch.tensor([float("nan")], dtype=self._dtype, device="cpu")
            flat = flat / scale
        if self._compress.warmup:
            sparsifier.k = self._compress.entries(sparsifier.n, density)
        rows = sparsifier.select(convert.array(flat, (sparsifier.n,)))
        self._selected.append(sparsifier)
        ids, values = convert.rows_of(rows, self._dtype)
        return ids + base, values.view(-1)

    def cancel(self) -> None:
        """Gives the round up, if there is one; the residuals keep what was selected."""
        self.stop()
        self.settle(sent=False)

    def stop(self) -> None:
        """Gives the round up. settle() is to say what becomes of the selections."""
        if self._request is not None:
            self._request.cancel()
            self._request.exception()  # the arrays are the library's until then
            self._request = None

    @property
    def pending(self) -> List[Residual]:
        """Those with selections that were neither committed nor canceled."""
        return self._selected

    def settle(self, sent: bool) -> None:
        """What was selected leaves the residuals, or stays there."""
        for sparsifier in self._selected:
            if sent:
                sparsifier.commit()
            else:
                sparsifier.cancel()
        self._selected = []

    def finish(self, scale: float, commits: bool = True) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """After the round: per parameter the entries of the sum, ascending, and their values times `scale`. What was sent
        leaves the residuals; without `commits` settle() says whether it does."""
        assert self._request is not None
        rows, self._request = self._request.wait(), None
        ids, values = convert.rows_of(rows, self._dtype)
        values = values.view(-1)
        scaler = self._compress.scaler
        if rows.late or (scaler is not None and not bool(torch.isfinite(values).all())):
            self.cancel()
        if commits:
            for at, sparsifier in enumerate(self._sparsifiers):
                if sparsifier in self._selected:
                    sparsifier.commit(self._sent(rows, at))
            self._selected = []
        factor = scale if scaler is None else scale * float(scaler.get_scale())
        ends = torch.searchsorted(ids, torch.tensor(self._edges, dtype=torch.int64, device="cpu")).tolist()
        return [(ids[a:b] - base, values[a:b] * factor) for base, a, b in zip(self._edges, ends, ends[1:])]

    def _sent(self, rows: Rows, at: int) -> Optional[Rows]:
        """Of a lossy scheme's result, the entries of this rank and parameter that it is made of."""
        if rows.contributed is None:
            return None
        sent = convert.tensor_of(rows.contributed, torch.int64)
        edges = torch.tensor(self._edges[at : at + 2], dtype=torch.int64, device="cpu")
        begin, end = torch.searchsorted(sent, edges).tolist()
        own = sent[begin:end] - self._edges[at]
        return Rows(own.shape[0], convert.array(own, (own.shape[0],)), arrays.new("f32", (0,)))


def save(sparsifier: Residual, job: Optional[Ranks]) -> Dict[str, Any]:
    """The state, with tensors: all of it, from which a run goes on bit for bit. `job`: residual and velocity alone, with
    what all its ranks keep on rank 0, and zeros on the others."""
    if job is None:
        return {"saved": torch.frombuffer(bytearray(sparsifier.save()), dtype=torch.uint8), "rate": sparsifier.rate}
    state: Dict[str, Any] = {**sparsifier.state_dict(), "rate": sparsifier.rate}
    dtype = torch.float64 if sparsifier.dtype == "f64" else torch.float32
    for name in ("residual", "velocity"):
        if state[name] is None:
            continue
        state[name] = torch.frombuffer(bytearray(state[name]), dtype=dtype)
        all_reduce(state[name], job=job)
        if job.rank:
            state[name].zero_()
    return state


def load_all(sparsifiers: Dict[str, Residual], states: Dict[str, Any]) -> None:
    """What save() gave, by parameter."""
    if set(sparsifiers) != set(states):
        raise Invalid(f"load_state_dict: residuals of {sorted(states)}; those of {sorted(sparsifiers)} are wanted")
    for parameter, sparsifier in sparsifiers.items():
        state = dict(states[parameter])
        sparsifier.rate = state.pop("rate", None)
        if "saved" in state:
            saved = state["saved"].contiguous()
            sparsifier.load(ctypes.string_at(saved.data_ptr(), saved.numel()))
            continue
        for name in ("residual", "velocity"):
            if state[name] is not None:
                state[name] = convert.array(state[name].contiguous(), (state[name].numel(),)).tobytes()
        sparsifier.load_state_dict(state)


class CompressedGroup(Group):
    """Parameters of a bucket that are cut; `first` sums them while steps are dense."""

    def __init__(self, name: str, first: DenseGroup, compress: Compression, op: str) -> None:
        self._first = first
        self._compress = compress
        self.steps = 0
        self.optimizers: List[torch.optim.Optimizer] = []  # those that step the parameters, where they are known
        self.scales: Dict[int, float] = {}  # by parameter's index, what its gradients were divided by
        self.commits = True  # in apply(); if not, settle() is called after it
        self._dense = False
        self.sparsifiers = {
            slot.name: sparsifier_of(compress, slot.numel, slot.parameter.dtype, slot.index) for slot in first.slots
        }
        self._cut = Cut(name, list(self.sparsifiers.values()), compress, op)
        super().__init__(first.slots, [*(first.asks if compress.start_iter else []), self._cut.ask])

    def opened(self, tensors: List[Tensor]) -> None:
        if tensors[:-1]:
            self._first.opened(tensors[:-1])
        self._cut.tensor = tensors[-1]

    def start(self, step: int) -> None:
        density = self._compress.density_of(self.steps)
        self._dense = density is None
        if density is None:
            self._first.stale, self._first.copies = self.stale, self.copies
            self._first.start(step)
            self.requests = self._first.requests
        else:
            idle = {at for at, slot in enumerate(self.slots) if slot.index in self.stale}
            known = [self._rate_of(slot) for slot in self.slots]
            if self.scales:
                known = [(1.0 if rate is None else rate) * self.scales.get(slot.index, 1.0) for slot, rate in zip(self.slots, known)]
            self.requests = [self._cut.start([self.gradient(slot) for slot in self.slots], density, step, idle, known)]

    def _rate_of(self, slot: Slot) -> Optional[float]:
        """The parameter's learning rate, where it is known."""
        rate = self._compress.rate()
        if rate is not None:
            return rate
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if "lr" in group and any(each is slot.parameter for each in group["params"]):
                    return float(group["lr"])
        return None

    def written(self) -> Set[int]:
        return self._first.written() if self._dense else set()

    def cancel(self) -> None:
        self.stop()
        self._cut.settle(sent=False)

    def stop(self) -> None:
        super().cancel()
        self._cut.stop()

    @property
    def pending(self) -> Set[int]:
        """Indices of the parameters with selections that were neither committed nor canceled."""
        return {slot.index for slot in self.slots if self.sparsifiers[slot.name] in self._cut.pending}

    def settle(self, sent: bool) -> None:
        self._cut.settle(sent)

    def apply(self, used: Used, scale: float) -> None:
        self.steps += 1
        if self._dense:
            self._first.apply(used, scale)
            return
        for slot, (ids, values) in zip(self.slots, self._cut.finish(scale, self.commits)):
            if not ids.numel() and not used(slot):
                continue
            made = torch.zeros(slot.numel, dtype=values.dtype, device=values.device)
            made[ids] = values
            give(slot.parameter, made.view(slot.parameter.shape).to(slot.parameter.dtype))
