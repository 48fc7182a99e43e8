"""A cluster for a run of torchrun on one host that names no coordinator.

Each rank gets a zenpsrun, as under ``torchrun --no_python zenpsrun -- python train.py``. Rank 0's zenpsrun starts a
coordinator and a server, and ends them after the trainer, however that ends.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import tempfile
import time
from typing import Dict, Optional

from .. import run
from ..errors import ConnectFailed

_DEFAULT = ("127.0.0.1", 7077)  # where zenps looks for a coordinator
_PATIENCE = 120.0  # seconds for zenpsrun, which itself waits 60 s for its daemons
# In the place of a trainer: shows the variables that zenpsrun sets, and lives as long as the trainer.
_STUB = 'env -0 >"$1.part" && mv "$1.part" "$1" && exec tail --pid="$2" -f /dev/null'


def is_needed(coordinator: Optional[str]) -> bool:
    """Whether torchrun has started this process with all its ranks on this host, and no coordinator is named or there."""
    known = os.environ.get
    if coordinator or known("ZENPS_COORDINATOR") or "TORCHELASTIC_RUN_ID" not in os.environ or "MASTER_PORT" not in os.environ:
        return False
    if known("LOCAL_WORLD_SIZE") != known("WORLD_SIZE") or run.find("zenpsrun") is None:
        return False
    try:
        socket.create_connection(_DEFAULT, 1).close()
    except OSError:
        return True
    return False


def _port() -> int:
    """A number for the coordinator's Unix socket: another one for each run on this host, and for each attempt of a run."""
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return 1024 + (int(os.environ["MASTER_PORT"]) + 7919 * attempt) % (65535 - 1024)


def _variables(path: str, process: "subprocess.Popen[bytes]") -> Dict[str, str]:
    end = time.monotonic() + _PATIENCE
    while not os.path.exists(path):
        if process.poll() is not None or time.monotonic() > end:
            process.terminate()
            raise ConnectFailed("zenpsrun could not start a coordinator for this run of torchrun; its lines above say why. To use "
                                "a running one, set ZENPS_COORDINATOR=HOST:PORT")  # fmt: skip
        time.sleep(0.01)
    with open(path, "rb") as file:
        pairs = (each.partition(b"=") for each in file.read().split(b"\0"))
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name.startswith(b"ZENPS_")}


def start() -> None:
    """Sets ZENPS_COORDINATOR and its like in this process's environment. Raises ConnectFailed if zenpsrun cannot start."""
    folder = tempfile.mkdtemp(prefix="zenps-torchrun-")
    path = os.path.join(folder, "variables")
    command = [str(run.find("zenpsrun")), "--port", str(_port()), "--", "sh", "-c", _STUB, "sh", path, str(os.getpid())]
    try:
        # A session of its own: Ctrl-C is for trainers, whose last sums need the servers.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env=run.environment())
        os.environ.update(_variables(path, process))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if os.environ.get("RANK") == "0":
        logging.getLogger("zenps").warning(
            "no coordinator is named (ZENPS_COORDINATOR): rank 0 has started one, and one server, on this host for this run"
        )
