"""Several arrays in one round: the tables of a model, or a bucket of parameters, as parts of one tensor."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Sequence

from . import _abi, _lib
from .arrays import Array, Rows
from .errors import Invalid
from .request import Request

if TYPE_CHECKING:
    from .tensor import Tensor


class Part(NamedTuple):
    """Rows row_base to row_base + n_rows - 1 of a tensor. values, row_ids: as :class:`zenps.Tensor` takes them, of these
    rows alone: dense, dtype[n_rows, width] and None; or rows, whose numbers count from row_base. Both None: no rows."""

    row_base: int
    n_rows: int
    values: Any = None
    row_ids: Any = None


def arguments(tensor: "Tensor", parts: Sequence[Part], out: Any, contributes: bool) -> Any:
    """The zenps_grad_t of what goes in and of what comes out, what must live meanwhile, and what makes the list of Rows."""
    outs = list(out) if isinstance(out, (list, tuple)) else [out] * len(parts)
    if not parts or len(outs) != len(parts):
        raise Invalid(f"tensor {tensor.name}: {len(outs)} results for {len(parts)} parts; one for each is wanted")
    raw_in, raw_out = (_abi.Part * len(parts))(), (_abi.Part * len(parts))()
    borrowed: List[Any] = [raw_in, raw_out]
    collects: List[Callable[[int], Rows]] = []
    results: List[_abi.Grad] = []
    for index, part in enumerate(parts):
        grad, kept = tensor._gradient(part.values, part.row_ids, None, rows=part.n_rows)
        dense = grad.layout == _abi.Layout.DENSE
        result, collect = tensor._result(outs[index], dense, part.n_rows, None)
        if grad.memory or result.memory:
            raise Invalid(f"tensor {tensor.name}: part {index} is in the memory of a GPU; parts are in host memory")
        for raw, source in ((raw_in[index], grad), (raw_out[index], result)):
            raw.struct_size, raw.row_base, raw.n_rows = ctypes.sizeof(raw), part.row_base, part.n_rows
            raw.layout, raw.nnz, raw.capacity = source.layout, source.nnz, source.capacity
            raw.row_ids, raw.values = source.row_ids, source.values
        borrowed.append((kept, collect))
        collects.append(collect)
        results.append(result)
    whole_in, whole_out = _abi.Grad(), _abi.Grad()
    for whole, raws in ((whole_in, raw_in), (whole_out, raw_out)):
        whole.struct_size, whole.device = ctypes.sizeof(whole), -1
        whole.layout = _abi.Layout.ROWS
        whole.parts, whole.n_parts = ctypes.cast(raws, ctypes.POINTER(_abi.Part)), len(parts)
    whole_in.contributes = contributes
    ours = [result.layout == _abi.Layout.ROWS and not result.row_ids for result in results]

    def collect_all(request: int) -> List[Rows]:
        taken = tensor._take(request) if any(ours) else None
        made = []
        for raw, result, own, collect in zip(raw_out, results, ours, collects):
            result.nnz, result.contributors = raw.nnz, whole_out.contributors
            if own:
                ids = Array(raw.row_ids or 0, "i64", (raw.nnz,), taken)
                values = Array(raw.values or 0, tensor.dtype, (raw.nnz, tensor.width), taken)
                made.append(Rows(raw.nnz, ids, values, whole_out.contributors))
            else:
                made.append(collect(request))
        return made

    return whole_in, whole_out, borrowed, collect_all


def allreduce(tensor: "Tensor", parts: Sequence[Part], step: Any, out: Any, contributes: bool) -> "Request[List[Rows]]":
    grad, result, borrowed, collect = arguments(tensor, parts, out, contributes)
    call = _lib.load().zenps_allreduce
    return tensor._start(call, "sum", step, (ctypes.byref(grad), ctypes.byref(result)), borrowed, collect)
