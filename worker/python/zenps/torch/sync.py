"""GradientSync: hooks on a module's parameters that sum their gradients over all ranks while backward() runs."""

from __future__ import annotations

import itertools
import weakref
from contextlib import contextmanager
from functools import partial
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from ..errors import Canceled, Invalid
from ..group import Group as JobGroup
from ..tensor import Tensor
from . import collective
from .autograd import GradientHook, ModuleHooks, before_step, in_backward, queue_callback
from .buffers import Buffers
from .checks import Checks, check_arguments, check_schemes, together
from .compress import Compress, CompressedGroup, compression, load_all, save
from .control import Control, SyncStats
from .dense import choose, scheme_of
from .groups import DenseGroup, Group, TableGroup, TorchGroup, apart, open_all
from .jobs import Ranks, current, generation, names, numbered
from .tables import Slot, Tables, plan

_closed: "weakref.WeakKeyDictionary[Ranks, Dict[str, Tuple[List[str], List[Tensor]]]]" = weakref.WeakKeyDictionary()
_FLAG = "require_backward_grad_sync"  # of DistributedDataParallel, which training loops set by hand


class GradientSync:
    """Sums the gradients of a module's parameters over all ranks of a job, in every backward pass.

    >>> job = zt.init()
    >>> sync = zt.GradientSync(model)           # parameters and buffers become those of rank 0
    >>> loss.backward()                         # returns when the gradients are the mean of all ranks'
    >>> optimizer.step()

    Every rank makes it with the same arguments, for a module of the same parameters, and then runs as many backward
    passes. A parameter has one GradientSync: make one of torch.nn.ModuleList([a, b]) for models that share parameters.
    A parameter's sum starts as soon as backward() has its gradient, and overlaps with the rest. backward() raises what a
    sum failed with (PeerLost, MissingRanks, ...), as it is; gradients are then undefined, and training can go on only if
    the error is one that all ranks got, such as Canceled.

    job: the ranks: a job, or a group of one, for a model that is replicated in some of its ranks alone. None: zt.init()'s.
    tables: which parameters are tables ("auto", "none", names, parameters): tables.py. Their gradients travel as the rows
        that are not zero, whether autograd makes them sparse or dense. Sparse gradients come back sparse and coalesced.
    scheme, dense_scheme: zenps's scheme of the tables' tensors and of the others'. None: ZENPS_SCHEME, else "balanced" of
        tables and "ring" of the others, which are "balanced", too, in elastic jobs.
    values: what values travel as, "bf16" for example. None: as they are.
    average: the mean over ranks; False: the sum.
    compress: a Compression of all but tables (:func:`zenps.torch.TopK`), or its name ("topk").
    bucket_mb: megabytes of a bucket of parameters that are no tables; the first one has 1 at most.
    fuse_tables: small sparse tables share a tensor.
    wait: "backward", or "step". With "step", backward() returns while sums are in flight. ``wait()`` waits for them, and
        so does the step of an optimiser given to ``attach()``. Do not clip, unscale or replace gradients before.
    broadcast: False leaves the parameters as they are, and lets ranks have other ones.
    broadcast_buffers: after a summed backward pass the next forward pass has rank 0's buffers, such as BatchNorm's running
        statistics. So has DistributedDataParallel. No forward pass waits for them (buffers.py).
    keep_zero_rows: zero rows of a sparse gradient are sent as well. SparseAdam needs it, since it changes all rows present.
    dense: what sums gradients that are no tables': "torch", the process group of torch.distributed; "zenps"; or "auto", which
        is "torch" where a process group of the job's ranks can, and compress, dense_scheme and values are not given.
    process_group: of "torch"; None: the default one. Two models of one backward pass have two.
    name: of the tensors; each GradientSync of a job has another. Its own tensors are "NAME/.control" and so on.

    Of an elastic job (zenps.init() with max_world) it is opened by :func:`zenps.torch.elastic`, or reopen(), and not here.

    A parameter that got no gradient on any rank keeps `.grad` None; one that another rank has a gradient for gets the
    sum. Thread: that of backward(). Errors: Invalid, Unsupported, ShapeMismatch where ranks differ.
    """

    @together
    def __init__(self, module: torch.nn.Module, job: Optional[Ranks] = None, *, tables: Tables = "auto",
                 scheme: Optional[str] = None, dense_scheme: Optional[str] = None, values: Optional[str] = None,
                 average: bool = True, compress: Compress = None, bucket_mb: float = 25,
                 fuse_tables: bool = True, wait: str = "backward", broadcast: bool = True,
                 broadcast_buffers: bool = True, keep_zero_rows: bool = False, dense: str = "auto",
                 process_group: Any = None, name: str = "model") -> None:  # fmt: skip
        check_arguments(name, module, wait, bucket_mb)
        compress = compression(compress)
        self.module = module
        self.job = current(job)
        self._plan = plan(module, tables, int(bucket_mb * (1 << 20)), fuse_tables)
        if not self._plan.names:
            raise Invalid("the module has no parameter that requires a gradient")
        self.name = name
        taken = names.setdefault(self.job, set())
        if name in taken:
            raise Invalid(f"another GradientSync or HookState of this job has the name {name!r}; give this one another (name=)")
        options: Dict[str, Any] = {"op": "mean" if average else "sum", "values": values}
        self._described = described = [f"{name} {tables!r}" if isinstance(tables, str) else name]
        described += [slot.described(kind) for kind, slot in self._slots()]
        described.append(f"average {average}, values {values}, scheme {scheme}, dense_scheme {dense_scheme}, compress {compress}, "
                         f"bucket_mb {bucket_mb:g}, fuse_tables {fuse_tables}, keep_zero_rows {keep_zero_rows}")  # fmt: skip
        bucketed = {slot.index: slot.parameter for slots in self._plan.buckets for slot in slots}
        self._idle = None if self._plan.tables else scheme, None if self._plan.buckets else dense_scheme
        options_of_dense: Dict[str, Any] = {"compress": compress, "dense_scheme": dense_scheme, "values": values}
        choice = choose(f"GradientSync {name}", dense, self.job, process_group, bucketed.values(), **options_of_dense)
        self._choice, dense_scheme = choice, scheme_of(self.job, dense_scheme, values)
        self._buffers = Buffers(name, module) if broadcast_buffers else None
        if self._buffers is not None:
            described += [place.described() for place in self._buffers.places]
            self._buffers = self._buffers if self._buffers.places else None
        self._average = average
        self._wait_in_step = wait == "step"
        self._compress = compress
        self._groups: List[Group] = []
        zero_rows = {"keep_zero_rows": 1} if keep_zero_rows else {}
        for i, slots in enumerate(self._plan.tables):
            label = f"{name}/{slots[0].name}" if len(slots) == 1 else f"{name}/.tables.{i}"
            self._groups.append(TableGroup(label, slots, scheme=scheme, **zero_rows, **options))
        self._ordered: List[Group] = []  # those that start in this order on every rank
        for i, slots in enumerate(self._plan.buckets):
            if choice.over_torch:
                self._ordered += [TorchGroup(f"{name}/.dense.{i}", part, choice, average) for part in apart(slots)]
                continue
            small, large = (slots, []) if compress is None else compress.split(slots)
            if small:
                self._groups.append(DenseGroup(f"{name}/.dense.{i}", small, scheme=dense_scheme, **options))
            if large and compress is not None:
                first = DenseGroup(f"{name}/.early.{i}", large, scheme=dense_scheme, **options)
                label = f"{name}/.compressed.{i}"
                self._groups.append(CompressedGroup(label, first, compress, str(options["op"])))
        self._groups += self._ordered
        self._control = Control(f"{name}/.control", len(self._plan.names))
        self._step = 0
        self._generation: Optional[int] = None  # of the job, that the tensors are of
        self._enabled = True
        self._own_steps = 0
        self._optimizers: List[torch.optim.Optimizer] = []
        self._step_hooks: List[Any] = []
        self._totals = SyncStats()
        self.bytes_last_step = 0
        self._kept: Optional[BaseException] = None
        self._on_cpu = all(slot.parameter.device.type == "cpu" for _, slot in self._slots())
        inner = [each for name, each in module.named_children() if name == "_orig_mod"]  # what torch.compile() has compiled
        self._flags = [each.__dict__ for each in (module, *inner)]
        for compressed in self._compressed():
            compressed.optimizers = self._optimizers
        self._by_index = {slot.index: (slot, group) for group in self._groups for slot in group.slots}
        slots_by_index = {index: slot for index, (slot, _) in self._by_index.items()}
        self._checks = Checks(name, module, self.job, slots_by_index, bucketed, average, compress is not None, alike=broadcast)
        self._reset()
        if isinstance(self.job, JobGroup) or not generation(self.job):
            self._open_tensors()
            if broadcast:
                collective.broadcast_parameters(module, job=self.job)
        taken.add(name)
        self._checks.watch.open()
        self._hooks = [GradientHook(slot.parameter, partial(self._gradient_ready, index)) for index, (slot, _) in self._by_index.items()]
        self._module_hooks = ModuleHooks(module, self._before_forward, self._checks.watch.after_forward, self._arm)

    def _slots(self) -> Iterator[Tuple[str, Slot]]:
        for kind, lists in (("table", self._plan.tables), ("dense", self._plan.buckets)):
            for slots in lists:
                for slot in slots:
                    yield kind, slot

    def _open_tensors(self) -> None:
        self._choice.compare(self.job, f"GradientSync {self.name}", self._described)
        described, tensors = _closed.setdefault(self.job, {}).pop(self.name, ([], []))
        for tensor in tensors if described != self._described else []:  # a closed one of this name had other parameters
            tensor.close()
        open_all(self.job, self._groups)
        check_schemes(self.job, self.name, self._idle)
        if self._buffers is not None:
            (tensor,) = self.job.tensors([self._buffers.ask()])
            self._buffers.opened(tensor, self.job)
        self._step = self._control.open(self.job)
        self._generation = generation(self.job)

    def reopen(self) -> None:
        """Of an elastic job, in its first generation and after Job.next(): opens the tensors anew. Gradients and a step that
        is in flight are dropped; hooks, attached optimisers, residuals and the count of steps stay. Collective; what
        :func:`zenps.torch.elastic` does."""
        if isinstance(self.job, JobGroup):
            raise Invalid(f"GradientSync {self.name}: group {self.job.name} has ended with its generation; make both anew")
        self.drop()
        self._open_tensors()

    def drop(self) -> None:
        """Gives up a step that is in flight, and drops all gradients."""
        self._abort()
        self._kept = None
        self._drop_gradients()

    # A backward pass.

    def _reset(self) -> None:
        self._checks.end()
        self._control.requests = []
        self._error: Optional[BaseException] = None
        self._queued = False  # _finish() will be called at the end of the backward pass under way
        self._fired: Dict[int, int] = {}  # parameters whose gradients this pass has made, and their versions then
        self._open = {id(group): len(group.slots) for group in self._groups}  # parameters that a group waits for
        self._started: List[Group] = []
        self._buffer_requests: List[Any] = []
        self._in_flight = False  # all rounds of a step have started, and nobody has waited for them

    @property
    def _is_summing(self) -> bool:
        return self._enabled and all(flags.get(_FLAG, True) for flags in self._flags)

    def _before_forward(self) -> None:
        """A backward pass that failed never called _finish()."""
        if (self._queued or self._fired) and not self._in_flight and not in_backward():
            self._abort()
        if self._buffers is not None:
            self._buffers.before_forward()
        self._checks.before_forward(self._totals.steps)

    def _arm(self) -> None:
        """The backward pass has reached the module: under re-entrant checkpoints parameters' hooks run in inner passes,
        which end earlier."""
        if self._queued:
            return
        self._queued = queue_callback(self._finish)
        self._checks.begin(self._totals.steps)

    def _gradient_ready(self, index: int) -> None:
        """Raises nothing: what is raised within a backward pass leaves torch's queue of tasks full, and some versions
        then hang when the process exits."""
        slot, group = self._by_index[index]
        self._arm()
        if not self._is_summing:
            self._checks.kept(slot)
            return
        try:
            if self._error is None and not self._checks.refusal:
                self._check_first(slot)
                self._checks.made(slot)
                self._fired[index] = slot.parameter._version
                self._open[id(group)] -= 1
                if not self._open[id(group)] and not self._checks.refusal:
                    self._start_ready(group)
        except BaseException as error:
            self._error = error
            queue_callback(self._finish)  # the one that was queued may be of a pass that failed, and gone

    def _check_first(self, slot: Slot) -> None:
        """Refuses a gradient that comes at the wrong time."""
        if self._generation != generation(self.job):
            raise Invalid(
                f"GradientSync {self.name} is not opened in generation {generation(self.job)} of job {self.job.name}: hand it "
                "to the State that elastic() is given, or call reopen()"
            )
        if self._in_flight:
            raise Invalid(
                f"parameter {slot.name} got a gradient while the sums of step {self._step} are in flight; call wait(), or "
                "give the optimiser to attach(), before the next backward()"
            )
        if slot.index in self._fired:
            raise Invalid(
                f"parameter {slot.name} got a second gradient in step {self._step}: the backward pass before this one "
                "failed, or several re-entrant checkpoints share the parameter (use_reentrant=False sums it once)"
            )

    def _start_ready(self, group: Group) -> None:
        """The group has all of its gradients."""
        if group not in self._ordered:
            return self._start(group)
        for each in itertools.takewhile(lambda each: not self._open[id(each)], self._ordered):
            if each not in self._started:
                self._start(each)

    def _start(self, group: Group) -> None:
        self._started.append(group)
        group.copies = self._checks.copies(group.slots, self._wait_in_step)
        group.start(self._step)
        written = group.written()
        for slot in group.slots:
            grad = group.gradient(slot)
            is_written = grad is not None and not grad.is_sparse and grad.data_ptr() in written
            self._checks.sent(slot.index, grad, is_written, group.copies)

    def _finish(self) -> None:
        """The end of the backward pass."""
        self._queued = False
        if self._error is not None:
            self._fail(self._error)
        if not self._is_summing:
            if not self._in_flight:  # In flight, wait() needs the versions to see this pass.
                self._checks.end()
            return
        try:
            self._checks.look(self._fired, self._optimizers)
            if not self._fired and not self._checks.refusal:
                return  # nothing of the module had a part in it
            self._start_rest(leaving=False)
        except BaseException as error:
            self._fail(error)
        if not self._wait_in_step or self._checks.refusal:
            self.wait()

    def _start_rest(self, leaving: bool) -> None:
        if self._checks.refusal:
            self._in_flight = True
            return
        slots = [slot for slot, _ in self._by_index.values()]
        stale = self._checks.stale(self._fired)
        for group in self._groups:
            if group not in self._started:
                group.stale = stale
                self._start(group)
        unused = [slot.index for slot in slots if slot.parameter.grad is None or slot.index in stale]
        if self._buffers is not None:
            self._buffer_requests = [self._buffers.start(self._step, leaving)]
        self._control.say(unused, leaving=leaving, written=self._checks.watch.take_written())
        self._in_flight = True

    def wait(self) -> None:
        """Returns when the gradients of the last backward pass are summed; at once, where they are. With wait="step" only
        then may they be read, clipped or unscaled. Raises what a sum failed with."""
        self._raise_kept()
        if not self._in_flight:
            return
        try:
            self._wait_and_apply()
        except BaseException as error:
            self._fail(error)
        self._checks.summed(self._totals.steps)
        self._own_steps += 1
        self._end_step()

    def _wait_and_apply(self) -> None:
        """The control round is last to start, so waiting for it first costs no time; and where a rank refuses the step it
        is the only one to end. It starts here, when nobody can change gradients any more unseen."""
        if not self._checks.refusal:
            self._checks.look_in_flight(self._wait_in_step)
        self._control.start(self._step, refused=bool(self._checks.refusal))
        for request in self._control.requests:
            request.wait()
        self._control.read()
        if self._control.given_up:
            ranks = ", ".join(str(numbered(self.job, place)) for place in self._control.given_up)
            raise Canceled(f"GradientSync {self.name}: step {self._step} was given up, or its backward pass failed, on rank {ranks}")
        if self._control.refused:
            self._checks.raise_refusal(self._step)
        for group in sorted(self._started, key=self._ordered.__contains__):  # zenps's rounds show which rank is lost
            group.wait()
        if self._buffers is not None:
            self._buffers.finish()
        if self._control.written and not self._control.left:
            self._checks.compare_parameters()
        scale = self._control.scale if self._average else 1.0
        for group in self._started:
            group.apply(lambda slot: self._control.used(slot.index), scale)

    def _drop_gradients(self) -> None:
        for slot, _ in self._by_index.values():
            slot.parameter.grad = None
        self._checks.drop()

    def _end_step(self) -> None:
        requests = [request for group in self._started for request in group.requests]
        requests += self._control.requests + self._buffer_requests
        costs = [request.stats for request in requests if request.stats is not None]
        out, into = sum(cost.bytes_out for cost in costs), sum(cost.bytes_in for cost in costs)
        self.bytes_last_step = out + into
        self._totals.steps += 1
        self._totals.bytes_out, self._totals.bytes_in = self._totals.bytes_out + out, self._totals.bytes_in + into
        self._step += 1
        self._reset()

    def _abort(self) -> None:
        """Gives up what is in flight, on all ranks; they wait for the control round at the least. A step of which nothing was
        started is still to come: the other ranks wait in it."""
        is_begun = bool(self._started) or self._in_flight
        self._control.cancel(self._step if is_begun else None)
        for group in self._ordered if is_begun else []:
            if group not in self._started:
                group.skip()
        for group in self._started:
            group.cancel()
        if self._buffers is not None:
            self._buffers.cancel()
        if is_begun:
            self._step += 1
        self._reset()

    def _fail(self, error: BaseException) -> None:
        self._abort()
        if not self._on_cpu:
            self._kept = error  # torch may lose the type of what threads of its own raise
        raise error

    def _raise_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            raise kept

    # What a user calls.

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in this context add to the gradients of this rank alone; the next one after it sums them all.

        >>> for batch in batches[:-1]:
        ...     with sync.no_sync():
        ...         loss(batch).backward()
        >>> loss(batches[-1]).backward()
        """
        before, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """For ranks that have different numbers of batches: who leaves the context goes on as one without data until all
        have left it; means are over those that have not. In the end the parameters and buffers are those of the rank that
        ran longest. Collective: all ranks enter it.

        >>> with sync.join():
        ...     for batch in own_batches: ...
        """
        self._own_steps = 0
        yield
        self.wait()
        everybody = False
        while not everybody:
            self._drop_gradients()
            try:
                self._start_rest(leaving=True)
                self._wait_and_apply()
            except BaseException as error:
                self._fail(error)
            everybody = self._control.left == self.job.world
            self._end_step()
        self._drop_gradients()
        steps = [int(part) for part in self.job.gather(str(self._own_steps).encode())]
        collective.broadcast_parameters(self.module, numbered(self.job, steps.index(max(steps))), job=self.job)

    def attach(self, *optimizers: torch.optim.Optimizer) -> None:
        """Has optimisers wait for the sums at the beginning of step(), and checks that they go with `compress`, and step no
        parameter that no GradientSync sums; the latter in each step."""
        self._checks.check_optimizers(optimizers)
        cut = {id(slot.parameter): slot.name for group in self._compressed() for slot in group.slots}
        for optimizer in optimizers:
            if self._compress is not None:
                self._compress.check_optimizer(optimizer, cut)
            self._optimizers.append(optimizer)
            self._step_hooks.append(before_step(optimizer, self._before_step))

    def _before_step(self) -> None:
        if not self._fired and not self._in_flight:
            self._checks.check_step()
        self.wait()

    @property
    def stats(self) -> SyncStats:
        """Totals so far."""
        self._totals.copied_bytes = sum(group.copied_bytes for group in self._groups)
        return SyncStats(**vars(self._totals))

    def state_dict(self, gather_state: bool = False) -> Dict[str, Any]:
        """What a checkpoint needs of this rank: {"steps": int, "compress": {parameter: state}}. It is the rank's own: save
        one file a rank. gather_state: rank 0 gets the sum of all ranks' residuals, the others zeros, so that a job of
        another size can go on from rank 0's; collective. Between steps."""
        self.wait()
        state: Dict[str, Any] = {"steps": self._totals.steps, "compress": {}}
        for group in self._compressed():
            for name, sparsifier in group.sparsifiers.items():
                state["compress"][name] = save(sparsifier, self.job if gather_state else None)
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from a state that state_dict() gave: of this rank, in a job of as many. In a job of another size rank 0
        loads rank 0's gathered state, and every other rank one of another rank, whose residuals are zero."""
        self.wait()
        load_all({n: each for group in self._compressed() for n, each in group.sparsifiers.items()}, state["compress"])
        self.take(int(state["steps"]))

    def shared(self) -> int:
        """What all ranks of an elastic job have alike: the count of steps."""
        return self._totals.steps

    def take(self, steps: int) -> None:
        """So many steps went before, as warm-ups see it: what another rank's shared() has."""
        self._totals.steps = steps
        for group in self._compressed():
            group.steps = steps

    def _compressed(self) -> List[CompressedGroup]:
        return [group for group in self._groups if isinstance(group, CompressedGroup)]

    def close(self) -> None:
        """Removes the hooks, which keep this object alive until then; what is in flight is given up. The name is free again;
        ranks that use it for other parameters do so alike."""
        if self._fired or self._in_flight:
            self._abort()
        for hook in [*self._hooks, *self._step_hooks]:
            hook.remove()
        self._hooks, self._optimizers, self._step_hooks = [], [], []
        self._module_hooks.remove()
        self._checks.watch.close()
        if self.name in names.get(self.job, ()):
            tensors = [tensor for group in self._groups for tensor in group.tensors]
            tensors += self._control.tensors + ([] if self._buffers is None else self._buffers.tensors)
            _closed.setdefault(self.job, {})[self.name] = self._described, tensors
        names.get(self.job, set()).discard(self.name)
