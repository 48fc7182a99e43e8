"""elastic(): training that goes on when ranks die, and lets others in.

    job = zt.init(min_world=2, max_world=8)
    sync = zt.GradientSync(model)
    state = zt.State(model=model, optimizer=optimizer, sync=sync, epoch=0, batch=0)

    def train(state):                                  # is called in each generation, with the state to go on from
        while state.step < STEPS:
            batch = data.of(state.step, job.rank, job.world)
            optimizer.zero_grad()
            loss(model(batch)).backward()
            optimizer.step()
            state.commit()                             # directly after the step of the optimiser

    zt.elastic(train, state)

Who knows others: as Horovod's `hvd.elastic.run` and `TorchState` but that no driver program and no discovery script is
there, commit() costs no copy of the model unless `copies` says so, and a rank that dies costs the others the step that
they are in, not all since a commit. Learning rates and the like that depend on the world are set where `train` begins
(Horovod: reset callbacks). As torchft, a step that failed has changed nothing, since the error is raised by backward(),
ahead of the optimiser; but the world that goes on is known before the next step begins, so no step is dropped by a vote,
and sums are those, bit for bit, of a job that has always had so many ranks.
"""

from __future__ import annotations

import copy
import os
from typing import Any, Callable, Collection, Dict, List, Optional, Set, TypeVar, Union

import torch

from ..errors import Invalid, ShapeMismatch, ZenpsError
from ..job import Job
from .collective import broadcast_object, fill
from .control import agree, difference
from .ddp import HookState
from .jobs import Ranks, current
from .outer import OuterSync
from .sync import GradientSync

T = TypeVar("T")
Sync = Union[GradientSync, HookState, OuterSync]
_SYNCS = (GradientSync, HookState, OuterSync)


class Changed(Exception):
    """State.commit() raises it when the job is to go to its next generation; elastic() catches it, so let it pass."""


