"""Runs a situation of training in several ways, and compares the outcomes.

Every rank runs a situation in each way: "gloo", DistributedDataParallel over Gloo, which is the reference; "hook", the
same under zt.ddp(); "sync", GradientSync. In "hook/torch" and "sync/torch" Gloo sums the dense gradients, in "hook" and
"sync" zenps does. A way has a job, process groups and a thread of its own, so that a failure or a hang of one leaves the
others alone. After each way all ranks exchange their outcomes in the job of the launch.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import hashlib
import json
import sys
import threading
import traceback
import unittest
from typing import Any, Callable, ContextManager, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

import zenps
import zenps.torch as zt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

KINDS = ("gloo", "hook", "sync", "hook/torch", "sync/torch")
ROUND_TIMEOUT = 60.0  # seconds, of the jobs of ways
GLOO_TIMEOUT = 15.0  # seconds; some situations hang under Gloo, and end by it
DEADLINE = 300.0  # seconds of one way, above the timeouts of zenps and of Gloo: it has hung then
TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

Kept = List[Tuple[str, torch.Tensor]]
Summary = Dict[str, Any]


class Way:
    """One of KINDS, on one rank. kind: what stands before the slash. rank, world: as the job has them; job: None under Gloo."""

    def __init__(self, kind: str, name: str, rank: int, world: int, round_timeout: float = ROUND_TIMEOUT) -> None:
        self.kind, _, dense = kind.partition("/")
        self.rank, self.world, self._dense = rank, world, dense or "zenps"
        self.group = self._new_group()
        self.job: Optional[zenps.Job] = None
        if kind != "gloo":
            self.job = zenps.init(job=f"situation.{name}.{kind.replace('/', '.')}", round_timeout=round_timeout)
        self.kept: Kept = []
        self.shared: List[torch.Tensor] = []  # what is to be equal on all ranks
        self.syncs: Dict[int, zt.GradientSync] = {}  # by the id of the module

    @staticmethod
    def _new_group() -> Any:
        return dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=GLOO_TIMEOUT))

    def wrap(self, module: nn.Module, *, own_group: bool = False, sync: Optional[Dict[str, Any]] = None,
             hook: Optional[Dict[str, Any]] = None, **ddp: Any) -> Any:  # fmt: skip
        """The model to call. ddp: arguments of DistributedDataParallel; hook, sync: of zt.ddp() and of GradientSync."""
        group = self._new_group() if own_group else self.group
        if self.kind == "sync":
            over: Dict[str, Any] = dict({"dense": self._dense, "process_group": group}, **(sync or {}))
            made = zt.GradientSync(module, self.job, name=f"m{len(self.syncs)}", **over)
            self.syncs[id(module)] = made
            return module
        model = DistributedDataParallel(module, process_group=group, **ddp)
        if self.kind == "hook":
            zt.ddp(model, self.job, **dict({"dense": self._dense}, **(hook or {})))
        return model

    def no_sync(self, model: Any) -> ContextManager[Any]:
        return self.syncs[id(model)].no_sync() if self.kind == "sync" else model.no_sync()

    def join(self, model: Any, **ddp: Any) -> ContextManager[Any]:
        return self.syncs[id(model)].join() if self.kind == "sync" else model.join(**ddp)

    def barrier(self) -> None:
        dist.barrier(group=self.group)

    def inputs(self, step: int, *shape: int) -> torch.Tensor:
        """This rank's batch of the step."""
        return torch.randn(*(shape or (4, 6)), generator=torch.Generator().manual_seed(100 * step + self.rank))

    def ids(self, step: int, rows: int, n: int = 12) -> torch.Tensor:
        """Row numbers of this rank's batch, none twice: the order of a rank's own additions does not show."""
        return torch.randperm(rows, generator=torch.Generator().manual_seed(100 * step + self.rank))[:n]

    def keep(self, label: str, *tensors: torch.Tensor) -> None:
        """What is compared with Gloo's on this rank."""
        self.kept += [(label, each.detach().clone()) for each in tensors]

    def share(self, label: str, *tensors: torch.Tensor) -> None:
        """The same of what ranks have in common."""
        self.keep(label, *tensors)
        self.shared += [each.detach().clone() for each in tensors]

    def keep_model(self, module: nn.Module) -> None:
        """Parameters are equal on all ranks. Buffers that a forward pass writes are so only ahead of the next one."""
        for name, parameter in module.named_parameters():
            self.share(name, parameter)
        for name, buffer in module.named_buffers():
            self.keep(name, buffer)

    def close(self) -> None:
        if self.job is not None:
            self.job.close()
        # A connection of Gloo that has failed keeps a thread busy until its group is gone.
        dist.destroy_process_group(self.group)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def square(out: torch.Tensor) -> torch.Tensor:
    return out.pow(2).mean()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3))


