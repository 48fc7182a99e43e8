"""zenps as the communication hook of torch's DistributedDataParallel.

    model = DistributedDataParallel(module)
    zt.ddp(model)                                  # or model.register_comm_hook(zt.HookState(job, module), zt.hook)

DDP keeps its buckets, its broadcast of parameters, no_sync() and join(); only the sums are zenps's. Gradients of tables
travel as the rows that are not zero, whether they are sparse or dense. Two traps that this file avoids: a future that
gets an exception makes DDP take the exception for a tensor, so futures always get one, and errors are raised behind
DDP's own end of the backward pass; and who waits inside a hook stops the backward pass, so a callback at its end waits.
"""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import torch

from ..arrays import Rows
from ..errors import Invalid
from ..request import Request
from ..sparsify import Sparsifier
from ..tensor import Tensor
from . import convert, devices
from .autograd import queue_callback
from .compress import Compression, Cut, load_all, save, sparsifier_of
from .control import SyncStats
from .jobs import Ranks, current, generation
from .tables import MIN_ROWS, Tables, find


class _Bucket:
    """The rounds of one bucket, and the future that DDP waits for."""

    def __init__(self, bucket: Any) -> None:
        self.buffer: torch.Tensor = bucket.buffer()
        on_cpu = self.buffer.device.type == "cpu"
        self.future: Any = torch.futures.Future() if on_cpu else torch.futures.Future(devices=[self.buffer.device])
        self.requests: List[Request[Rows]] = []
        self.copies: List[Tuple[torch.Tensor, torch.Tensor]] = []  # of the sum, and where in the buffer it goes
        self.cuts: List[Tuple[Cut, List[torch.Tensor]]] = []  # and what of the buffer each sums

    def result(self) -> torch.Tensor:
        """Waits for the sums."""
        for request in self.requests:
            rows = request.wait()
        if self.buffer.is_sparse:
            ids, values = (each.to(self.buffer.device) for each in convert.rows_of(rows, self.buffer.dtype))
            return convert.sparse(ids, values, self.buffer.shape)
        for summed, part in self.copies:
            part.copy_(summed.view(-1)[: part.numel()])
        for cut, parts in self.cuts:
            for part, (ids, values) in zip(parts, cut.finish(1.0)):
                part.zero_()
                part.view(-1)[ids.to(part.device)] = values.to(part.device, part.dtype)
        return self.buffer

    def cancel(self) -> None:
        for request in self.requests:
            request.cancel()
        for cut, _ in self.cuts:
            cut.cancel()