class State:
    """All that a rank needs to go on with a training run. Each argument is an attribute of that name:

    - modules: their parameters and buffers;
    - GradientSyncs, OuterSyncs, and the HookStates that ddp() gives, of the elastic job: they are opened anew in each
      generation, and keep their residuals. A newcomer's are zero, and what a rank that is lost kept is lost. Parameters of an
      OuterSync stay each rank's own. Its start is that of the rank with the most outer steps, and a newcomer begins there;
    - other objects with state_dict() and load_state_dict(): optimisers, schedulers, gradient scalers, samplers;
    - plain values, to be read and set as attributes: None, bools, numbers, strings, tensors, and lists, tuples and dicts of
      these.

    step: how many steps are completed. commit() counts; set it beforehand where the run goes on from a checkpoint.

    Ranks have the same arguments. State that is a rank's own (random generators, a buffer of its data) is not to be
    here: all ranks get that of one.

    copies: False: a step that fails must have changed no parameter. So it is where backward() raises, and commit() directly
    follows the optimiser's step. commit() copies buffers, the objects and plain values. State.restore() brings them back,
    and refuses a model that is half a step further. A gradient that a failed compressed step had added to a residual stays there, and
    is sent once more. True: commit() copies everything, also modules, optimisers and residuals, as Horovod's does. Take it for
    steps with several optimisers, or for sums behind the optimiser's step. Not with an OuterSync (Invalid).
    """

    step: int

    def __init__(self, *, copies: bool = False, **objects: Any) -> None:
        for name in objects:
            if name.startswith("_") or name == "step" or hasattr(type(self), name):
                raise Invalid(f"State: {name!r} is taken; give the object another name")
        if copies and any(isinstance(value, OuterSync) for value in objects.values()):
            raise Invalid("State: copies=True does not copy an OuterSync; leave copies out (its failed steps change no parameter)")
        self._names: List[str] = list(objects)
        self._copies = copies
        self._job: Optional[Job] = None
        self._saved: Optional[Dict[str, Any]] = None
        self.step = 0
        for name, value in objects.items():
            setattr(self, name, value)

    def _each(self, kind: Any) -> Dict[str, Any]:
        return {name: getattr(self, name) for name in self._names if isinstance(getattr(self, name), kind)}

    def _syncs(self) -> Dict[str, Sync]:
        return self._each(_SYNCS)

    def _own(self) -> Set[int]:
        """The ids of parameters that ranks do not have alike."""
        return {id(parameter) for outer in self._each(OuterSync).values() for parameter in outer.owned()}

    def _stateful(self) -> Dict[str, Any]:
        others = (torch.nn.Module, *_SYNCS)
        every = {name: getattr(self, name) for name in self._names}
        return {n: each for n, each in every.items() if hasattr(each, "load_state_dict") and not isinstance(each, others)}

    def _plain(self) -> Dict[str, Any]:
        objects = {**self._each((torch.nn.Module, *_SYNCS)), **self._stateful()}
        return {name: getattr(self, name) for name in self._names if name not in objects}

    # What a step that fails is undone by.

    def commit(self) -> None:
        """The step is complete. Raises Changed where the job goes to another generation; the step counts."""
        self.step += 1
        self._save()
        if self._job is not None and self._job.changed:
            raise Changed(f"job {self._job.name} is to go on in another generation, after step {self.step}")

    def _save(self) -> None:
        modules = self._each(torch.nn.Module)
        self._saved = {
            "step": self.step,
            "plain": copy.deepcopy(self._plain()),
            "modules": {name: _clones(each, self._copies) for name, each in modules.items()},
            "versions": {name: self._versions(each) for name, each in modules.items()},
            "stateful": {name: self._state_of(each) for name, each in self._stateful().items()},
            "syncs": {name: each.state_dict() for name, each in self._syncs().items()} if self._copies else {},
        }

    def _versions(self, module: torch.nn.Module) -> List[int]:
        own = self._own()
        return [parameter._version for parameter in module.parameters() if id(parameter) not in own]

    def _state_of(self, each: Any) -> Any:
        """Of an optimiser that is only changed by its step: its settings."""
        if isinstance(each, torch.optim.Optimizer) and not self._copies:
            return [{key: copy.copy(group[key]) for key in group if key != "params"} for group in each.param_groups]
        return copy.deepcopy(each.state_dict())

    def restore(self) -> None:
        """Everything is as the last commit() left it, or the beginning of the generation if there was none since; nothing
        happens before that. Invalid: parameters were changed since, and there are no copies."""
        saved = self._saved
        if saved is None:
            return
        for name, module in self._each(torch.nn.Module).items():
            if not self._copies and self._versions(module) != saved["versions"][name]:
                raise Invalid(
                    f"State: parameters of {name} were changed after commit {saved['step']} by a step that failed; call "
                    "commit() directly after the optimiser's step, or use State(copies=True)"
                )
        for sync in self._syncs().values():
            sync.drop()
        for name, module in self._each(torch.nn.Module).items():
            _fill(name, module, saved["modules"][name])
        for name, each in self._stateful().items():
            if isinstance(each, torch.optim.Optimizer) and not self._copies:
                for group, settings in zip(each.param_groups, saved["stateful"][name]):
                    group.update(settings)
            else:
                each.load_state_dict(copy.deepcopy(saved["stateful"][name]))
        for name, state in saved["syncs"].items():
            getattr(self, name).load_state_dict(state)
        self._set(saved["step"], copy.deepcopy(saved["plain"]))

    def _set(self, step: int, plain: Dict[str, Any]) -> None:
        self.step = step
        for name, value in plain.items():
            setattr(self, name, value)

    # The beginning of a generation.

    def _begin(self, job: Job) -> None:
        """Opens what is to be opened, and makes the state that of the generation's source; all of it or, where that fails,
        nothing."""
        self._job = job
        self._compare(job)
        for each in self._syncs().values():
            each.reopen()
        own: Optional[Dict[str, Any]] = None
        outers = self._each(OuterSync)  # another rank than the source may be the furthest
        if job.rank == job.generation.source:
            try:
                own = self._shared(outers)
            except Exception as error:
                broadcast_object(f"{type(error).__name__}: {error}", job.rank, job=job)
                raise
        theirs = broadcast_object(own, job.generation.source, job=job)
        if isinstance(theirs, str):
            raise Invalid(f"State: rank {job.generation.source} cannot give its own: {theirs}", job=job.name)
        furthest = {name: broadcast_object(each.shared() if job.rank == each.furthest else None, each.furthest, job=job)
                    for name, each in outers.items()}  # fmt: skip
        if own is None:
            self._take(theirs)
        for name, outer in outers.items():
            outer.take(furthest[name])
        self._save()

    def _shared(self, without: Collection[str]) -> Dict[str, Any]:
        return {
            "step": self.step,
            "plain": self._plain(),
            "modules": {name: _tensors(each, self._own()) for name, each in self._each(torch.nn.Module).items()},
            "stateful": {name: each.state_dict() for name, each in self._stateful().items()},
            "syncs": {name: None if name in without else each.shared() for name, each in self._syncs().items()},
        }

    def _compare(self, job: Job) -> None:
        """Raises ShapeMismatch on a rank that trains something else than the generation's source; in the first generation, of which no
        rank has trained, on all ranks."""
        own = [f"a State of {', '.join(sorted(self._names))}"]
        own += [f"{name}={os.environ.get(name, '')}" for name in ("ZENPS_SCHEME", "ZENPS_VALUES")]
        for name, module in self._each(torch.nn.Module).items():
            own += [f"{name}.{label}: {str(each.dtype)[6:]} {list(each.shape)}" for label, each in _tensors(module).items()]
        for sync in self._syncs().values():
            own += sync._described
            own += [sync._choice.described] if isinstance(sync, GradientSync) else []
        if job.generation.number == 1:
            agree(job, "elastic", own)
        source = job.generation.source
        found = difference(own, broadcast_object(own, source, job=job))
        if found:
            raise ShapeMismatch(f"job {job.name}: elastic: this process has {found[0]}, rank {source} has {found[1]}", job=job.name)

    def _take(self, theirs: Dict[str, Any]) -> None:
        for name, module in self._each(torch.nn.Module).items():
            _fill(name, module, theirs["modules"][name])
        for name, each in self._stateful().items():
            each.load_state_dict(theirs["stateful"][name])
        for name, shared in theirs["syncs"].items():
            if shared is not None:
                getattr(self, name).take(shared)
        self._set(theirs["step"], theirs["plain"])


