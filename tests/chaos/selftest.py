#!/usr/bin/env python3
"""Whether the judge of runs finds what is wrong in what ranks say, without a cluster: selftest.py BUILD."""
import os
import signal
import subprocess
import sys
import tempfile
import types

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from chaoslib import kinds, leftovers, moments  # noqa: E402
from chaoslib.cluster import WORLD  # noqa: E402
from chaoslib.job import Job, touches  # noqa: E402


class Told:
    """In the place of a cluster: ranks that have ended, and what they said."""

    def __init__(self, folder, logs, statuses):
        self.lab = types.SimpleNamespace(scratch=folder, said=lambda process: "")
        self.servers, self.logs, self.statuses = {}, logs, statuses

    def start_ranks(self, job, *_):
        self.ranks = []
        for r, (log, status) in enumerate(zip(self.logs, self.statuses)):
            name = f"{job}-rank{r}"
            with open(os.path.join(self.lab.scratch, name + ".log"), "w") as file:
                file.write(log)
            self.ranks.append(types.SimpleNamespace(process=types.SimpleNamespace(name=name, poll=lambda s=status: s), is_killed=False))


def steps(*digests, first=1):
    return "in 5\n" + "".join(f"step {n} {1000 * n} {1000 * n + 400} {digest}\n" for n, digest in enumerate(digests, first))


def judged(*logs, statuses=(0,) * WORLD):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Told(folder, logs, statuses), "job", 1, 2, 1000)
        assert job.watch(), "all have ended"
        return job, {what for what in ("wrong", "errors", "hangs", "lost", "died") if getattr(job, what)}


def main():
    good, left = steps("a", "b", "c"), "left 9 20 20 100 120\n"
    job, found = judged(*[good + left] * WORLD)
    assert not found and len(job.steps) == 3 and job.grown == [(0, 20)] * WORLD, found
    assert judged(good, good, steps("a", "x", "c"), good)[1] == {"wrong"}
    assert judged(good, good + "wrong 4 rows row 3\n", good, good, statuses=(0, 4, 0, 0))[1] == {"wrong"}
    assert judged(good, good, good, steps("a", "b"))[1] == {"lost"}
    assert judged(good, good, good, steps("a") + "step 3 3000 3400 c\n")[1] == {"lost"}
    assert judged(good, good, good, good + "error 4 -16 a server\n", statuses=(0, 0, 0, 3))[1] == {"errors"}
    assert judged(good, good, good, good + "hang 4 rows\n", statuses=(0, 0, 0, 5))[1] == {"hangs"}
    assert judged(good, good, good, good, statuses=(0, 0, -11, 0))[1] == {"died"}

    one, = kinds.sequence(1, 1, ["kill"], 2, 20, 1)
    one.windows = [(1000, 2000), (5000, 6000)]
    assert [touches(one, *step) for step in ((0, 999), (0, 1500), (1900, 9000), (2001, 4999), (5500, 5600))] == [False, True, True, False, True]
    assert {fault.length for fault in kinds.sequence(1, 50, ["rank-stop"], 2, 20, 1)} == {"short"}
    assert all(fault.length_s <= 0.4 or fault.length_s >= 3 for fault in kinds.sequence(2, 200, kinds.DEFAULTS, 2, 20, 1))

    for name in ("moment", "coordinator-moment"):
        fault, = kinds.sequence(1, 1, [name], 2, 20, 1)
        assert fault.choose_moment(["a"]) == (name == "moment"), "where one server is left, none is to be lost"
        assert fault.choose_moment(["a", "b"]) and (fault.other is not None) == fault.moment.of_loss
    with tempfile.TemporaryDirectory() as folder:
        page = moments.Page(os.path.join(folder, "page"))
        page.arm("a moment", signal.SIGKILL)
        assert bytes(page.map[:20]) == b"\1\0\0\0\0\0\0\0\x09\0\0\0a moment" and not page.await_hit(0), "as moment.h has it"
        page.map[4] = 1
        assert page.is_hit()
        page.close()

    idle = {"resident_kib": 9000, "descriptors": 20, "registered_bytes": 5 << 20, **dict.fromkeys(leftovers.COUNTERS, 0)}
    base = {"coordinator": {"resident_kib": 5000, "descriptors": 15, "jobs": 0}, "servers": {"s1": idle}}
    assert not leftovers.compare(base, base)
    for more in ({"descriptors": 40}, {"memory_in_use_bytes": 1}, {"resident_kib": 90000}, {"registered_bytes": 99 << 20}):
        assert len(leftovers.compare(base, {**base, "servers": {"s2": {**idle, **more}}})) == 1, more
    assert len(leftovers.compare(base, {**base, "coordinator": {**base["coordinator"], "jobs": 1}})) == 1

    return subprocess.run([os.path.join(sys.argv[1], "tests", "chaos", "sums-test")], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
