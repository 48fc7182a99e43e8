"""Lines of the library's log, for `logging`.

The library calls back on a thread of its own, which zenps_close() waits for. A handler of logging takes locks, and may
be interrupted by a destructor that calls the library. So the callback leaves lines in a queue, and a thread empties it.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any, Optional, Tuple

from . import _abi

TRACE = 5
_LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG, 4: TRACE}

_LINES_MAX = 1024  # lines that wait for a handler

Line = Tuple[int, str, str]


class Sink:
    """One job's lines, to the logger `name`. callback is for the library, which may call it until close()."""

    def __init__(self, name: str) -> None:
        self.rank: Optional[int] = None
        self._logger = logging.getLogger(name)
        self._dropped = 0
        self._lines: "queue.SimpleQueue[Optional[Line]]" = queue.SimpleQueue()
        self.callback: Any = _abi.LogFn(self._put)
        self._thread = threading.Thread(target=self._run, name="zenps-log", daemon=True)
        self._thread.start()

    def _put(self, _: Any, level: int, component: Optional[bytes], text: Optional[bytes]) -> None:
        if self._lines.qsize() >= _LINES_MAX:
            self._dropped += 1
            return
        if self._dropped:
            count, self._dropped = self._dropped, 0
            told = f"{count} lines of the log were dropped: the handlers of logging did not keep up"
            self._lines.put((logging.WARNING, "log", told))
        words = ((each or b"").decode(errors="replace") for each in (component, text))
        self._lines.put((_LEVELS.get(level, TRACE), *words))  # type: ignore[arg-type]

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            if line is None:
                return
            level, component, text = line
            extra = {"component": component, "rank": self.rank}
            self._logger.log(level, "%s: %s", component, text, extra=extra)

    def close(self) -> None:
        """Returns when all lines are written, or after a second; the library has no callback any more."""
        self._lines.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)
