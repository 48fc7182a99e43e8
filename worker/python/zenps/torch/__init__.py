"""zenps.torch: gradients of PyTorch models, summed over the ranks of a job.

    import zenps.torch as zt

    job = zt.init()                      # rank, world, coordinator: from the environment of zenpsrun or torchrun
    sync = zt.GradientSync(model)        # that is all: loss.backward() returns with the mean of all ranks' gradients

or, where the model is a DistributedDataParallel already, ``zt.ddp(model)``. torch 1.13 and later.
"""

from __future__ import annotations

import torch

from .. import Job
from .collective import Work, all_reduce, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .compress import DGC, Buckets, ChunkTopK, Compression, Gaussiank, GTopk, OkTopk, TopK
from .control import SyncStats
from .ddp import HookState, ddp, hook
from .elastic import Changed, State, elastic
from .jobs import init
from .outer import OuterSync
from .quorum import OuterStats
from .sync import GradientSync

if torch.distributed.is_available():
    from . import backend

    backend.register()

__all__ = [
    "Buckets", "Changed", "ChunkTopK", "Compression", "DGC", "GTopk", "Gaussiank", "GradientSync", "HookState", "Job", "OkTopk",
    "OuterStats", "OuterSync", "State", "SyncStats", "TopK", "Work", "all_reduce", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "ddp",
    "elastic", "hook", "init",
]  # fmt: skip
