"""Points of the code at which a process lets itself die or stop (common/base/moment.h), and how it is told to."""
import dataclasses
import mmap
import os
import struct
import time

# struct moment_page of moment.h: armed, hit, signal, name
HEAD, NAME_AT, SIZE = struct.Struct("=II"), 12, 4096


@dataclasses.dataclass(frozen=True)
class Moment:
    """`of_loss`: it comes when another server is lost."""
    name: str
    target: str
    of_loss: bool = False


TABLE = [
    Moment("push read, not summed", "server"),
    Moment("sum told to one rank", "server"),
    Moment("map taken, not answered", "server", of_loss=True),
    Moment("noted, not written", "coordinator", of_loss=True),
    Moment("written, not sent", "coordinator", of_loss=True),
    Moment("map told to one rank", "coordinator", of_loss=True),
]


class Page:
    """The page that a process has; it is there before the process is."""

    def __init__(self, path):
        self.path = path
        with open(path, "wb") as file:
            file.truncate(SIZE)
        self.file = open(path, "r+b")
        self.map = mmap.mmap(self.file.fileno(), SIZE)

    def arm(self, name, signal):
        struct.pack_into("=i48s", self.map, HEAD.size, signal, name.encode())
        HEAD.pack_into(self.map, 0, 1, 0)

    def disarm(self):
        """Returns whether the process had come to the moment before."""
        struct.pack_into("=I", self.map, 0, 0)
        time.sleep(0.001)  # It may be between its two stores.
        return self.is_hit()

    def is_hit(self):
        return HEAD.unpack_from(self.map, 0)[1] == 1

    def close(self):
        self.map.close()
        self.file.close()
        os.unlink(self.path)
