"""Arrays: where they are, whose memory they are in, and how other libraries see them without a copy."""

from __future__ import annotations

import array
import ctypes
import math
import sys
from ctypes import Structure, c_int, c_ssize_t, c_void_p, py_object, pythonapi
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from . import _dlpack
from .errors import Invalid, Unsupported

# Bytes, format of the buffer protocol, and type string of numpy. Python has no bf16, and memoryview no f16: their bits.
_KINDS: Dict[str, Tuple[int, str, str]] = {
    "f32": (4, "f", "<f4"),
    "f64": (8, "d", "<f8"),
    "bf16": (2, "H", "<u2"),
    "f16": (2, "H", "<f2"),
    "i64": (8, "q", "<i8"),
    "u8": (1, "B", "|u1"),
}
_CTYPES = {"f32": ctypes.c_float, "f64": ctypes.c_double, "bf16": ctypes.c_uint16, "i64": ctypes.c_int64, "u8": ctypes.c_uint8}
_NOTHING = (ctypes.c_int64 * 1)()  # where empty arrays are
_blocks: Dict[int, Any] = {}  # array types of 2^n bytes: one per length would be a new class for every result


class Array:
    """An array of `shape` in C order at `address`. device: None for host memory, the number of a GPU for its memory, -1
    for that of the job's GPU.

    ``data`` is a memoryview of it, which all that takes the buffer protocol reads without a copy; numpy.asarray(),
    torch.from_dlpack() and others take the Array itself. bf16 is its bits there, as 16-bit integers. What any of them
    gives keeps the memory.

    Programs that know an address can make one: ``Array(t.data_ptr(), "f32", (n, width), owner=t)``. The owner is what
    must live as long as the memory is used.
    """

    __slots__ = ("address", "dtype", "shape", "owner", "device", "readonly")

    def __init__(
        self,
        address: int,
        dtype: str,
        shape: Sequence[int],
        owner: object = None,
        device: Optional[int] = None,
        readonly: bool = False,
    ) -> None:
        if dtype not in _KINDS:
            raise Invalid(f"dtype {dtype!r}; must be one of {', '.join(_KINDS)}")
        self.dtype = dtype
        self.shape = tuple(shape)
        self.address = address if self.size else ctypes.addressof(_NOTHING)
        self.owner = owner
        self.device = device
        self.readonly = readonly

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * _KINDS[self.dtype][0]

    @property
    def data(self) -> memoryview:
        """The array as a memoryview of its shape (one of no elements has one dimension)."""
        if self.device is not None:
            raise Unsupported("the array is in the memory of a GPU, which Python cannot read")
        form = _KINDS[self.dtype][1]
        if not self.size:
            return memoryview(b"").cast(form)
        bits = (self.nbytes - 1).bit_length()
        kind = _blocks.get(bits) or _blocks.setdefault(bits, ctypes.c_ubyte * (1 << bits))
        block = kind.from_address(self.address)
        block.owner = self
        view = memoryview(block).cast("B")[: self.nbytes]
        view = view.cast(form, shape=list(self.shape)) if len(self.shape) > 1 else view.cast(form)
        return view.toreadonly() if self.readonly else view

    def __buffer__(self, flags: int) -> memoryview:
        """Of Python 3.12 and later, where numpy.asarray() asks for it first: so what it cannot say is refused here."""
        if self.dtype == "f16":
            raise BufferError("the buffer protocol of Python has no f16; take its data")
        if self.size or self.device is not None:
            return self.data
        kind: Any = _CTYPES[self.dtype]
        for length in reversed(self.shape):
            kind *= length
        return memoryview(kind())

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if self.device is not None:
            raise AttributeError("the array is in the memory of a GPU")
        return {
            "shape": self.shape,
            "typestr": _KINDS[self.dtype][2],
            "data": (self.address, self.readonly),
            "version": 3,
        }

    def __dlpack__(self, **_: Any) -> Any:
        if self.device is not None:
            raise BufferError("the array is in the memory of a GPU")
        if self.readonly:
            raise BufferError("the array is read-only, which DLPack cannot say; take its data")
        return _dlpack.give(self.address, self.dtype, self.shape, self)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (_dlpack.CPU, 0)

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, at: Any) -> Any:
        return self.data[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.data[at] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def tolist(self) -> Any:
        return self.data.tolist()

    def tobytes(self) -> bytes:
        return self.data.tobytes()

    def __repr__(self) -> str:
        where = "" if self.device is None else f", GPU {self.device}"
        return f"<zenps.Array {self.dtype}{list(self.shape)}{where}>"


class Rows:
    """A result, or a selection: which rows there are, and their values.

    row_ids: int64[nnz], ascending, none twice. None: the values are dense.
    values: dtype[nnz, width]; dense: dtype[rows, width].
    nnz: the number of rows that any rank sent. A dense result may count all rows.
    contributors: the ranks that had rows in the step, or said that they contribute. None: not known.
    late: a quorum closed the step without this rank's gradient. The result lacks it: give it again.
    contributed: int64[n], the rows of this rank's gradient in the result; of tensors with that option.
    The arrays live as long as the result or any view of them, also after the job is closed.
    """

    __slots__ = ("nnz", "row_ids", "values", "contributors", "contributed", "late")

    def __init__(self, nnz: int, row_ids: Optional[Array], values: Array, contributors: int = -1) -> None:
        self.nnz = nnz
        self.row_ids = row_ids
        self.values = values
        self.contributors = None if contributors < 0 else contributors
        self.contributed: Optional[Array] = None
        self.late = False

    def __repr__(self) -> str:
        return f"<zenps.Rows {self.nnz} rows{' (dense)' if self.row_ids is None else ''}, {self.values!r}>"


def new(dtype: str, shape: Sequence[int]) -> Array:
    """Zeros in memory of Python's."""
    n_bytes = max(math.prod(shape) * _KINDS[dtype][0], 1)
    block = bytearray(n_bytes)
    return Array(_address_of(memoryview(block)), dtype, shape, owner=block)


class _Buffer(Structure):  # Py_buffer
    _fields_ = [
        ("buf", c_void_p),
        ("obj", py_object),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("pointers", c_void_p * 5),
    ]


_get = pythonapi.PyObject_GetBuffer
_get.argtypes = [py_object, c_void_p, c_int]
_release = pythonapi.PyBuffer_Release
_release.restype, _release.argtypes = None, [c_void_p]


def _address_of(view: memoryview) -> int:
    """Where the bytes of a memoryview are. They stay there while the view lives."""
    buffer = _Buffer()
    _get(view, ctypes.byref(buffer), 0)
    address = int(buffer.buf or 0)
    _release(ctypes.byref(buffer))
    return address


_BY_FORMAT = {"f": "f32", "d": "f64", "e": "f16", "q": "i64", "l": "i64", "B": "u8", "b": "u8", "c": "u8"}


def _of_buffer(view: memoryview, wanted: str) -> Array:
    form = view.format.lstrip("@=<")
    dtype = _BY_FORMAT.get(form, "")
    if form == "H" and wanted in ("bf16", "f16"):
        dtype = wanted
    if not view.c_contiguous:
        raise Invalid("the array is not contiguous in C order; give a contiguous copy")
    shape: Tuple[int, ...] = view.shape or ()
    if wanted == "u8":
        dtype, shape = "u8", (view.nbytes,)
    if not dtype:
        raise Invalid(f"the array has elements of format {view.format!r}, none that zenps has; {wanted} is wanted")
    return Array(_address_of(view), dtype, shape, owner=view, readonly=view.readonly)


_PLAIN = "biufcmMSV"  # kinds of numpy whose type strings end with the bytes of an element


def _of_interface(owner: Any, interface: Dict[str, Any], device: Optional[int], wanted: str) -> Array:
    text = interface["typestr"]
    dtype = next((name for name, kind in _KINDS.items() if kind[2] == text and name != "bf16"), "")
    if wanted == "bf16" and text[1:] in ("u2", "V2"):
        dtype = "bf16"
    step = _KINDS[dtype][0] if dtype else 0
    size = text[2:].partition("[")[0]  # "<M8[s]"
    if wanted == "u8" and text[1:2] in _PLAIN and size.isdigit():
        dtype, step = "u8", int(size)
    if not dtype:
        raise Invalid(f"the array has elements of type {text!r}, none that zenps has; {wanted} is wanted")
    shape = tuple(interface["shape"])
    n_bytes = math.prod(shape) * step
    expected: List[int] = []
    for size in reversed(shape):
        expected.insert(0, step)
        step *= size
    strides = interface.get("strides")
    if strides is not None and 0 not in shape and any(n > 1 and a != b for n, a, b in zip(shape, strides, expected)):
        raise Invalid("the array is not contiguous in C order; give a contiguous copy")
    address, readonly = interface["data"]
    if wanted == "u8":
        shape = (n_bytes,)
    return Array(address, dtype, shape, owner=owner, device=device, readonly=readonly)


def _of_capsule(owner: Any, wanted: str, stream: Optional[int]) -> Array:
    kind, number = owner.__dlpack_device__()
    # 1 is CUDA's legacy default stream, in whose order work of stream 0 is.
    try:
        capsule = owner.__dlpack__(stream=stream or 1) if kind in _dlpack.ON_CUDA else owner.__dlpack__()
    except (BufferError, RuntimeError, TypeError) as error:  # torch before 2.0 gives no array of bools
        as_bytes = _view_of_bools(owner) if wanted == "u8" else None
        if as_bytes is None:
            raise Invalid(f"the array cannot be shared: {error}") from None
        return _of_capsule(as_bytes, wanted, stream)
    address, dtype, shape, contiguous, kind, number = _dlpack.take(capsule)
    if wanted == "u8":
        size = _dlpack.element_bytes(capsule)
        dtype, shape = ("u8", (math.prod(shape) * size,)) if size else ("", shape)
    if not dtype:
        raise Invalid(f"the array has elements of a type that zenps has not; {wanted} is wanted")
    if not contiguous:
        raise Invalid("the array is not contiguous in C order; give a contiguous copy")
    if kind not in _dlpack.ON_HOST and kind not in _dlpack.ON_CUDA:
        raise Unsupported(f"the array is on a device of DLPack's kind {kind}; zenps takes host memory and CUDA")
    return Array(address, dtype, shape, owner=(capsule, owner), device=number if kind in _dlpack.ON_CUDA else None)


def _view_of_bools(value: Any) -> Any:
    """A tensor of torch as bytes, in the same memory; None for all else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.dtype != torch.bool:
        return None
    return value.view(torch.uint8)


def of(value: Any, wanted: str, stream: Optional[int] = None) -> Array:
    """The Array of anything that has one: of the buffer protocol, DLPack, __cuda_array_interface__, or
    __array_interface__, none of which copies; a sequence of numbers is copied. The dtype is to be `wanted` ("u8": any,
    as bytes)."""
    if isinstance(value, Array):
        found = value
    else:
        found = _find(value, wanted, stream)
    if wanted == "u8" and found.dtype != "u8":
        return Array(found.address, "u8", (found.nbytes,), found.owner, found.device, found.readonly)
    if found.dtype != wanted:
        raise Invalid(f"the array has elements of {found.dtype}; {wanted} is wanted")
    return found


_INTEGERS = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "l": 8, "L": 8, "q": 8, "Q": 8, "n": 8, "N": 8}
_C_INTEGERS = {
    "i1": ctypes.c_int8, "u1": ctypes.c_uint8, "i2": ctypes.c_int16, "u2": ctypes.c_uint16, "i4": ctypes.c_int32,
    "u4": ctypes.c_uint32, "i8": ctypes.c_int64, "u8": ctypes.c_uint64,
}  # fmt: skip


def row_ids(value: Any, stream: Optional[int] = None) -> Array:
    """The int64 Array of row numbers: itself where it is one, and a copy of integers of another kind, which are in host
    memory. Invalid: a number of 2^63 or more, or no integers."""
    if isinstance(value, Array):
        return of(value, "i64", stream)
    view = _integers(value)
    if view is None:
        return of(value, "i64", stream)
    if not view.c_contiguous:
        raise Invalid("the array is not contiguous in C order; give a contiguous copy")
    flat = view if view.ndim == 1 else view.cast("B").cast(view.format)
    try:
        return _of_buffer(memoryview(array.array("q", flat)), "i64")
    except OverflowError:
        raise Invalid(f"row {max(flat)} is over 2^63 - 1, the greatest that int64 has") from None


def _integers(value: Any) -> Optional[memoryview]:
    """Integers in host memory that are no int64; None for anything else."""
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        if not hasattr(value, "__dlpack__"):
            return _of_typestr(value)
        if value.__dlpack_device__()[0] not in _dlpack.ON_HOST:
            return None
        try:
            capsule = value.__dlpack__()
        except (BufferError, RuntimeError, TypeError):
            return None
        address, kind, shape, contiguous = _dlpack.take_integers(capsule)
        if kind == "i8" or kind not in _C_INTEGERS:
            return None
        if not contiguous:
            raise Invalid("the array is not contiguous in C order; give a contiguous copy") from None
        return _at(address, kind, math.prod(shape), (capsule, value))
    form = view.format.lstrip("@=<")
    if form not in _INTEGERS or form in "qln" or (form in "bB" and isinstance(value, (bytes, bytearray))):
        return None
    return view if view.format == form else memoryview(view.cast("B")).cast(form)


def _of_typestr(value: Any) -> Optional[memoryview]:
    interface = getattr(value, "__array_interface__", None)
    if interface is None or hasattr(value, "__cuda_array_interface__"):
        return None
    kind = interface["typestr"].lstrip("<|=")
    if kind == "i8" or kind not in _C_INTEGERS or interface.get("strides") is not None:
        return None
    return _at(interface["data"][0], kind, math.prod(interface["shape"]), value)


def _at(address: int, kind: str, n: int, owner: object) -> memoryview:
    if not n:
        return memoryview(b"").cast("B")
    block = (_C_INTEGERS[kind] * n).from_address(address)
    block.owner = owner  # type: ignore[attr-defined]
    form = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}[kind]
    return memoryview(block).cast("B").cast(form)


def _find(value: Any, wanted: str, stream: Optional[int]) -> Array:
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        pass
    else:
        return _of_buffer(view, wanted)
    if hasattr(value, "__dlpack__"):
        try:
            return _of_capsule(value, wanted, stream)
        except Invalid:  # numpy gives no dates
            if wanted != "u8" or not hasattr(value, "__array_interface__"):
                raise
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(value, interface, -1, wanted)
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        return _of_interface(value, interface, None, wanted)
    code = {"f32": "f", "f64": "d", "i64": "q"}.get(wanted, "")
    if code and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        try:
            return _of_buffer(memoryview(array.array(code, value)), wanted)
        except (TypeError, OverflowError) as error:
            if any(isinstance(each, Sequence) and not isinstance(each, (str, bytes)) for each in value):
                raise Invalid("a list of lists; give one flat list, row behind row, or an array") from None
            raise Invalid(f"a sequence that is no list of {wanted}: {error}") from None
    raise Invalid(
        f"{type(value).__name__} is no array: give one with the buffer protocol, DLPack, __cuda_array_interface__ or "
        f"__array_interface__{', or a sequence of numbers' if code else ''}"
    )