def _tensors(module: torch.nn.Module, without: Collection[int] = ()) -> Dict[str, torch.Tensor]:
    """Parameters and buffers, but for the parameters with these ids."""
    parameters = [(name, each) for name, each in module.named_parameters() if id(each) not in without]
    return {name: each.detach() for name, each in [*parameters, *module.named_buffers()]}


def _clones(module: torch.nn.Module, everything: bool) -> Dict[str, torch.Tensor]:
    """Of the buffers, which a forward pass changes, or of everything."""
    kept = _tensors(module) if everything else {name: each.detach() for name, each in module.named_buffers()}
    return {name: each.clone() for name, each in kept.items()}


def _fill(label: str, module: torch.nn.Module, values: Dict[str, torch.Tensor]) -> None:
    own = _tensors(module)
    for name, value in values.items():
        if name not in own or (own[name].shape, own[name].dtype) != (value.shape, value.dtype):
            here = f"{str(own[name].dtype)[6:]} {list(own[name].shape)}" if name in own else "missing here"
            raise Invalid(f"State: {label}.{name} is {str(value.dtype)[6:]} {list(value.shape)} on the other ranks, and {here}")
    for name, value in values.items():
        fill(f"State: {label}.{name}", own[name], value)


def _enter(state: State, job: Job) -> None:
    """Begins the generation. A rank that cannot leaves the job: the others go on without it."""
    try:
        state._begin(job)
    except Exception as error:
        if job.rank != job.generation.source and not (isinstance(error, ZenpsError) and error.recoverable):
            job.close()
        raise


def elastic(fn: Callable[[State], T], state: State, *, job: Optional[Ranks] = None) -> T:
    """Calls fn(state) in each generation of an elastic job, until it returns; gives what it returned.

    Each generation begins with the state of one rank on all, bit for bit: the one with the most steps of those that were there
    before. When a rank dies, an operation in fn raises a `recoverable` error. fn lets it pass. elastic() undoes the step
    (State.restore()), goes on with the other ranks (Job.next()), and calls fn again. When newcomers wait, state.commit() raises
    Changed, and the same follows. A newcomer calls init() and elastic() as the first ranks did, and nothing collective in between.

    When fn has returned on a rank, it waits for the others, so that the last step cannot be lost on some. If one could not
    complete it, fn is called again. It returns at once then, since its state says that all is done.

    Raises fn's error if it is not recoverable. ShapeMismatch: this process trains something else than the others. Its job is
    closed, and they go on without it. MissingRanks: fewer than min_world ranks are there in time.
    """
    job = current(job)
    if not isinstance(job, Job) or job.generation.number == 0:
        raise Invalid(f"elastic: job {job.name} is not elastic: zt.init(min_world=..., max_world=...) makes it so")
    done: List[T] = []
    while True:
        try:
            _enter(state, job)
            done = []
            done = [fn(state)]
            job.barrier()
            return done[0]
        except Changed:
            done = []
        except ZenpsError as error:
            if not error.recoverable or job.closed:
                raise
            if not done:
                state.restore()
        try:
            job.next(state.step)
        except ZenpsError:
            if done:  # here, all steps are
                return done[0]
            raise
