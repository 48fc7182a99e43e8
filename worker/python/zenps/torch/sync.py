"""GradientSync: hooks on a module's parameters that sum their gradients over all ranks while backward() runs."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch

from ..errors import Invalid
from ..group import Group as JobGroup
from . import collective
from .autograd import GradientHook, ModuleHooks, before_step, in_backward, queue_callback
from .compress import Compression, CompressedGroup, load_all, save
from .control import Control, SyncStats, agree
from .groups import DenseGroup, Group, TableGroup, open_all
from .jobs import Ranks, current, generation, numbered
from .tables import Slot, Tables, plan

_names: "weakref.WeakKeyDictionary[Ranks, Set[str]]" = weakref.WeakKeyDictionary()


class GradientSync:
    """Sums the gradients of a module's parameters over all ranks of a job, in every backward pass.

    >>> job = zt.init()
    >>> sync = zt.GradientSync(model)           # parameters and buffers become those of rank 0
    >>> loss.backward()                         # returns when the gradients are the mean of all ranks'
    >>> optimizer.step()

    Every rank makes it with the same arguments, for a module of the same parameters, and then runs as many backward
    passes. A parameter's sum starts as soon as backward() has its gradient, and overlaps with the rest. backward() raises
    what a sum failed with (PeerLost, MissingRanks, ...), as it is; gradients are then undefined, and training can go on
    only if the error is one that all ranks got, such as Canceled.

    job: the ranks: a job, or a group of one, for a model that is replicated in some of its ranks alone. None: zt.init()'s.
    tables: which parameters are tables ("auto", "none", names, parameters): tables.py. Their gradients travel as the rows
        that are not zero, whether autograd makes them sparse or dense. Sparse gradients come back sparse and coalesced.
    scheme, dense_scheme: zenps's scheme of the tables' tensors and of the others'. None: ZENPS_SCHEME, "balanced".
    values: what values travel as, "bf16" for example. None: as they are.
    average: the mean over ranks; False: the sum.
    compress: a Compression, for which see :func:`zenps.torch.TopK`, of what is no table. An embedding whose weight another
        module has, too, is then no table under "auto".
    bucket_mb: megabytes of a bucket of parameters that are no tables. fuse_tables: small sparse tables share a tensor.
    wait: "backward", or "step": then backward() returns while sums are in flight, and ``wait()``, or the step of an
        optimiser that was given to ``attach()``, waits for them.
    broadcast: False leaves the parameters as they are.
    keep_zero_rows: rows that a sparse gradient names are sent also where they are zero, for optimisers that do something
        to every row that is present, as SparseAdam does.
    name: of the tensors; each GradientSync of a job has another.

    Of an elastic job (zenps.init() with max_world) it is opened by :func:`zenps.torch.elastic`, or reopen(), and not here.

    A parameter that got no gradient on any rank keeps `.grad` None; one that another rank has a gradient for gets the
    sum. Thread: that of backward(). Errors: Invalid, Unsupported, ShapeMismatch where ranks differ.
    """

    def __init__(self, module: torch.nn.Module, job: Optional[Ranks] = None, *, tables: Tables = "auto",
                 scheme: Optional[str] = None, dense_scheme: Optional[str] = None, values: Optional[str] = None,
                 average: bool = True, compress: Optional[Compression] = None, bucket_mb: float = 25,
                 fuse_tables: bool = True, wait: str = "backward", broadcast: bool = True,
                 keep_zero_rows: bool = False, name: str = "model") -> None:  # fmt: skip
        if wait not in ("backward", "step"):
            raise Invalid(f'wait {wait!r}; must be "backward" or "step"')
        if not bucket_mb > 0:
            raise Invalid(f"bucket_mb {bucket_mb}; must be over 0")
        self.module = module
        self.job = current(job)
        self._plan = plan(module, tables, int(bucket_mb * (1 << 20)), fuse_tables, compress is not None)
        if not self._plan.names:
            raise Invalid("the module has no parameter that requires a gradient")
        self.name = name
        taken = _names.setdefault(self.job, set())
        if name in taken:
            raise Invalid(f"another GradientSync of this job has the name {name!r}; give this one another (name=)")
        options: Dict[str, Any] = {"op": "mean" if average else "sum", "values": values}
        self._described = described = [f"{name} {tables!r}" if isinstance(tables, str) else name]
        described += [slot.described(kind) for kind, slot in self._slots()]
        described.append(f"{options} {scheme} {dense_scheme} {compress} {keep_zero_rows}")
        self._average = average
        self._wait_in_step = wait == "step"
        self._compress = compress
        self._groups: List[Group] = []
        zero_rows = {"keep_zero_rows": 1} if keep_zero_rows else {}
        for i, slots in enumerate(self._plan.tables):
            label = f"{name}/{slots[0].name}" if len(slots) == 1 else f"{name}/tables.{i}"
            self._groups.append(TableGroup(label, slots, scheme=scheme, **zero_rows, **options))
        for i, slots in enumerate(self._plan.buckets):
            small, large = (slots, []) if compress is None else compress.split(slots)
            if small:
                self._groups.append(DenseGroup(f"{name}/dense.{i}", small, scheme=dense_scheme, **options))
            if large and compress is not None:
                first = DenseGroup(f"{name}/early.{i}", large, scheme=dense_scheme, **options)
                label = f"{name}/compressed.{i}"
                self._groups.append(CompressedGroup(label, first, compress, str(options["op"])))
        self._control = Control(f"{name}/control", len(self._plan.names))
        self._step = 0
        self._generation: Optional[int] = None  # of the job, that the tensors are of
        self._enabled = True
        self._own_steps = 0
        self._optimizers: List[Any] = []
        self._totals = SyncStats()
        self.bytes_last_step = 0
        self._kept: Optional[BaseException] = None
        self._on_cpu = all(slot.parameter.device.type == "cpu" for _, slot in self._slots())
        self._summed: Dict[int, Tuple[Any, int, int, int]] = {}
        self._by_index = {slot.index: (slot, group) for group in self._groups for slot in group.slots}
        self._reset()
        if isinstance(self.job, JobGroup) or not generation(self.job):
            self._open_tensors()
            if broadcast:
                collective.broadcast_parameters(module, job=self.job)
        taken.add(name)
        self._hooks = [GradientHook(slot.parameter, self._ready(index)) for index, (slot, _) in self._by_index.items()]
        self._module_hooks = ModuleHooks(module, self._before_forward, self._arm)

    def _ready(self, index: int) -> Callable[[], None]:
        return lambda: self._gradient_ready(index)

    def _slots(self) -> Iterator[Tuple[str, Slot]]:
        for kind, lists in (("table", self._plan.tables), ("dense", self._plan.buckets)):
            for slots in lists:
                for slot in slots:
                    yield kind, slot

    def _open_tensors(self) -> None:
        agree(self.job, f"GradientSync {self.name}", self._described)
        open_all(self.job, self._groups)
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
        self._error: Optional[BaseException] = None
        self._queued = False  # _finish() will be called at the end of the backward pass under way
        self._fired: Set[int] = set()  # parameters whose gradients this pass has made
        self._open = {id(group): len(group.slots) for group in self._groups}  # parameters that a group waits for
        self._started: List[Group] = []
        self._in_flight = False  # all rounds of a step have started, and nobody has waited for them

    def _before_forward(self) -> None:
        """A backward pass that failed never called _finish()."""
        if (self._queued or self._fired) and not self._in_flight and not in_backward():
            self._abort()

    def _arm(self) -> None:
        """The backward pass has reached the module: under re-entrant checkpoints parameters' hooks run in inner passes,
        which end earlier."""
        if self._enabled and not self._queued:
            self._queued = queue_callback(self._finish)

    def _gradient_ready(self, index: int) -> None:
        """Raises nothing: what is raised within a backward pass leaves torch's queue of tasks full, and some versions
        then hang when the process exits."""
        if not self._enabled:
            return
        slot, group = self._by_index[index]
        self._arm()
        try:
            if self._error is None:
                self._check_first(slot)
                self._fired.add(index)
                self._open[id(group)] -= 1
                if not self._open[id(group)]:
                    self._start(group)
        except BaseException as error:
            self._error = error

    def _check_first(self, slot: Slot) -> None:
        """Refuses a gradient that is in a sum already, as far as tensors show it."""
        parameter = slot.parameter
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
        seen = self._summed.pop(slot.index, None)
        if seen is None or parameter.grad is None or seen[0]() is not parameter.grad:
            return
        # One addition, and nothing else, was done to the sum; and no optimiser has used it.
        if parameter.grad._version == seen[1] + 1 and parameter._version == seen[2]:
            raise Invalid(
                f"gradient of {slot.name} was already summed in step {seen[3]}; wrap all but the last backward in no_sync()"
            )

    def _start(self, group: Group) -> None:
        self._started.append(group)
        group.start(self._step)

    def _finish(self) -> None:
        """The end of the backward pass."""
        self._queued = False
        if self._error is not None:
            self._fail(self._error)
        if not self._fired:
            return  # nothing of the module had a part in it
        try:
            self._start_rest(leaving=False)
        except BaseException as error:
            self._fail(error)
        if not self._wait_in_step:
            self.wait()

    def _start_rest(self, leaving: bool) -> None:
        for group in self._groups:
            if group not in self._started:
                self._start(group)
        unused = [index for index, (slot, _) in self._by_index.items() if slot.parameter.grad is None]
        self._control.start(self._step, unused, leaving)
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
        for index, (slot, _) in self._by_index.items():
            grad = slot.parameter.grad
            if grad is not None:
                self._summed[index] = (weakref.ref(grad), grad._version, slot.parameter._version, self._step)
        self._own_steps += 1
        self._end_step()

    def _wait_and_apply(self) -> None:
        """In order of start."""
        for group in self._started:
            group.wait()
        for request in self._control.requests:
            request.wait()
        self._control.read()
        scale = self._control.scale if self._average else 1.0
        for group in self._started:
            group.apply(lambda slot: self._control.used(slot.index), scale)

    def _drop_gradients(self) -> None:
        for slot, _ in self._by_index.values():
            slot.parameter.grad = None
        self._summed.clear()

    def _end_step(self) -> None:
        requests = [request for group in self._started for request in group.requests] + self._control.requests
        costs = [request.stats for request in requests if request.stats is not None]
        out, into = sum(cost.bytes_out for cost in costs), sum(cost.bytes_in for cost in costs)
        self.bytes_last_step = out + into
        self._totals.steps += 1
        self._totals.bytes_out += out
        self._totals.bytes_in += into
        self._step += 1
        self._reset()

    def _abort(self) -> None:
        """Gives up what is in flight, on all ranks. A step of which nothing was started is still to come: the other ranks
        wait in it."""
        for group in self._started:
            group.cancel()
        for request in self._control.requests:
            request.cancel()
        if self._started:
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
        """Has optimisers wait for the sums at the beginning of step(), and checks that they go with `compress`."""
        for optimizer in optimizers:
            if self._compress is not None:
                self._compress.check_optimizer(optimizer)
            self._optimizers.append(before_step(optimizer, self.wait))

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
        self.at_step(int(state["steps"]))

    def at_step(self, steps: int) -> None:
        """So many steps went before, as warm-ups see it."""
        self._totals.steps = steps
        for group in self._compressed():
            group.steps = steps

    def _compressed(self) -> List[CompressedGroup]:
        return [group for group in self._groups if isinstance(group, CompressedGroup)]

    def close(self) -> None:
        """Removes the hooks, which keep this object alive until then; what is in flight is given up. The name is free again, for a module of the same parameters."""
        if self._fired or self._in_flight:
            self._abort()
        for hook in self._hooks:
            hook.remove()
        for handle in self._optimizers:
            handle.remove()
        self._hooks, self._optimizers = [], []
        self._module_hooks.remove()
        _names.get(self.job, set()).discard(self.name)
