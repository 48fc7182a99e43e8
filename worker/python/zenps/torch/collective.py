"""all_reduce() with the arguments of torch.distributed's, and broadcasts of parameters and of objects."""

from __future__ import annotations

import functools
import json
import struct
from datetime import timedelta
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from ..arrays import Array, Rows
from ..collectives import Gathering
from ..errors import Again, Invalid, ShapeMismatch, Unsupported, ZenpsError
from ..request import Request
from ..tensor import Tensor
from . import convert, devices
from .control import agree
from .jobs import Ranks, current, numbered

_CHUNK = 64 << 20  # bytes of a broadcast of several tensors
_OPS = {"sum": "sum", "avg": "mean", "mean": "mean", "max": "max", "min": "min"}
# Without it rows of zeros are not sent, and count as none. A scheme of the environment's might not keep them.
_EXTREME: Dict[str, Any] = {"keep_zero_rows": True, "scheme": "balanced"}
_SEVERAL = 1 << 20  # steps between two calls of several rounds


class Turn(NamedTuple):
    """The turn of a round in a call.

    step: the same on all ranks, also after a call that differed.
    several: the call has several rounds.
    said: each rank's words about this round.
    """

    step: int
    several: bool
    said: Callable[[], List[str]]

    def name(self, kind: str) -> str:
        """Of a tensor of zenps. Steps of several rounds lie far apart, so they have tensors of their own."""
        return f"{kind}/several" if self.several else kind


Started = Tuple[Request[Rows], Callable[[Rows], None]]  # the callable puts the result in place


class Call(NamedTuple):
    """A tensor's part of an operation. text: all ranks must have the same one, up to "\0". begin: starts its round; None: there
    is nothing to sum."""

    text: str
    begin: Optional[Callable[[Turn], Started]] = None


class Compared:
    """The rounds of a call, and the comparison of the ranks' calls. Two calls that differ give ShapeMismatch on every rank, at once."""

    def __init__(self, calls: Gathering, job: Ranks) -> None:
        self._calls, self._job = calls, job
        self._started: List[Started] = []
        self._error: Optional[ZenpsError] = None
        self._said: Optional[List[List[str]]] = None

    def begin(self, at: int, n: int, call: Call) -> None:
        """The round of call `at` of `n`. Of more rounds than one tensor can have in flight, the last waits for the oldest."""
        if call.begin is None:
            return
        flying = self._job._collective.compared
        step = self._calls.request.step
        turn = Turn(step if n == 1 else step * _SEVERAL + at, n > 1, lambda: [lines[-n + at] for lines in self.said()])
        while self._error is None:
            try:
                self._started.append(call.begin(turn))
                return
            except Again:
                if not flying and not self._started:
                    raise
                (flying.popleft() if flying else self).exception()

    def said(self, timeout: Optional[float] = None) -> List[List[str]]:
        """The lines of each rank, when all have said theirs."""
        if self._said is None:
            self._said = [part.decode().split("\n") for part in self._calls(timeout)]
        return self._said

    def done(self) -> bool:
        if not self._calls.request.done():
            return False
        return all(request.done() for request, _ in self._started) or self._compare(0) is not None

    def exception(self, timeout: Optional[float] = None) -> Optional[ZenpsError]:
        error = self._compare(timeout)
        for request, _ in self._started:
            error = error or request.exception(timeout)
        return error

    def finish(self, timeout: Optional[float] = None) -> None:
        """Waits, and puts the results in place. Once; afterwards it has no effect."""
        error = self._compare(timeout)
        if error is not None:
            raise error
        results = [(request.wait(timeout), finish) for request, finish in self._started]
        self._started = []
        for rows, finish in results:
            finish(rows)

    def cancel(self) -> None:
        self._calls.request.cancel()
        self._give_up()

    def _give_up(self) -> None:
        for request, _ in self._started:
            request.cancel()

    def _compare(self, timeout: Optional[float]) -> Optional[ZenpsError]:
        if self._error is None:
            try:
                said = [[line.partition("\0")[0] for line in lines] for lines in self.said(timeout)]
                place = next((place for place, lines in enumerate(said) if lines != said[0]), 0)
                if place:
                    raise self._mismatch(said[0], place, said[place])
            except ZenpsError as error:
                self._error = error
                self._give_up()  # ranks that differ may wait in different tensors
        return self._error

    def _mismatch(self, first: List[str], place: int, other: List[str]) -> ShapeMismatch:
        at = next(at for at, (one, two) in enumerate(zip(first, other)) if one != two)
        where = f"{first[0]}, tensor {at}: " if at else ""
        return ShapeMismatch(
            f"job {self._job.name}: ranks differ in what they call: {where}rank {numbered(self._job, 0)} {first[at]}, "
            f"rank {numbered(self._job, place)} {other[at]}; it must be the same on all ranks",
            job=self._job.name,
        )


