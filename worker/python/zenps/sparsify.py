"""Selection of the values of a dense gradient that are worth sending, with the residual that keeps the rest."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple

from . import _abi, _lib, _options, arrays
from .arrays import Array, Rows
from .errors import Invalid

_ITEM = {"f32": 4, "f64": 8}


@dataclass(frozen=True)
class SparsifierStats:
    """k: entries wanted; selected: that came out; threshold: the smallest magnitude asked for; steps: selections so far;
    refined: those that a threshold missed, and that were done again exactly."""

    k: int
    selected: int
    threshold: float
    steps: int
    refined: int


class Sparsifier:
    """Selects what one rank sends of a tensor of `n` values. The tensor is opened as n rows of width 1. A step is

        selection = sparsifier.select(gradient)           # residual + gradient: its greatest magnitudes
        result = tensor.allreduce(selection.values, selection.row_ids).wait()
        sparsifier.commit(result)                         # takes what was sent out of the residual

    If the operation failed, call ``cancel()`` in place of commit: the residual keeps all of it. Nothing is lost: committed
    values plus the residual equal the gradients, up to the rounding of additions.

    kind: "topk": exactly k [SparCML]. "sampled": from a sample's threshold on [DGC, with which Zen is used].
        "reused": exactly k every `period` selections, by that threshold in between [Ok-Topk 3.1.3]. "gaussian" [Gaussiank].
        "buckets": k of each `bucket` values [SparCML 8.3]. "threshold": all from `threshold` on.
        "scheme": the whole residual, dense. A scheme such as oktopk then selects.
    k: entries that a step sends; or density = k / n.

    residual: "sent", or "global": only entries of the result leave the residual [Ok-Topk algorithm 2].
    momentum, clip_norm: DGC's momentum correction and local clipping.

    decay: share of the residual that select() keeps before it adds the gradient [SparseLoCo: 0.95]. 0: all of it.
    capped: never more than k.
    device: number of the GPU with the gradients. None: host.

    <zenps/sparsify.h> says the rest. A Sparsifier is used by one thread at a time; it needs no job.
    """

    def __init__(self, n: int, dtype: str = "f32", *, kind: str = "topk", k: int = 0, density: float = 0.0,
                 residual: str = "sent", momentum: float = 0.0, clip_norm: float = 0.0, threshold: float = 0.0,
                 period: int = 0, bucket: int = 0, sample: int = 0, seed: int = 0, unrefined: bool = False,
                 capped: bool = False, decay: float = 0.0, device: Optional[int] = None) -> None:  # fmt: skip
        lib = _lib.load()
        options = _abi.SparsifierOptions()
        lib.zenps_sparsifier_options_init(ctypes.byref(options), ctypes.sizeof(options))
        options.kind = _options.member(_abi.Sparsify, kind, "kind")
        options.residual = _options.member(_abi.Residual, residual, "residual")
        for name, number, bits in (("k", k, 64), ("period", period, 32), ("bucket", bucket, 32), ("sample", sample, 64),
                                   ("seed", seed, 64), ("n", n, 64)):  # fmt: skip
            if not 0 <= number < 1 << bits:
                raise Invalid(f"{name} {number}; must be 0 to 2^{bits} - 1")
            if name != "n":
                setattr(options, name, number)
        options.density, options.momentum, options.clip_norm = density, momentum, clip_norm
        options.threshold, options.unrefined, options.capped, options.decay = threshold, unrefined, capped, decay
        if device is not None:
            options.memory, options.device = _abi.Memory.DEVICE, device
        handle = ctypes.c_void_p()
        _lib.check(lib.zenps_sparsifier_create(ctypes.byref(options), n, _options.dtype(dtype), ctypes.byref(handle)))
        self._handle = handle.value
        self._destroy = lib.zenps_sparsifier_destroy  # modules may be gone when this is needed
        self.n, self.dtype, self.kind, self.device = n, dtype, kind, device
        self._gradient: Optional[Array] = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._destroy(self._handle)

    def _array(self, address: int, dtype: str, shape: Tuple[int, ...], readonly: bool) -> Array:
        return Array(address, dtype, shape, self, self.device, readonly)

    def _gradient_of(self, gradient: Any, stream: Optional[int]) -> Array:
        array = arrays.of(gradient, self.dtype, stream)
        if array.size != self.n:
            raise Invalid(f"the gradient has {array.size} values; the sparsifier is for {self.n}")
        if (array.device is None) != (self.device is None):
            where = "host memory" if self.device is None else "a GPU's memory"
            raise Invalid(f"the gradient is in the wrong memory; the sparsifier was made for gradients in {where}")
        return array

    def select(self, gradient: Any, stream: Optional[int] = None) -> Rows:
        """Adds the gradient, n values, to the residual and selects. row_ids ascend; values are [nnz, 1]. Both are the
        sparsifier's, read-only, and change with the next selection. With "scheme": row_ids None, values the residual.
        Busy: the last selection was neither committed nor canceled."""
        array = self._gradient_of(gradient, stream)
        grad = _abi.Grad()
        grad.struct_size, grad.stream = ctypes.sizeof(grad), stream
        _lib.check(_lib.load().zenps_sparsifier_select(self._handle, array.address, ctypes.byref(grad)))
        if grad.layout == _abi.Layout.DENSE:
            return Rows(self.n, None, self._array(grad.values, self.dtype, (self.n, 1), True))
        n = grad.nnz
        ids, values = self._array(grad.row_ids, "i64", (n,), True), self._array(grad.values, self.dtype, (n, 1), True)
        return Rows(n, ids, values)

    def commit(self, result: Optional[Rows] = None) -> None:
        """Ends a selection that was sent. result: of the operation; None will do with residual "sent". With "scheme" of a
        tensor that was opened with contributed=True."""
        grad = _abi.Grad()
        grad.struct_size = ctypes.sizeof(grad)
        ids = None if result is None else result.row_ids
        if self.kind == "scheme":
            ids = None if result is None else result.contributed
            if ids is None:
                raise Invalid("commit: with kind scheme, the result of a tensor with contributed=True is wanted")
        if result is None:
            _lib.check(_lib.load().zenps_sparsifier_commit(self._handle, None))
            return
        if ids is None:
            grad.layout, grad.values = _abi.Layout.DENSE, result.values.address
        else:
            grad.layout, grad.nnz, grad.row_ids = _abi.Layout.ROWS, ids.size, ids.address
            grad.values = result.values.address
        if result.values.device is not None and (ids is None or ids.device is not None):
            grad.memory, grad.device = _abi.Memory.DEVICE, result.values.device
        _lib.check(_lib.load().zenps_sparsifier_commit(self._handle, ctypes.byref(grad)))

    def cancel(self) -> None:
        """Ends a selection that was not sent."""
        _lib.check(_lib.load().zenps_sparsifier_cancel(self._handle))

    @property
    def stats(self) -> SparsifierStats:
        raw = _abi.SparsifierStats()
        raw.struct_size = ctypes.sizeof(raw)
        _lib.check(_lib.load().zenps_sparsifier_stats(self._handle, ctypes.byref(raw)))
        return SparsifierStats(raw.k, raw.selected, raw.threshold, raw.steps, raw.refined)

    @property
    def k(self) -> int:
        """Entries wanted, of all buckets together. Set it for other k from the next selection on, as in DGC's warm-up."""
        return self.stats.k

    @k.setter
    def k(self, k: int) -> None:
        if not 0 <= k < 1 << 64:
            raise Invalid(f"k {k}; must be 1 to {self.n}")
        _lib.check(_lib.load().zenps_sparsifier_set_k(self._handle, k))

    def set_threshold(self, threshold: float) -> None:
        """Kind "threshold" alone."""
        _lib.check(_lib.load().zenps_sparsifier_set_threshold(self._handle, threshold))

    @property
    def residual(self) -> Array:
        """The n values that are kept, to be read and written; between selection and commit with the selection."""
        return self._array(_lib.load().zenps_sparsifier_residual(self._handle), self.dtype, (self.n,), False)

    @property
    def velocity(self) -> Optional[Array]:
        """The n values of momentum; None without."""
        address = _lib.load().zenps_sparsifier_velocity(self._handle)
        return self._array(address, self.dtype, (self.n,), False) if address else None

    def sample(self, gradient: Any, stream: Optional[int] = None) -> Tuple[Sequence[float], int]:
        """Magnitudes of a sample of what select() of this gradient chooses from, and of how many values it is; kind
        "threshold". What all parts of a layer give makes one threshold for all: shared_threshold()."""
        array = self._gradient_of(gradient, stream)
        n = ctypes.c_uint64()
        call = _lib.load().zenps_sparsifier_sample
        magnitudes = arrays.new("f64", (0,))
        status = call(self._handle, array.address, stream, magnitudes.address, 0, ctypes.byref(n))
        if status == _abi.Status.ERR_TRUNCATED:
            magnitudes = arrays.new("f64", (n.value,))
            status = call(self._handle, array.address, stream, magnitudes.address, magnitudes.size, ctypes.byref(n))
        _lib.check(status)
        return magnitudes.tolist(), self.n

    def save(self) -> bytes:
        """All of the state: load() goes on from it bit for bit. For a checkpoint of this rank."""
        call = _lib.load().zenps_sparsifier_save
        needed = ctypes.c_size_t()
        status = call(self._handle, None, 0, ctypes.byref(needed))
        if status not in (_abi.Status.OK, _abi.Status.ERR_TRUNCATED):
            _lib.raise_last()
        state = arrays.new("u8", (needed.value,))
        _lib.check(call(self._handle, state.address, state.nbytes, ctypes.byref(needed)))
        return state.tobytes()

    def load(self, state: bytes) -> None:
        """What save() gave of a sparsifier with the same options; in host or device memory, whichever it was."""
        array = arrays.of(state, "u8")
        _lib.check(_lib.load().zenps_sparsifier_load(self._handle, array.address, array.nbytes))

    def state_dict(self) -> Dict[str, Any]:
        """Residual and velocity, as bytes, in host memory: what can be added up over ranks, where their number changes.
        Thresholds and counters are in save() alone."""
        velocity = self.velocity
        return {
            "n": self.n,
            "dtype": self.dtype,
            "residual": self.residual.tobytes(),
            "velocity": None if velocity is None else velocity.tobytes(),
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """What state_dict() gave, of a sparsifier of the same n and dtype, with momentum or without as this one."""
        if (state["n"], state["dtype"]) != (self.n, self.dtype):
            raise Invalid(
                f"the state is of {state['n']} values of {state['dtype']}; the sparsifier is of {self.n} of {self.dtype}"
            )
        for name, array in (("residual", self.residual), ("velocity", self.velocity)):
            data = state[name]
            if (data is None) != (array is None):
                raise Invalid(f"the state has {'no' if data is None else 'a'} {name}; the sparsifier has "
                              f"{'none' if array is None else 'one'}")  # fmt: skip
            if array is not None:
                if len(data) != array.nbytes:
                    raise Invalid(f"{name} of {len(data)} bytes; {array.nbytes} are wanted")
                array.data.cast("B")[:] = data


def shared_threshold(samples: Sequence[Tuple[Sequence[float], int]], density: float) -> float:
    """The greatest threshold from which on `density` of all the values that the samples stand for are estimated to lie:
    one threshold for ranks that hold parts of one layer. samples: what Sparsifier.sample() gave, of each part."""
    raw = (_abi.Sample * max(len(samples), 1))()
    kept = []
    for each, (magnitudes, of) in zip(raw, samples):
        array = arrays.of(magnitudes, "f64")
        kept.append(array)
        each.magnitudes, each.n, each.of = array.address, array.size, of
    threshold = ctypes.c_double()
    status = _lib.load().zenps_sparsify_threshold(raw, len(samples), density, ctypes.byref(threshold))
    _lib.check(status)
    return threshold.value
