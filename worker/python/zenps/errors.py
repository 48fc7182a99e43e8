"""Errors of zenps as exceptions.

Every error of the library is a :class:`ZenpsError` of the subclass that its status has, with the library's own sentence
as text. Where Python has an obvious exception for the case, the subclass derives from it, too: ``except TimeoutError``
catches :class:`RoundTimeout`. All of them pickle, so that launchers which write errors to files keep every field.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Type

from ._abi import Status


class ZenpsError(Exception):
    """What a call of the library failed with.

    status: the :class:`Status`. job, tensor: names, empty where none is concerned. step: of the tensor, None where none
    is concerned. missing_ranks: ranks that have not come, or have died; at most the first 64 of them.
    """

    default_status = Status.ERR_INTERNAL

    def __init__(
        self,
        text: str,
        *,
        status: Optional[Status] = None,
        job: str = "",
        tensor: str = "",
        step: Optional[int] = None,
        missing_ranks: Tuple[int, ...] = (),
        needed: int = 0,
    ) -> None:
        Exception.__init__(self, text)
        self.status = Status(self.default_status if status is None else status)
        self.job = job
        self.tensor = tensor
        self.step = step
        self.missing_ranks = tuple(missing_ranks)
        self.needed = needed

    @property
    def recoverable(self) -> bool:
        """Whether :meth:`zenps.Job.next` of an elastic job makes sense after it: a rank or server was lost, has left or did
        not come or could not be read from, or another rank gave the operation up."""
        return self.status in _RECOVERABLE

    def __str__(self) -> str:
        return str(self.args[0])

    def _fields(self) -> Dict[str, Any]:
        names = ("status", "job", "tensor", "step", "missing_ranks", "needed")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> Tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self._fields())


# As zenps_status_recoverable() has them; errors are looked at also where there is no library.
_RECOVERABLE = frozenset((Status.ERR_PEER_LOST, Status.ERR_SERVER_LOST, Status.ERR_CLOSED, Status.ERR_MISSING,
                          Status.ERR_STALE, Status.ERR_CANCELED, Status.ERR_TIMEOUT, Status.ERR_FABRIC))  # fmt: skip


def _rebuild(kind: Type[ZenpsError], text: str, fields: Dict[str, Any]) -> ZenpsError:
    return kind(text, **fields)


class Again(ZenpsError):
    """Too much is in flight; the call can be made again."""

    default_status = Status.ERR_AGAIN


class Invalid(ZenpsError, ValueError):
    """An argument cannot be right."""

    default_status = Status.ERR_INVALID


class NoMemory(ZenpsError, MemoryError):
    default_status = Status.ERR_NOMEM


class RoundTimeout(ZenpsError, TimeoutError):
    """A deadline passed, and no rank can be blamed by name."""

    default_status = Status.ERR_TIMEOUT


class Canceled(ZenpsError):
    """A rank gave the operation up; the text says which."""

    default_status = Status.ERR_CANCELED


class Closed(ZenpsError):
    """The job was closed, here or by a rank that left."""

    default_status = Status.ERR_CLOSED


class ConnectFailed(ZenpsError, ConnectionError):
    """The coordinator cannot be reached."""

    default_status = Status.ERR_CONNECT


class Refused(ZenpsError, PermissionError):
    """The coordinator or a server said no."""

    default_status = Status.ERR_REFUSED


class VersionMismatch(ZenpsError):
    """Package, library and daemons are not of versions that fit each other."""

    default_status = Status.ERR_VERSION


class ProtocolError(ZenpsError):
    """A peer sent what cannot be right."""

    default_status = Status.ERR_PROTOCOL


class ShapeMismatch(ZenpsError, ValueError):
    """Another rank opened the tensor with another shape, dtype or option."""

    default_status = Status.ERR_SHAPE


class Unknown(ZenpsError, LookupError):
    """No such job, tensor or memory."""

    default_status = Status.ERR_UNKNOWN


class RankTaken(ZenpsError):
    """Another live process has this rank."""

    default_status = Status.ERR_RANK_TAKEN


class MissingRanks(ZenpsError):
    """Ranks had not come at the deadline: ``missing_ranks``."""

    default_status = Status.ERR_MISSING


class PeerLost(ZenpsError):
    """A rank died: ``missing_ranks``."""

    default_status = Status.ERR_PEER_LOST


class ServerLost(ZenpsError):
    """A server died, and others cannot take over."""

    default_status = Status.ERR_SERVER_LOST


class Stale(ZenpsError):
    """A sum that servers keep no longer, or a message of an earlier membership."""

    default_status = Status.ERR_STALE


class Truncated(ZenpsError):
    """The result has ``needed`` entries, more than the arrays that were given hold."""

    default_status = Status.ERR_TRUNCATED


class Unsupported(ZenpsError, NotImplementedError):
    default_status = Status.ERR_UNSUPPORTED


class IOFailed(ZenpsError, OSError):
    default_status = Status.ERR_IO


class FabricError(ZenpsError, OSError):
    """libfabric failed, or no provider fits what was asked for."""

    default_status = Status.ERR_FABRIC


class Forked(ZenpsError):
    """The process is a child, by fork(), of the one that opened the job."""

    default_status = Status.ERR_FORKED


class Busy(ZenpsError):
    """The step of the tensor is in flight here already."""

    default_status = Status.ERR_BUSY


class Internal(ZenpsError):
    default_status = Status.ERR_INTERNAL


class QuotaExceeded(ZenpsError):
    """The job asked for more of a server, or of the coordinator, than it may have."""

    default_status = Status.ERR_QUOTA


class TrainerFailed(ZenpsError):
    """The trainer's own error, as operators read it: :meth:`Job.fail`. No call raises it."""

    default_status = Status.ERR_TRAINER


BY_STATUS: Dict[Status, Type[ZenpsError]] = {
    kind.default_status: kind
    for kind in (Again, Invalid, NoMemory, RoundTimeout, Canceled, Closed, ConnectFailed, Refused, VersionMismatch,
                 ProtocolError, ShapeMismatch, Unknown, RankTaken, MissingRanks, PeerLost, ServerLost, Stale, Truncated,
                 Unsupported, IOFailed, FabricError, Forked, Busy, Internal, QuotaExceeded,
                 TrainerFailed)
}
