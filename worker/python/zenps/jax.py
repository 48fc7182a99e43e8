"""Sums over all ranks in JAX, also inside of jitted functions.

    table = job.tensor("embedding", rows=1000000, width=64)

    @jax.jit
    def step(parameters, batch):
        gradients = jax.grad(loss)(parameters, batch)
        return update(parameters, zenps.jax.allreduce_tree(job, gradients))

Calls are ordered callbacks to the host (jax.experimental.io_callback): every rank runs the same ones in the same order,
and a process uses one device. On the CPU arrays are handed over without a copy. They sum gradients and cannot be
differentiated, nor mapped by vmap(). The results have fixed shapes, as jit() wants: `capacity` rows of a sparse one, those
past its end with the id `tensor.rows`, which BCOO takes for padding, and zeros. Rows with that id are no rows of what
goes in either. What a sum fails with JAX raises as an error of its own, with the text; :func:`last_error` has the exception.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.sparse import BCOO

from .arrays import Array
from .errors import Invalid, Truncated
from .job import Job
from .tensor import Tensor

_DTYPES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "float16": "f16"}
_last_error: Optional[BaseException] = None


def last_error() -> Optional[BaseException]:
    """What the last sum that failed in this process failed with: PeerLost, RoundTimeout, Truncated, ..."""
    return _last_error


def _call(work: Callable[..., Any], shapes: Any, *operands: Any) -> Any:
    def keeping(*arrays: Any) -> Any:
        global _last_error
        try:
            return work(*(np.asarray(each, order="C") for each in arrays))
        except BaseException as error:
            _last_error = error
            raise

    return io_callback(keeping, shapes, *operands, ordered=True)


def _array(values: Any, dtype: str, shape: Tuple[int, ...]) -> Array:
    return Array(values.ctypes.data, dtype, shape, owner=values)


def _dense(tensors: List[Tensor], gradients: List[Any]) -> List[Any]:
    """One callback that starts all sums and then waits for them."""

    def work(*arrays: Any) -> Tuple[Any, ...]:
        sums = tuple(np.empty_like(each) for each in arrays)
        requests = []
        for tensor, given, out in zip(tensors, arrays, sums):
            shape = tensor.rows, tensor.width
            requests.append(tensor.allreduce(_array(given, tensor.dtype, shape), out=_array(out, tensor.dtype, shape)))
        for request in requests:
            request.wait()
        return sums

    return list(_call(work, tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in gradients), *gradients))


def _check(tensor: Tensor, what: str, values: Any, rows: int) -> None:
    if _DTYPES.get(values.dtype.name) != tensor.dtype or values.size != rows * tensor.width:
        raise Invalid(f"tensor {tensor.name}: {what} are {values.dtype.name}{list(values.shape)}; "
                      f"{tensor.dtype}[{rows}, {tensor.width}] is wanted")  # fmt: skip


def allreduce(tensor: Tensor, values: Any, row_ids: Any = None, *, capacity: int = 0) -> Any:
    """The sum (or what the tensor's op is) over all ranks.

    Without row_ids: values dense, dtype[rows, width]; so is the result. With integer row_ids[n], in any order,
    repeated or none: values dtype[n, width]; the result is (row_ids[capacity], values[capacity, width], n), the rows that
    any rank has, ascending, with their number. Truncated where that is over `capacity`, on all ranks."""
    if row_ids is None:
        _check(tensor, "values", values, tensor.rows)
        return _dense([tensor], [values])[0]
    _check(tensor, "values", values, row_ids.size)
    limit = jnp.iinfo(row_ids.dtype).max
    if capacity < 1 or tensor.rows > limit:
        raise Invalid(f"tensor {tensor.name}: capacity {capacity} and {tensor.rows} rows; must be 1 or more, and up to {limit}")
    dtype = values.dtype

    def work(own_ids: Any, own: Any) -> Tuple[Any, Any, Any]:
        kept = own_ids != tensor.rows
        own = own.reshape(-1, tensor.width)
        own = own if kept.all() else own[kept]
        request = tensor.allreduce(_array(own, tensor.dtype, own.shape), np.ascontiguousarray(own_ids[kept]), out="rows")
        rows = request.wait()
        assert rows.row_ids is not None
        n = rows.nnz
        if n > capacity:
            raise Truncated(f"tensor {tensor.name}: the sum has {n} rows; capacity is {capacity}", needed=n)
        all_ids, sums = np.full(capacity, tensor.rows, own_ids.dtype), np.zeros((capacity, tensor.width), dtype)
        all_ids[:n] = np.asarray(rows.row_ids)
        sums[:n] = np.asarray(rows.values).view(dtype)
        return all_ids, sums, np.asarray(n, np.int32)

    shapes = (jax.ShapeDtypeStruct((capacity,), row_ids.dtype), jax.ShapeDtypeStruct((capacity, tensor.width), dtype),
              jax.ShapeDtypeStruct((), jnp.int32))  # fmt: skip
    return _call(work, shapes, row_ids, values)


def allreduce_bcoo(tensor: Tensor, matrix: BCOO, *, nse: int) -> BCOO:
    """The sum of sparse matrices [rows, width] whose rows are what is sparse (n_sparse 1, n_dense 1), with up to `nse`
    rows; its rows ascend, none twice."""
    if (matrix.n_batch, matrix.n_sparse, matrix.n_dense) != (0, 1, 1) or matrix.shape != (tensor.rows, tensor.width):
        raise Invalid(f"tensor {tensor.name}: a BCOO of shape {matrix.shape}, n_batch {matrix.n_batch}, n_sparse "
                      f"{matrix.n_sparse}, n_dense {matrix.n_dense}; ({tensor.rows}, {tensor.width}), 0, 1, 1 is wanted")  # fmt: skip
    ids, values, _ = allreduce(tensor, matrix.data, matrix.indices[:, 0], capacity=nse)
    return BCOO((values, ids[:, None]), shape=matrix.shape, indices_sorted=True, unique_indices=True)


def allreduce_tree(job: Job, tree: Any, *, name: str = "gradients", **options: Any) -> Any:
    """The mean over all ranks of every array in a pytree, which all start before any is waited for. Rows of zeros of an
    array of two dimensions, a table's gradient, do not travel. Opens a tensor for each where it is first traced, which all
    ranks must do; name: theirs. options: those of :meth:`zenps.Job.tensor`."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    tensors = []
    for path, leaf in leaves:
        label = f"{name}{jax.tree_util.keystr(path)}"
        dtype = _DTYPES.get(leaf.dtype.name)
        if dtype is None or not leaf.size:
            raise Invalid(f"{label} is {leaf.dtype.name}{list(leaf.shape)}; {', '.join(_DTYPES)} of one value or more is wanted")
        width = leaf.shape[1] if leaf.ndim == 2 else math.gcd(leaf.size, 64)  # rows of one value are slow to encode
        tensors.append(job.tensor(label, leaf.size // width, width, dtype, **options))
    return jax.tree_util.tree_unflatten(structure, _dense(tensors, [leaf for _, leaf in leaves]))
