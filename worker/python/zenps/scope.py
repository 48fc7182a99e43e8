"""What the ranks of a job, or of a group of them, do together."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import _abi, _calls, _lib, _options, arrays, collectives
from .errors import Invalid, Unsupported, ZenpsError
from .tensor import Tensor

if TYPE_CHECKING:
    from .job import Job

_DEFAULTS = {"width": 1, "dtype": "f32", "op": "mean", "keep_zero_rows": 0}  # of tensor()


class Scope:
    """The ranks of a :class:`Job`, or of a :class:`Group`. rank: this one's number among them; world: how many they are."""

    rank: int
    world: int
    _job: "Job"
    _group: Optional[int] = None  # zenps_group_t *; None: all ranks
    _first: int = 0  # number in the job of the first rank
    _generation: Optional[int] = None  # of the job; None: whichever the job is in
    _words = ""  # what errors call it

    def __init__(self) -> None:
        self._collective = collectives.Collective(self)

    def tensor(self, name: str, rows: int, width: int = 1, dtype: str = "f32", *, op: str = "mean",
               scheme: Optional[str] = None, values: Optional[str] = None, codec: Optional[str] = None, k: int = 0,
               density: float = 0.0, partitions: int = 0, keep_zero_rows: bool = False, contributed: bool = False,
               **more: Any) -> Tensor:  # fmt: skip
        """Opens a tensor of rows x width values: "f32", "f64", "bf16" or "f16". The first rank to do so registers it, the
        others must agree in every argument (ShapeMismatch). The same name again gives the same Tensor.

        op: "mean" (the sum times 1 / world), "mean_present" (1 / contributing ranks), "sum", "max", "min". Rows of zeros are not sent.
            With keep_zero_rows they count in max and min, and row_ids lists them.
        scheme: a name, and the scheme's own options behind a colon: "oktopk:k=1000,tau=64". None: ZENPS_SCHEME, else "balanced".
        values: the form of values on the way: "raw", "bf16", "f16", "qsgd2", "qsgd4" or "qsgd8".

        codec: the code of row numbers: "auto", "paper" or "coo".
        k, density: a lossy scheme keeps so many rows, or this share.
        keep_zero_rows: listed rows of zeros are sent, and are in the result.
        contributed: Rows.contributed has the rows of this rank's gradient in the result.
        quorum, grace_ms: steps that do not wait for the slowest ranks. A step closes when all ranks have pushed, or so many
            have and grace_ms are over since then. Late ranks get the sum, and Rows.late is True: their gradients are not in it.

        More: every other member of zenps_tensor_options_t by its name, with the words for its constants in lower case
        (<zenps/zenps.h>), and every other option of the scheme (zenps-perf --help). tau=64 is scheme="oktopk:tau=64".
        Lists: levels=(4, 2), without=("rotation", "steering").
        """
        words = dict(more, op=op, scheme=scheme, values=values, codec=codec, k=k, density=density, partitions=partitions)
        words.update(keep_zero_rows=int(keep_zero_rows), contributed=int(contributed))
        (made,) = self._open([(name, rows, width, dtype, words)])
        return made

    def tensors(self, asked: Sequence[Mapping[str, Any]]) -> List[Tensor]:
        """Opens several, in little more time than one takes: of each the arguments of tensor(), by their names. All ranks
        in the same order. All or none."""
        every = []
        for each in asked:
            words: Dict[str, Any] = {**_DEFAULTS, **each}
            if "name" not in words or "rows" not in words:
                raise TypeError(f"tensors() wants name and rows of each tensor; got {dict(each)}")
            name, rows, width, dtype = (words.pop(word) for word in ("name", "rows", "width", "dtype"))
            every.append((name, rows, width, dtype, words))
        return self._open(every)

    def _open(self, asked: Sequence[Tuple[str, int, int, str, Mapping[str, Any]]]) -> List[Tensor]:
        if not asked:
            return []
        job, lib, n = self._job, _lib.load(), len(asked)
        specs, all_options = (_abi.TensorSpec * n)(), (_abi.TensorOptions * n)()
        for spec, options, (name, rows, width, dtype, words) in zip(specs, all_options, asked):
            lib.zenps_tensor_options_init(ctypes.byref(options), ctypes.sizeof(options))
            _options.fill(options, words)
            options.group = self._group
            if not 1 <= rows <= 1 << 40 or not 1 <= width <= 1 << 20:
                raise Invalid(f"tensor {name}: {rows} rows of {width} values; must be 1 to 2^40, and 1 to 2^20")
            spec.struct_size = ctypes.sizeof(spec)
            spec.name = _calls.text(name, "tensor name")
            spec.rows, spec.width, spec.dtype = rows, width, _options.dtype(dtype)
            spec.options = ctypes.pointer(options)
        handles = (ctypes.c_void_p * n)()
        generation = job.generation.number if self._generation is None else self._generation
        asks = generation, self._words or f"tensor {asked[0][0]}"
        job._blocking(lambda: _lib.check(lib.zenps_tensor_open_many(job._handle, specs, n, handles), job.name), *asks)
        opened = []
        for handle, options, (name, _, _, _, _) in zip(handles, all_options, asked):
            assert handle is not None
            with job._using(*asks):
                made = Tensor(job, handle, generation)
            made.name, made.contributed, made.quorum = name, _options.tells(options), options.quorum
            opened.append(job._tensors.setdefault(handle, made))
        return opened

    def barrier(self) -> None:
        """Returns when all ranks have called it. Collective: all ranks call barriers and broadcasts in the same order; where
        one calls something else, all get ShapeMismatch, and the next call is not affected."""
        lib, job, group = _lib.load(), self._job, self._group
        if group is None:
            job._blocking(lambda: _lib.check(lib.zenps_barrier(job._handle), job.name))
        else:
            job._blocking(lambda: _lib.check(lib.zenps_group_barrier(group), job.name), self._generation, self._words)

    def broadcast(self, buffer: Any, root: Optional[int] = None) -> None:
        """Copies the bytes of `buffer` from rank `root`, as the job numbers it (None: the first), to all, in place. An
        array in host memory of any dtype, contiguous, as many bytes on all ranks: else all get ShapeMismatch, and no buffer is
        written. Collective. A rank with wrong arguments raises Invalid, and calls a barrier instead: the others get
        ShapeMismatch, and the next calls meet."""
        lib, job, group = _lib.load(), self._job, self._group
        root = self._first if root is None else root
        try:
            array = self._to_broadcast(buffer, root)
        except (Invalid, Unsupported):
            with contextlib.suppress(ZenpsError):
                self.barrier()
            raise
        at, n = array.address, array.nbytes
        if group is None:
            job._blocking(lambda: _lib.check(lib.zenps_broadcast(job._handle, at, n, root), job.name))
        else:
            job._blocking(
                lambda: _lib.check(lib.zenps_group_broadcast(group, at, n, root), job.name), self._generation, self._words
            )

    def _to_broadcast(self, buffer: Any, root: int) -> arrays.Array:
        self._place_of(root)
        array = arrays.of(buffer, "u8")
        if array.device is not None:
            raise Invalid("broadcast: the buffer is in the memory of a GPU; one in host memory is wanted")
        if array.readonly and self._job.rank != root:
            raise Invalid("broadcast: the buffer is read-only, and is to be written on this rank")
        return array

    def _numbered(self, place: int) -> int:
        """A rank of these, as the job numbers it."""
        return place

    def _place_of(self, root: int) -> int:
        """Of the rank that the job numbers so."""
        places = {self._numbered(place): place for place in range(self.world)}
        if root not in places:
            among = f"0 to {self.world - 1}" if self._group is None else f"one of {', '.join(map(str, places))}"
            raise Invalid(f"root {root!r}; must be {among}")
        return places[root]

    def gather(self, data: bytes) -> List[bytes]:
        """The `data` of every rank, by rank; of any length up to 64 MiB each. One round; for what is small. Collective: a
        rank whose argument is refused raises Invalid, and the others ShapeMismatch."""
        return self._collective.gather(data)

    def sum(self, *numbers: float) -> List[float]:
        """The sum of each number over all ranks, added in rank order. One round; for a few. Collective; all ranks give as
        many, or all get ShapeMismatch. What is no number raises Invalid, and ShapeMismatch on the others."""
        return self._collective.sum(numbers)
