"""The parts of a module that OuterSync exchanges, and the checks of its arguments (outer.py)."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Set

import torch

from ..errors import Invalid, Unsupported
from ..request import Request
from .compress import CompressedGroup, Compression
from .groups import DenseGroup, Group
from .tables import Slot, based
from .watch import few

_AWAY = 1000  # outer steps: a rank that has missed more comes back as a newcomer


class Fragment:
    """Parameters that are exchanged together. groups: one for each dtype and device.

    late: what this rank has given too late, by parameter's index, until an outer step has it; of dense exchanges. A residual keeps
    it with a selection.
    sent: copies of the parameters at the last outer gradient, until its step ends well; else None. After a failed step the
    residuals hold that gradient, so the next one counts from these copies.
    summed: by group and rank, the last outer step with the rank's gradient. Ranks have the ids that they keep in all generations."""

    def __init__(self, slots: Sequence[Slot], groups: List[Group]) -> None:
        self.slots, self.groups = slots, groups
        self.sent: Optional[List[torch.Tensor]] = None
        self.late: Dict[int, torch.Tensor] = {}
        self.summed: List[Dict[str, int]] = [{} for _ in groups]

    @property
    def compressed(self) -> List[CompressedGroup]:
        return [group for group in self.groups if isinstance(group, CompressedGroup)]

    def values(self) -> List[torch.Tensor]:
        return [slot.parameter.detach().clone() for slot in self.slots]

    def keep(self, given: Dict[int, torch.Tensor]) -> None:
        """After an outer step: the gradients that it lacks, of those given by this rank, are for the next one."""
        for group in self.groups:
            for slot in group.slots:
                if slot.index in given and any(request.stats is not None and request.stats.late for request in group.requests):
                    self.late[slot.index] = given[slot.index]
                elif slot.index in given:
                    self.late.pop(slot.index, None)

    def note(self, step: int, ids: Dict[int, str]) -> None:
        """Ends the outer step. ids: of ranks, by their numbers in the job."""
        for group, summed in zip(self.groups, self.summed):
            late = {rank for request in group.requests if request.stats is not None for rank in request.stats.late_ranks}
            summed.update((each, step) for rank, each in ids.items() if rank not in late)

    def take_summed(self, summed: List[Dict[str, int]], present: Sequence[str], step: int) -> None:
        """That of another rank, but for ranks that have been away for long."""
        self.summed = [{id_: last for id_, last in each.items() if id_ in present or last > step - _AWAY} for each in summed]

    def settle_for(self, rank: str, step: int) -> Set[int]:
        """Ends what this rank had selected for a step that other ranks have made. Gives the indices of the parameters whose sums
        have its gradients."""
        found: Set[int] = set()
        for group, summed in zip(self.groups, self.summed):
            is_in = summed.get(rank) == step
            if isinstance(group, CompressedGroup):
                group.settle(is_in)
            found |= {slot.index for slot in group.slots if is_in}
        for index in found:
            self.late.pop(index, None)
        return found

    def settle(self, sent: bool) -> None:
        """Ends what a step that failed had selected: the other ranks have the sum, or the residuals keep it."""
        for group in self.compressed:
            group.settle(sent)


@dataclasses.dataclass
class Flight:
    """An exchange from its start to its end."""

    fragment: Fragment
    number: int  # of the outer step
    due: int  # the local step of its end
    refusal: str  # this rank's reason against it
    before: Optional[List[torch.Tensor]]  # the earlier fragment.sent
    given: bool = False  # the residuals have the outer gradient
    deltas: Dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)  # outer gradients, maybe too late, by parameter's index
    at: List[torch.Tensor] = dataclasses.field(default_factory=list)  # after it was given up: the parameters at its outer gradient
    is_common: bool = False  # it failed in the same way on all ranks

    def is_over(self, control: Sequence[Request[Any]]) -> bool:
        """Whether its end would not wait. control: the requests of its control round."""
        return all(request.done() for request in [*control, *(each for group in self.fragment.groups for each in group.requests)])


