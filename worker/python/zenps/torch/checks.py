"""Checks each backward pass for what is wrong, or costly, in a training program. If one rank refuses a step, all ranks raise
the error: ranks that went on would wait for it.

A program is refused only where it is certain that its sums are wrong. Where they are right and costly there is one line in
the log.
"""

from __future__ import annotations

import functools
import json
import logging
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Set, TypeVar, cast

import torch

from ..errors import Invalid, Unsupported
from . import convert
from .autograd import has_other_hooks
from .jobs import Ranks, current, numbered
from .tables import Slot, trainable
from .watch import Leftovers, Sent, Watch, few, is_in_scaler

Make = TypeVar("Make", bound=Callable[..., None])
_log = logging.getLogger("zenps")
_NOTED = 4  # to 7 gradients of a step: their values show a change through `.grad.data`, which moves no version
_NOTED_VALUES = 1 << 16  # of each of them, at most; in steps 1, 2, 4, 8, ... all values of all gradients are compared
_SAMPLED_STEPS = 16  # in which gradients that are summed twice are looked for under a mean, to warn of them
_CHANGED = (
    "{}. Make GradientSync after the last change to the model, on every rank: sync.close(), then zt.GradientSync(model)"
)
_STEPPED = (
    "gradient of {} is gone before it was summed: an optimiser that steps, or zeroes gradients, within backward() has this "
    "rank's gradient alone; step when backward() has returned"
)
_MOVED = "gradient of {} was changed while its sum was in flight: {}"
_MOVED_IN_STEP = 'with wait="step" call sync.wait() after backward(), before you clip, unscale, scale or replace gradients'
_MOVED_IN_PASS = (
    "a hook that changes gradients must be registered before GradientSync is made; or change them when backward() has returned"
)
_STRANGERS = (
    "the optimiser steps {}, which no GradientSync sums: ranks would drift apart. Make GradientSync after the last change "
    "to the model; an optimiser of other parameters, too, is better not attached: call sync.wait() before its step()"
)


def together(make: Make) -> Make:
    """Has the other ranks raise, too, what this rank's arguments of a constructor, `make`, are refused for."""

    @functools.wraps(make)
    def made(self: Any, module: Any, job: Any = None, **arguments: Any) -> None:
        job = current(job)
        with job._collective.refusing():
            make(self, module, job, **arguments)

    return cast(Make, made)


def check_arguments(name: str, module: torch.nn.Module, wait: str, bucket_mb: float) -> None:
    """Raises Invalid, or Unsupported, for arguments of GradientSync, and for what it cannot have the gradients of."""
    if wait not in ("backward", "step"):
        raise Invalid(f'wait {wait!r}; must be "backward" or "step"')
    if not bucket_mb > 0:
        raise Invalid(f"bucket_mb {bucket_mb}; must be over 0")
    if not isinstance(module, torch.nn.Module):
        raise Invalid(f"GradientSync: a {type(module).__name__}; a torch.nn.Module is wanted")
    if isinstance(module, torch.jit.ScriptModule):
        raise Unsupported("GradientSync: a TorchScript module has no hooks; make GradientSync of the module that "
                          "torch.jit.script() is given, whose parameters they share")  # fmt: skip
    for each in module.modules():
        kind = type(each).__name__
        if kind in ("DistributedDataParallel", "FullyShardedDataParallel"):
            raise Invalid(f"GradientSync: a {kind}, which sums gradients itself; give the module that it wraps, or, of a "
                          "DistributedDataParallel, zt.ddp(model)")  # fmt: skip
    Watch.check_alone(f"GradientSync {name}", trainable(module))


def check_schemes(job: Ranks, name: str, schemes: Iterable[Optional[str]]) -> None:
    """Raises what is wrong about schemes that no tensor of a GradientSync has. Collective."""
    for scheme in schemes:
        if scheme is not None:
            job.tensor(convert.tensor_name(f"{name}/.scheme"), 1, scheme=scheme).close()
            _log.warning("GradientSync %s: scheme %s is of no use: scheme= is of tables, dense_scheme= of the other parameters, and "
                         "the module has none of these", name, scheme)  # fmt: skip


def _has_values(slot: Slot) -> bool:
    grad = slot.parameter.grad
    return grad is not None and bool((grad._values() if grad.is_sparse else grad).any())


