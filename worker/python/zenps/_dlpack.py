"""DLPack by ctypes: reads the capsules of other libraries, and makes capsules of memory that an object here owns."""

from __future__ import annotations

import ctypes
from ctypes import (CFUNCTYPE, POINTER, PYFUNCTYPE, Structure, addressof, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16,
                    c_uint64, c_void_p, py_object, pythonapi)
from typing import Any, Dict, Optional, Sequence, Tuple

CPU = 1
ON_HOST = {CPU, 3, 11}  # pageable memory, and what CUDA and ROCm have pinned
ON_CUDA = {2, 13}
_NAME = b"dltensor"
_CODES = {(2, 32): "f32", (2, 64): "f64", (4, 16): "bf16", (2, 16): "f16", (0, 64): "i64", (1, 8): "u8"}
_OF = {dtype: code for code, dtype in _CODES.items()}


class _Tensor(Structure):  # DLTensor
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):  # DLManagedTensor
    _fields_ = [("tensor", _Tensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


_new = pythonapi.PyCapsule_New
_new.restype, _new.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
_pointer = pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [c_void_p, c_char_p]
_is_valid = pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c_int, [c_void_p, c_char_p]

# What consumers of our capsules hold, by the address of its DLManagedTensor.
_lent: Dict[int, Tuple[Any, ...]] = {}


def _give_back(managed: Optional[int]) -> None:
    _lent.pop(managed or 0, None)


def _drop(capsule: Optional[int]) -> None:
    if _is_valid(capsule, _NAME):  # nobody has taken the tensor out
        _lent.pop(_pointer(capsule, _NAME) or 0, None)


_deleter = CFUNCTYPE(None, c_void_p)(_give_back)
_destructor = PYFUNCTYPE(None, c_void_p)(_drop)


def give(address: int, dtype: str, shape: Sequence[int], owner: object) -> Any:
    """A capsule of an array in host memory, which keeps `owner` until its consumer is through with the array."""
    managed = _Managed()
    dims = (c_int64 * max(len(shape), 1))(*shape)
    code, bits = _OF[dtype]
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.ndim = address, CPU, len(shape)
    tensor.code, tensor.bits, tensor.lanes = code, bits, 1
    tensor.shape = ctypes.cast(dims, POINTER(c_int64))
    managed.deleter = ctypes.cast(_deleter, c_void_p).value
    at = addressof(managed)
    _lent[at] = (managed, dims, owner)
    return _new(at, _NAME, ctypes.cast(_destructor, c_void_p))


def element_bytes(capsule: Any) -> int:
    """Of the array in a capsule; 0 where elements are no whole bytes."""
    tensor = ctypes.cast(_pointer(id(capsule), _NAME), POINTER(_Managed)).contents.tensor
    bits: int = tensor.bits * tensor.lanes
    return 0 if bits % 8 else bits // 8


def take(capsule: Any) -> Tuple[int, str, Tuple[int, ...], bool, int, int]:
    """Address, dtype ("" for one that zenps has not), shape, whether contiguous, kind of device and its number, of the
    array in a capsule. The array is there as long as the capsule is."""
    tensor = ctypes.cast(_pointer(id(capsule), _NAME), POINTER(_Managed)).contents.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    contiguous = True
    if tensor.strides:
        step = 1
        for size, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim])):
            contiguous = contiguous and (size <= 1 or stride == step)
            step *= max(size, 1)
        contiguous = contiguous or 0 in shape
    dtype = _CODES.get((tensor.code, tensor.bits), "") if tensor.lanes == 1 else ""
    return (tensor.data or 0) + tensor.byte_offset, dtype, shape, contiguous, tensor.device_type, tensor.device_id


def take_integers(capsule: Any) -> Tuple[int, str, Tuple[int, ...], bool]:
    """Address, kind ("i4", "u8", ...; "" for no integers), shape and whether contiguous, as take() has them."""
    tensor = ctypes.cast(_pointer(id(capsule), _NAME), POINTER(_Managed)).contents.tensor
    address, _, shape, contiguous, _, _ = take(capsule)
    kind = {0: "i", 1: "u"}.get(tensor.code, "") if tensor.lanes == 1 else ""
    return address, f"{kind}{tensor.bits // 8}" if kind else "", shape, contiguous
