"""Which parameters are tables, and which tensors of zenps they and the others are summed in.

A *table* is a matrix whose gradient has few rows that are not zero: the weight of an embedding. Whether autograd makes
that gradient sparse (``nn.Embedding(sparse=True)``) does not matter: of a dense one zenps leaves the zero rows out, so
the optimiser keeps its semantics, and only the wire is sparse. The other parameters go in dense buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Sequence, Set, Tuple, Union

import torch

from ..errors import Invalid, Unsupported
from .convert import dtype_name

MIN_ROWS = 4096  # of an embedding that "auto" takes for a table
FIRST_BYTES = 1 << 20  # of the first bucket, as DDP has it: its sum starts early in the backward pass
FUSED_FROM = 3  # tables: the two of a language model come at opposite ends of the backward pass, and overlap with it

Tables = Union[str, Iterable[Union[str, torch.Tensor]]]


@dataclass(frozen=True)
class Slot:
    """A parameter's place. index: in the module's parameters. base: of its first row (table) or value (bucket)."""

    name: str
    parameter: torch.nn.Parameter
    index: int
    base: int
    sparse: bool = False  # layout of a gradient before any was seen

    @property
    def rows(self) -> int:
        return int(self.parameter.shape[0])

    @property
    def width(self) -> int:
        return self.numel // max(self.rows, 1)

    @property
    def numel(self) -> int:
        return int(self.parameter.numel())

    def described(self, kind: str) -> str:
        """What ranks must agree on."""
        shape = list(self.parameter.shape)
        return f"{kind} {self.name} {shape} {str(self.parameter.dtype)[6:]}{' sparse' if self.sparse else ''}"


@dataclass
class Plan:
    """tables, buckets: each list of slots is summed in one tensor of zenps. Ranks must have the same plan."""

    names: List[str] = field(default_factory=list)
    tables: List[List[Slot]] = field(default_factory=list)
    buckets: List[List[Slot]] = field(default_factory=list)


def _is_embedding(module: torch.nn.Module) -> bool:
    return isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))


def _elsewhere(module: torch.nn.Module) -> Set[int]:
    """The ids of parameters that a module which is no embedding has: of an embedding's weights, those that are tied."""
    others = (each for each in module.modules() if not _is_embedding(each))
    return {id(parameter) for other in others for parameter in other.parameters(recurse=False)}


def find(module: torch.nn.Module, tables: Tables) -> Tuple[Set[int], Set[int]]:
    """The ids of the tables among the parameters, and of the parameters with sparse gradients.

    "auto": weights of nn.Embedding and nn.EmbeddingBag that are sparse=True, and those of MIN_ROWS rows or more that no
    other module has. A module such as a tied last layer fills all rows. A list has names or parameters instead, and may
    have "auto" among them.
    """
    embeddings = [each for each in module.modules() if _is_embedding(each)]
    tied = _elsewhere(module)
    sparse = {id(each.weight) for each in embeddings if each.sparse}
    found: Set[int] = set()
    named = dict(module.named_parameters())
    own = {id(parameter) for parameter in named.values()}
    for wanted in [tables] if isinstance(tables, str) else list(tables):
        if isinstance(wanted, torch.Tensor):
            if id(wanted) not in own:
                raise Invalid(f"tables: a tensor of shape {list(wanted.shape)} that is no parameter of the module")
            found.add(id(wanted))
        elif wanted == "auto":
            large = (each for each in embeddings if each.num_embeddings >= MIN_ROWS and id(each.weight) not in tied)
            found.update(sparse, (id(each.weight) for each in large))
        elif wanted in named:
            found.add(id(named[wanted]))
        elif wanted != "none":
            known = ", ".join(list(named)[:8])
            raise Invalid(f'tables: {wanted!r}; must be "auto", "none", or names of parameters such as {known}')
    return found, sparse


def trainable(module: torch.nn.Module) -> List[Tuple[str, torch.nn.Parameter]]:
    """The parameters that get gradients, each once, in order of registration; checked."""
    taken: List[Tuple[str, torch.nn.Parameter]] = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        if name.startswith("."):  # torch refuses such names in modules
            raise Invalid(f"parameter {name!r}: names that begin with a dot are those of zenps's own tensors; give it another one")
        if any(kind.__name__ in ("DTensor", "UninitializedParameter") for kind in type(parameter).__mro__):
            raise Unsupported(
                f"parameter {name} is a {type(parameter).__name__}; zenps sums whole parameters, which every rank holds "
                "(not shards of FSDP, nor lazy ones before their first forward pass)"
            )
        dtype_name(parameter.dtype, f"parameter {name}")
        taken.append((name, parameter))
    return taken


def plan(module: torch.nn.Module, tables: Tables = "auto", bucket_bytes: int = 25 << 20, fuse: bool = True) -> Plan:
    """Tables in order of registration, those of one dtype, width and layout fused where there are FUSED_FROM or more;
    the other parameters, of one dtype each, in buckets in reverse order, as backward() goes. A bucket is closed when it has
    `bucket_bytes`, and the first one of each dtype when it has FIRST_BYTES."""
    found, sparse = find(module, tables)
    parameters = trainable(module)
    made = Plan(names=[name for name, _ in parameters])
    groups: Dict[Tuple[object, ...], List[Slot]] = {}
    for index, (name, parameter) in enumerate(parameters):
        if id(parameter) not in found or parameter.dim() < 1 or not parameter.numel():
            continue
        slot = Slot(name, parameter, index, 0, id(parameter) in sparse)
        groups.setdefault((parameter.dtype, parameter.device, slot.width, slot.sparse), []).append(slot)
    for slots in groups.values():
        if fuse and slots[0].sparse and len(slots) >= FUSED_FROM:
            made.tables.append(based(slots, [slot.rows for slot in slots]))
        else:
            made.tables.extend([slot] for slot in slots)
    open_buckets: Dict[Tuple[object, ...], List[Slot]] = {}
    limits: Dict[Tuple[object, ...], int] = {}  # of the dtypes that have a bucket
    for index, (name, parameter) in reversed(list(enumerate(parameters))):
        if not parameter.numel() or any(slot.index == index for slots in made.tables for slot in slots):
            continue
        key = (parameter.dtype, parameter.device)
        slots = open_buckets.setdefault(key, [])
        slots.append(Slot(name, parameter, index, 0))
        limit = limits.get(key, min(FIRST_BYTES, bucket_bytes))
        if sum(slot.numel for slot in slots) * parameter.element_size() >= limit:
            made.buckets.append(open_buckets.pop(key))
            limits[key] = bucket_bytes
    made.buckets.extend(open_buckets.values())
    made.buckets = [based(slots, [slot.numel for slot in slots]) for slots in made.buckets]
    return made


def based(slots: Sequence[Slot], sizes: Sequence[int]) -> List[Slot]:
    base, placed = 0, []
    for slot, size in zip(slots, sizes):
        placed.append(Slot(slot.name, slot.parameter, slot.index, base, slot.sparse))
        base += size
    return placed