class Checks:
    """The checks of one GradientSync. slots: its parameters, by index. bucketed: indices of those that are no tables. average,
    compressed: what sums are. alike: ranks are to have the same parameters."""

    def __init__(self, name: str, module: torch.nn.Module, job: Ranks, slots: Mapping[int, Slot], bucketed: Collection[int],
                 average: bool, compressed: bool, alike: bool) -> None:  # fmt: skip
        self.watch = Watch(name, module, slots.values())
        self.refusal: List[str] = []  # why this rank refuses the step
        self._name, self._job, self._slots, self._bucketed = name, job, slots, bucketed
        self._average, self._compressed, self._alike = average, compressed, alike
        self._left = Leftovers()
        self._holding: Set[int] = set()  # parameters whose gradients held a sum as the pass began
        self._pending: Set[int] = set()  # those with gradients of passes within no_sync(), which are to be summed
        self._warned: Set[str] = set()
        self._sent: Dict[int, Sent] = {}  # gradients in flight
        self._steps = 0

    @property
    def _repeatable(self) -> bool:
        """Whether what was summed may be summed again: a mean, or the sum of one rank."""
        return not self._compressed and (self._average or self._job.world == 1)

    def _is_sampled(self, steps: int) -> bool:
        return not self._repeatable or (steps <= _SAMPLED_STEPS and "twice" not in self._warned)

    @staticmethod
    def _is_close(steps: int) -> bool:
        """Whether to look closely after so many steps: in steps 1, 2, 4, 8, ..."""
        number = steps + 1
        return number & (number - 1) == 0 or number % 1024 == 0

    def before_forward(self, steps: int) -> None:
        """Shows in some steps whether forward() writes parameters."""
        if self._alike and torch.is_grad_enabled() and self._is_close(steps):
            self.watch.before_forward()

    def copies(self, slots: Iterable[Slot], in_step: bool) -> bool:
        """Whether these gradients are to be summed in copies, so that each write to them while they are in flight shows: in
        some steps, if the program can write then. in_step: of wait="step"."""
        return self._is_close(self._steps) and (in_step or any(has_other_hooks(slot.parameter) for slot in slots))

    def begin(self, steps: int) -> None:
        """A backward pass begins, after so many steps."""
        self._steps = steps
        if self._is_sampled(steps):
            self._holding = {index for index, slot in self._slots.items() if self._left.holds(slot)}

    def end(self) -> None:
        """The step, or the pass, is over."""
        self.refusal, self._holding, self._sent = [], set(), {}

    def sent(self, index: int, gradient: Optional[torch.Tensor], is_written: bool, is_copied: bool) -> None:
        """The sum of this gradient starts. is_written: it will be where the gradient is. is_copied: copies() was True."""
        if gradient is not None:
            values = gradient if gradient.layout == torch.strided else gradient._values()
            is_small = gradient.device.type == "cpu" and values.numel() <= _NOTED_VALUES
            stride = max(1, len(self._slots) // _NOTED)
            is_noted = not is_written and (is_copied or (is_small and index % stride == self._steps % stride))
            self._sent[index] = Sent(gradient, is_noted)

    def look_in_flight(self, in_step: bool) -> None:
        """Refuses the step if the program has written, or replaced, a gradient in flight. zenps itself writes without a new
        version. in_step: of wait="step"."""
        moved = [index for index, sent in self._sent.items() if sent.is_changed(self._slots[index].parameter.grad)]
        if not moved and in_step and is_in_scaler():
            moved = list(self._sent)  # unscaling changes no version
        if moved:
            names = ", ".join(few([self._slots[index].name for index in sorted(moved)]))
            self.refusal.append(_MOVED.format(names, _MOVED_IN_STEP if in_step else _MOVED_IN_PASS))

    def kept(self, slot: Slot) -> None:
        """A pass within no_sync() has made a gradient."""
        self._pending.add(slot.index)
        if slot.index in self._holding:
            self._left.record(slot)

    def made(self, slot: Slot) -> None:
        """A pass whose gradients are summed has made one."""
        grad = slot.parameter.grad
        if grad is None:
            self.refusal.append(_STEPPED.format(slot.name))
            return
        if slot.index in self._holding and not self._repeatable:
            self.refusal.append(
                f"gradient of {slot.name} was already summed, and op sum or compress= would add that sum again: zero it "
                "before this backward(), or wrap all but the last backward in no_sync()"
            )
        elif slot.index in self._holding:
            self._warn("twice", f"gradient of {slot.name} is summed a second time, with the mean that it holds already; the "
                       "result is right, and costs twice the bytes: no_sync() around all but the last backward() saves "
                       "them")  # fmt: skip
        if grad.is_sparse and slot.index in self._bucketed:
            self._warn("sparse", f'parameter {slot.name} has sparse gradients, and is no table: all of it travels in each '
                       f'step; tables=["auto", "{slot.name}"] sends its rows alone')  # fmt: skip

    def _warn(self, what: str, text: str) -> None:
        """Once."""
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("GradientSync %s: %s", self._name, text)

    def look(self, made: Mapping[int, int], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Checks, at the end of a pass, that it sums the parameters that are trained. made: parameters with gradients of this
        pass, and their versions when these came."""
        changes = self.watch.changes()
        if changes:
            self.refusal.append(_CHANGED.format(", ".join(changes)))
        strangers = Watch.strangers(optimizers)
        if strangers:
            self.refusal.append(_STRANGERS.format(", ".join(strangers)))
        for index, version in made.items():
            slot = self._slots[index]
            if slot.parameter.grad is None:
                self.refusal.append(_STEPPED.format(slot.name))
            elif slot.parameter._version != version:
                self._warn("stepped", f"parameter {slot.name} was written within backward(), before its gradient was summed; "
                           "an optimiser may only step when backward() has returned")  # fmt: skip

    def check_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Raises Invalid if they step parameters that nobody sums, or are no optimisers."""
        for each in optimizers:
            if not hasattr(each, "param_groups"):
                raise Invalid(f"GradientSync {self._name}: attach: a {type(each).__name__}; optimisers are wanted, each as an "
                              "argument of its own: attach(first, second)")  # fmt: skip
        strangers = Watch.strangers(optimizers)
        if strangers:
            raise Invalid(f"GradientSync {self._name}: attach: {_STRANGERS.format(', '.join(strangers))}")

    def check_step(self) -> None:
        """Raises Invalid, ahead of an optimiser's step, if parameters have changed so that no hook saw a pass, or if gradients
        were not summed."""
        changes = self.watch.changes()
        if changes:
            raise Invalid(f"GradientSync {self._name}: {_CHANGED.format(', '.join(changes))}")
        local = [self._slots[index].name for index in sorted(self._pending) if _has_values(self._slots[index])]
        if local:
            raise Invalid(f"GradientSync {self._name}: step() after passes within no_sync() alone: gradients of "
                          f"{', '.join(few(local))} are this rank's own; run the last backward() before a step outside "
                          "no_sync()")  # fmt: skip

    def stale(self, made: Collection[int]) -> Set[int]:
        """Parameters whose gradients an earlier pass left, and nothing was added to. A sum would grow with each pass that
        sums them again; a mean stays, and may have to be added to another rank's gradient, so it is sent."""
        if self._repeatable:
            return set()
        new = self._pending.union(made)
        return {index for index, slot in self._slots.items() if index not in new and self._left.is_same_tensor(slot)}

    def summed(self, steps: int) -> None:
        """Gradients hold the sums now."""
        self._pending.clear()
        if not self._is_sampled(steps):
            self._left.clear()
            return
        for slot in self._slots.values():
            self._left.record(slot)

    def drop(self) -> None:
        """Gradients are dropped."""
        self._left.clear()
        self._pending.clear()

    def raise_refusal(self, step: int) -> None:
        """Raises, on every rank, what the refusing ranks say. Collective."""
        said = [part.decode() for part in self._job.gather("; ".join(dict.fromkeys(self.refusal)).encode())]
        by_text: Dict[str, List[str]] = {}
        for place, text in enumerate(said):
            if text:
                by_text.setdefault(text, []).append(str(numbered(self._job, place)))
        ranks = "; ".join(f"rank {', '.join(own)}: {text}" for text, own in by_text.items())
        raise Invalid(f"GradientSync {self._name}, step {step}: {ranks}", job=self._job.name)

    def compare_parameters(self) -> None:
        """Raises, on every rank, if forward() has written parameters so that ranks have other ones since. Collective."""
        own = [self.watch.written, self.watch.checksums()]
        parts = [json.loads(part) for part in self._job.gather(json.dumps(own).encode())]
        written = sorted({at for part in parts for at in part[0]})
        name = self.watch.first_difference(written, [part[1] for part in parts])
        if name:
            raise Invalid(
                f"GradientSync {self._name}: forward() writes parameters, and {name} is no longer the same on all ranks: make "
                "it a buffer, of which all ranks get rank 0's, or write what all ranks have alike. broadcast=False allows "
                "parameters that differ",
                job=self._job.name,
            )
