"""OuterSync: ranks train alone for some steps, and then apply one common step: DiLoCo and SparseLoCo.

    outer = zt.OuterSync(model, every=30)              # 64 of each 4096 values, 2 bits each
    for batch in batches:
        loss(model(batch)).backward()
        optimizer.step()                               # this rank's own
        outer.step()                                   # each 30th one is common

The outer gradient of a parameter is its value at the start less its value now. Ranks sum it as GradientSync sums
gradients: dense, or the selected values of each rank, with a residual for the others. The outer optimiser steps from
the start with the mean. All ranks then go on from there.
"""

from __future__ import annotations

import dataclasses
import math
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, NoReturn, Optional, Sequence, Set, Union

import torch

from ..errors import Canceled, Invalid, Unsupported, ZenpsError
from ..group import Group as JobGroup
from . import collective, convert
from .buffers import Buffers
from .checks import together
from .compress import Compress, CompressedGroup, Compression, compression, load_all, save, width_of
from .control import Control, SyncStats, agree
from .dense import scheme_of
from .groups import DenseGroup, Group, open_all
from .jobs import Ranks, current, generation, names, numbered
from .tables import Slot, based, trainable
from .watch import few


class Fragment:
    """Parameters that are exchanged together. groups: one for each dtype and device.

    sent: copies of the parameters at the last outer gradient, until its step ends well; else None. After a failed step the
    residuals hold that gradient, so the next one counts from these copies."""

    def __init__(self, slots: Sequence[Slot], groups: List[Group]) -> None:
        self.slots, self.groups = slots, groups
        self.sent: Optional[List[torch.Tensor]] = None

    @property
    def compressed(self) -> List[CompressedGroup]:
        return [group for group in self.groups if isinstance(group, CompressedGroup)]

    def values(self) -> List[torch.Tensor]:
        return [slot.parameter.detach().clone() for slot in self.slots]

    def settle(self, sent: bool) -> None:
        """Ends what a step that failed had selected: the other ranks have the sum, or the residuals keep it."""
        for group in self.compressed:
            group.settle(sent)


@dataclasses.dataclass
class Flight:
    """An exchange from its start to its end. due: the local step that ends it. refusal: this rank's reason against it. before:
    what fragment.sent was. given: the residuals have the outer gradient."""

    fragment: Fragment
    due: int
    refusal: str
    before: Optional[List[torch.Tensor]]
    given: bool = False


