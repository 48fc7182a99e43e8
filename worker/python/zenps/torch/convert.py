"""Between torch's tensors and zenps's arrays, without copies where memory allows.

A gradient is *dense*, of the parameter's shape, or *sparse*: a COO tensor whose rows zenps sends. What comes back has
the layout of what went in; sparse results are coalesced (rows ascend, none twice).
"""

from __future__ import annotations

import hashlib
from typing import Dict, Optional, Tuple

import torch

from ..arrays import Array, Rows
from ..errors import Unsupported

_NAMES: Dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
}
NAME_BYTES = 127  # of a tensor's name, as UTF-8
LANE = 64  # values of a row of a dense round: rows of one value take three times as long to encode


def is_summed(dtype: torch.dtype) -> bool:
    return dtype in _NAMES and dtype != torch.int64


def dtype_name(dtype: torch.dtype, what: str) -> str:
    """zenps's name of a dtype; :class:`Unsupported` says that `what` has another one."""
    if not is_summed(dtype):
        raise Unsupported(f"{what} is of {dtype}; gradients are summed in float32, float64, bfloat16 and float16")
    return _NAMES[dtype]


def tensor_name(name: str) -> str:
    """The name as a tensor of zenps may have it: printable, at most NAME_BYTES long, without "@" in front. A name that
    has to change ends with a hash of the whole, so that two names stay two."""
    plain = "".join(each if each.isprintable() else "?" for each in name)
    plain = "?" + plain[1:] if plain.startswith("@") else plain
    if plain == name and len(name.encode()) <= NAME_BYTES:
        return name
    whole = hashlib.sha1(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{plain.encode()[:90].decode(errors='ignore')}.{whole[:20]}"


def array(tensor: torch.Tensor, shape: Tuple[int, ...]) -> Array:
    """The memory of a contiguous tensor, in host memory or a GPU's, which lives as long as the array does."""
    device = tensor.device.index if tensor.device.type == "cuda" else None
    return Array(tensor.data_ptr(), _NAMES[tensor.dtype], shape, owner=tensor, device=device)


def tensor_of(source: Array, dtype: torch.dtype) -> torch.Tensor:
    """A tensor in the array's own memory, which lives as long as the tensor or any view of it."""
    if not source.size:
        return torch.empty(source.shape, dtype=dtype, device="cpu")
    octets = Array(source.address, "u8", (source.nbytes,), owner=source)
    return torch.frombuffer(octets.data, dtype=dtype).view(source.shape)


def rows_of(result: Rows, dtype: torch.dtype) -> Tuple[torch.Tensor, torch.Tensor]:
    """Row numbers (int64[nnz], ascending) and values ([nnz, width]) of a result, in its own memory."""
    assert result.row_ids is not None
    return tensor_of(result.row_ids, torch.int64), tensor_of(result.values, dtype)


def sparse(ids: torch.Tensor, values: torch.Tensor, shape: torch.Size, dimensions: int = 1) -> torch.Tensor:
    """A coalesced sparse tensor of rows that ascend, none twice; it neither copies nor checks them. dimensions: how many are
    sparse ones; of several it has the entries that are not zero."""
    values = values.view((values.shape[0],) + tuple(shape[1:]))
    if dimensions > 1:
        dense_ones = tuple(range(dimensions, values.dim()))
        at = ((values != 0).sum(dense_ones) if dense_ones else values != 0).nonzero(as_tuple=True)
        indices = torch.stack([ids[at[0]], *at[1:]])
        return torch.sparse_coo_tensor(indices, values[at], shape, device=values.device).coalesce()
    unsafe = getattr(torch, "_sparse_coo_tensor_unsafe", None)  # gone in later versions
    if unsafe is not None:
        return unsafe(ids.unsqueeze(0), values, shape)._coalesced_(True)
    return torch.sparse_coo_tensor(ids.unsqueeze(0), values, shape, device=values.device, check_invariants=False, is_coalesced=True)


def split_sparse(gradient: torch.Tensor, shape: torch.Size, width: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Row numbers and values [nnz, width] of a sparse gradient, in any order and with repeats, as autograd made it. Of a
    gradient whose single values are sparse rows of one value each are merged to rows of `width`, in host memory, where
    sums of repeats have an order. Else they are where the gradient is."""
    indices, values = gradient._indices(), gradient._values()
    if not indices.shape[1]:  # zero_() leaves such a gradient, with every dimension a sparse one
        return indices.new_empty(0), values.new_empty((0, width))
    if gradient.sparse_dim() == 1:
        return indices[0].contiguous(), values.reshape(-1, width).contiguous()
    # Several sparse dimensions: the first is the row, and the others the place within it.
    indices, values = on_host(indices), on_host(values)
    place = torch.zeros_like(indices[0])
    for axis in range(1, gradient.sparse_dim()):
        place = place * shape[axis] + indices[axis]
    inner = values.reshape(indices.shape[1], -1)
    rows, where = torch.unique(indices[0], return_inverse=True)
    full = torch.zeros((rows.shape[0], width // inner.shape[1], inner.shape[1]), dtype=values.dtype, device=values.device)
    full.index_put_((where, place), inner, accumulate=True)
    return rows, full.view(-1, width)


def nonzero_rows(gradient: torch.Tensor, width: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Numbers and values of the rows of a dense gradient that hold anything but zeros; NaN is no zero."""
    rows = gradient.reshape(-1, width)
    ids = (rows != 0).any(dim=1).nonzero().view(-1)
    return ids, rows.index_select(0, ids)


def dense(ids: torch.Tensor, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A dense tensor of the shape of `like`, zero but for rows `ids`."""
    made = torch.zeros_like(like, memory_format=torch.contiguous_format)
    made.index_copy_(0, ids, values.view((ids.shape[0],) + tuple(made.shape[1:])))
    return made


def octets(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes (uint8[n]) of a contiguous tensor in host memory, in its own memory."""
    return tensor_of(octets_array(tensor), torch.uint8)


def octets_array(tensor: torch.Tensor) -> Array:
    """The same as an array."""
    return Array(tensor.data_ptr(), "u8", (tensor.numel() * tensor.element_size(),), owner=tensor)


def shares_storage(tensor: torch.Tensor) -> bool:
    """Whether other tensors may share its storage. torch counts the writes to such tensors in one version."""
    if tensor.layout != torch.strided:
        return False
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return bool(storage.nbytes() > tensor.numel() * tensor.element_size())


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in host memory: itself, or a copy."""
    return tensor if tensor.device.type == "cpu" else tensor.cpu()


def lanes(n: int) -> Optional[Tuple[int, int]]:
    """n values as rows x width, of the width nearest LANE that divides n; None where there is none that is quick to encode,
    and has rows enough to be dealt evenly to servers."""
    widths = sorted(range(LANE // 4, 4 * LANE + 1), key=lambda width: abs(width - LANE))
    return next(((n // width, width) for width in widths if n % width == 0), None)


def rounded(n: int) -> int:
    """`n` rounded up to four binary digits and zeros. So lengths that users choose need few tensors of zenps. At most an
    eighth is padding."""
    step = 1 << max(n.bit_length() - 4, 0)
    return -(-n // step) * step
