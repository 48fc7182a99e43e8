"""Finds libzenps, loads it once, and declares its functions.

The library is $ZENPS_LIBRARY, else the one inside the package (a wheel has one), else the one that the dynamic linker
finds. libfabric, which it needs, is loaded ahead of it, so that the linker takes that very file: $ZENPS_LIBFABRIC, else
the one that the process has already (two libfabrics in one process break both), else that of the EFA installer, else
the linker's, else the package's own, which has tcp and shared memory alone.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from typing import Any, Iterator, NoReturn, Optional, Tuple

from . import _abi, errors

BUNDLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bundle")
SONAME = "libzenps.so.0"
FABRIC_SONAME = "libfabric.so.1"
_OWN = "the package's own: tcp and shared memory alone"
EFA_FOLDERS = ("/opt/amazon/efa/lib64", "/opt/amazon/efa/lib")

_lock = threading.Lock()
_lib: Optional[ctypes.CDLL] = None
_fabric_source = ""


@dataclass(frozen=True)
class Library:
    """The library as it was loaded. fabric_source says why this libfabric was taken."""

    path: str
    version: str
    fabric_path: str
    fabric_source: str
    fabric_version: str
    providers: Tuple[str, ...]


def mapped(name: str) -> str:
    """Path of the shared object whose file name begins with `name` in this process; "" where there is none."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if path and os.path.basename(path).startswith(name):
                return "/" + path
    return ""


def _fabric_candidates() -> Iterator[Tuple[str, str]]:
    named = os.environ.get("ZENPS_LIBFABRIC", "")
    if named:
        yield named, "ZENPS_LIBFABRIC"
        return
    loaded = mapped("libfabric.so")
    if loaded:
        yield loaded, "already in the process"
    for folder in EFA_FOLDERS:
        path = os.path.join(folder, FABRIC_SONAME)
        if os.path.exists(path):
            yield path, "the EFA installer's"
    yield FABRIC_SONAME, "the system's"
    path = os.path.join(BUNDLE, "fallback", FABRIC_SONAME)
    if os.path.exists(path):
        yield path, _OWN


def _load_fabric() -> str:
    """Loads the libfabric to use, and says where it comes from; "" where none was found, as the linker will say."""
    for path, source in _fabric_candidates():
        try:
            ctypes.CDLL(path)
        except OSError as error:
            if source == "ZENPS_LIBFABRIC":
                raise errors.FabricError(f"ZENPS_LIBFABRIC={path}: {error}") from error
            continue
        # The programs of a wheel hand its own to their children in LD_LIBRARY_PATH.
        return _OWN if mapped(FABRIC_SONAME).startswith(BUNDLE) else source
    return ""


def fabric_folder() -> str:
    """The folder that programs of this package need in LD_LIBRARY_PATH to take the same libfabric; "" where the linker
    finds it. Loads it."""
    _load_fabric()
    path = mapped("libfabric.so")
    if not path or path.startswith(BUNDLE) or os.environ.get("ZENPS_LIBFABRIC") or path.startswith(EFA_FOLDERS):
        return os.path.dirname(path)
    return ""


def _load_library() -> ctypes.CDLL:
    named = os.environ.get("ZENPS_LIBRARY", "")
    bundled = os.path.join(BUNDLE, SONAME)
    path = named or (bundled if os.path.exists(bundled) else SONAME)
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        what = "ZENPS_LIBRARY" if named else "libzenps"
        raise ImportError(
            f"{what}: {error}; install zenps and run ldconfig, or name the library: ZENPS_LIBRARY=/usr/local/lib/{SONAME}"
        ) from error


def _declare(library: ctypes.CDLL) -> None:
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            version = _call_version(library)
            raise errors.VersionMismatch(
                f"libzenps {version} ({mapped('libzenps.so')}) has no {name}(): this package needs that of version "
                f"{'.'.join(map(str, _abi.VERSION))}; ZENPS_LIBRARY names the library to load"
            ) from None
        function.restype = result
        function.argtypes = arguments


def _call_version(library: ctypes.CDLL) -> str:
    library.zenps_version.restype = ctypes.c_char_p
    return str(library.zenps_version().decode())


def load() -> Any:
    """The library, loaded by the first call. Any thread."""
    global _lib, _fabric_source
    if _lib is None:
        with _lock:
            if _lib is None:
                # A library below libfabric takes signals over when it is loaded, unless this is set.
                os.environ.setdefault("IPATH_NO_BACKTRACE", "1")
                _fabric_source = _load_fabric()
                library = _load_library()
                _declare(library)
                _lib = library
    return _lib


def library() -> Library:
    """What was loaded: paths, versions, and the fabric providers that libfabric offers on this host."""
    lib = load()
    version, providers = _fabric_offers()
    return Library(
        path=mapped("libzenps.so"),
        version=lib.zenps_version().decode(),
        fabric_path=mapped("libfabric.so"),
        fabric_source=_fabric_source,
        fabric_version=version,
        providers=providers,
    )


class _FabricAttr(ctypes.Structure):  # struct fi_fabric_attr
    _fields_ = [
        ("fabric", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("prov_name", ctypes.c_char_p),
        ("prov_version", ctypes.c_uint32),
        ("api_version", ctypes.c_uint32),
    ]


class _FabricInfo(ctypes.Structure):  # struct fi_info
    pass


_FabricInfo._fields_ = [
    ("next", ctypes.POINTER(_FabricInfo)),
    ("caps", ctypes.c_uint64),
    ("mode", ctypes.c_uint64),
    ("addr_format", ctypes.c_uint32),
    ("src_addrlen", ctypes.c_size_t),
    ("dest_addrlen", ctypes.c_size_t),
    ("addresses_and_attributes", ctypes.c_void_p * 7),
    ("fabric_attr", ctypes.POINTER(_FabricAttr)),
    ("nic", ctypes.c_void_p),
]


def _fabric_offers() -> Tuple[str, Tuple[str, ...]]:
    """Version of libfabric and names of its providers."""
    fabric = ctypes.CDLL(mapped("libfabric.so") or FABRIC_SONAME)
    version = fabric.fi_version()
    only_names = ctypes.c_uint64(1 << 54)  # FI_PROV_ATTR_ONLY
    head = ctypes.POINTER(_FabricInfo)()
    if fabric.fi_getinfo(version, None, None, only_names, None, ctypes.byref(head)) != 0:
        return f"{version >> 16}.{version & 0xFFFF}", ()
    names = []
    info = head
    while info:
        attr = info.contents.fabric_attr
        if attr and attr.contents.prov_name:
            name = attr.contents.prov_name.decode()
            if name not in names:
                names.append(name)
        info = info.contents.next
    fabric.fi_freeinfo.argtypes = [ctypes.POINTER(_FabricInfo)]
    fabric.fi_freeinfo(head)
    return f"{version >> 16}.{version & 0xFFFF}", tuple(names)


def error_of(detail: Any, job: str = "") -> errors.ZenpsError:
    """The exception of a zenps_error_t."""
    status = _abi.Status(detail.status)
    tensor = detail.tensor.decode(errors="replace")
    return errors.BY_STATUS[status](
        detail.text.decode(errors="replace"),
        job=job,
        tensor=tensor,
        step=int(detail.step) if tensor else None,
        missing_ranks=tuple(detail.missing_ranks[: detail.n_missing]),
        needed=int(detail.needed),
    )


def raise_last(job: str = "") -> NoReturn:
    """Raises what the last failing call of this thread returned."""
    raise error_of(load().zenps_last_error().contents, job)


def check(status: int, job: str = "") -> None:
    if status != 0:
        raise_last(job)
