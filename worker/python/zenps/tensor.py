"""Tensors, and the operations on them."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple, Union

from . import _abi, _lib, arrays
from .arrays import Array, Rows
from .errors import Closed, Invalid
from .parts import Part
from .parts import allreduce as allreduce_parts
from .request import Request

if TYPE_CHECKING:
    from .job import Job

_byref = ctypes.byref
Wanted = Union[None, range, Any]


def _grad(device: Optional[int] = None, stream: Optional[int] = None) -> _abi.Grad:
    grad = _abi.Grad()
    grad.struct_size = ctypes.sizeof(grad)
    grad.device = -1
    if device is not None:
        grad.memory, grad.device, grad.stream = _abi.Memory.DEVICE, device, stream
    return grad


class _Taken:
    """A result's arrays, taken over from the library, which frees them with the last that owns this."""

    def __init__(self, request: int, job: str) -> None:
        self.grad = _grad()
        self._free = _lib.load().zenps_rows_free
        _lib.check(_lib.load().zenps_request_take(request, _byref(self.grad)), job)

    def __del__(self, byref: Any = _byref) -> None:
        self._free(byref(self.grad))


class Tensor:
    """A tensor of a job: rows x width values of one dtype. Made by :meth:`zenps.Job.tensor`.

    Every rank calls each operation once a step, in any order of tensors and steps; several may be in flight. `step` is
    None for the next one, which ``next_step`` is: 0, 1, 2, ... Gradients are arrays that :func:`zenps.arrays.of` takes,
    without a copy: they are the library's to read until the request is done, and must not be changed before.

    values, row_ids: dense, dtype[rows, width] and None; or rows, dtype[nnz, width] and int64[nnz], in any order, repeated
    or none. Both None: no rows. Values may be flat. Row numbers in host memory may be integers of any kind: those that are
    not int64 are copied.

    out: what becomes of the result.
      "rows": the rows that any rank sent, ascending, in memory of the result's own;
      "dense": all rows, in a new array;
      "same": "dense" or "rows", as what goes in;
      an array dtype[rows, width] that can be written, which may be `values` itself: dense, into it;
      a pair of arrays (int64[n], dtype[n, width]): rows, into them; Truncated where there are more than n, which
        Request.fetch() then gets.
    contributes: what the op "mean_present" divides by is the number of ranks with rows, and those with contributes=True.
    stream: of arrays in a GPU's memory, the cudaStream_t as an integer, in whose order they are read and written.

    Of an elastic job a tensor ends with the generation that it was opened in: its calls raise Closed in the next.
    """

    def __init__(self, job: "Job", handle: int, generation: int) -> None:
        self.job = job
        self._generation = generation  # of the job
        self._handle: Optional[int] = handle
        info = _abi.TensorInfo()
        info.struct_size = ctypes.sizeof(info)
        _lib.check(_lib.load().zenps_tensor_info(handle, _byref(info)), job.name)
        self.rows: int = info.rows
        self.width: int = info.width
        self.partitions: int = info.partitions
        self.dtype: str = _abi.Dtype(info.dtype).name.lower()
        self.op: str = _abi.Op(info.op).name.lower()
        self.scheme: str = info.scheme.decode()
        self.name: str = ""
        self.contributed = False
        self.quorum = 0  # ranks that can close a step; 0: all are needed
        self._lock = threading.Lock()
        self._next = {"sum": 0, "pull": 0, "gather": 0}

    @property
    def next_step(self) -> int:
        """The step that the next allreduce(), push() or reduce_scatter() takes."""
        return self._next["sum"]

    def _shape_error(self, what: str, array: Array, wanted: str) -> Invalid:
        return Invalid(f"tensor {self.name}: {what} has shape {list(array.shape)}; {wanted} is wanted")

    def _fits(self, array: Array, rows: int) -> bool:
        """Flat, or with the rows as its first dimension."""
        return array.size == rows * self.width and (len(array.shape) < 2 or array.shape[0] == rows)

    def _array(self, what: str, value: Any, dtype: str, stream: Optional[int]) -> Array:
        try:
            return arrays.of(value, dtype, stream)
        except Invalid as error:
            raise Invalid(f"tensor {self.name}: {what}: {error}") from None

    def _row_ids(self, what: str, value: Any, stream: Optional[int]) -> Array:
        """Row numbers that go in: integers of any kind."""
        try:
            return arrays.row_ids(value, stream)
        except Invalid as error:
            raise Invalid(f"tensor {self.name}: {what}: {error}") from None

    def _into(self, grad: _abi.Grad, values: Array, ids: Optional[Array]) -> None:
        """Where the arrays are."""
        grad.values = values.address
        if ids is not None:
            if ids.device != values.device and ids.size:
                raise Invalid(f"tensor {self.name}: row_ids and values are not in the same memory")
            grad.row_ids = ids.address

    def _gradient(self, values: Any, row_ids: Any, stream: Optional[int],
                  contributes: bool = False, rows: Optional[int] = None) -> Tuple[_abi.Grad, Any]:  # fmt: skip
        """The zenps_grad_t of what goes in, and what must live while it is used."""
        if values is None:
            if row_ids is not None and len(row_ids):
                raise Invalid(f"tensor {self.name}: {len(row_ids)} row_ids without values")
            grad = _grad()
            grad.layout, grad.contributes = _abi.Layout.ROWS, contributes
            return grad, None
        array = self._array("values", values, self.dtype, stream)
        grad = _grad(array.device, stream)
        if row_ids is None:
            rows = self.rows if rows is None else rows
            if not self._fits(array, rows):
                raise self._shape_error("values", array, f"[{rows}, {self.width}], or row_ids with them,")
            grad.layout = _abi.Layout.DENSE
            self._into(grad, array, None)
            return grad, array
        ids = self._row_ids("row_ids", row_ids, stream)
        if not self._fits(array, ids.size):
            raise self._shape_error("values", array, f"[{ids.size}, {self.width}], for {ids.size} row_ids,")
        grad.layout, grad.nnz, grad.contributes = _abi.Layout.ROWS, ids.size, contributes
        self._into(grad, array, ids)
        return grad, (array, ids)

    def _result(self, out: Any, dense: bool, n_dense: int, stream: Optional[int]) -> Tuple[_abi.Grad, Callable[[int], Rows]]:
        """The zenps_grad_t of what comes out, and what makes Rows of it when the request is done."""
        if isinstance(out, str):
            if out not in ("same", "rows", "dense"):
                raise Invalid(f"tensor {self.name}: out {out!r}; must be same, rows, dense, an array, or a pair of arrays")
            if out == "rows" or (out == "same" and not dense):
                grad = _grad()
                grad.layout = _abi.Layout.ROWS
                return grad, lambda handle: self._taken(handle, grad)
            values = arrays.new(self.dtype, (n_dense, self.width))
        elif isinstance(out, tuple):
            return self._caller_rows(out, stream)
        else:
            values = self._array("out", out, self.dtype, stream)
            if not self._fits(values, n_dense):
                raise self._shape_error("out", values, f"[{n_dense}, {self.width}]")
            self._writable("out", values)
        grad = _grad(values.device, stream)
        grad.layout = _abi.Layout.DENSE
        self._into(grad, values, None)
        return grad, lambda _: Rows(grad.nnz, None, values, grad.contributors)

    def _writable(self, what: str, array: Array) -> None:
        if array.readonly:
            raise Invalid(f"tensor {self.name}: {what} is read-only")

    def _caller_rows(self, out: Tuple[Any, ...], stream: Optional[int]) -> Tuple[_abi.Grad, Callable[[int], Rows]]:
        if len(out) != 2:
            raise Invalid(f"tensor {self.name}: out is {len(out)} things; a pair of arrays is row_ids, values")
        ids, values = self._array("out[0]", out[0], "i64", stream), self._array("out[1]", out[1], self.dtype, stream)
        if not self._fits(values, ids.size):
            raise self._shape_error("out[1]", values, f"[{ids.size}, {self.width}], for {ids.size} row_ids,")
        self._writable("out[0]", ids)
        self._writable("out[1]", values)
        grad = _grad(values.device, stream)
        grad.layout, grad.capacity = _abi.Layout.ROWS, ids.size
        self._into(grad, values, ids)

        def collect(_: int) -> Rows:
            n = grad.nnz
            return Rows(
                n,
                Array(ids.address, "i64", (n,), ids, ids.device),
                Array(values.address, self.dtype, (n, self.width), values, values.device),
                grad.contributors,
            )

        return grad, collect

    def _taken(self, request: int, grad: _abi.Grad) -> Rows:
        """Rows in the library's arrays, which live from here on as long as what is made of them."""
        taken = _Taken(request, self.job.name)
        n, device = taken.grad.nnz, None if taken.grad.memory == _abi.Memory.HOST else int(taken.grad.device)
        ids = Array(taken.grad.row_ids or 0, "i64", (n,), taken, device)
        values = Array(taken.grad.values or 0, self.dtype, (n, self.width), taken, device)
        return Rows(n, ids, values, grad.contributors)

    def _wanted(self, rows: Wanted) -> Tuple[Optional[_abi.Rows], int, Any]:
        """The zenps_rows_t of the rows that are asked for, their number, and what must live during the call."""
        if rows is None:
            return None, self.rows, None
        raw = _abi.Rows()
        raw.struct_size = ctypes.sizeof(raw)
        if isinstance(rows, range):
            if rows.step != 1:
                raise Invalid(f"tensor {self.name}: rows {rows}; a range of step 1, or a list, is wanted")
            raw.first, raw.count = rows.start, len(rows)
            return raw, len(rows), None
        ids = self._row_ids("rows", rows, None)
        if ids.device is not None:
            raise Invalid(f"tensor {self.name}: rows is in the memory of a GPU; the list is wanted in host memory")
        raw.count, raw.row_ids = ids.size, ids.address
        return raw, ids.size, ids

    def _start(self, call: Any, counter: str, step: Optional[int], arguments: Tuple[Any, ...], borrowed: Any,
               collect: Callable[[int], Any]) -> "Request[Any]":  # fmt: skip
        """Steps are counted where the call went well alone, so that a refused one can be made again."""
        handle = ctypes.c_void_p()
        with self._lock, self.job._using(self._generation, f"tensor {self.name}"):
            if self._handle is None:
                raise Closed(f"tensor {self.name} is closed", job=self.job.name, tensor=self.name)
            number = self._next[counter] if step is None else step
            if not 0 <= number < 1 << 64:
                raise Invalid(f"tensor {self.name}: step {number}; must be 0 to 2^64 - 1")
            _lib.check(call(self._handle, number, *arguments, _byref(handle)), self.job.name)
            assert handle.value is not None
            self.job._requests[handle.value] = borrowed
            self._next[counter] = number + 1
        return Request(self, number, handle.value, (arguments, borrowed), collect)

    def allreduce(self, values: Any = None, row_ids: Any = None, *, step: Optional[int] = None, out: Any = "same",
                  stream: Optional[int] = None, contributes: bool = False) -> "Request[Rows]":  # fmt: skip
        """Starts the sum (or what the tensor's op is) of all ranks' gradients of the step; returns at once. The same bits
        on every rank and in every run. [Zen section 3]"""
        grad, borrowed = self._gradient(values, row_ids, stream, contributes)
        result, collect = self._result(out, grad.layout == _abi.Layout.DENSE, self.rows, stream)
        if self.contributed:
            collect = self._with_contributed(collect)
        call = _lib.load().zenps_allreduce
        return self._start(call, "sum", step, (_byref(grad), _byref(result)), (grad, borrowed), collect)

    def allreduce_parts(self, parts: Sequence[Part], *, step: Optional[int] = None, out: Any = "same",
                        contributes: bool = False) -> "Request[List[Rows]]":  # fmt: skip
        """The same of a gradient that consists of several arrays, in one round without a copy: parts in ascending order of
        row_base, not overlapping. The result is a list of Rows, one for each, whose row numbers count from row_base. out:
        for all parts, or a list with one for each: [part.values for part in parts] sums dense ones in place. Host memory."""
        return allreduce_parts(self, parts, step, out, contributes)

    def _take(self, request: int) -> _Taken:
        return _Taken(request, self.job.name)

    def push(self, values: Any = None, row_ids: Any = None, *, step: Optional[int] = None,
             stream: Optional[int] = None, contributes: bool = False) -> "Request[None]":  # fmt: skip
        """Starts this rank's push of the step alone; the request is done when servers have the gradient. How the sum ends
        shows in a pull."""
        grad, borrowed = self._gradient(values, row_ids, stream, contributes)
        call = _lib.load().zenps_push
        return self._start(call, "sum", step, (_byref(grad),), (grad, borrowed), lambda _: None)

    def pull(self, rows: Wanted = None, *, step: Optional[int] = None, out: Any = "rows",
             stream: Optional[int] = None) -> "Request[Rows]":  # fmt: skip
        """Starts a pull of rows (None: all; a range; or an int64 list in any order) of the step's sum, which may be asked
        for before it is there, once a step. `step` None counts pulls. "dense" has the rows where they were asked for,
        dtype[len(rows), width], zeros where no rank pushed any."""
        wanted, n, ids = self._wanted(rows)
        result, collect = self._result(out, False, n, stream)
        call = _lib.load().zenps_pull
        which = None if wanted is None else _byref(wanted)
        return self._start(call, "pull", step, (which, _byref(result)), (wanted, ids), collect)

    def pull_newest(self, staleness: int, rows: Wanted = None, *, step: Optional[int] = None, out: Any = "rows",
                    stream: Optional[int] = None) -> "Request[Rows]":  # fmt: skip
        """Bounded staleness: as pull(), of the newest sum that is complete, of steps step - staleness to step (None: this
        rank's newest); waits only where there is none. Request.stats.step tells which it was. For a tensor that was opened
        with staleness=, the most that may be asked for, up to 31."""
        wanted, n, ids = self._wanted(rows)
        result, collect = self._result(out, False, n, stream)
        if not 0 <= staleness < 1 << 32:
            raise Invalid(f"tensor {self.name}: staleness {staleness}; must be 0 to what the tensor was opened with")
        if step is None:
            step = self._next["sum"] - 1
        call = _lib.load().zenps_pull_newest
        which = None if wanted is None else _byref(wanted)
        return self._start(call, "newest", step, (staleness, which, _byref(result)), (wanted, ids), collect)

    def reduce_scatter(self, values: Any = None, row_ids: Any = None, *, rows: Wanted, step: Optional[int] = None,
                       out: Any = "rows", stream: Optional[int] = None,
                       contributes: bool = False) -> "Request[Rows]":  # fmt: skip
        """A push of a gradient and a pull of `rows`, as :meth:`pull` takes them, in one."""
        grad, borrowed = self._gradient(values, row_ids, stream, contributes)
        wanted, n, ids = self._wanted(rows)
        result, collect = self._result(out, False, n, stream)
        call = _lib.load().zenps_reduce_scatter
        which = None if wanted is None else _byref(wanted)
        return self._start(call, "sum", step, (_byref(grad), which, _byref(result)), (grad, borrowed, wanted, ids), collect)

    def allgather(self, values: Any = None, row_ids: Any = None, *, step: Optional[int] = None,
                  out: Any = "rows") -> "Request[Rows]":  # fmt: skip
        """Starts a copy of all ranks' rows to all, bit for bit; a row may come from one rank alone, once. Its steps are
        apart from those of sums. Host memory."""
        grad, borrowed = self._gradient(values, row_ids, None)
        result, collect = self._result(out, grad.layout == _abi.Layout.DENSE, self.rows, None)
        call = _lib.load().zenps_allgather
        return self._start(call, "gather", step, (_byref(grad), _byref(result)), (grad, borrowed), collect)

    def _with_contributed(self, collect: Callable[[int], Rows]) -> Callable[[int], Rows]:
        def both(handle: int) -> Rows:
            rows = collect(handle)
            grad = _grad()
            _lib.check(_lib.load().zenps_request_contributed(handle, _byref(grad)), self.job.name)
            rows.contributed = arrays.new("i64", (grad.nnz,))
            if grad.nnz:
                ctypes.memmove(rows.contributed.address, grad.row_ids, rows.contributed.nbytes)
            return rows

        return both

    def close(self) -> None:
        """Closes the tensor on all ranks: servers forget it, and the name may be opened anew, with another shape. Results
        stay. Waits for operations that were canceled. Collective; Busy, and nothing happens, while another one is in flight here."""

        def close_it() -> None:
            with self._lock:
                if self._handle is not None:
                    _lib.check(_lib.load().zenps_tensor_close(self._handle), self.job.name)
                    self.job._tensors.pop(self._handle, None)
                    self._handle = None

        if self._generation == self.job.generation.number:
            self.job._blocking(close_it, self._generation, f"tensor {self.name}")

    def owner(self, partition: int) -> int:
        """The server, 0 to job.servers - 1, that has the partition."""
        with self.job._using(self._generation, f"tensor {self.name}"):
            return int(_lib.load().zenps_tensor_owner(self._handle, partition))

    def __repr__(self) -> str:
        return f"<zenps.Tensor {self.name}: {self.dtype}[{self.rows}, {self.width}], {self.op}, {self.scheme}>"
