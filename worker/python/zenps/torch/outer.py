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
import json
import math
import secrets
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, NoReturn, Optional, Sequence, Set, Union

import torch

from ..errors import Canceled, Invalid, Stale, Unsupported, ZenpsError
from ..group import Group as JobGroup
from ..request import Request
from ..tensor import Tensor
from . import collective, convert
from .buffers import Buffers
from .checks import together
from .compress import Compress, compression, load_all, save
from .control import Control, agree
from .dense import scheme_of
from .fragments import Flight, Fragment, check_arguments, check_optimizer, default_optimizer, describe_optimizer, make_groups, selection, split
from .groups import open_all
from .jobs import Ranks, current, generation, names, numbered, whole
from .quorum import GRACE, KEPT, OuterStats, Pace, quorum_of
from .tables import Slot, trainable
from .watch import few

_LOOK = 0.2  # seconds from one look at the job's changes to the next


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
        start_iter are not used. The first two are arguments here. All parameters are cut from the first step on.
    values: what values travel as: "qsgd2", "qsgd4", "qsgd8", "bf16", "f16", or "raw". QSGD's rounding is random and unbiased;
        its error is not fed back. In each outer step a parameter is scaled by the power of two above its outer gradients
        and residuals of all ranks, so that parameters of all magnitudes can share a block of levels. A short round first
        finds these powers: all ranks wait for it, also with a delay. With a quorum they are of its first ranks: runs differ.
    decay: share of the residual that stays from one outer step to the next; over 0, at most 1.
    outer: the optimiser of the outer step, over exactly the parameters of the module that require gradients. Residuals follow
        its rate. None: with a selection torch.optim.SGD(lr=1.0), whose momentum the residual stands for, as in SparseLoCo;
        else torch.optim.SGD(lr=0.7, momentum=0.9, nesterov=True), as in DiLoCo.
    fragments: parts of about equal size, of whole parameters. Each has an outer step of its own every `every` steps: they
        take turns.
    delay: local steps that a rank makes while its exchange is under way. The outer step comes `delay` steps after its start,
        and what the rank trained in between is added to it. Less than every / fragments.
    quorum: ranks that close an outer step, 1 to all; None: all are needed. See below.
    grace: seconds that the other ranks have when the quorum has given its gradients; None: 10. At most 86400.
    host_start: the start is kept in host memory. Takes parameters on a GPU to the host and back in each outer step.
    broadcast: False leaves the parameters as they are; ranks must have the same ones.
    broadcast_buffers: buffers are rank 0's after each outer step, as GradientSync has it after each step.
    scheme: of dense rounds; None: ZENPS_SCHEME, "balanced". A Compression has its own.
    name: of the tensors; each OuterSync of a job has another.

    After an outer step `start` has the same bits on all ranks. So have the parameters, without a delay.

    With a quorum an outer step does not wait for the slowest ranks. Its mean is that of the ranks in time. A late rank gets it,
    too, and applies it. It keeps its own gradient for the next outer step: in the residual, or in a copy if all values travel.
    Its period then ends with that of the others, after fewer local steps: local_steps skips the rest. So write loops over
    local_steps: `while outer.local_steps < n`. Let the rate of `outer` follow stats.steps: ranks differ in local_steps.
    A grace that covers a slow rank's local step, and its exchange, lets it be in time. It is less than the job's round_timeout.
    Let half of round_timeout be longer than a period: so long does a late rank hear that the others begin.
    A rank may be 16 outer steps late. Later still it gets Stale. A fragment has late ranks of its own, and so has each
    dtype and device in it. One server sums each of these, and each rank keeps its last 16 gradients as they travel. Buffers
    come from rank 0, which may be late: broadcast_buffers=False, or a module without buffers.
    Each group decides by itself who is late. So make outer steps with a quorum in one process of a site, in a group of these
    processes, and broadcast the parameters in the site after each. [zenps.h: quorum]

    Memory: the start, as large as the parameters; outer's momentum; with `select` a residual in host memory; with `delay` a
    copy of the fragment under way. An outer step has copies of its fragment for a while. With a quorum, if all values travel, a
    rank keeps its outer gradient through the exchange, and to its next outer step if it is late. Parameters are float32 or
    float64 (Unsupported for others).

    In an elastic job each generation goes on from the rank with the most outer steps. The others keep what no sum has of their
    gradients and local steps. Outer steps that no rank has any more are made again. Where the world is smaller than the quorum, all
    ranks are needed. A rank that gets Stale goes on in the next generation.

    Of an elastic job it is opened by :func:`zenps.torch.elastic`, or reopen(), and not here. Errors: Invalid, Unsupported,
    ShapeMismatch where ranks differ. A step that fails leaves the parameters as they are. If all ranks got the error, call
    step() again. With `select` the residuals may have its outer gradient then. It counts once, but decays once more
    with each further try. Where `outer` itself raises, its own state may have changed. With a quorum the others may go on
    without a rank that got an error from the job, or was interrupted. It lacks their sum: its step() raises Invalid from then on.

    Threads: step(), wait(), state_dict() and load_state_dict() in one thread at a time. It starts none.
    """

    @together
    def __init__(self, module: torch.nn.Module, job: Optional[Ranks] = None, *, every: int = 30,
                 select: Compress = "chunktopk", values: Optional[str] = "qsgd2", decay: float = 0.95,
                 outer: Optional[torch.optim.Optimizer] = None, fragments: int = 1, delay: int = 0,
                 quorum: Optional[int] = None, grace: Optional[float] = None,
                 host_start: bool = False, broadcast: bool = True, broadcast_buffers: bool = True,
                 scheme: Optional[str] = None, name: str = "outer") -> None:  # fmt: skip
        if not isinstance(module, torch.nn.Module):
            raise Invalid(f"OuterSync: a {type(module).__name__}; a torch.nn.Module is wanted")
        slots = [Slot(label, parameter, i, 0) for i, (label, parameter) in enumerate(trainable(module)) if parameter.numel()]
        check_arguments(name, slots, every, decay, fragments, delay)
        self.module, self.job, self.name = module, current(job), name
        taken = names.setdefault(self.job, set())
        if name in taken:
            raise Invalid(f"another OuterSync, GradientSync or HookState of this job has the name {name!r}; give this one another (name=)")
        parameters = [slot.parameter for slot in slots]
        cut = selection(name, compression(select), values, decay)
        self._quorum = quorum_of(name, self.job, quorum, grace, {"scheme": scheme, "a select of scheme": cut.scheme if cut else None})
        if self._quorum.ranks:
            scheme, cut = "balanced", cut and dataclasses.replace(cut, scheme="balanced")
        self.outer = default_optimizer(parameters, cut) if outer is None else outer
        check_optimizer(name, slots, self.outer)
        self._every, self._delay = every, delay
        dense: Dict[str, Any] = {"op": "mean", "values": values, "scheme": scheme_of(self.job, scheme, values)}
        self._fragments = [
            Fragment(part, make_groups(f"{name}/{i}", part, cut, self.outer, dense)) for i, part in enumerate(split(slots, fragments))
        ]
        self._ends = [(i + 1) * every // fragments for i in range(fragments)]  # local steps of a period after which each has its turn
        self._host_start = host_start
        self._start: Dict[int, torch.Tensor] = {}  # of each parameter, by index
        self._scales: Dict[int, float] = {}  # of parameters that travel as QSGD levels, by index; the same on all ranks
        self._is_scaled = values is not None and values.startswith("qsgd")
        for group in (group for fragment in self._fragments for group in fragment.compressed):
            group.scales, group.commits = self._scales, False
        self._slots = slots
        described = [name, f"every {every}, fragments {fragments}, delay {delay}, {dense}, {cut}, {describe_optimizer(self.outer)}"]
        described += [f"quorum {quorum}, grace {self._quorum.grace_ms} ms, half a round_timeout {self._quorum.patience:g} s", *(slot.described("outer") for slot in slots)]
        self._buffers = Buffers(name, module) if broadcast_buffers else None
        if self._buffers is not None:
            described += [place.described() for place in self._buffers.places]
            self._buffers = self._buffers if self._buffers.places else None
        if self._buffers is not None and self._quorum.ranks:
            raise Invalid(f"OuterSync {name}: quorum {quorum} with broadcast_buffers: the module has buffers ({self._buffers.places[0].name}, ...), "
                          "and rank 0, which gives them, may be late; broadcast_buffers=False leaves each rank its own")  # fmt: skip
        self._described = described
        self._control = Control(f"{name}/.control", 0)
        self._pace: Optional[Pace] = None
        self._peaks: List[Tensor] = []
        self._is_behind = False  # late in the last outer step, or faster than its own pace since
        self._overruled = ""  # what step() is to raise: the others made an outer step that this rank refused
        self._lost = ""  # why this rank lacks a sum that the others may have
        self._generation: Optional[int] = None
        self._step = 0  # of the control round
        self._flight: Optional[Flight] = None
        self._given_up: Optional[Flight] = None  # the last one, until the next begins; others may have its sum
        self._id = secrets.token_hex(8)  # of this OuterSync in all generations
        self._ids: List[str] = []  # of all ranks' in this one
        self._member = -1  # generation in which it last trained, or took a start; -1: it is new
        self.furthest = 0  # the rank with the most outer steps, when the generation began
        self._totals = OuterStats()
        self._local = 0
        if isinstance(self.job, JobGroup) or not generation(self.job):
            self._open_tensors()
            if broadcast:
                collective.broadcast_parameters(module, job=self.job)
        self._take_start(parameters)
        taken.add(name)

    def _open_tensors(self) -> None:
        agree(self.job, f"OuterSync {self.name}", self._described)
        own = json.dumps([self._id, self._member, self._totals.steps, self._local])
        progress = [json.loads(part) for part in self.job.gather(own.encode())]
        self._ids = [each.pop(0) for each in progress]
        self.furthest = progress.index(max(progress))
        options, groups = self._quorum.options(self.job.world), [group for fragment in self._fragments for group in fragment.groups]
        for ask in (ask for group in groups for ask in group.asks):
            ask.update(options)
        open_all(self.job, groups)
        if self._buffers is not None:
            (tensor,) = self.job.tensors([self._buffers.ask()])
            self._buffers.opened(tensor, self.job)
        self._step = self._control.open(self.job, **options)
        self._pace, self._is_behind = None, False
        if 0 < self._quorum.ranks < self.job.world:
            self._pace = Pace(f"{self.name}/.pace", self._quorum)
            self._pace.open(self.job)
        if self._is_scaled:
            peaks = convert.tensor_name(f"{self.name}/.peaks")
            self._peaks = [self.job.tensor(peaks, self._slots[-1].index + 1, 1, "f64", op="max", values="raw", scheme="balanced",
                                           **self._quorum.options(self.job.world, grace=False))]  # fmt: skip
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
        then, and the local step is not counted. With `select`, residuals of the other ranks have their outer gradients. With a
        quorum only ranks in time refuse for all. A late rank raises its Invalid alone. It has applied the step of the others then,
        and its local step is counted."""
        if self._generation != generation(self.job):
            raise Invalid(
                f"OuterSync {self.name} is not opened in generation {generation(self.job)} of job {self.job.name}: hand it to "
                "the State that elastic() is given, or call reopen()"
            )
        if self._lost:
            mend = "let that error pass to elastic()" if generation(self.job) else "start all ranks again from a checkpoint"
            raise Invalid(f"OuterSync {self.name}: {self._lost}. The others may have gone on without this rank: {mend}", job=self.job.name)
        self._member = generation(self.job)
        local, applied = self._paced(self._local + 1), False
        if self._flight is not None and local >= self._flight.due:
            self._end(self._flight)
            applied = True
        place = (local - 1) % self._every + 1
        if place in self._ends:
            self._is_behind = self._is_behind and local > self._local + 1
            flight = self._begin(self._fragments[self._ends.index(place)], local + self._delay)
            if not self._delay:
                self._end(flight)
                applied = True
        self._local = local
        self._complain()
        return applied

    def _paced(self, local: int) -> int:
        """The local step that counts. A rank that is behind skips those up to an outer step that the others have begun, or
        ended."""
        if self._pace is None:
            return local
        self._pace.tend()
        if not self._is_behind:
            return local
        if self._flight is not None:
            return max(local, self._flight.due) if self._flight.is_over(self._control.requests) else local
        if not self._pace.has_begun(self._step):
            return local
        place = (local - 1) % self._every + 1
        return local + min(end for end in self._ends if end >= place) - place

    def _complain(self) -> None:
        reason, self._overruled = self._overruled, ""
        if reason:
            raise Invalid(f"OuterSync {self.name}: {reason}", job=self.job.name)

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
            for slot, delta in zip(fragment.slots, deltas):
                if slot.index in fragment.late:
                    delta.add_(fragment.late[slot.index])
            bad = [slot.name for slot, delta in zip(fragment.slots, deltas) if not bool(torch.isfinite(delta).all())]
            if bad:
                refusal = (f"outer gradient of {', '.join(few(bad))} holds NaN or infinity; lower the local learning rate, and go on "
                           "from a checkpoint")  # fmt: skip
        self._flight, self._given_up = Flight(fragment, self._totals.steps, due, refusal, fragment.sent), None
        flight = self._flight
        self._control.requests, self._control.refused = [], 0
        fragment.sent = fragment.values() if self._delay and not refusal else None
        try:
            if self._pace is not None:
                self._pace.begin(self._step)
            if (self._quorum.ranks or fragment.late) and not fragment.compressed and not refusal:
                flight.deltas = {slot.index: delta for slot, delta in zip(fragment.slots, deltas)}
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
        scales. No deltas: this rank refuses the step. A parameter without either keeps its scale. With a quorum the magnitudes of
        late ranks do not count: their values are rounded with those of their block."""
        measured = [float(delta.abs().max()) for delta in deltas] or [0.0] * len(fragment.slots)
        residuals = self._residuals() if deltas else {}
        for i, slot in enumerate(fragment.slots):
            if slot.name in residuals:
                measured[i] = max(measured[i], float(residuals[slot.name].values.abs().max()) * self._scales.get(slot.index, 1.0))
        peaks = torch.tensor(measured, dtype=torch.float64, device="cpu")
        ids = torch.tensor([slot.index for slot in fragment.slots], dtype=torch.int64, device="cpu")
        given = convert.array(peaks, (ids.shape[0], 1)), convert.array(ids, (ids.shape[0],))
        request = self._peaks[0].allreduce(*given, step=self._step, out="rows")
        self._await([request])
        for index, peak in zip(*(each.view(-1).tolist() for each in convert.rows_of(request.wait(), torch.float64))):
            if peak > 0:  # float32 has the scale, and its inverse
                self._scales[index] = 2.0 ** max(-126, min(126, math.frexp(peak)[1]))

    def _end(self, flight: Flight) -> None:
        try:
            self._wait(flight)
            if self._control.refused:
                flight.is_common = True
                self._refuse(flight)
            if self._buffers is not None:
                self._buffers.finish()
            self._apply(flight)
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
        flight.fragment.keep(flight.deltas)
        self._count_late(flight)
        if flight.refusal:  # without a quorum the others would have refused, too
            self._overruled = (f"outer step {self._totals.steps - 1} was made without this rank, whose {flight.refusal}. Its parameters are "
                               "those of the others")  # fmt: skip

    def _count_late(self, flight: Flight) -> None:
        costs = [request.stats for group in flight.fragment.groups for request in group.requests if request.stats is not None]
        self._totals.late_ranks = tuple(sorted({rank for cost in costs for rank in cost.late_ranks}))
        self._totals.contributors = self.job.world - len(self._totals.late_ranks)
        flight.fragment.note(flight.number, {numbered(self.job, place): each for place, each in enumerate(self._ids)})
        if any(cost.late for cost in costs):
            self._totals.late += 1
            self._is_behind = True

    def _wait(self, flight: Flight) -> None:
        self._await([*self._control.requests, *(request for group in flight.fragment.groups for request in group.requests)])
        for request in self._control.requests:
            request.wait()
        self._control.read()
        if self._control.given_up:
            ranks = ", ".join(str(numbered(self.job, place)) for place in self._control.given_up)
            raise Canceled(f"OuterSync {self.name}: outer step {self._totals.steps} was given up on rank {ranks}")
        for group in flight.fragment.groups:
            group.wait()

    def _await(self, requests: Sequence[Request[Any]]) -> None:
        """With a quorum in an elastic job: the round may lack a rank that has moved on, and wait for a slow one. So it is given up a
        while after the job has changed. Ranks at their commit() wait for this one, but not for a long grace."""
        end = math.inf
        for request in requests if self._quorum.ranks and generation(self.job) else []:
            while not request.done():
                if end == math.inf and whole(self.job).changed:
                    end = time.monotonic() + min(self._quorum.grace_ms / 1000, GRACE)
                if time.monotonic() >= end:
                    raise Canceled(f"OuterSync {self.name}: outer step {self._totals.steps} was given up: job {self.job.name} goes on in "
                                   "another generation", job=self.job.name)  # fmt: skip
                with suppress(TimeoutError):
                    request.wait(_LOOK)

    def _refuse(self, flight: Flight) -> NoReturn:
        if self._quorum.ranks:  # a gather would wait for the slowest rank
            others = dict.fromkeys(self._control.refused_by, "its own error says why")
            by_place = {**others, self.job.rank: flight.refusal}
            said = [by_place.get(place, "") for place in range(self.job.world)]
        else:
            said = [part.decode() for part in self.job.gather(flight.refusal.encode())]
        ranks = "; ".join(f"rank {numbered(self.job, place)}: {text}" for place, text in enumerate(said) if text)
        raise Invalid(
            f"OuterSync {self.name}: outer step {self._totals.steps}: {ranks}. No parameter was changed",
            job=self.job.name,
        )

    def _apply(self, flight: Flight) -> None:
        """The outer optimiser steps from the start. Local steps since the gradient was taken are added to it. Residuals lose what
        was sent when it has stepped."""
        fragment = flight.fragment
        parameters = [slot.parameter.detach() for slot in fragment.slots]
        with _gradients(self._slots, None):
            for group in fragment.groups:
                group.apply(lambda slot: True, 1.0)
            bad = [slot.name for slot in fragment.slots if not bool(torch.isfinite(slot.parameter.grad).all())]
            if bad:
                flight.is_common = True
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
        is_lost = self._quorum.ranks and self._flight is not None and not self._flight.is_common
        step = self._totals.steps
        self._abort()
        if is_lost:
            self._lost = f"outer step {step} failed on this rank: {str(error) or type(error).__name__}"
        if is_lost and isinstance(error, Stale):
            mend = "Let this error pass to elastic()" if generation(self.job) else "Start all ranks again from a checkpoint"
            raise Stale(f"OuterSync {self.name}: outer step {step}: this rank is too late for the sum; servers keep {KEPT}, or fewer "
                        f"where memory is short. {mend}, with a longer grace. ({error})", job=self.job.name) from error  # fmt: skip
        raise error

    def _abort(self) -> None:
        """Gives up what is in flight, on all ranks. Residuals keep what was selected, unless take() learns that it was summed."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        with suppress(ZenpsError):
            no_one_waits = bool(self._control.refused or self._quorum.ranks)
            self._control.cancel(None if no_one_waits else self._step)
        for group in flight.fragment.groups:
            group.stop()
        if self._buffers is not None:
            self._buffers.cancel()
        self._step += 1
        self._given_up, flight.at = flight, flight.fragment.sent or flight.fragment.values()
        self._keep(flight, flight.fragment)

    def _keep(self, flight: Flight, fragment: Fragment) -> None:
        """The next outer gradient of a parameter counts from where the residual has it up to."""
        given: Set[int] = set()
        for group in fragment.compressed:
            given |= {slot.index for slot in group.slots} if flight.given else group.pending
        if not given:
            fragment.sent = flight.before
            return
        before = flight.before or [self._start[slot.index].to(slot.parameter.device, copy=True) for slot in fragment.slots]
        fragment.sent = [new if slot.index in given else old for slot, new, old in zip(fragment.slots, flight.at, before)]

    # What a user calls.

    @property
    def start(self) -> Dict[str, torch.Tensor]:
        """The parameters as the last outer step left them, by name: the same bits on all ranks. To be evaluated, and saved as
        the result of the training; not to be written."""
        return {slot.name: self._start[slot.index] for slot in self._slots}

    @property
    def stats(self) -> OuterStats:
        """Outer steps that went well, of all fragments, and those that closed without this rank; the late ranks of the last one;
        bytes of parameters and control rounds that the fabric was given and gave."""
        return dataclasses.replace(self._totals)

    @property
    def local_steps(self) -> int:
        """Local steps so far, with those that this rank skipped because it was late."""
        return self._local

    def state_dict(self, gather_state: bool = False) -> Dict[str, Any]:
        """Counters, start, state of the outer optimiser, and this rank's residuals. Save it beside the module's state_dict(),
        one file a rank: a run goes on from both, bit for bit but for QSGD's draws. Ends what is under way (wait()).
        gather_state: rank 0 gets the sum of all ranks' residuals and late gradients, the others zeros, for a job of another size;
        collective."""
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
            "late": self._late_gradients(job),
            "scales": {slot.name: self._scales[slot.index] for slot in self._slots if slot.index in self._scales},
        }

    def _late_gradients(self, job: Optional[Ranks]) -> Dict[str, torch.Tensor]:
        """By parameter. job: rank 0 gets the sum of all its ranks."""
        kept = {slot.name: each.late[slot.index].clone() for each in self._fragments for slot in each.slots if slot.index in each.late}
        if job is None or not self._quorum.ranks or self._residuals():
            return kept
        for slot in self._slots:
            kept.setdefault(slot.name, torch.zeros_like(slot.parameter))
            collective.all_reduce(kept[slot.name], job=job)
        return kept if job.rank == 0 else {}

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
            late = {slot.index: (slot, state.get("late", {}).get(slot.name)) for slot in fragment.slots}
            fragment.late = {at: each.to(slot.parameter.device, copy=True) for at, (slot, each) in late.items() if each is not None}
        self.outer.load_state_dict(state["outer"])
        self._take_scales({slot.index: state["scales"][slot.name] for slot in self._slots if slot.name in state["scales"]})
        self._local, self._totals.steps, self._overruled = int(state["local"]), int(state["steps"]), ""
        self._given_up, self._lost = None, ""
        for fragment in self._fragments:
            fragment.summed = [{} for _ in fragment.groups]

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
        tensors += self._control.tensors + self._peaks
        if self._pace is not None:
            self._pace.cancel()
            tensors += self._pace.tensors
        for tensor in tensors + ([] if self._buffers is None else self._buffers.tensors):
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
                "outer": self.outer.state_dict(), "scales": dict(self._scales), "summed": [each.summed for each in self._fragments]}  # fmt: skip

    def take(self, theirs: Dict[str, Any]) -> None:
        """Goes on from the start that the furthest rank's shared() has. A rank that was there keeps its own local steps since its
        last gradient in a sum: added to that start, they are in its next outer gradient. A newcomer begins at the start."""
        others = theirs["start"]
        is_same = theirs["steps"] == self._totals.steps and all(
            torch.equal(self._start[slot.index].cpu(), other.cpu()) for slot, other in zip(self._slots, others)
        )
        is_new, self._member, self._lost = self._member < 0, generation(self.job), ""
        self._local = int(theirs["local"])
        self._take_scales(theirs["scales"])
        for fragment, summed in zip(self._fragments, theirs["summed"]):
            fragment.take_summed(summed, self._ids, int(theirs["steps"]))
        if is_same:
            return
        if is_new:  # what it has loaded is of other outer steps
            for fragment in self._fragments:
                fragment.settle(sent=False)
                fragment.late = {}
            for residual in self._residuals().values():
                residual.values.zero_()
        moved = [torch.zeros_like(each) if is_new else each for fragment in self._fragments for each in self._moved(fragment)]
        self._take_start(others)
        for slot, move in zip(self._slots, moved):
            slot.parameter.detach().copy_(self._start[slot.index]).add_(move)
        self.outer.load_state_dict(theirs["outer"])
        self._totals.steps = int(theirs["steps"])

    def _moved(self, fragment: Fragment) -> List[torch.Tensor]:
        """This rank's local progress that is in no sum, residual or late gradient."""
        bases = fragment.sent or [self._start[slot.index].to(slot.parameter.device) for slot in fragment.slots]
        flight = self._given_up
        if flight is not None and flight.fragment is fragment and flight.refusal:
            fragment.settle(sent=False)
            bases, self._given_up = fragment.values(), None
        elif flight is not None and flight.fragment is fragment:
            summed = fragment.settle_for(self._id, flight.number)
            bases = [at if slot.index in summed else base for slot, at, base in zip(fragment.slots, flight.at, bases)]
            self._given_up = None
        fragment.sent = None
        return [slot.parameter.detach() - base for slot, base in zip(fragment.slots, bases)]

    def owned(self) -> List[torch.nn.Parameter]:
        """The parameters, which ranks do not have alike between outer steps."""
        return [slot.parameter for slot in self._slots]


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