class Work:
    """An all_reduce() in flight, with the methods of torch.distributed's Work that waiting needs."""

    def __init__(self, request: Compared) -> None:
        self._request = request

    def is_completed(self) -> bool:
        return self._request.done()

    def wait(self, timeout: Union[None, float, timedelta] = None) -> bool:
        """Returns True when the tensor has the result, or raises the error. timeout: seconds, or a timedelta."""
        self._request.finish(timeout.total_seconds() if isinstance(timeout, timedelta) else timeout)
        return True

    def exception(self) -> Optional[BaseException]:
        return self._request.exception()


def op_word(op: Any) -> str:
    """Of "sum" or torch.distributed.ReduceOp.SUM, in whatever form a version of torch has it."""
    op = getattr(op, "op", op)  # options of an operation hold it in an object
    word: str = op if isinstance(op, str) else getattr(op, "name", str(op))
    return word.rpartition(".")[2].lower()


def op_name(op: Any) -> str:
    """The op of a tensor of zenps."""
    word = op_word(op)
    if word not in _OPS:
        raise Unsupported(f"all_reduce: op {word}; zenps has {', '.join(sorted(_OPS))}")
    return _OPS[word]


def is_summed(dtype: torch.dtype, op: Any) -> bool:
    """Whether a tensor of zenps has the dtype and the op."""
    return op_word(op) in _OPS and convert.is_summed(dtype)


def compared(job: Ranks, calls: Sequence[Call], what: str = "") -> Compared:
    """Starts an operation: one comparison of the ranks' calls, then a round for each of `calls`. what: the operation's name."""
    flying = job._collective.compared
    while flying and flying[0].done():
        flying.popleft()
    lines = [call.text for call in calls]
    if len(lines) != 1:
        lines.insert(0, f"{what} of {len(lines)} tensors")
    made = Compared(job._collective.begin("\n".join(lines).encode()), job)
    try:
        for at, call in enumerate(calls):
            made.begin(at, len(calls), call)
    except ZenpsError:
        made.cancel()  # the others wait for this rank
        raise
    flying.append(made)
    return made


