"""Calls that wait for other processes, and Ctrl-C."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Optional, TypeVar

T = TypeVar("T")
MOST_S = 1e9  # seconds, of a deadline: 31 years
SLICE_MS = 200  # how long Python waits for an interrupt at most


def interruptible(call: Callable[[], T], late: Optional[Callable[[T], None]] = None) -> T:
    """call(), which blocks in C where no signal handler of Python can run. On the main thread it runs on another one, so
    that Ctrl-C ends the wait for it at once; `late` then gets what it returns in the end."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    lock = threading.Lock()
    done = threading.Event()
    result: List[T] = []
    failure: List[BaseException] = []
    given_up: List[bool] = []

    def body() -> None:
        try:
            result.append(call())
        except BaseException as error:  # pylint: disable=broad-except
            failure.append(error)
        with lock:
            done.set()
            unwanted = bool(given_up)
        if unwanted and result and late is not None:
            late(result[0])

    threading.Thread(target=body, name="zenps-call", daemon=True).start()
    try:
        while not done.wait(SLICE_MS / 1000):
            pass
    except BaseException:
        with lock:
            given_up.append(True)
            unwanted = done.is_set()
        if unwanted and result and late is not None:
            late(result[0])
        raise
    if failure:
        raise failure[0]
    return result[0]


def milliseconds(seconds: Optional[float], what: str) -> int:
    """0, the default, for None."""
    from .errors import Invalid

    if seconds is None:
        return 0
    if not 0 < seconds <= MOST_S:
        raise Invalid(f"{what} of {seconds} s; must be over 0 and at most {MOST_S:.0f}, or None for the environment's")
    return max(1, round(seconds * 1000))


def text(value: Optional[str], what: str) -> Any:
    """For a const char *: NULL for None. Invalid where C would see another text."""
    from .errors import Invalid

    if value is None:
        return None
    try:
        encoded = value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise Invalid(f"{what} {value!r}; a string of Unicode characters is wanted") from None
    if 0 in encoded:
        raise Invalid(f"{what} {value!r} has a NUL at byte {encoded.index(0)}")
    return encoded
