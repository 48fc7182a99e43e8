"""Operations in flight, as Works of torch.distributed."""

from __future__ import annotations

import queue
import threading
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
from torch.distributed.distributed_c10d import Work as _TorchWork

from ..errors import ZenpsError
from .buckets import in_node
from .collective import Compared


class Completer:
    """A thread that waits for Works whose futures somebody wants, and that nobody waits for by wait()."""

    def __init__(self) -> None:
        self._works: "queue.SimpleQueue[Work]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def complete(self, work: "Work") -> None:
        self._works.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=_complete_all, args=(self._works,), name="zenps.works", daemon=True)
            self._thread.start()


class Work(_TorchWork):  # type: ignore[misc]
    """Operations in flight, as a Work. Results are in place after wait(), after is_completed() was True, and in the future.

    A future that a backward pass asks for, as DistributedDataParallel does, ends that pass with the Work's own error.
    """

    def __init__(self, request: Optional[Compared], value: Any, failed: Callable[[ZenpsError], None], completer: Completer,
                 error: Optional[ZenpsError] = None) -> None:  # fmt: skip
        """request: None where it has failed at once, by `error`. value: of its future. failed: is told the error."""
        super().__init__()
        self._failed, self._completer = failed, completer
        self._request = request
        self._value = value
        self._error = error
        self._lock = threading.Lock()
        self._finished = False
        self._future: Optional[torch.futures.Future[Any]] = None
        if error is not None:
            self._finish(error)

    def _finish(self, error: Optional[ZenpsError]) -> None:
        """Once; results are put in place by whoever comes first."""
        with self._lock:
            if self._finished:
                return
            try:
                if error is None and self._request is not None:
                    self._request.finish()
            except ZenpsError as failure:
                error = failure
            if error is not None:
                self._failed(error)
            self._request, self._error, self._finished = None, error, True
            future = self._future
        if future is not None:
            self._resolve(future)

    def _resolve(self, future: "torch.futures.Future[Any]") -> None:
        if self._error is None:
            future.set_result(self._value)
        else:
            future.set_exception(self._error)

    def complete(self, seconds: Optional[float] = None) -> None:
        """Returns when it is over, well or not. TimeoutError: it is still in flight."""
        request = self._request
        self._finish(None if request is None else request.exception(seconds))

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        self.complete(None if timeout is None or not timeout else timeout.total_seconds())
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> "torch.futures.Future[Any]":
        if self._future is None:
            self._end_pass()
        with self._lock:
            first = self._future is None
            if self._future is None:
                self._future = _future(self._value)
            future, finished = self._future, self._finished
        if first and finished:
            self._resolve(future)
        elif first:
            self._completer.complete(self)
        return future

    def _end_pass(self) -> None:
        """DistributedDataParallel takes an exception in a future for a tensor. So a callback of its pass raises the error
        first, or, in a callback itself, as in the first pass of a static graph, this call does."""
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self.wait)
        except RuntimeError:  # no backward pass
            return
        if not in_node():
            self.wait()

    def is_completed(self) -> bool:
        request = self._request
        if request is not None and request.done():
            self.complete()
        return self._finished

    def is_success(self) -> bool:
        return self._finished and self._error is None

    def exception(self) -> Optional[ZenpsError]:
        return self._error

    def result(self) -> Any:
        self.wait()
        return self._value

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()


def _future(value: Any) -> "torch.futures.Future[Any]":
    """One that may hold the value: torch wants to know the GPUs of its tensors."""
    devices, left = set(), [value]
    while left:
        each = left.pop()
        if isinstance(each, (list, tuple)):
            left += each
        elif isinstance(each, torch.Tensor) and each.device.type != "cpu":
            devices.add(each.device)
    return torch.futures.Future(devices=list(devices)) if devices else torch.futures.Future()


def _complete_all(works: "queue.SimpleQueue[Work]") -> None:
    while True:
        works.get().complete()
