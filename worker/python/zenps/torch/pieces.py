"""The pieces of a DDP bucket, each of which is summed in one way. They are planned once for each bucket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, List, Optional, Tuple

import torch

from ..tensor import Tensor
from .buckets import Bucket

TORCH = "torch"  # dense, by the process group
DENSE = "dense"  # dense, by zenps
TABLE = "table"  # rows of its own
CUT = "cut"  # compressed
_ORDER = (TORCH, DENSE, TABLE, CUT)


@dataclass
class Piece:
    """Parameters that are summed together. spans: where each is in Bucket.flat, as begin and length. tensor, shape, cut: of
    zenps's round, set when the first one starts."""

    kind: str
    parameters: List[torch.Tensor] = field(default_factory=list)
    spans: List[Tuple[int, int]] = field(default_factory=list)
    tensor: Optional[Tensor] = None
    shape: Tuple[int, int] = (0, 0)
    cut: Any = None

    def part(self, flat: torch.Tensor) -> torch.Tensor:
        """The piece in the bucket; of a piece without gaps."""
        (begin, _), (last, length) = self.spans[0], self.spans[-1]
        return flat[begin : last + length]

    def parts(self, flat: torch.Tensor) -> List[torch.Tensor]:
        """Each parameter's part of the bucket."""
        return [flat[begin : begin + length] for begin, length in self.spans]


def divide(bucket: Bucket, kind_of: Callable[[torch.Tensor], str], alone: bool) -> List[Piece]:
    """The pieces, in the order in which they start. Dense neighbours are one piece, and so are all compressed parameters; alone:
    each parameter is a piece of its own. Pieces of the process group come first: ranks start them in the same order,
    whatever becomes of the others."""
    pieces: List[Piece] = []
    at = 0
    for parameter, part in bucket.parts():
        span = at, part.numel()
        at += part.numel()
        if not part.numel():
            continue
        kind = kind_of(parameter)
        joined = None
        if kind == CUT:
            joined = next((each for each in pieces if each.kind == CUT), None)
        elif kind != TABLE and pieces and pieces[-1].kind == kind and sum(pieces[-1].spans[-1]) == span[0]:
            joined = pieces[-1]
        if joined is None or alone:
            joined = Piece(kind)
            pieces.append(joined)
        joined.parameters.append(parameter)
        joined.spans.append(span)
    return sorted(pieces, key=lambda piece: _ORDER.index(piece.kind))
