"""In which memory zenps gets what is on a GPU: in the GPU's, or through a copy in host memory.

Where this host's zenps has support for GPUs, gradients are handed over where they are, with the stream in whose order
torch works on them. Where it has none (no libzenps_cuda, no driver, a GPU that is not the job's), they are copied to host
memory. Ranks may differ in it: results have the same bits.
"""

from __future__ import annotations

import logging
import weakref
from typing import Dict, Optional

import torch

from .. import _abi, _lib
from ..arrays import Array
from ..errors import Unsupported
from ..job import Job
from . import convert

HOST = torch.device("cpu")
_places: "weakref.WeakKeyDictionary[Job, Dict[torch.device, torch.device]]" = weakref.WeakKeyDictionary()


def refusal(job: Job, array: Array) -> Optional[Unsupported]:
    """Why the job does not take arrays in the memory that `array` is in; None: it does, and has opened that GPU."""
    lib = _lib.load()
    with job._using():
        device = -1 if array.device is None else array.device
        memory = _abi.Memory.HOST if array.device is None else _abi.Memory.DEVICE
        try:
            _lib.check(lib.zenps_mem_register(job._handle, memory, device, array.address, array.nbytes), job.name)
        except Unsupported as error:
            return error
        _lib.check(lib.zenps_mem_deregister(job._handle, array.address), job.name)
    return None


def _refused(job: Job, device: torch.device) -> Optional[Exception]:
    if device.type != "cuda":
        return Unsupported(f"of GPUs zenps has support for those of CUDA alone, not for {device.type}")
    return refusal(job, convert.array(torch.empty(1, dtype=torch.float32, device=device), (1,)))


def place(job: Job, device: torch.device) -> torch.device:
    """Where the job gets what is on `device`: there, or in host memory. Found out once for each job and device, and said
    in the log where gradients are copied."""
    if device.type == "cpu":
        return device
    known = _places.setdefault(job, {})
    if device not in known:
        why = _refused(job, device)
        known[device] = HOST if why is not None else device
        if why is not None:
            text = "torch: gradients on %s go through copies in host memory: %s"
            logging.getLogger("zenps").warning(text, device, why, extra={"component": "torch", "rank": job.rank})
    return known[device]


def stream(tensor: torch.Tensor) -> Optional[int]:
    """The cudaStream_t in whose order this thread's work on a tensor is done; None for one in host memory."""
    if tensor.device.type != "cuda":
        return None
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def settle(tensor: torch.Tensor) -> None:
    """Returns when what this thread has done to a tensor is seen by every stream."""
    if tensor.device.type == "cuda":
        torch.cuda.current_stream(tensor.device).synchronize()
