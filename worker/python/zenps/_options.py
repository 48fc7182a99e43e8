"""Options of tensors, from Python's words to the C structure."""

from __future__ import annotations

import ctypes
import enum
import numbers
from typing import Any, Dict, Mapping, Optional, Sequence, Type, TypeVar

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


_ENUMS: Dict[str, Type[enum.IntEnum]] = {
    "op": _abi.Op,
    "values": _abi.Values,
    "codec": _abi.Codec,
    "order": _abi.Order,
}
_MEMBERS: Dict[str, Any] = {field[0]: field[1] for field in _abi.TensorOptions._fields_}


def _value(name: str, word: Any) -> str:
    """As a scheme's text has it."""
    if isinstance(word, str):
        return word
    if isinstance(word, (bool, numbers.Integral)):
        return str(int(word))
    if isinstance(word, numbers.Real):
        return repr(float(word))
    if isinstance(word, Sequence):
        return ("+" if word and isinstance(word[0], str) else "x").join(str(each) for each in word)
    raise Invalid(f"{name} {word!r}; a number, a word, or a list of either is wanted")


def _scheme(scheme: Optional[str], words: Mapping[str, Any]) -> Optional[str]:
    """The scheme's text with the options in `words` added. What the C library refuses, it refuses by name."""
    text = ",".join(f"{name}={_value(name, word)}" for name, word in words.items())
    if not text:
        return scheme
    scheme = scheme or ""
    return f"{scheme}{',' if ':' in scheme else ':'}{text}"


def fill(options: _abi.TensorOptions, words: Mapping[str, Any]) -> None:
    """What is None, or left out, stays as zenps_tensor_options_init() has it. Words that are no member of
    zenps_tensor_options_t are options of the scheme."""
    given = {name: word for name, word in words.items() if word is not None}
    for name in ("k", "density", "contributed"):
        if given.get(name) == 0:  # their defaults, with which other schemes go, too
            del given[name]
    scheme = _scheme(given.pop("scheme", None), {name: given.pop(name) for name in list(given) if name not in _MEMBERS})
    options.scheme = None if scheme is None else scheme.encode()
    for name, word in given.items():
        if name in ("struct_size", "group"):
            raise TypeError(f"tensor() has no option {name!r}")
        if name in _ENUMS:
            word = member(_ENUMS[name], word, name)
        elif not 0 <= word < 1 << (8 * ctypes.sizeof(_MEMBERS[name])):
            raise Invalid(f"{name} {word}; must be 0 to {(1 << (8 * ctypes.sizeof(_MEMBERS[name]))) - 1}")
        setattr(options, name, word)


def tells(options: _abi.TensorOptions) -> bool:
    """Whether the scheme's text asks for Rows.contributed."""
    return "contributed=1" in (options.scheme or b"").decode().replace(":", ",").split(",")
