"""Dense gradients over the process group of torch.distributed (NCCL, Gloo, MPI), while zenps sums the tables.

Collectives of a process group have no names: every rank must start the same ones in the same order. So a step that has
begun starts all of its collectives, also where it fails; and ranks compare what they have chosen ahead of the first one.
"""

from __future__ import annotations

import os
import time
from typing import Any, Collection, Iterable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ..errors import FabricError, Invalid, MissingRanks, PeerLost, RoundTimeout, ZenpsError
from .control import agree
from .jobs import Ranks, generation

KINDS = ("auto", "torch", "zenps")
SCHEME = "ring"  # of zenps's rounds: the fastest (tests/bench/results/dense.md)
_PATIENCE = 10.0  # seconds, for collectives of a failed step


class Choice:
    """What sums a model's dense gradients: `over_torch` in `group`, or zenps. refusal: why "torch" cannot be, though asked for."""

    def __init__(self, over_torch: bool, group: Any = None, world: int = 1, refusal: str = "") -> None:
        self.over_torch, self.group, self.world, self._refusal = over_torch, group, world, refusal

    @property
    def described(self) -> str:
        if self._refusal:
            return f'dense="torch", which cannot be: {self._refusal}'
        return f'dense="{"torch" if self.over_torch else "zenps"}"'

    def compare(self, job: Ranks, what: str, described: Sequence[str] = ()) -> None:
        """Raises ShapeMismatch on every rank if ranks differ in their choice, or in `described`; then Invalid for a refusal:
        a rank that raised it at once would leave the others waiting. In an elastic job ranks come and go: not compared."""
        if not generation(job) or described:
            agree(job, what, [*described, self.described])
        if self._refusal:
            raise Invalid(f'{what}: dense="torch": {self._refusal}; dense="zenps" has zenps sum all gradients', job=job.name)


def check_name(what: str, dense: str) -> None:
    """Raises Invalid for a name that is none of KINDS."""
    if dense not in KINDS:
        raise Invalid(f"{what}: dense {dense!r}; must be {', '.join(KINDS[:-1])} or {KINDS[-1]}")


def choose(what: str, dense: str, job: Ranks, group: Any, parameters: Iterable[torch.Tensor], *,
           compress: Any = None, dense_scheme: Optional[str] = None, values: Optional[str] = None) -> Choice:  # fmt: skip
    """group: the process group; None: the default one. parameters: the dense ones. The others: options of the model.

    "auto" is "torch" where a process group of the job's ranks can sum all dense gradients, and no option asks for more than
    sums: compress, dense_scheme, or values. Choice.compare() raises Invalid where "torch" is asked for and cannot be."""
    check_name(what, dense)
    if dense == "zenps":
        return Choice(False)
    given = {"compress=": compress, "dense_scheme=": dense_scheme, "values=": values if dense == "auto" else None}
    why = _obstacle(job, group, parameters, [name for name, value in given.items() if value is not None])
    if not why:
        return Choice(True, group, dist.get_world_size(group))
    return Choice(False, refusal=why if dense == "torch" else "")


def scheme_of(job: Ranks, dense_scheme: Optional[str], values: Optional[str]) -> Optional[str]:
    """The scheme of zenps's rounds of dense gradients: SCHEME, unless something else is asked for. It links the ranks, so it
    is none for those of an elastic job, and it rounds no values."""
    asked = dense_scheme or values or os.environ.get("ZENPS_SCHEME") or os.environ.get("ZENPS_VALUES")
    return dense_scheme if asked or generation(job) or job.world == 1 else SCHEME


def _obstacle(job: Ranks, group: Any, parameters: Iterable[torch.Tensor], options: Collection[str]) -> str:
    """Why a process group of torch cannot sum dense gradients of the job; "": it can."""
    if not dist.is_available() or not dist.is_initialized():
        return "torch.distributed has no process group; call init_process_group() first"
    if options:
        return f"{' and '.join(options)} is for dense gradients that zenps sums, and would have no effect"
    if generation(job):
        return f"job {job.name} is elastic, and a process group cannot change its ranks"
    world = dist.get_world_size(group)
    if world != job.world or dist.get_rank(group) < 0:
        return f"the process group has {max(world, 0)} ranks, and job {job.name} {job.world}; process_group= names another"
    name = str(dist.get_backend(group)).lower()
    if "zenps" in name:
        return "the process group is zenps's own"
    devices = {each.type for each in getattr(group or dist.group.WORLD, "_device_types", ())}
    if not devices and name == "nccl":
        devices = {"cuda"}
    for parameter in parameters:
        if devices and parameter.device.type not in devices:
            return f"process groups of {name} sum no gradients on {parameter.device.type}"
        if parameter.dtype == torch.bfloat16 and "gloo" in name and parameter.device.type == "cpu" and _version() < (2, 3):
            return f"Gloo sums bfloat16 from torch 2.3 on; this is torch {torch.__version__}"
    return ""


def _version() -> Tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


class Reduction:
    """A tensor's sum over the ranks of a process group, in flight, in place. Divided by their number first if it is to be a
    mean, as DistributedDataParallel does. Never raises at its start: the other rounds of the step show which rank is lost."""

    def __init__(self, tensor: torch.Tensor, choice: Choice, average: bool) -> None:
        self._work: Any = None
        self._error: Optional[RuntimeError] = None
        if average:
            tensor.mul_(1.0 / choice.world)
        try:
            self._work = dist.all_reduce(tensor, group=choice.group, async_op=True)
        except RuntimeError as error:
            self._error = error

    def done(self) -> bool:
        """Whether nothing writes to the tensor any more."""
        return self._work is None or bool(self._work.is_completed())

    def wait(self, what: str) -> None:
        """Returns when the sum is there; FabricError has torch's own words. what: for the text."""
        try:
            if self._work is not None:
                self._work.wait()
        except RuntimeError as error:
            self._error = error
        if self._error is not None:
            words = str(self._error).splitlines()[0] if str(self._error) else type(self._error).__name__
            raise FabricError(f"{what}: torch.distributed could not sum dense gradients: {words}") from self._error


def settle(reductions: Iterable[Reduction], error: BaseException) -> List[Reduction]:
    """After an error: those that may still write to their tensors. Waits a moment, if all ranks are there to end them."""
    left = [each for each in reductions if not each.done()]
    end = time.monotonic() + (0 if _is_loss(error) else _PATIENCE)
    while left and time.monotonic() < end:
        time.sleep(0.001)
        left = [each for each in left if not each.done()]
    return left


def _is_loss(error: BaseException) -> bool:
    """Whether a rank is gone, or later than its deadline."""
    return not isinstance(error, ZenpsError) or isinstance(error, (PeerLost, MissingRanks, RoundTimeout, FabricError))
