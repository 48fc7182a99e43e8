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
from chaoslib.driver import Driver, Stuck  # noqa: E402
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


def driven(*faults):
    """A driver of a cluster without processes. Its job has three servers and is at step 10."""
    member = lambda kind, name, host=0: types.SimpleNamespace(kind=kind, name=name, host=host, fault=None, is_killed=False, is_up=False, free_us=0)
    servers = {host: member("server", f"s{host}", WORLD + host) for host in range(3)}
    of_kind = {"server": list(servers.values()), "rank": [member("rank", "rank 0")], "coordinator": [member("coordinator", "coordinator")]}
    of_kind["rank"][0].is_up = of_kind["coordinator"][0].is_up = True
    table = {"servers": [{"name": server.name, "jobs": 1} for server in servers.values()]}
    cluster = types.SimpleNamespace(servers=servers, ranks=of_kind["rank"], coordinator=of_kind["coordinator"][0], later=[], table=table,
                                    members=of_kind.get, ask=lambda what: table, do_due=lambda: None, dead_by_itself=lambda: None)
    driver = Driver(cluster, types.SimpleNamespace(dead=2000, window=2), faults, lambda text: None)
    names = {server.name for server in servers.values()}
    driver.job = types.SimpleNamespace(name="job1", servers=names, left=set(names), done=[10] * WORLD, is_running=lambda: True,
                                       is_broken=lambda: False, watch=lambda: False)
    return driver


def check_targets():
    """A server that is still starting is no target; links are mended where no job has ranks any more."""
    interface = fault_of(next(kind for kind in kinds.TABLE if kind.name == "interface"))
    driver = driven(interface)
    driver.cluster.table["servers"].pop(0)
    assert {server.name for server in driver.targets(interface)} == {"s1", "s2"}
    cluster = types.SimpleNamespace(ranks=[], rank_hosts=[0, 1, 2, 3], calls=[])
    cluster.join = lambda host, others, way: cluster.calls.append((host, others))
    kinds.TABLE[kinds.NAMES.index("data")].end(cluster, driver.cluster.servers[1], interface)
    assert cluster.calls == [(5, [0, 1, 2, 3])]


def fault_of(kind, length_s=0.0):
    return kinds.Fault(1, kind, 0.0, kinds.SHORT, length_s, 0.5, "both", 0.2)


def check_moments():
    """Other faults end while one waits for its moment, and it waits for steps of the job instead of seconds."""
    ended, closed = [], []

    def wait(cluster, target, fault):
        try:
            while not cluster.is_hit:
                yield
        finally:
            closed.append(fault)

    stop = kinds.Kind("rank-stop", "rank", (kinds.SHORT,), lambda *_: None, lambda *_: ended.append("stop"))
    moment = kinds.Kind("moment", "server", (kinds.LONG,), wait, has_moment=True)
    driver = driven(fault_of(stop), fault_of(moment))
    driver.cluster.is_hit = False
    for _ in range(3):
        driver.turn()
        driver.job.done = [step + 5 for step in driver.job.done]
    assert ended == ["stop"] and driver.beginning and not driver.over[1:], "the stop ends while the moment is awaited"
    driver.cluster.is_hit = True
    driver.turn()
    assert len(driver.over) == 2 and not driver.beginning and not driver.waiting

    driver = driven(fault_of(moment))
    driver.cluster.is_hit = False
    for _ in range(9):
        driver.turn()
    assert driver.beginning, "without a step of the job nothing is decided"
    driver.cluster.table["servers"] = []
    driver.job.done = [40] * WORLD
    driver.turn()
    assert not driver.beginning and len(driver.waiting) == 1 and len(closed) == 2, "its server is not in the job any more"

    driver = driven(fault_of(moment))
    driver.cluster.is_hit = False
    driver.turn()
    try:
        for step in range(40, 200, 40):
            driver.job.done = [step] * WORLD
            driver.turn()
        raise AssertionError("a moment that is not come to ends the run")
    except Stuck:
        pass
    driver.job.name = "job2"
    driver.turn()
    assert not driver.beginning and len(driver.waiting) == 1, "the job is over"


def main():
    check_targets()
    check_moments()
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
        assert bytes(page.map[:20]) == b"\1\0\0\0\0\0\0\0\x09\0\0\0a moment" and not page.disarm(), "as moment.h has it"
        page.map[4] = 1
        assert page.is_hit() and page.disarm()
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