def check_arguments(name: str, slots: Sequence[Slot], every: int, decay: float, fragments: int, delay: int) -> None:
    what = f"OuterSync {name}"
    if not slots:
        raise Invalid(f"{what}: the module has no parameter that requires a gradient")
    for slot in slots:
        if slot.parameter.dtype not in (torch.float32, torch.float64):
            raise Unsupported(f"{what}: parameter {slot.name} is {str(slot.parameter.dtype)[6:]}; float32 and float64 are kept; train "
                              "in halves with torch.autocast()")  # fmt: skip
    if every < 1:
        raise Invalid(f"{what}: every {every}; must be 1 local step or more")
    if not 0 < decay <= 1:
        raise Invalid(f"{what}: decay {decay}; must be over 0, and at most 1")
    if not 1 <= fragments <= len(slots):
        raise Invalid(f"{what}: fragments {fragments}; must be 1 to {len(slots)}, the number of parameters, which are not divided")
    if fragments > every:
        raise Invalid(f"{what}: fragments {fragments} with every {every}; must be at most {every}: each has a local step of its own")
    if not 0 <= delay < every / fragments:
        raise Invalid(f"{what}: delay {delay}; must be at least 0, and less than every / fragments, {every / fragments:g}: one exchange "
                      "ends before the next begins")  # fmt: skip


def default_optimizer(parameters: List[torch.nn.Parameter], select: Optional[Compression]) -> torch.optim.Optimizer:
    if select is not None:
        return torch.optim.SGD(parameters, lr=1.0)
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def check_optimizer(name: str, slots: Sequence[Slot], outer: Any) -> None:
    if not isinstance(outer, torch.optim.Optimizer):
        raise Invalid(f"OuterSync {name}: outer is a {type(outer).__name__}; a torch.optim.Optimizer of the module's parameters is "
                      "wanted, such as torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)")  # fmt: skip
    stepped = {id(parameter) for group in outer.param_groups for parameter in group["params"]
               if parameter.requires_grad and parameter.numel()}  # fmt: skip
    missing = [slot.name for slot in slots if id(slot.parameter) not in stepped]
    if missing or len(stepped) > len(slots):
        which = f"does not step {', '.join(few(missing))}" if missing else f"steps {len(stepped) - len(slots)} parameters of others"
        raise Invalid(f"OuterSync {name}: outer {which}; it must have exactly the module's parameters that require gradients")


def selection(name: str, select: Optional[Compression], values: Optional[str], decay: float) -> Optional[Compression]:
    if select is None:
        return None
    for option in ("momentum", "clip_norm", "warmup", "scaler", "lr"):
        if getattr(select, option):
            raise Invalid(f"OuterSync {name}: select has {option} {getattr(select, option)!r}; that is for gradients of single steps. The "
                          "outer optimiser has momentum and rate")  # fmt: skip
    if select.lossy:
        raise Invalid(f"OuterSync {name}: select has scheme {select.scheme!r}, which selects among the ranks' sums; take a selection of "
                      "each rank, such as ChunkTopK()")  # fmt: skip
    return dataclasses.replace(select, values=values, decay=decay, min_numel=0, start_iter=0)


def describe_optimizer(outer: torch.optim.Optimizer) -> str:
    settings = {key: value for key, value in outer.defaults.items() if value and isinstance(value, (bool, int, float))}
    return f"{type(outer).__name__} {settings}"


def split(slots: Sequence[Slot], n: int) -> List[List[Slot]]:
    """In n runs of about as many values, at least one parameter each."""
    total, done, parts = sum(slot.numel for slot in slots), 0, [[] for _ in range(n)]  # type: ignore[var-annotated]
    at = 0
    for i, slot in enumerate(slots):
        is_full = parts[at] and done + slot.numel / 2 > (at + 1) * total / n
        if at + 1 < n and (is_full or len(slots) - i == n - at - 1):
            at += 1
        parts[at].append(slot)
        done += slot.numel
    return parts


def make_groups(label: str, slots: Sequence[Slot], select: Optional[Compression], outer: torch.optim.Optimizer,
                dense: Dict[str, Any]) -> List[Group]:  # fmt: skip
    kinds: Dict[Any, List[Slot]] = {}
    for slot in slots:
        kinds.setdefault((slot.parameter.dtype, slot.parameter.device), []).append(slot)
    made: List[Group] = []
    for i, alike in enumerate(kinds.values()):
        first = DenseGroup(f"{label}/.dense.{i}", based(alike, [slot.numel for slot in alike]), **dense)
        if select is None:
            made.append(first)
            continue
        made.append(CompressedGroup(f"{label}/.compressed.{i}", first, select, "mean"))
        made[-1].optimizers = [outer]  # type: ignore[attr-defined]
    return made