class OuterSync:
    """Outer steps of a module's parameters over all ranks of a job. [DiLoCo, arXiv 2311.08105; SparseLoCo, arXiv 2508.15706;
    fragments and delay: streaming DiLoCo, arXiv 2501.18512]

    >>> outer = zt.OuterSync(model, every=30)   # parameters and buffers become those of rank 0
    >>> optimizer.step()                        # of this rank alone
    >>> outer.step()

    Every rank makes it with the same arguments, and calls step() after each local step. Ranks may have other local
    optimisers, data and batch sizes. GradientSync over a group of near ranks goes together with it.

    job: the ranks: a job, or a group of one. None: zt.init()'s.
    every: local steps from one outer step of a parameter to its next.
    select: a Compression that selects values, or its name; None: all values travel. Its values, decay, min_numel and
        start_iter are not used here: values and decay are arguments, and all parameters are cut from the first step on.
    values: what values travel as: "qsgd2", "qsgd4", "qsgd8", "bf16", "f16", or "raw". QSGD's rounding is random and unbiased;
        its error is not fed back. In each outer step a parameter is scaled by the power of two above its outer gradients
        and residuals of all ranks, so that parameters of all magnitudes can share a block of levels. A short round first
        finds these powers: all ranks wait for it, also with a delay.
    decay: share of the residual that stays from one outer step to the next; over 0, at most 1.
    outer: the optimiser of the outer step, over exactly the parameters of the module that require gradients. Residuals follow
        its rate. None: with a selection torch.optim.SGD(lr=1.0), whose momentum the residual stands for, as in SparseLoCo;
        else torch.optim.SGD(lr=0.7, momentum=0.9, nesterov=True), as in DiLoCo.
    fragments: parts of about equal size, of whole parameters. Each has an outer step of its own every `every` steps: they
        take turns.
    delay: local steps that a rank makes while its exchange is under way. The outer step comes `delay` steps after its start,
        and what the rank trained in between is added to it. Less than every / fragments.
    host_start: the start is kept in host memory. Takes parameters on a GPU to the host and back in each outer step.
    broadcast: False leaves the parameters as they are; ranks must have the same ones.
    broadcast_buffers: buffers are rank 0's after each outer step, as GradientSync has it after each step.
    scheme: of dense rounds; None: ZENPS_SCHEME, "balanced". A Compression has its own.
    name: of the tensors; each OuterSync of a job has another.

    After an outer step `start` has the same bits on all ranks. So have the parameters, without a delay.

    Memory: the start, as large as the parameters; outer's momentum; with `select` a residual in host memory; with `delay` a
    copy of the fragment under way. An outer step has copies of its fragment for a while. Parameters are
    float32 or float64 (Unsupported for others).

    Of an elastic job it is opened by :func:`zenps.torch.elastic`, or reopen(), and not here. Errors: Invalid, Unsupported,
    ShapeMismatch where ranks differ. A step that fails leaves the parameters as they are. If all ranks got the error, call
    step() again. With `select` the residuals may have its outer gradient then. It counts once, but decays once more
    with each further try. Where `outer` itself raises, its own state may have changed.
    """

    @together
    def __init__(self, module: torch.nn.Module, job: Optional[Ranks] = None, *, every: int = 30,
                 select: Compress = "chunktopk", values: Optional[str] = "qsgd2", decay: float = 0.95,
                 outer: Optional[torch.optim.Optimizer] = None, fragments: int = 1, delay: int = 0,
                 host_start: bool = False, broadcast: bool = True, broadcast_buffers: bool = True,
                 scheme: Optional[str] = None, name: str = "outer") -> None:  # fmt: skip
        if not isinstance(module, torch.nn.Module):
            raise Invalid(f"OuterSync: a {type(module).__name__}; a torch.nn.Module is wanted")
        slots = [Slot(label, parameter, i, 0) for i, (label, parameter) in enumerate(trainable(module)) if parameter.numel()]
        _check(name, slots, every, decay, fragments, delay)
        self.module, self.job, self.name = module, current(job), name
        taken = names.setdefault(self.job, set())
        if name in taken:
            raise Invalid(f"another OuterSync, GradientSync or HookState of this job has the name {name!r}; give this one another (name=)")
        parameters = [slot.parameter for slot in slots]
        select = _selection(name, compression(select), values, decay)
        self.outer = _default_optimizer(parameters, select) if outer is None else outer
        _check_optimizer(name, slots, self.outer)
        self._every, self._delay = every, delay
        dense: Dict[str, Any] = {"op": "mean", "values": values, "scheme": scheme_of(self.job, scheme, values)}
        self._fragments = [
            Fragment(part, _groups(f"{name}/{i}", part, select, self.outer, dense)) for i, part in enumerate(_split(slots, fragments))
        ]
        self._ends = [(i + 1) * every // fragments for i in range(fragments)]  # local steps of a period after which each has its turn
        self._host_start = host_start
        self._start: Dict[int, torch.Tensor] = {}  # of each parameter, by index
        self._scales: Dict[int, float] = {}  # of parameters that travel as QSGD levels, by index; the same on all ranks
        self._is_scaled = values is not None and values.startswith("qsgd")
        for group in (group for fragment in self._fragments for group in fragment.compressed):
            group.scales, group.commits = self._scales, False
        self._slots = slots
        described = [name, f"every {every}, fragments {fragments}, delay {delay}, {dense}, {select}, {_described(self.outer)}"]
        described += [slot.described("outer") for slot in slots]
        self._buffers = Buffers(name, module) if broadcast_buffers else None
        if self._buffers is not None:
            described += [place.described() for place in self._buffers.places]
            self._buffers = self._buffers if self._buffers.places else None
        self._described = described
        self._control = Control(f"{name}/.control", 0)
        self._generation: Optional[int] = None
        self._step = 0  # of the control round
        self._flight: Optional[Flight] = None
        self._totals = SyncStats()
        self._local = 0
        if isinstance(self.job, JobGroup) or not generation(self.job):
            self._open_tensors()
            if broadcast:
                collective.broadcast_parameters(module, job=self.job)
        self._take_start(parameters)
        taken.add(name)

    def _open_tensors(self) -> None:
        agree(self.job, f"OuterSync {self.name}", self._described)
        open_all(self.job, [group for fragment in self._fragments for group in fragment.groups])
        if self._buffers is not None:
            (tensor,) = self.job.tensors([self._buffers.ask()])
            self._buffers.opened(tensor, self.job)
        self._step = self._control.open(self.job)
        self._generation = generation(self.job)

    def _take_start(self, values: Sequence[torch.Tensor]) -> None:
        for slot, value in zip(self._slots, values):
            device = torch.device("cpu") if self._host_start else slot.parameter.device
            self._start[slot.index] = value.detach().to(device, copy=True)

    # An outer step.

    def step(self) -> bool:
        """Counts a local step, and makes what is due after it. Returns whether an outer step was applied. Blocks until the
        exchange is over; with a delay it starts one, and blocks when that is due.

        Raises what the exchange failed with. Invalid on all ranks, if an outer gradient holds NaN or infinity, or parameters
        that require gradients were added or replaced on some: its text names ranks and parameters. No parameter has changed
        then, and the local step is not counted. With `select`, residuals of the other ranks have their outer gradients."""
        if self._generation != generation(self.job):
            raise Invalid(
                f"OuterSync {self.name} is not opened in generation {generation(self.job)} of job {self.job.name}: hand it to "
                "the State that elastic() is given, or call reopen()"
            )
        local, applied = self._local + 1, False
        if self._flight is not None and local >= self._flight.due:
            self._end(self._flight)
            applied = True
        place = (local - 1) % self._every + 1
        if place in self._ends:
            flight = self._begin(self._fragments[self._ends.index(place)], local + self._delay)
            if not self._delay:
                self._end(flight)
                applied = True
        self._local = local
        return applied

    def wait(self) -> None:
        """Ends an exchange that is under way, ahead of time: before an evaluation, or a checkpoint. Collective, at the same
        local step."""
        if self._flight is not None:
            self._end(self._flight)

    def _begin(self, fragment: Fragment, due: int) -> Flight:
        for each in self._fragments:  # take() knows of one exchange whether it was summed
            each.settle(sent=False)
        refusal, deltas = self._replaced(), []
        if not refusal:
            bases = fragment.sent or [self._start[slot.index].to(slot.parameter.device) for slot in fragment.slots]
            deltas = [base - slot.parameter.detach() for base, slot in zip(bases, fragment.slots)]
            bad = [slot.name for slot, delta in zip(fragment.slots, deltas) if not bool(torch.isfinite(delta).all())]
            if bad:
                refusal = (f"outer gradient of {', '.join(few(bad))} holds NaN or infinity; lower the local learning rate, and go on "
                           "from a checkpoint")  # fmt: skip
        self._flight = flight = Flight(fragment, due, refusal, fragment.sent)
        self._control.requests, self._control.refused = [], 0
        if not refusal:
            fragment.sent = fragment.values() if self._delay else None
        try:
            if self._is_scaled:
                self._measure(fragment, [] if refusal else deltas)
            deltas = [delta / self._scales.get(slot.index, 1.0) for slot, delta in zip(fragment.slots, deltas)]
            with _gradients(fragment.slots, None if refusal else deltas):
                for group in fragment.groups:
                    group.stale = {slot.index for slot in group.slots} if refusal else set()
                    group.start(self._step)
            if self._buffers is not None:
                self._buffers.start(self._step, leaving=False)
            self._control.say([])
            self._control.start(self._step, refused=bool(refusal))
            flight.given = not refusal and bool(fragment.compressed)
        except BaseException as error:
            self._fail(error)
        return flight

    def _replaced(self) -> str:
        """Why the module's parameters are not those that are exchanged; "" if they are."""
        known = {id(slot.parameter): self._start[slot.index] for slot in self._slots}
        try:
            now = [(name, parameter, known.get(id(parameter))) for name, parameter in trainable(self.module) if parameter.numel()]
        except (Invalid, Unsupported) as error:
            return str(error)
        other = [name for name, own, was in now if was is None or (was.shape, was.dtype) != (own.shape, own.dtype)]
        return f"parameters {', '.join(few(other))} were added or replaced; make OuterSync anew" if other else ""

    def _measure(self, fragment: Fragment, deltas: Sequence[torch.Tensor]) -> None:
        """Of the outer gradients and residuals of all ranks the greatest magnitudes, exact in any order: ranks get the same
        scales. No deltas: this rank refuses the step. A parameter without either keeps its scale."""
        measured = [float(delta.abs().max()) for delta in deltas] or [0.0] * len(fragment.slots)
        residuals = self._residuals() if deltas else {}
        for i, slot in enumerate(fragment.slots):
            if slot.name in residuals:
                kept = convert.tensor_of(residuals[slot.name].residual, width_of(slot.parameter.dtype))
                measured[i] = max(measured[i], float(kept.abs().max()) * self._scales.get(slot.index, 1.0))
        peaks = torch.tensor(measured, dtype=torch.float64, device="cpu")
        collective.all_reduce(peaks, "max", job=self.job)
        for slot, peak in zip(fragment.slots, peaks.tolist()):
            if peak > 0:  # float32 has the scale, and its inverse
                self._scales[slot.index] = 2.0 ** max(-126, min(126, math.frexp(peak)[1]))

    def _end(self, flight: Flight) -> None:
        try:
            self._wait(flight)
            if self._control.refused:
                self._refuse(flight)
            if self._buffers is not None:
                self._buffers.finish()
            self._apply(flight.fragment)
            if self._buffers is not None:
                self._buffers.before_forward()
        except BaseException as error:
            self._fail(error)
        requests = [request for group in flight.fragment.groups for request in group.requests] + self._control.requests
        costs = [request.stats for request in requests if request.stats is not None]
        self._totals.bytes_out += sum(cost.bytes_out for cost in costs)
        self._totals.bytes_in += sum(cost.bytes_in for cost in costs)
        self._totals.steps += 1
        self._step += 1
        self._flight, flight.fragment.sent = None, None

    def _wait(self, flight: Flight) -> None:
        for request in self._control.requests:
            request.wait()
        self._control.read()
        if self._control.given_up:
            ranks = ", ".join(str(numbered(self.job, place)) for place in self._control.given_up)
            raise Canceled(f"OuterSync {self.name}: outer step {self._totals.steps} was given up on rank {ranks}")
        for group in flight.fragment.groups:
            group.wait()

    def _refuse(self, flight: Flight) -> NoReturn:
        said = [part.decode() for part in self.job.gather(flight.refusal.encode())]
        ranks = "; ".join(f"rank {numbered(self.job, place)}: {text}" for place, text in enumerate(said) if text)
        raise Invalid(
            f"OuterSync {self.name}: outer step {self._totals.steps}: {ranks}. No parameter was changed",
            job=self.job.name,
        )

    def _apply(self, fragment: Fragment) -> None:
        """The outer optimiser steps from the start. Local steps since the gradient was taken are added to it. Residuals lose what
        was sent when it has stepped."""
        parameters = [slot.parameter.detach() for slot in fragment.slots]
        with _gradients(self._slots, None):
            for group in fragment.groups:
                group.apply(lambda slot: True, 1.0)
            bad = [slot.name for slot in fragment.slots if not bool(torch.isfinite(slot.parameter.grad).all())]
            if bad:
                raise Invalid(f"OuterSync {self.name}: outer step {self._totals.steps}: the sum of {', '.join(few(bad))} is out of "
                              'the range of values=; "raw" and "bf16" have that of float32', job=self.job.name)  # fmt: skip
            gradients = [slot.parameter.grad for slot in fragment.slots]
            for slot, gradient in zip(fragment.slots, gradients):
                gradient.mul_(self._scales.get(slot.index, 1.0))
            own, starts = fragment.values(), [self._start[slot.index] for slot in fragment.slots]
            try:
                for parameter, start in zip(parameters, starts):
                    parameter.copy_(start)
                self.outer.step()
            except BaseException:
                for parameter, value in zip(parameters, own):
                    parameter.copy_(value)
                raise
            fragment.settle(sent=True)
            for parameter, start in zip(parameters, starts):
                start.copy_(parameter)
            for parameter, value, sent in zip(parameters, own, fragment.sent or []):  # with a delay
                parameter.add_(value - sent)

    def _fail(self, error: BaseException) -> NoReturn:
        self._abort()
        raise error

    def _abort(self) -> None:
        """Gives up what is in flight, on all ranks. Residuals keep what was selected, unless take() learns that it was summed."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        with suppress(ZenpsError):
            self._control.cancel(None if self._control.refused else self._step)
        for group in flight.fragment.groups:
            group.stop()
        if self._buffers is not None:
            self._buffers.cancel()
        self._step += 1
        self._keep(flight, flight.fragment)

    def _keep(self, flight: Flight, fragment: Fragment) -> None:
        """The next outer gradient of a parameter counts from where the residual has it up to."""
        given: Set[int] = set()
        for group in fragment.compressed:
            given |= {slot.index for slot in group.slots} if flight.given else group.pending
        if not given:
            fragment.sent = flight.before
            return
        now = fragment.sent or fragment.values()
        before = flight.before or [self._start[slot.index].to(slot.parameter.device, copy=True) for slot in fragment.slots]
        fragment.sent = [new if slot.index in given else old for slot, new, old in zip(fragment.slots, now, before)]

    # What a user calls.

    @property
    def start(self) -> Dict[str, torch.Tensor]:
        """The parameters as the last outer step left them, by name: the same bits on all ranks. To be evaluated, and saved as
        the result of the training; not to be written."""
        return {slot.name: self._start[slot.index] for slot in self._slots}

    @property
    def stats(self) -> SyncStats:
        """Outer steps that went well, of all fragments; bytes of parameters and control rounds that the fabric was given and
        gave."""
        return dataclasses.replace(self._totals)

    @property
    def local_steps(self) -> int:
        return self._local

    def state_dict(self, gather_state: bool = False) -> Dict[str, Any]:
        """Counters, start, state of the outer optimiser, and this rank's residuals. Save it beside the module's state_dict(),
        one file a rank: a run goes on from both, bit for bit but for QSGD's draws. Ends what is under way (wait()).
        gather_state: rank 0 gets the sum of all ranks' residuals, the others zeros, for a job of another size; collective."""
        self.wait()
        for fragment in self._fragments:
            fragment.settle(sent=False)
        sent = {slot.name: value.clone() for each in self._fragments if each.sent for slot, value in zip(each.slots, each.sent)}
        job = self.job if gather_state else None
        return {
            "local": self._local,
            "steps": self._totals.steps,
            "start": {name: value.clone() for name, value in self.start.items()},
            "outer": self.outer.state_dict(),
            "compress": {name: save(each, job) for name, each in self._residuals().items()},
            "sent": sent,
            "scales": {slot.name: self._scales[slot.index] for slot in self._slots if slot.index in self._scales},
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from what state_dict() gave, of an OuterSync with the same arguments. Give the module its own state first."""
        if self._flight is not None:
            raise Invalid(f"OuterSync {self.name}: load_state_dict while an exchange is under way; call wait() first")
        shapes = {name: list(value.shape) for name, value in state["start"].items()}
        own = {slot.name: list(slot.parameter.shape) for slot in self._slots}
        if shapes != own:
            name = next(name for name in [*own, *shapes] if own.get(name) != shapes.get(name))
            raise Invalid(f"OuterSync {self.name}: load_state_dict: parameter {name} is {shapes.get(name, 'missing')} in the state, "
                          f"and {own.get(name, 'missing')} here")  # fmt: skip
        for fragment in self._fragments:
            fragment.settle(sent=False)
        load_all(self._residuals(), state["compress"])
        self._take_start([state["start"][slot.name] for slot in self._slots])
        for fragment in self._fragments:
            kept = [state["sent"].get(slot.name) for slot in fragment.slots]
            there = [each.to(slot.parameter.device, copy=True) for slot, each in zip(fragment.slots, kept) if each is not None]
            fragment.sent = there if len(there) == len(kept) else None
        self.outer.load_state_dict(state["outer"])
        self._take_scales({slot.index: state["scales"][slot.name] for slot in self._slots if slot.name in state["scales"]})
        self._local, self._totals.steps = int(state["local"]), int(state["steps"])

    def _take_scales(self, scales: Dict[int, float]) -> None:
        self._scales.clear()
        self._scales.update(scales)

    def _residuals(self) -> Dict[str, Any]:
        groups = [group for fragment in self._fragments for group in fragment.compressed]
        return {name: each for group in groups for name, each in group.sparsifiers.items()}

    def close(self) -> None:
        """Gives up what is in flight, and closes the tensors. The name is free again. Collective."""
        self._abort()
        tensors = [tensor for fragment in self._fragments for group in fragment.groups for tensor in group.tensors]
        for tensor in tensors + self._control.tensors + ([] if self._buffers is None else self._buffers.tensors):
            tensor.close()
        names.get(self.job, set()).discard(self.name)

    # What elastic() calls.

    def reopen(self) -> None:
        """Of an elastic job, in each generation: opens the tensors anew. An exchange under way is given up. Collective."""
        if isinstance(self.job, JobGroup):
            raise Invalid(f"OuterSync {self.name}: group {self.job.name} has ended with its generation; make both anew")
        self.drop()
        self._open_tensors()

    def drop(self) -> None:
        """Gives up an exchange that is under way; its outer gradient stays with this rank."""
        self._abort()

    def shared(self) -> Dict[str, Any]:
        """What all ranks have alike."""
        return {"local": self._local, "steps": self._totals.steps, "start": [self._start[slot.index] for slot in self._slots],
                "outer": self.outer.state_dict(), "scales": dict(self._scales)}  # fmt: skip

    def take(self, theirs: Dict[str, Any]) -> None:
        """Goes on from the start that another rank's shared() has. A rank that was there keeps its own local steps since. A
        newcomer, and a rank that missed the last outer step, begin at the start."""
        others = theirs["start"]
        is_same = theirs["steps"] == self._totals.steps and all(
            torch.equal(self._start[slot.index].cpu(), other.cpu()) for slot, other in zip(self._slots, others)
        )
        self._local = int(theirs["local"])
        self._take_scales(theirs["scales"])
        if is_same:
            return
        was_summed = theirs["steps"] == self._totals.steps + 1  # what this rank had sent
        for fragment in self._fragments:
            fragment.settle(sent=was_summed)
            fragment.sent = None
        self._take_start(others)
        for slot in self._slots:
            slot.parameter.detach().copy_(self._start[slot.index])
        self.outer.load_state_dict(theirs["outer"])
        self._totals.steps = int(theirs["steps"])

    def owned(self) -> List[torch.nn.Parameter]:
        """The parameters, which ranks do not have alike between outer steps."""
        return [slot.parameter for slot in self._slots]


def _check(name: str, slots: Sequence[Slot], every: int, decay: float, fragments: int, delay: int) -> None:
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


def _default_optimizer(parameters: List[torch.nn.Parameter], select: Optional[Compression]) -> torch.optim.Optimizer:
    if select is not None:
        return torch.optim.SGD(parameters, lr=1.0)
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def _check_optimizer(name: str, slots: Sequence[Slot], outer: Any) -> None:
    if not isinstance(outer, torch.optim.Optimizer):
        raise Invalid(f"OuterSync {name}: outer is a {type(outer).__name__}; a torch.optim.Optimizer of the module's parameters is "
                      "wanted, such as torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)")  # fmt: skip
    stepped = {id(parameter) for group in outer.param_groups for parameter in group["params"]
               if parameter.requires_grad and parameter.numel()}  # fmt: skip
    missing = [slot.name for slot in slots if id(slot.parameter) not in stepped]
    if missing or len(stepped) > len(slots):
        which = f"does not step {', '.join(few(missing))}" if missing else f"steps {len(stepped) - len(slots)} parameters of others"
        raise Invalid(f"OuterSync {name}: outer {which}; it must have exactly the module's parameters that require gradients")


def _selection(name: str, select: Optional[Compression], values: Optional[str], decay: float) -> Optional[Compression]:
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


def _described(outer: torch.optim.Optimizer) -> str:
    settings = {key: value for key, value in outer.defaults.items() if value and isinstance(value, (bool, int, float))}
    return f"{type(outer).__name__} {settings}"


def _split(slots: Sequence[Slot], n: int) -> List[List[Slot]]:
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


def _groups(label: str, slots: Sequence[Slot], select: Optional[Compression], outer: torch.optim.Optimizer,
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


@contextmanager
def _gradients(slots: Sequence[Slot], gradients: Union[None, Sequence[torch.Tensor]]) -> Iterator[None]:
    """Within it the parameters have these gradients, and all others none; afterwards their own again."""
    kept = [slot.parameter.grad for slot in slots]
    try:
        for slot, gradient in zip(slots, gradients or [None] * len(slots)):
            slot.parameter.grad = gradient
        yield
    finally:
        for slot, gradient in zip(slots, kept):
            slot.parameter.grad = gradient
