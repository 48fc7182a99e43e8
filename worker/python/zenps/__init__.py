"""zenps: sums sparse gradients between data-parallel trainers.

    import zenps

    with zenps.init() as job:                                  # rank, world, coordinator: from the environment
        table = job.tensor("embedding", rows=1000000, width=64)
        request = table.allreduce(gradients, row_ids)          # arrays of numpy, torch, ...: no copy; returns at once
        rows = request.wait()                                  # rows.row_ids, rows.values: the same on every rank

Needs libzenps; `python -m zenps doctor` says which one is found. Without torch and numpy; zenps.torch is for PyTorch.
"""

from __future__ import annotations

from . import arrays, errors
from ._abi import Status
from ._lib import Library, library
from .arrays import Array, Rows
from .elastic import Generation
from .errors import (Again, Busy, Canceled, Closed, ConnectFailed, FabricError, Forked, Internal, Invalid, IOFailed,
                     MissingRanks, NoMemory, PeerLost, ProtocolError, QuotaExceeded, RankTaken, Refused, RoundTimeout,
                     ServerLost, ShapeMismatch, Stale, TrainerFailed, Truncated, Unknown, Unsupported, VersionMismatch,
                     ZenpsError)
from .group import Group
from .job import Job, Totals, init
from .parts import Part
from .request import Request, RequestStats, wait_all
from .sparsify import Sparsifier, SparsifierStats, shared_threshold
from .tensor import Tensor

__version__ = "0.1.0"
__all__ = [
    "Again", "Array", "Busy", "Canceled", "Closed", "ConnectFailed", "FabricError", "Forked", "Generation", "Group",
    "IOFailed", "Internal", "Invalid", "Job", "Library", "MissingRanks", "NoMemory", "Part", "PeerLost", "ProtocolError",
    "QuotaExceeded", "RankTaken", "Refused",
    "Request", "RequestStats", "RoundTimeout", "Rows", "ServerLost", "ShapeMismatch", "Sparsifier", "SparsifierStats",
    "Stale", "Status", "Tensor",
    "Totals", "TrainerFailed", "Truncated", "Unknown", "Unsupported", "VersionMismatch", "ZenpsError", "arrays", "errors", "init",
    "library", "shared_threshold", "wait_all",
]  # fmt: skip
