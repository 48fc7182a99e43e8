"""The programs that come with a wheel: zenpsd, zenpsctl and zenpsrun, as console scripts."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Dict, NoReturn, Optional

from . import _lib

PROGRAMS = ("zenpsd", "zenpsctl", "zenpsrun")


def find(program: str) -> Optional[str]:
    """The package's own program, else the one in PATH; None where there is neither."""
    own = os.path.join(_lib.BUNDLE, "bin", program)
    return own if os.access(own, os.X_OK) else shutil.which(program)


def environment() -> Dict[str, str]:
    """For a program of zenps: this process's variables, and the folder of the libfabric that the package takes."""
    variables = dict(os.environ)
    folder = _lib.fabric_folder()
    if folder:
        known = variables.get("LD_LIBRARY_PATH", "")
        variables["LD_LIBRARY_PATH"] = f"{folder}:{known}" if known else folder
    return variables


def _exec(program: str) -> NoReturn:
    path = os.path.join(_lib.BUNDLE, "bin", program)
    try:
        os.execve(path, [path, *sys.argv[1:]], environment())
    except OSError as error:
        sys.exit(f"{program}: {path}: {error.strerror}")


def zenpsd() -> NoReturn:
    _exec("zenpsd")


def zenpsctl() -> NoReturn:
    _exec("zenpsctl")


def zenpsrun() -> NoReturn:
    _exec("zenpsrun")
