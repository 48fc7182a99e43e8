"""Options of tensors, from Python's words to the C structure."""

from __future__ import annotations

import ctypes
import enum
from typing import Any, Dict, Sequence, Type, TypeVar

from . import _abi
from .errors import Invalid

E = TypeVar("E", bound=enum.IntEnum)


def member(kind: Type[E], word: Any, what: str) -> E:
    """The constant of that name, in lower case."""
    names = {constant.name.lower(): constant for constant in kind}
    if isinstance(word, str) and word in names:
        return names[word]
    raise Invalid(f"{what} {word!r}; must be one of {', '.join(names)}")


def dtype(word: str) -> _abi.Dtype:
    return member(_abi.Dtype, word, "dtype")


def _without(words: Sequence[str]) -> int:
    return sum({member(_abi.Without, word, "without") for word in words})


_ENUMS: Dict[str, Type[enum.IntEnum]] = {
    "op": _abi.Op,
    "values": _abi.Values,
    "codec": _abi.Codec,
    "partitioner": _abi.Partitioner,
    "allgather": _abi.Allgather,
    "order": _abi.Order,
}


def fill(options: _abi.TensorOptions, words: Dict[str, Any]) -> None:
    """What is None, or left out, stays as zenps_tensor_options_init() has it."""
    members = {name for name, *_ in _abi.TensorOptions._fields_} - {"struct_size", "n_levels", "group"}
    for name, word in words.items():
        if name not in members:
            raise TypeError(f"tensor() has no option {name!r}; there are {', '.join(sorted(members))}")
        if word is None:
            continue
        if name in _ENUMS:
            word = member(_ENUMS[name], word, name)
        elif name == "scheme":
            word = word.encode()
        elif name == "without":
            word = _without(word)
        elif name == "levels":
            options.n_levels = len(word)
            word = (ctypes.c_uint32 * len(word))(*word)
        elif name == "level_algorithms":
            numbers = [member(_abi.LevelAlgorithm, each, name) for each in word]
            word = (ctypes.c_int * len(numbers))(*numbers)
        else:
            kind: Any = dict((field[0], field[1]) for field in _abi.TensorOptions._fields_)[name]
            if kind is not ctypes.c_double and not -(1 << 31) <= word < 1 << 64:
                raise Invalid(f"{name} {word}; a number of at most 64 bits")
            if kind in (ctypes.c_uint32, ctypes.c_uint64) and not 0 <= word < 1 << (8 * ctypes.sizeof(kind)):
                raise Invalid(f"{name} {word}; must be 0 to {(1 << (8 * ctypes.sizeof(kind))) - 1}")
        setattr(options, name, word)