def steps(way: Way, model: Any, optimizer: torch.optim.Optimizer, number: int = 3, *, first: int = 0,
          inputs: Optional[Callable[[int], Any]] = None, loss: Callable[[Any], torch.Tensor] = square) -> None:  # fmt: skip
    """The loop of every tutorial."""
    for step in range(first, first + number):
        optimizer.zero_grad(set_to_none=True)
        value = loss(model(way.inputs(step) if inputs is None else inputs(step)))
        value.backward()
        optimizer.step()
        way.keep(f"loss of step {step}", value)


def train(way: Way, module: nn.Module, *, optimizer: Any = sgd, number: int = 3, inputs: Any = None, loss: Any = square,
          **wrap: Any) -> Any:  # fmt: skip
    """Wraps, trains and keeps the module; the model."""
    model = way.wrap(module, **wrap)
    steps(way, model, optimizer(module.parameters()), number, inputs=inputs, loss=loss)
    way.keep_model(module)
    return model


def needs(version: Tuple[int, int]) -> None:
    if TORCH < version:
        raise unittest.SkipTest(f"torch {torch.__version__}; {version[0]}.{version[1]} is wanted")


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Dense, real, and -0.0 as 0.0, which zenps makes of it."""
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return (tensor if tensor.dtype == torch.bool else tensor + 0).contiguous()


def digest(tensors: List[torch.Tensor]) -> str:
    made = hashlib.sha1()
    for tensor in tensors:
        plain = _plain(tensor)
        made.update(f"{plain.dtype} {list(plain.shape)}".encode())
        made.update(bytes(plain.view(-1).view(torch.uint8).tolist()) if plain.numel() else b"")
    return made.hexdigest()


def difference(own: Kept, wanted: Kept) -> Tuple[str, float]:
    """The first value that is another one than Gloo's, "" for none; and the greatest relative difference."""
    if [label for label, _ in own] != [label for label, _ in wanted]:
        return f"kept {[label for label, _ in own]}; Gloo {[label for label, _ in wanted]}", float("inf")
    said, worst = "", 0.0
    for (label, got), (_, right) in zip(own, wanted):
        if digest([got]) == digest([right]):
            continue
        said = said or f"{label} is {got.flatten()[:6].tolist()}; Gloo has {right.flatten()[:6].tolist()}"
        if got.shape != right.shape or got.dtype != right.dtype or not got.numel():
            return said, float("inf")
        got, right = _plain(got).double(), _plain(right).double()
        worst = max(worst, float((got - right).abs().max() / right.abs().max().clamp(min=1e-30)))
    return said, worst


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)[-4:]) if frame is not None else "the thread has ended"


class Runner:
    """Runs situations on a rank, in the job of the launch. hung: threads that are left behind."""

    def __init__(self, job: zenps.Job) -> None:
        self.job = job
        self.hung = 0
        dist.init_process_group("gloo", rank=job.rank, world_size=job.world)

    def run(self, name: str, situation: Callable[[Way], None], kinds: Tuple[str, ...]) -> Dict[str, List[Summary]]:
        """What became of each way, by rank; of all ranks alike."""
        reference: Optional[Kept] = None
        outcomes: Dict[str, List[Summary]] = {}
        for kind in kinds:
            summary, way = self._attempt(name, situation, kind)
            if kind == "gloo" and way is not None:
                reference = way.kept
            if way is not None and reference is not None:
                summary["difference"], summary["worst"] = difference(way.kept, reference)
            outcomes[kind] = [json.loads(each) for each in self.job.gather(json.dumps(summary).encode())]
            if way is not None and summary["ended"] != "hung":
                with contextlib.suppress(zenps.ZenpsError):
                    way.close()
        return outcomes

    def _attempt(self, name: str, situation: Callable[[Way], None], kind: str) -> Tuple[Summary, Optional[Way]]:
        summary: Summary = {"ended": "hung", "text": "", "shared": "", "difference": "", "worst": 0.0}
        made: List[Way] = []

        def body() -> None:
            try:
                timeout = getattr(situation, "round_timeout", ROUND_TIMEOUT)
                made.append(Way(kind, name, self.job.rank, self.job.world, timeout))
                torch.manual_seed(7)
                situation(made[0])
                ended, text = "well", ""
            except unittest.SkipTest as skip:
                ended, text = "skipped", str(skip)
            except BaseException as error:  # pylint: disable=broad-except
                ended, text = "raised", f"{type(error).__name__}: {error}"
                summary["trace"] = traceback.format_exc(limit=-4)
            summary.update(ended=ended, text=text)

        # Else a DataLoader's worker may collect the groups of a way before. The end of a group of Gloo waits for its threads,
        # and a forked child has none of them.
        gc.collect()
        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        thread.join(DEADLINE)
        if thread.is_alive():
            self.hung += 1
            summary = dict(summary, ended="hung", text=_stack(thread))
        elif made:
            summary["shared"] = digest(made[0].shared)
        return summary, made[0] if made else None
