"""zenps as the communication hook of torch's DistributedDataParallel.

    model = DistributedDataParallel(module)
    zt.ddp(model)                                  # model.register_comm_hook(zt.HookState(job, module), zt.hook) does this, too

DDP keeps its buckets, its broadcast of parameters, no_sync() and join(); only the sums are others. Gradients of tables
travel over zenps, as the rows that are not zero, whether they are sparse or dense. The model's process group sums the
others, or zenps does (dense.py). This file avoids three traps. A future that
gets an exception makes DDP take the exception for a tensor: so futures always get a tensor, and errors are raised behind
DDP's own end of the backward pass. A hook that waits stops the backward pass: so a callback at its end waits. DDP may
call the hook from such a callback itself, in the first pass of a static graph, or without a pass, in join(); it then
waits for the future before any other callback runs: so the hook waits after all.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from ..errors import Canceled, FabricError, Invalid, Unsupported
from ..tensor import Tensor
from . import convert, devices
from .autograd import ModuleHooks, in_backward, queue_callback
from .buckets import Bucket, in_node
from .compress import Compress, Cut, Residual, compression, load_all, save, sparsifier_of
from .control import SyncStats
from .dense import Choice, Reduction, check_name, choose, scheme_of, settle
from .jobs import Ranks, current, generation, names
from .pieces import CUT, DENSE, TABLE, TORCH, Piece, divide
from .tables import MIN_ROWS, Tables, find
from .watch import Watch

_log = logging.getLogger("zenps")
_models: "weakref.WeakKeyDictionary[torch.nn.Module, HookState]" = weakref.WeakKeyDictionary()  # given to ddp()


def _name(job: Ranks, name: Optional[str]) -> str:
    """Of a HookState: as given, or "ddp", "ddp.1" and so on in the order in which they are made, on every rank."""
    taken = names.setdefault(job, set())
    if name is None:
        return next(each for each in ("ddp", *(f"ddp.{i}" for i in range(1, len(taken) + 1))) if each not in taken)
    if name in taken:
        raise Invalid(f"another HookState or GradientSync of this job has the name {name!r}; give this one another (name=), or "
                      "close() that one")  # fmt: skip
    return name


class HookState:
    """What hook() needs of a model. One per DDP; ranks make theirs in the same order.

    module: gives parameters their names, and says which are tables; None: parameters are known by shape, dtype and order, and
    matrices of MIN_ROWS rows or more are tables. name: of the tensors; each HookState of a job has another. None: "ddp",
    then "ddp.1", "ddp.2" and so on. process_group: of ``dense="torch"``; None: the default one, and of ddp() the model's. The
    other arguments: those of GradientSync. Complex parameters are not compressed.
    """

    def __init__(self, job: Optional[Ranks] = None, module: Optional[torch.nn.Module] = None, *, tables: Tables = "auto",
                 scheme: Optional[str] = None, dense_scheme: Optional[str] = None, values: Optional[str] = None,
                 average: bool = True, compress: Compress = None, keep_zero_rows: bool = False,
                 dense: str = "auto", process_group: Any = None, name: Optional[str] = None) -> None:  # fmt: skip
        compress = compression(compress)
        self.job = current(job)
        self.name = _name(self.job, name)
        check_name(f"HookState {self.name}", dense)
        self._dense, self._group = dense, process_group
        self._choice: Optional[Choice] = None  # set by open()
        self._average = average
        self._options: Dict[str, Any] = {"op": "mean" if average else "sum", "values": values}
        self._scheme, self._dense_scheme = scheme, dense_scheme
        self._zero_rows = {"keep_zero_rows": 1} if keep_zero_rows else {}
        self._module = module
        self._names: Dict[int, str] = {}
        self._known: Dict[int, Tuple[torch.Tensor, torch.dtype]] = {}  # the parameters that have gradients
        self._tables: Set[int] = set()
        self._has_rows = True
        if module is not None:
            Watch.check_alone(f"HookState {self.name}", module.named_parameters())
            self._names = {id(parameter): label for label, parameter in module.named_parameters()}
            self._known = {id(each): (each, each.dtype) for each in module.parameters() if each.requires_grad}
            self._tables, sparse = find(module, tables)
            self._has_rows = bool(self._tables or sparse)
        self._compress = compress
        self._sparsifiers: Dict[str, Residual] = {}
        if compress is not None:
            if module is None:
                raise Invalid("HookState: compress needs module, whose parameters have residuals of their own")
            for index, (label, parameter) in enumerate(module.named_parameters()):
                large = parameter.numel() >= compress.min_numel and not parameter.is_complex()
                if parameter.requires_grad and id(parameter) not in self._tables and large:
                    self._sparsifiers[label] = sparsifier_of(compress, parameter.numel(), parameter.dtype, index)
        self._cuts: Dict[str, Cut] = {}
        self._opened: Dict[str, Tensor] = {}
        self._divided: Dict[Tuple[Any, ...], List[Piece]] = {}  # buckets, by their parameters
        self._buckets: List[Bucket] = []
        self._late: List[Reduction] = []  # of a failed pass, which may still write to buckets
        self._is_passing = False
        self._is_checked = False  # by a forward pass, for the next backward pass
        self._begin()
        self._totals = SyncStats()
        self.bytes_last_step = 0
        self._described = [f"{self.name}: tables {sorted(self._names[each] for each in self._tables)}, average {average}, values {values}, scheme {scheme}, dense_scheme {dense_scheme}, compress {compress}, "
                           f"keep_zero_rows {keep_zero_rows}, dense {'torch' if dense == 'torch' else 'zenps'}"]  # fmt: skip
        names[self.job].add(self.name)

    @property
    def stats(self) -> SyncStats:
        return SyncStats(**vars(self._totals))

    @property
    def tensors(self) -> List[str]:
        """Names of the tensors that have been opened so far."""
        return sorted([*self._opened, *self._cuts])

    def state_dict(self, gather_state: bool = False) -> Dict[str, Any]:
        """As GradientSync's: {"steps": int, "compress": {parameter: state}}, of this rank."""
        job = self.job if gather_state else None
        return {"steps": self._totals.steps, "compress": {n: save(each, job) for n, each in self._sparsifiers.items()}}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """As GradientSync's."""
        load_all(self._sparsifiers, state["compress"])
        self.take(int(state["steps"]))

    def open(self, parameters: Optional[Sequence[torch.Tensor]] = None) -> None:
        """Chooses what sums dense gradients. What ddp() does; without it the first backward pass. Collective: ShapeMismatch
        on every rank where ranks choose differently. parameters: the dense ones; None: those of the module."""
        if parameters is None:
            parameters = [each for each, _ in self._known.values() if id(each) not in self._tables]
        what = f"HookState {self.name}"
        choice = choose(what, self._dense, self.job, self._group, parameters, compress=self._compress,
                        dense_scheme=self._dense_scheme, values=self._options["values"])  # fmt: skip
        choice.compare(self.job, what)
        self._choice, self._dense_scheme = choice, scheme_of(self.job, self._dense_scheme, self._options["values"])

    @property
    def is_idle(self) -> bool:
        """Whether DDP alone does all that is wanted."""
        return self._choice is not None and self._choice.over_torch and not self._has_rows and self._average

    def before_forward(self) -> None:
        self._is_passing = False
        if torch.is_grad_enabled():
            self.check()
            self._is_checked = True

    def count_pass(self) -> None:
        """A backward pass has reached a model that is left to DDP."""
        if not self._is_passing:
            self._is_passing = queue_callback(self._passed)

    def _passed(self) -> None:
        self._is_passing = False
        self._totals.steps += 1

    def shared(self) -> int:
        """What all ranks of an elastic job have alike: the count of steps."""
        return self._totals.steps

    def take(self, steps: int) -> None:
        """So many steps went before, as warm-ups see it: what another rank's shared() has."""
        self._totals.steps = steps

    def reopen(self) -> None:
        """Of an elastic job, in its first generation and after Job.next(): a step that is in flight is dropped, and tensors
        are opened anew when they are used; residuals and the count of steps stay. What :func:`zenps.torch.elastic` does.
        torch.distributed cannot change its ranks: the model's process group is one of this process alone."""
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        if ranks > 1:
            raise Invalid(
                f"HookState {self.name}: torch.distributed has {ranks} ranks, which cannot change as those of job "
                f"{self.job.name} do; init_process_group(rank=0, world_size=1) on each rank, and zenps sums over all"
            )
        self.drop()
        self._opened, self._cuts, self._divided = {}, {}, {}

    def drop(self) -> None:
        """Gives up a step that is in flight."""
        self._begin()

    def close(self) -> None:
        """Gives up a step that is in flight. The name is free again, for a module of the same parameters."""
        self.drop()
        names.get(self.job, set()).discard(self.name)

    def check(self) -> None:
        """Invalid where parameters are not those that the model was wrapped with: DDP, too, would leave them unsynchronised."""
        for label, parameter in [] if self._module is None else self._module.named_parameters():
            known = self._known.get(id(parameter))
            if known is None and parameter.requires_grad:
                what = "was frozen" if id(parameter) in self._names else "was not there"
            elif known is not None and known[1] != parameter.dtype:
                what = f"was of {known[1]}, and is of {parameter.dtype}"
            else:
                continue
            raise Invalid(f"HookState {self.name}: parameter {label} is not what it was when the model was wrapped: it {what}. "
                          "Its gradient would stay this rank's own; wrap the model anew")  # fmt: skip

    def _is_table(self, parameter: torch.Tensor) -> bool:
        if self._module is None:
            return parameter.dim() == 2 and int(parameter.shape[0]) >= MIN_ROWS
        return id(parameter) in self._tables

    def _label(self, parameter: torch.Tensor) -> str:
        return self._names.get(id(parameter)) or f"{'x'.join(map(str, parameter.shape))}.{str(parameter.dtype)[6:]}"

    def _named(self, label: str) -> str:
        """A tensor's name says all that a bucket is made of: DDP makes other ones after its first step."""
        return convert.tensor_name(f"{self.name}/{label}")

    def _content(self, parameters: Sequence[torch.Tensor]) -> str:
        content = "\0".join(f"{self._label(each)} {each.numel()}" for each in parameters)
        return f"{sum(each.numel() for each in parameters)}.{hashlib.sha1(content.encode()).hexdigest()[:16]}"

    def _tensor(self, label: str, rows: int, width: int, dtype: torch.dtype, scheme: Optional[str],
                **more: Any) -> Tensor:  # fmt: skip
        name = self._named(label)
        if name not in self._opened:
            word = convert.dtype_name(dtype, f"bucket {label}")
            self._opened[name] = self.job.tensor(name, rows, width, word, scheme=scheme, **more, **self._options)
        return self._opened[name]

    # A backward pass.

    def _begin(self) -> None:
        """A backward pass that failed left buckets behind."""
        for bucket in self._buckets:
            bucket.cancel()
            bucket.complete(bucket.buffer)
            self._late += [each for each in bucket.reductions if not each.done()]
        self._buckets = []
        self._error: Optional[BaseException] = None
        self._pass: Optional[_Pass] = None  # the one under way
        self._costs: List[Any] = []  # of the rounds of the pass under way

    def start(self, bucket: Any) -> Any:
        """hook()'s work: starts the bucket's rounds; gives the future of its sum."""
        inside = in_node()
        delayed = not inside and in_backward()
        # Of a static graph's first pass every bucket has index 0.
        if self._pass is None or (bucket.index() == 0 and not (delayed and self._pass.delayed)):
            self._begin()
            self._pass = _Pass(delayed)
            self._keep(self._end_late)
            if not self._is_checked:
                self._keep(self.check)
            self._is_checked = False
            if delayed:
                queue_callback(functools.partial(self._at_end, self._pass, True))
        made = Bucket(bucket)
        self._buckets.append(made)
        if self._choice is None:
            self._keep(lambda: self.open(made.parameters if self._module is None else None))
        self._keep(functools.partial(self._check_parameters, made))
        self._keep(functools.partial(self._start_sparse if made.buffer.is_sparse else self._start_dense, made))
        if self._error is not None:
            made.cancel()  # the others wait for this rank
        # One each: under re-entrant checkpoints buckets are made in several passes, and DDP may wait at the end of any.
        if inside and queue_callback(functools.partial(self._at_end, self._pass, made.is_last)):
            return made.future
        self._complete()
        if not delayed and made.is_last:
            self._end()
        return made.future

    def _keep(self, call: Callable[[], None]) -> None:
        """Its error is raised behind DDP's end of the pass."""
        try:
            call()
        except BaseException as error:
            self._error = self._error or error

    def _end_late(self) -> None:
        """Late sums of a failed pass may have overwritten buckets of this pass."""
        late, self._late = self._late, []
        for each in late:
            with contextlib.suppress(FabricError):
                each.wait("")
        if late:
            raise Canceled(f"HookState {self.name}: the process group ended the sums of a failed pass when this one had begun: "
                           "zero all gradients, and repeat the pass", job=self.job.name)  # fmt: skip

    def _check_parameters(self, made: Bucket) -> None:
        for parameter in made.parameters:
            if self._module is not None and id(parameter) not in self._known:
                raise Invalid(f"HookState {self.name}: a parameter of shape {list(parameter.shape)} is none of its module's; each "
                              "model has a HookState of its own")  # fmt: skip

    def _at_end(self, which: "_Pass", is_last: bool) -> None:
        """A callback at the end of a backward pass."""
        if which.ended:
            return
        if which is not self._pass:
            self._error = Invalid(f"HookState {self.name} has two models in one backward pass; each has a HookState of its own")
            is_last = True
        self._complete()
        if is_last:
            self._end()

    def _complete(self) -> None:
        """Completes the futures of the buckets so far, with what is there after an error."""
        buckets, self._buckets = self._buckets, []
        if self._error is None:
            self._keep(lambda: self._wait(buckets))
        if self._error is not None:
            for bucket in buckets:
                bucket.cancel()
            self._late += settle([each for bucket in buckets for each in bucket.reductions], self._error)
        for bucket in buckets:
            result = bucket.buffer
            try:
                if self._error is None:
                    result = bucket.result()
                    self._costs += [request.stats for request in bucket.requests if request.stats is not None]
            except BaseException as error:
                self._error = error
            bucket.complete(result)

    def _wait(self, buckets: List[Bucket]) -> None:
        """For zenps's rounds first: where a rank is lost they say which, and a process group may wait for it for long."""
        for bucket in buckets:
            for request in bucket.requests:
                request.wait()
        for bucket in buckets:
            for reduction in bucket.reductions:
                reduction.wait(f"HookState {self.name}")

    def _end(self) -> None:
        """All buckets of the pass are complete."""
        failure, costs = self._error, self._costs
        if self._pass is not None:
            self._pass.ended = True
        self._begin()
        if failure is not None:
            if not queue_callback(_Raise(failure)):
                raise failure
            return
        out, into = sum(cost.bytes_out for cost in costs), sum(cost.bytes_in for cost in costs)
        self.bytes_last_step = out + into
        self._totals.steps += 1
        self._totals.bytes_out += out
        self._totals.bytes_in += into

    # A bucket's rounds.

    def _start_sparse(self, made: Bucket) -> None:
        (parameter,) = made.parameters
        if not parameter.numel():
            return
        gradient = made.buffer
        if gradient.is_complex():
            pairs = torch.view_as_real(gradient._values())
            gradient = torch.sparse_coo_tensor(gradient._indices(), pairs, (*parameter.shape, 2), device=pairs.device)
        rows = int(parameter.shape[0])
        width = gradient.numel() // rows
        tensor = self._tensor(self._label(parameter), rows, width, gradient.dtype, self._scheme, **self._zero_rows)
        place = devices.place(tensor.job, gradient.device)
        ids, values = (each.to(place) for each in convert.split_sparse(gradient, gradient.shape, width))
        arrays = convert.array(values, (ids.shape[0], width)), convert.array(ids, (ids.shape[0],))
        made.requests.append(tensor.allreduce(*arrays, out="rows", stream=devices.stream(values)))

    def _start_dense(self, made: Bucket) -> None:
        """Each piece where it is in the buffer. In an elastic job each parameter is alone: the DDP of a newcomer has other
        buckets in its first step. No round starts before ranks have compared their choices."""
        if self._choice is None:
            return
        density = None if self._compress is None else self._compress.density_of(self._totals.steps)
        key = (density is None, made.flat.dtype, *map(id, made.parameters))
        if key not in self._divided:
            kind_of = functools.partial(self._kind_of, density is not None)
            self._divided[key] = divide(made, kind_of, alone=generation(self.job) > 0)
        for piece in self._divided[key]:
            if piece.kind == TORCH:
                made.reductions.append(Reduction(piece.part(made.flat), self._choice, self._average))
            elif piece.kind == CUT:
                self._start_cut(made, piece, density or 1.0)
            else:
                self._start_round(made, piece)

    def _kind_of(self, is_cutting: bool, parameter: torch.Tensor) -> str:
        if is_cutting and self._label(parameter) in self._sparsifiers:
            return CUT
        if self._is_table(parameter):
            return TABLE
        return TORCH if self._choice is not None and self._choice.over_torch else DENSE

    def _start_cut(self, made: Bucket, piece: Piece, density: float) -> None:
        assert self._compress is not None
        if piece.cut is None:
            name = self._named(f".compressed.{self._content(piece.parameters)}")
            if name not in self._cuts:
                sparsifiers = [self._sparsifiers[self._label(each)] for each in piece.parameters]
                made_cut = Cut(name, sparsifiers, self._compress, self._options["op"])
                (made_cut.tensor,) = self.job.tensors([made_cut.ask])
                self._cuts[name] = made_cut
            piece.cut = self._cuts[name]
        parts = piece.parts(made.flat)
        made.cuts.append((piece.cut, parts))
        made.requests.append(piece.cut.start(parts, density, None))

    def _start_round(self, made: Bucket, piece: Piece) -> None:
        part = piece.part(made.flat)
        if piece.tensor is None:
            n = part.numel()
            if piece.kind == TABLE:
                (parameter,) = piece.parameters
                rows = int(parameter.shape[0])
                piece.shape = rows, n // rows
                piece.tensor = self._tensor(self._label(parameter), *piece.shape, part.dtype, self._scheme, **self._zero_rows)
            else:
                piece.shape = convert.lanes(n) or (-(-n // convert.LANE), convert.LANE)
                label = f".dense.{self._content(piece.parameters)}"
                piece.tensor = self._tensor(label, *piece.shape, part.dtype, self._dense_scheme)
        self._start_part(made, piece.tensor, piece.shape, part)

    def _start_part(self, made: Bucket, tensor: Tensor, shape: Tuple[int, int], part: torch.Tensor) -> None:
        """A part of the buffer; through a copy where it is in a GPU's memory that the job takes nothing from, or of a size
        that no rows make."""
        summed = part
        place = devices.place(tensor.job, part.device)
        if part.device != place or part.numel() != shape[0] * shape[1]:
            padded = torch.zeros(shape[0] * shape[1], dtype=part.dtype, device=place)
            padded[: part.numel()] = summed
            made.copies.append((padded, summed))
            self._totals.copied_bytes += 2 * part.numel() * part.element_size()
            summed = padded
        array = convert.array(summed, shape)
        made.requests.append(tensor.allreduce(array, out=array, stream=devices.stream(summed)))


class _Pass:
    """A backward pass. delayed: DDP calls the hook at its end, for every bucket. ended: nothing of it is left."""

    def __init__(self, delayed: bool) -> None:
        self.delayed = delayed
        self.ended = False


def _nothing() -> None:
    pass


class _Raise:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self) -> None:
        raise self._error


def hook(state: HookState, bucket: Any) -> Any:
    """The communication hook: ``model.register_comm_hook(state, zt.hook)``, or Lightning's
    ``DDPStrategy(ddp_comm_state=state, ddp_comm_hook=zt.hook)``."""
    if isinstance(bucket, tuple):  # of a gradient and its parameter
        raise Unsupported(f"HookState {state.name}: torch.compile calls the hook for each parameter, and drops what it gives, under "
                          'optimize_ddp "python_reducer": leave torch._dynamo.config.optimize_ddp as it is')  # fmt: skip
    return state.start(bucket)


hook.__annotations__.clear()  # DDP compares them with its own classes, which strings are not


def ddp(model: torch.nn.parallel.DistributedDataParallel, job: Optional[Ranks] = None, **arguments: Any) -> HookState:
    """Has zenps sum the gradients of a DistributedDataParallel's tables, and its other gradients if `dense` says so. Once per
    model, as torch has it. Collective. arguments: HookState's.

    Open the job (zt.init()) before you wrap the model: ranks wait for each other there. backward() raises the error of a
    failed sum (PeerLost, ...). The model stays usable. A model without tables is left to DDP alone
    if its process group sums what is dense: the hook is not registered, and errors are torch's.
    """
    job = current(job)
    is_elastic = generation(job) > 0  # open() compares nothing in such a job
    with contextlib.nullcontext() if is_elastic else job._collective.refusing():
        if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise Invalid(f"ddp: a {type(model).__name__}; a DistributedDataParallel is wanted")
        if model in _models:
            raise Invalid(f"ddp: this model has HookState {_models[model].name} already; DDP takes one hook")
        if is_elastic and getattr(model, "_delay_all_reduce_params", None):
            raise Unsupported("ddp: torch.distributed itself sums what delay_all_reduce_named_params names, and in an elastic job it "
                              "has one rank: leave that argument out")  # fmt: skip
        arguments.setdefault("process_group", model.process_group)
        state = HookState(job, model.module, **arguments)
    try:
        state.open()
        if state.is_idle:
            _log.info("HookState %s: the model has no tables, so DDP sums all of its gradients", state.name)
        else:
            model.register_comm_hook(state, hook)
    except BaseException:
        state.close()
        raise
    _models[model] = state
    is_counted = state.is_idle
    ModuleHooks(model, state.before_forward, _nothing,
                lambda: state.count_pass() if is_counted and model.require_backward_grad_sync else None)  # fmt: skip
    return state