def _check(tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise Invalid(f"all_reduce: a {type(tensor).__name__}; a torch.Tensor is wanted, such as torch.from_numpy() makes of an array")
    if tensor.layout not in (torch.strided, torch.sparse_coo) or (tensor.is_sparse and not tensor.sparse_dim()):
        raise Unsupported(f"all_reduce: a tensor of layout {tensor.layout}; dense and COO ones are summed")
    if not tensor.numel():
        raise Invalid(f"all_reduce: a tensor of shape {list(tensor.shape)} has nothing to sum")


def all_reduce(tensor: torch.Tensor, op: Any = "sum", group: Any = None, async_op: bool = False, *,
               name: Optional[str] = None, job: Optional[Ranks] = None) -> Optional[Work]:  # fmt: skip
    """Sums a tensor over all ranks, in place, as torch.distributed.all_reduce() does; dense, or sparse, which then is
    coalesced.

    op: "sum", "avg", "max", "min", or torch.distributed's ReduceOp. Zeros count in max and min, NaN wins. Of sparse tensors
    these are over the ranks that have the row. name: of zenps's tensor; None: one that dtype, op and
    length make, which calls of the same kind share, in order. Lengths are rounded up to few kinds, with zeros. async_op:
    returns a Work; the tensor must not be used until its wait() has returned. group: None alone, all ranks. job: None:
    :func:`zenps.torch.init`'s. Collective: ShapeMismatch on every rank where ops, dtypes, layouts or numbers of values (of
    sparse tensors: shapes) differ; the tensor is then undefined. A rank whose arguments are refused raises Invalid or
    Unsupported, and the others ShapeMismatch; the next call is not affected.
    """
    job = current(job)
    with job._collective.refusing():
        if group is not None:
            raise Unsupported("all_reduce: group must be None, all ranks of the job")
        call = reduction(job, tensor, op, name)
    work = Work(compared(job, [call]))
    if async_op:
        return work
    work.wait()
    return None


def reduction(job: Ranks, tensor: torch.Tensor, op: Any, name: Optional[str] = None) -> Call:
    """An all_reduce() that has not begun. Invalid or Unsupported for arguments that are no sum of zenps's."""
    _check(tensor)
    word = op_name(op)
    dtype = convert.dtype_name(tensor.dtype, "all_reduce: the tensor")
    shape = f"sparse {list(tensor.shape)}" if tensor.is_sparse else f"{tensor.numel()} values"
    call = f"all_reduce({word}) of {shape} of {dtype}{f', {name}' if name else ''}"
    dimensions = tensor.sparse_dim() if tensor.is_sparse and tensor._nnz() else 0  # ranks may differ in it
    return Call(f"{call}\0{dimensions}", functools.partial(_sparse if tensor.is_sparse else _dense, job, tensor, dtype, word, name))


def opened(job: Ranks, turn: Turn, name: str, op: str, rows: int, width: int, dtype: str) -> Tensor:
    """A tensor of zenps that max and min find zeros in, too."""
    options = _EXTREME if op in ("max", "min") else {"scheme": "balanced"} if turn.several else {}  # "auto" counts steps
    return job.tensor(turn.name(name), rows, width, dtype, op=op, **options)


def all_rows(op: str, rows: int, device: torch.device) -> Optional[Array]:
    """Row numbers for dense values of a tensor that opened() gave; None where a dense gradient will do."""
    return convert.array(torch.arange(rows, dtype=torch.int64, device=device), (rows,)) if op in ("max", "min") else None


def _dense(job: Ranks, tensor: torch.Tensor, dtype: str, op: str, name: Optional[str], turn: Turn) -> Started:
    n = tensor.numel()
    width = convert.LANE if n > convert.LANE else 1
    rows = convert.rounded(-(-n // width))
    own = opened(job, turn, name or f"all_reduce/{op}.{dtype}.{rows}x{width}", op, rows, width, dtype)
    summed = tensor.detach().to(devices.place(own.job, tensor.device)).contiguous().view(-1)
    if n < rows * width:
        summed = torch.nn.functional.pad(summed, (0, rows * width - n))
    array, ids = convert.array(summed, (rows, width)), all_rows(op, rows, summed.device)
    result = summed if ids is None else torch.empty_like(summed)  # no dense result may overwrite a list of rows

    def finish(_: Any) -> None:
        if result.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(result[:n].view(tensor.shape))
            devices.settle(tensor)  # the waiting thread may use another stream

    out = convert.array(result, (rows, width))
    return own.allreduce(array, ids, step=turn.step, out=out, stream=devices.stream(summed)), finish


def _sparse(job: Ranks, tensor: torch.Tensor, dtype: str, op: str, name: Optional[str], turn: Turn) -> Started:
    width = tensor.numel() // int(tensor.shape[0])
    rows, wide = convert.rounded(int(tensor.shape[0])), convert.rounded(width)
    own = opened(job, turn, name or f"all_reduce/{op}.{dtype}.{rows}x{wide}", op, rows, wide, dtype)
    place = devices.place(own.job, tensor.device)
    gradient = tensor.detach()
    if op in ("max", "min"):
        gradient = gradient.coalesce()  # entries that repeat are one, their sum
    ids, values = (each.to(place) for each in convert.split_sparse(gradient, tensor.shape, width))
    if wide > width:
        values = torch.nn.functional.pad(values, (0, wide - width))
    arrays = convert.array(values, (ids.shape[0], wide)), convert.array(ids, (ids.shape[0],))

    def finish(result: Rows) -> None:
        ids, values = (each.to(tensor.device) for each in convert.rows_of(result, tensor.dtype))
        dimensions = tensor.sparse_dim()
        if not tensor._nnz():  # zero_() has made every dimension a sparse one: the others' count
            dimensions = max(int(line.partition("\0")[2]) for line in turn.said()) or dimensions
        with torch.no_grad():
            tensor.copy_(convert.sparse(ids, values[:, :width].contiguous(), tensor.shape, dimensions))
        devices.settle(tensor)

    return own.allreduce(*arrays, step=turn.step, out="rows", stream=devices.stream(values)), finish


Named = Union[torch.nn.Module, Mapping[str, torch.Tensor], Iterable[Tuple[str, torch.Tensor]], Iterable[torch.Tensor]]
_INSTEAD = {  # of what is no tensor: the right call
    "Optimizer": "broadcast_optimizer_state(optimizer) has its state",
    "ndarray": "torch.from_numpy() makes one of it, without a copy",
}
_OTHERWISE = "give its tensors, or leave it out; broadcast_object() takes numbers, strings, lists and dicts"


def _tensors(source: Named) -> List[Tuple[str, torch.Tensor]]:
    kept: List[Any]
    if isinstance(source, torch.nn.Module):
        kept = list(source.named_parameters()) + list(source.named_buffers())
    elif isinstance(source, Mapping):
        kept = list(source.items())
        if set(source) == {"state", "param_groups"}:
            raise Invalid("broadcast_parameters: the state_dict() of an optimiser; use broadcast_optimizer_state(optimizer)")
    elif isinstance(source, (torch.Tensor, str, bytes)) or not isinstance(source, Iterable):
        kinds = {kind.__name__ for kind in type(source).__mro__} & set(_INSTEAD)
        raise Invalid(f"broadcast_parameters: a {type(source).__name__}; a module, its state_dict(), its parameters() or pairs of "
                      f"name and tensor are wanted{'; ' + _INSTEAD[min(kinds)] if kinds else ''}")  # fmt: skip
    else:
        every = list(source)
        kept = [(f"tensor {at}", each) if isinstance(each, torch.Tensor) else each for at, each in enumerate(every)]
    for at, each in enumerate(kept):
        is_pair = isinstance(each, (tuple, list)) and len(each) == 2 and not isinstance(each[0], torch.Tensor)
        name, value = each if is_pair else (f"item {at}", each)
        if not isinstance(value, torch.Tensor):
            raise Invalid(f"broadcast_parameters: {name} is a {type(value).__name__}; a tensor is wanted: "
                          f"{_INSTEAD.get(type(value).__name__, _OTHERWISE)}")  # fmt: skip
    return [(name, value) for name, value in kept]


def _refused(value: torch.Tensor) -> Optional[str]:
    """Why its values cannot be sent."""
    kinds = {kind.__name__ for kind in type(value).__mro__} & {"DTensor", "UninitializedParameter", "UninitializedBuffer"}
    if kinds:
        return f"a {min(kinds)}; whole tensors that have values travel"
    if value.is_meta:
        return "on meta, without values; give it some first"
    if value.is_quantized or value.layout not in (torch.strided, torch.sparse_coo, torch.sparse_csr):
        return f"{'quantized' if value.is_quantized else value.layout}; dense, COO and CSR tensors travel"
    return None


def _described(name: str, value: torch.Tensor) -> str:
    """What ranks must agree on."""
    if _refused(value) is not None:
        return f"{name} ({_refused(value)})"
    layout = "" if value.layout == torch.strided else f" {str(value.layout)[6:]}"
    return f"{name} {str(value.dtype)[6:]} {list(value.shape)}{layout}"


def broadcast_parameters(source: Named, root: Optional[int] = None, *, job: Optional[Ranks] = None) -> None:
    """Copies parameters and buffers of rank `root` (None: the first; of a group as the job numbers it) to all ranks, bit
    for bit, in place. source: a module, its state_dict(), its parameters(), or pairs of name and tensor, dense or sparse
    (COO, CSR).

    ShapeMismatch on all ranks, before anything is written, where names, shapes, dtypes or layouts differ; it names the
    first difference. Invalid names what is no tensor. Unsupported for tensors without values of their own (on meta, lazy,
    quantized, shards). Collective: where one rank is refused, all raise.
    """
    job = current(job)
    with job._collective.refusing():
        root = _root(job, root)
        tensors = _tensors(source)
    agree(job, "broadcast_parameters", [f"root {numbered(job, root)}", *(_described(*each) for each in tensors)])
    for name, value in tensors:
        if _refused(value) is not None:
            raise Unsupported(f"broadcast_parameters: {name} is {_refused(value)}; or leave it out (GradientSync: "
                              "broadcast=False), and give all ranks the same values", job=job.name)  # fmt: skip
    batch: List[Tuple[str, torch.Tensor]] = []
    for name, value in tensors:
        if value.layout != torch.strided:
            with torch.no_grad():  # detach() gives another sparse tensor
                _broadcast_sparse(job, value, root)
        elif value.numel():
            batch.append((name, value.detach()))
        if sum(each.numel() * each.element_size() for _, each in batch) >= _CHUNK:
            _broadcast_batch(job, batch, root)
            batch = []
    _broadcast_batch(job, batch, root)


def _broadcast_sparse(job: Ranks, own: torch.Tensor, root: int) -> None:
    """Ranks may have other numbers of entries."""
    is_coo = own.layout == torch.sparse_coo
    packed: Any = None
    if job.rank == root:
        arrays = [own._indices(), own._values()] if is_coo else [own.crow_indices(), own.col_indices(), own.values()]
        packed = [*arrays, own.is_coalesced() if is_coo else False]
    *arrays, coalesced = broadcast_object(packed, numbered(job, root), job=job)
    if job.rank == root:
        return
    arrays = [each.to(own.device) for each in arrays]
    if is_coo:
        own.copy_(torch.sparse_coo_tensor(*arrays, own.shape, device=own.device)._coalesced_(coalesced))
        own._coalesced_(coalesced)
    elif arrays[1].shape == own.col_indices().shape:
        for part, values in zip((own.crow_indices(), own.col_indices(), own.values()), arrays):
            part.copy_(values)
    else:
        made = torch.sparse_csr_tensor(*arrays, tuple(own.shape), device=own.device)
        own.resize_as_sparse_(made)
        own.copy_(made)


def _root(job: Ranks, root: Optional[int]) -> int:
    """A rank as the job numbers it, as its place in the group."""
    return 0 if root is None else job._place_of(root)


def _broadcast(job: Ranks, buffer: Any, root: int) -> None:
    job.broadcast(buffer, numbered(job, root))


def _octets(tensor: torch.Tensor) -> Array:
    return Array(tensor.data_ptr(), "u8", (tensor.numel() * tensor.element_size(),), owner=tensor)


def _broadcast_batch(job: Ranks, batch: List[Tuple[str, torch.Tensor]], root: int) -> None:
    """One tensor in place, several through a buffer of bytes."""
    if not batch:
        return
    hosts = [plain(each) for _, each in batch]
    if len(hosts) == 1:
        _broadcast(job, _octets(hosts[0]), root)
    else:
        sizes = [each.numel() * each.element_size() for each in hosts]
        buffer = bytearray(sum(sizes))
        at = 0
        for each, size in zip(hosts, sizes):
            if job.rank == root:
                buffer[at : at + size] = _octets(each).data
            at += size
        _broadcast(job, buffer, root)
        at = 0
        for each, size in zip(hosts, sizes):
            if job.rank != root:
                _octets(each).data[:] = memoryview(buffer)[at : at + size]
            at += size
    for (name, own), host in zip(batch, hosts):
        if job.rank != root and own.data_ptr() != host.data_ptr():
            fill(name, own, host)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Its values in host memory, one behind the other: its own memory where that has them so."""
    host = convert.on_host(tensor).resolve_conj()
    return (host.resolve_neg() if hasattr(host, "resolve_neg") else host).contiguous()


def fill(name: str, own: torch.Tensor, values: torch.Tensor) -> None:
    """Copies values of the same shape into a tensor, in place. Of one that was expanded, each value in memory once; Invalid
    where it cannot hold them."""
    narrow, source = own, values
    for axis, (size, stride) in enumerate(zip(own.shape, own.stride())):
        if size > 1 and stride == 0:
            narrow, source = narrow.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
    narrow.copy_(source)
    if narrow is not own and bytes(_octets(plain(own)).data) != bytes(_octets(plain(values)).data):
        raise Invalid(f"{name} was made by expand() here, and has one value in the place of several; the other rank's differ")


def broadcast_object(value: Any = None, root: Optional[int] = None, *, job: Optional[Ranks] = None) -> Any:
    """The `value` of rank `root`, on every rank: None, bools, numbers, strings, tensors, and lists, tuples and dicts of
    these. What else it holds raises Unsupported on every rank; nothing is pickled. Collective."""
    job = current(job)
    number = numbered(job, 0) if root is None else root
    tensors: List[torch.Tensor] = []
    text = b""
    if numbered(job, job.rank) == number:
        try:
            text = json.dumps({"value": _pack(value, tensors)}).encode()
        except Unsupported as error:
            text = json.dumps({"error": str(error)}).encode()
        except RecursionError:
            text = json.dumps({"error": "broadcast_object: a value that holds itself, or is too deep"}).encode()
    length = bytearray(struct.pack("<q", len(text)))
    job.broadcast(length, number)
    root = _root(job, number)
    buffer = bytearray(text.ljust(struct.unpack("<q", length)[0], b" "))
    _broadcast(job, buffer, root)
    message = json.loads(buffer)
    if "error" in message:
        raise Unsupported(message["error"], job=job.name)
    if job.rank != root:
        value = _unpack(message["value"], tensors)
    for each in tensors:
        if each.numel():
            _broadcast(job, _octets(plain(each.detach())), root)
    return value


def _pack(value: Any, tensors: List[torch.Tensor]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and _refused(value) is None:
        tensors.append(value)
        return {"tensor": [str(value.dtype)[6:], list(value.shape)]}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_pack(item, tensors) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_pack(key, tensors), _pack(item, tensors)] for key, item in value.items()]}
    raise Unsupported(f"broadcast_object: a {type(value).__name__}; None, bools, numbers, strings, dense tensors, and lists, "
                      "tuples and dicts of these travel")  # fmt: skip


def _unpack(packed: Any, made: List[torch.Tensor]) -> Any:
    """`made` gets the tensors, which are to be filled, in the order of _pack()."""
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "tensor":
        made.append(torch.empty(content[1], dtype=getattr(torch, content[0]), device="cpu"))
        return made[-1]
    if kind == "dict":
        return {_unpack(key, made): _unpack(item, made) for key, item in content}
    items = [_unpack(item, made) for item in content]
    return tuple(items) if kind == "tuple" else items


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root: Optional[int] = None, *, job: Optional[Ranks] = None) -> None:
    """Makes the state of an optimiser, its step counts, momenta and settings, that of rank `root`. ShapeMismatch on all
    ranks where class, groups or shapes of parameters differ. Collective."""
    job = current(job)
    with job._collective.refusing():
        place = _root(job, root)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise Invalid(f"broadcast_optimizer_state: a {type(optimizer).__name__}; a torch.optim.Optimizer is wanted")
    described = [type(optimizer).__name__]
    for i, group in enumerate(optimizer.param_groups):
        shapes = (f"{str(each.dtype)[6:]} {list(each.shape)}" for each in group["params"])
        described += [f"parameter {j} of group {i}: {shape}" for j, shape in enumerate(shapes)]
    agree(job, "broadcast_optimizer_state", described)
    state = broadcast_object(optimizer.state_dict() if job.rank == place else None, root, job=job)
    if job.rank != place:
        optimizer.load_state_dict(state)