class HookState:
    """What hook() needs of a model. One per DDP.

    module: gives parameters their names, and says which are tables; None: parameters are known by shape and order, and
    matrices of MIN_ROWS rows or more are tables. The other arguments: those of GradientSync.
    """

    def __init__(self, job: Optional[Ranks] = None, module: Optional[torch.nn.Module] = None, *, tables: Tables = "auto",
                 scheme: Optional[str] = None, dense_scheme: Optional[str] = None, values: Optional[str] = None,
                 average: bool = True, compress: Optional[Compression] = None, keep_zero_rows: bool = False,
                 name: str = "ddp") -> None:  # fmt: skip
        self.job = current(job)
        self.name = name
        self._options: Dict[str, Any] = {"op": "mean" if average else "sum", "values": values}
        self._scheme, self._dense_scheme = scheme, dense_scheme
        self._zero_rows = {"keep_zero_rows": 1} if keep_zero_rows else {}
        self._module = module
        self._names: Dict[int, str] = {}
        self._tables: Set[int] = set()
        if module is not None:
            self._names = {id(parameter): label for label, parameter in module.named_parameters()}
            self._tables, _ = find(module, tables, compress is not None)
        self._compress = compress
        self._sparsifiers: Dict[str, Sparsifier] = {}
        if compress is not None:
            if module is None:
                raise Invalid("HookState: compress needs module, whose parameters have residuals of their own")
            for index, (label, parameter) in enumerate(module.named_parameters()):
                if parameter.requires_grad and id(parameter) not in self._tables and parameter.numel() >= compress.min_numel:
                    self._sparsifiers[label] = sparsifier_of(compress, parameter.numel(), parameter.dtype, index)
        self._cuts: Dict[str, Cut] = {}
        self._opened: Dict[str, Tensor] = {}
        self._buckets: List[_Bucket] = []
        self._error: Optional[BaseException] = None
        self._totals = SyncStats()
        self.bytes_last_step = 0

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
        self.at_step(int(state["steps"]))

    def at_step(self, steps: int) -> None:
        """So many steps went before, as warm-ups see it."""
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
        self._opened, self._cuts = {}, {}

    def drop(self) -> None:
        """Gives up a step that is in flight."""
        self._forget()

    def _is_table(self, parameter: torch.Tensor) -> bool:
        if self._module is None:
            return parameter.dim() == 2 and int(parameter.shape[0]) >= MIN_ROWS
        return id(parameter) in self._tables

    def _label(self, parameter: torch.Tensor) -> str:
        return self._names.get(id(parameter), "x".join(map(str, parameter.shape)))

    def _named(self, label: str) -> str:
        """A tensor's name says all that a bucket is made of: DDP makes other ones after its first step."""
        name = f"{self.name}/{label}"
        return name if len(name) <= 127 else f"{name[:90]}.{hashlib.sha1(name.encode()).hexdigest()[:20]}"

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

    def start(self, bucket: Any) -> Any:
        """hook()'s work: starts the bucket's rounds; gives the future of its sum."""
        if bucket.index() == 0:
            self._forget()
            queued = queue_callback(self._finish)
        else:
            queued = bool(self._buckets)
        made = _Bucket(bucket)
        self._buckets.append(made)
        try:
            if self._error is None:
                (self._start_sparse if made.buffer.is_sparse else self._start_dense)(bucket, made)
        except BaseException as error:  # raised behind DDP's end of the pass
            self._error = error
        if not queued:  # DDP's join() has no backward pass
            self._finish()
        return made.future

    def _forget(self) -> None:
        """A backward pass that failed left buckets behind."""
        for bucket in self._buckets:
            bucket.cancel()
        self._buckets, self._error = [], None

    def _start_sparse(self, bucket: Any, made: _Bucket) -> None:
        (parameter,) = bucket.parameters()
        rows = int(parameter.shape[0])
        width = parameter.numel() // rows
        tensor = self._tensor(self._label(parameter), rows, width, parameter.dtype, self._scheme, **self._zero_rows)
        place = devices.place(tensor.job, made.buffer.device)
        ids, values = (each.to(place) for each in convert.split_sparse(made.buffer, parameter.shape, width))
        arrays = convert.array(values, (ids.shape[0], width)), convert.array(ids, (ids.shape[0],))
        made.requests.append(tensor.allreduce(*arrays, out="rows", stream=devices.stream(values)))

    def _start_dense(self, bucket: Any, made: _Bucket) -> None:
        """Tables as rows of their own, what lies between them as one part each, where it is in the buffer; and those that
        are cut together. In an elastic job each is alone: the DDP of a newcomer has other buckets in its first step."""
        alone = generation(self.job) > 0
        run: List[Tuple[torch.Tensor, torch.Tensor]] = []
        cut: List[Tuple[torch.Tensor, torch.Tensor]] = []
        density = None if self._compress is None else self._compress.density_of(self._totals.steps)
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            large = density is not None and self._label(parameter) in self._sparsifiers
            if not large and not self._is_table(parameter):
                run.append((parameter, gradient))
                if alone:
                    self._start_run(made, run)
                    run = []
                continue
            self._start_run(made, run)
            run = []
            if large and alone and density is not None:
                self._start_cut(made, [(parameter, gradient)], density)
                continue
            if large:
                cut.append((parameter, gradient))
                continue
            rows = int(parameter.shape[0])
            shape = rows, parameter.numel() // rows
            tensor = self._tensor(self._label(parameter), shape[0], shape[1], parameter.dtype, self._scheme, **self._zero_rows)
            self._start_part(made, tensor, shape, gradient)
        self._start_run(made, run)
        if cut and density is not None:
            self._start_cut(made, cut, density)

    def _start_cut(self, made: _Bucket, cut: List[Tuple[torch.Tensor, torch.Tensor]], density: float) -> None:
        assert self._compress is not None
        parameters = [parameter for parameter, _ in cut]
        name = self._named(f"compressed.{self._content(parameters)}")
        if name not in self._cuts:
            sparsifiers = [self._sparsifiers[self._label(each)] for each in parameters]
            made_cut = Cut(name, sparsifiers, self._compress, self._options["op"])
            (made_cut.tensor,) = self.job.tensors([made_cut.ask])
            self._cuts[name] = made_cut
        parts = [gradient for _, gradient in cut]
        made.cuts.append((self._cuts[name], parts))
        made.requests.append(self._cuts[name].start(parts, density, None))

    def _start_run(self, made: _Bucket, run: List[Tuple[torch.Tensor, torch.Tensor]]) -> None:
        if not run:
            return
        begin = run[0][1].storage_offset() - made.buffer.storage_offset()
        end = run[-1][1].storage_offset() - made.buffer.storage_offset() + run[-1][1].numel()
        part = made.buffer[begin:end]
        n = end - begin
        shape = convert.lanes(n)
        label = f"dense.{self._content([parameter for parameter, _ in run])}"
        padded = shape or (-(-n // convert.LANE), convert.LANE)
        tensor = self._tensor(label, padded[0], padded[1], part.dtype, self._dense_scheme)
        self._start_part(made, tensor, padded, part)

    def _start_part(self, made: _Bucket, tensor: Tensor, shape: Tuple[int, int], part: torch.Tensor) -> None:
        """A part of the buffer; through a copy where it is in a GPU's memory that the job takes nothing from, or of a size
        that no rows make."""
        summed = part.detach().view(-1)
        place = devices.place(tensor.job, part.device)
        if part.device != place or part.numel() != shape[0] * shape[1]:
            padded = torch.zeros(shape[0] * shape[1], dtype=part.dtype, device=place)
            padded[: part.numel()] = summed
            made.copies.append((padded, summed))
            self._totals.copied_bytes += 2 * part.numel() * part.element_size()
            summed = padded
        array = convert.array(summed, shape)
        made.requests.append(tensor.allreduce(array, out=array, stream=devices.stream(summed)))

    def _finish(self) -> None:
        """The end of the backward pass, before DDP's own: completes the futures, with what is there after an error."""
        buckets, self._buckets = self._buckets, []
        for bucket in buckets:
            result = bucket.buffer
            try:
                if self._error is None:
                    result = bucket.result()
                else:
                    bucket.cancel()
            except BaseException as error:
                self._error = error
            bucket.future.set_result(result)
        failure, self._error = self._error, None
        if failure is not None:
            if not queue_callback(_Raise(failure)):
                raise failure
            return
        costs = [request.stats for bucket in buckets for request in bucket.requests if request.stats is not None]
        out, into = sum(cost.bytes_out for cost in costs), sum(cost.bytes_in for cost in costs)
        self.bytes_last_step = out + into
        self._totals.steps += 1
        self._totals.bytes_out += out
        self._totals.bytes_in += into


class _Raise:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self) -> None:
        raise self._error


def hook(state: HookState, bucket: Any) -> Any:
    """The communication hook: ``model.register_comm_hook(state, zt.hook)``, or Lightning's
    ``DDPStrategy(ddp_comm_state=state, ddp_comm_hook=zt.hook)``."""
    return state.start(bucket)


hook.__annotations__.clear()  # DDP compares them with its own classes, which strings are not


def ddp(model: torch.nn.parallel.DistributedDataParallel, job: Optional[Ranks] = None, **arguments: Any) -> HookState:
    """Has zenps sum the gradients of a DistributedDataParallel; once per model, as torch has it. arguments: HookState's.

    Open the job (zt.init()) before the model is wrapped, so that ranks wait for each other there. backward() raises what
    a sum failed with, as it is (PeerLost, ...), and the model stays usable.
    """
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise Invalid(f"ddp: a {type(model).__name__}; a DistributedDataParallel is wanted")
    state = HookState(job, model.module, **arguments)
    model.register_comm_hook(state, hook)
    return state
