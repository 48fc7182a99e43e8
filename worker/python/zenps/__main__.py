"""python -m zenps doctor: what of zenps is found on this host, and whether a coordinator answers."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from typing import List, Optional

from . import __version__, _lib, run
from .errors import ZenpsError


def _line(what: str, text: str) -> None:
    print(f"{what:12} {text}")


def _library() -> bool:
    try:
        found = _lib.library()
    except (ImportError, ZenpsError) as error:
        _line("library", f"NOT FOUND: {error}")
        return False
    _line("library", f"{found.path} (version {found.version})")
    _line("libfabric", f"{found.fabric_path} (version {found.fabric_version}): {found.fabric_source}")
    _line("providers", ", ".join(found.providers) or "NONE")
    return bool(found.providers)


def _coordinator(address: str) -> bool:
    """Asks it by zenpsctl, the same way as an administrator does."""
    zenpsctl = run.find("zenpsctl")
    if zenpsctl is None:
        _line("coordinator", f"{address}: not asked, since there is no zenpsctl")
        return False
    command = [zenpsctl, "-e", address, "-o", "json", "status"]
    asked = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, check=False)
    if asked.returncode != 0:
        _line("coordinator", f"{address}: NOT REACHED: {asked.stderr.strip()}")
        return False
    status = json.loads(asked.stdout)["coordinator"][0]
    _line("coordinator", f"{address}: {status['state']}, version {status['version']}, {status['servers']} servers, "
          f"{status['jobs']} jobs of {status['ranks']} ranks")  # fmt: skip
    return True


def doctor(coordinator: Optional[str]) -> int:
    _line("package", f"{os.path.dirname(os.path.abspath(__file__))} (version {__version__})")
    _line("python", f"{sys.executable} (version {platform.python_version()})")
    well = _library()
    for program in run.PROGRAMS:
        path = run.find(program)
        _line(program, path or "not found: neither in the package nor in PATH")
    named = coordinator or os.environ.get("ZENPS_COORDINATOR")
    reached = _coordinator(named or "127.0.0.1:7077")
    return 0 if well and (reached or named is None) else 1


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zenps")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "doctor",
        help="what of zenps is found on this host, and whether a coordinator answers",
        description="Says which library, libfabric, providers and programs are found, and asks the coordinator. Exit "
        "status 1 where the library cannot be used, or a coordinator that is named does not answer.",
    )
    command.add_argument("--coordinator", metavar="ADDRESS,...", help="default: ZENPS_COORDINATOR, 127.0.0.1:7077")
    return doctor(parser.parse_args(arguments).coordinator)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "| head" ends it without a traceback
    sys.exit(main())
