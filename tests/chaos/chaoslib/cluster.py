"""Hosts, daemons and ranks, and what can be done to them. Hosts are those of tests/cluster/lab."""
import errno
import json
import os
import signal
import shutil
import subprocess
import sys
import tempfile
import time

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path[:0] = [os.path.join(TESTS, "cluster"), os.path.join(TESTS, "support")]
import cut  # noqa: E402
from labbench.lab import Failure, Lab  # noqa: E402
from labbench.zenps import environment, program  # noqa: E402

from .moments import Page  # noqa: E402

WORLD, N_SERVERS, PORT = 4, 3, 7077
# Takes all down when this process is killed outright: then its end of the pipe is closed, and it has not said that all is over. More than
# once, since what makes the lab may still be at it.
GUARD = """read -r line && [ "$line" = over ] && exit
for i in 1 2 3 4 5; do "$0" down; sleep 1; done
umount --lazy "$1"/*/state 2>/dev/null
rm -rf "$1"
"""
NOTES_MAX = 5000  # The coordinator can write so many to a full disk: its last page has room for 100.
STATE_KIB = 8192  # the journal is replaced by a short one at 4 MiB
EXIT_FAILED = 1
ABSENT = "02:00:00:00:ff:ff"  # nobody has this address


def ask(build, env, endpoint, what):
    done = subprocess.run([program(build, "zenpsctl"), "-e", endpoint, "-o", "json", what], env=env, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def fill(path):
    """Takes all the room that there is on a disk."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def now_us():
    return time.monotonic_ns() // 1000


class Member:
    """A process on a host of its own, and the fault that it is under."""

    def __init__(self, kind, name, host, process):
        self.kind, self.name, self.host, self.process = kind, name, host, process
        self.fault, self.free_us = None, 0  # since when it is under none
        self.is_killed = False
        self.is_up = kind != "server"  # It was in, as the coordinator said; before, it may end where it has no interface.
        self.page = None  # of its moments: daemons have one


class Cluster:
    """`with Cluster(...) as cluster:` ranks are on hosts 0 to 3, servers on 4 to 6, the coordinator on 7."""

    def __init__(self, build, dead_ms, beat_ms, log):
        self.build, self.log, self.env, self.dead_ms = build, log, environment(build), dead_ms
        self.options = [f"--control-heartbeat={beat_ms}ms", f"--control-dead={dead_ms}ms"]
        self.lab = Lab(WORLD + N_SERVERS + 1, "none")
        self.host = WORLD + N_SERVERS  # the coordinator's
        self.address = f"{self.lab.address(self.host)}:{PORT}"
        self.rank_hosts = list(range(WORLD))
        self.servers, self.ranks, self.later, self.n_started = {}, [], [], 0  # servers by host; later: (time, what to do)

    def __enter__(self):
        self.folder = tempfile.tempdir = tempfile.mkdtemp(prefix="zenps-chaos.")  # the lab's scratch folder is in it
        self.guard = subprocess.Popen(["sh", "-c", GUARD, self.lab.script, self.folder], stdin=subprocess.PIPE, env={**self.lab.env, "LAB_OWNER": ""},
                                      start_new_session=True)
        try:
            self.lab.__enter__()
            self.state = os.path.join(self.lab.scratch, "state")
            os.mkdir(self.state)
            self.ip("-t", "tmpfs", "-o", f"size={STATE_KIB}k", "zenps-chaos", self.state, tool="mount")
            self.start_coordinator()
            for i in range(N_SERVERS):
                self.start_server(WORLD + i)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            subprocess.run(["umount", "--lazy", self.state], check=False)
            self.lab.__exit__()
            self.guard.stdin.write(b"over\n")
        finally:
            self.guard.stdin.close()
            self.guard.wait()
            tempfile.tempdir = None
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---------------------------------------------------------------- processes

    def start_coordinator(self):
        listening, self.socket = (os.path.join(self.lab.scratch, name) for name in ("address", "socket"))
        if os.path.exists(listening):
            os.unlink(listening)
        self.coordinator = self.start_daemon("coordinator", "the coordinator", self.host, self.next_name("coordinator"), [
            "--roles=coordinator", f"--control-listen={self.address}", "--control-insecure", f"--control-socket={self.socket}", f"--control-address-file={listening}",
            f"--coordinator-min-servers={N_SERVERS}", f"--coordinator-state-dir={self.state}",
            f"--coordinator-restart-grace={2 * self.dead_ms}ms"])
        process = self.coordinator.process
        deadline = time.monotonic() + 300
        while not os.path.exists(listening):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"the coordinator did not come up: {self.lab.said(process)}")
            time.sleep(0.01)

    def next_name(self, kind):
        self.n_started += 1
        return f"{kind}{self.n_started}"

    def start_server(self, host):
        name = self.next_name("s")
        self.servers[host] = self.start_daemon("server", name, host, name, self.server_options(name))
        self.log(f"{name} is started on host {host}")

    def server_options(self, name):
        return ["--roles=server", f"--control-coordinator={self.address}", f"--server-name={name}", "--server-reduce-threads=1", "--fabric-interface=eth0"]

    def start_daemon(self, kind, name, host, log, options):
        page = Page(os.path.join(self.lab.scratch, log + ".moments"))
        command = [program(os.path.join(self.build, "tests", "chaos"), "zenpsd-moments"), *options, *self.options]
        member = Member(kind, name, host, self.lab.spawn(host, command, log, {**self.env, "ZPS_MOMENTS_FILE": page.path}))
        member.page = page
        return member

    def start_ranks(self, job, seed, window, wait_ms, end):
        command = [program(os.path.join(self.build, "tests", "chaos"), "chaos-rank"), self.address, job]
        env = {**self.env, "ZENPS_INTERFACE": "eth0", "ZENPS_LOG_LEVEL": "info"}
        self.ranks = []
        for r in range(WORLD):
            process = self.lab.spawn(r, [*command, r, WORLD, seed, window, wait_ms, end], f"{job}-rank{r}", env)
            self.ranks.append(Member("rank", f"rank {r}", r, process))

    def members(self, kind):
        return {"server": list(self.servers.values()), "rank": self.ranks, "coordinator": [self.coordinator]}[kind]

    def dead_by_itself(self):
        """A daemon that ended, and that nobody killed."""
        for member in [self.coordinator, *self.servers.values()]:
            if member.process.poll() is not None and not member.is_killed:
                member.is_killed = True
                return member
        return None

    def ask(self, what):
        """What zenpsctl says, as JSON; None when the coordinator does not answer."""
        return ask(self.build, {**os.environ, **self.env}, f"unix:{self.socket}", what)

    # ---------------------------------------------------------------- what happens later

    def do_later(self, seconds, what):
        self.later.append((time.monotonic() + seconds, what))

    def do_due(self):
        now = time.monotonic()
        for entry in [entry for entry in self.later if entry[0] <= now]:
            self.later.remove(entry)
            entry[1]()

    # ---------------------------------------------------------------- faults

    def kill(self, member, restart_s):
        member.is_killed = True
        member.process.send_signal(signal.SIGKILL)
        member.process.wait()
        if member.kind == "server":
            self.do_later(restart_s, lambda: self.start_server(member.host))
        elif member.kind == "coordinator":
            self.do_later(restart_s, self.start_coordinator)

    def at_moment(self, member, name, number, other, restart_s):
        """Lets the member die or stop when it comes there. Yields until then. `other`: a server whose loss brings it there."""
        member.is_killed = number == signal.SIGKILL
        member.page.arm(name, number)
        if other:
            self.kill(other, restart_s)
        is_hit = False
        try:
            while not member.page.is_hit():
                yield
            is_hit = True
        finally:
            if not is_hit and not member.page.disarm():
                member.is_killed = False
            elif member.is_killed:
                self.kill(member, restart_s)
            elif not is_hit:
                self.go_on(member)

    def fill_disk(self, restart_s):
        """The coordinator's: it ends when there is no room for what it has to note. Yields until then."""
        coordinator, ballast, name = self.coordinator, os.path.join(self.state, "ballast"), self.next_name("spare")
        coordinator.is_killed = True
        spare = self.start_daemon("server", name, self.host, name, self.server_options(name))
        try:
            fill(ballast)
            for _ in range(NOTES_MAX):
                if coordinator.process.poll() is not None:
                    break
                self.note(name)
                yield
            status, said = coordinator.process.poll(), self.lab.said(coordinator.process)
        finally:
            spare.process.kill()
            spare.process.wait()
            os.unlink(ballast)
            coordinator.is_killed = coordinator.process.poll() is not None
        if status != EXIT_FAILED or "No space left on device" not in said:
            raise Failure(f"the coordinator has status {status} when its disk is full: {said}")
        self.do_later(restart_s, self.start_coordinator)

    def note(self, server):
        """Has the coordinator note that a server drains, and that it does not."""
        for verb in ("drain", "undrain"):
            subprocess.run([program(self.build, "zenpsctl"), "-e", f"unix:{self.socket}", verb, server], env={**os.environ, **self.env},
                           capture_output=True, check=False)

    def stop(self, member):
        member.process.send_signal(signal.SIGSTOP)

    def go_on(self, member):
        member.process.send_signal(signal.SIGCONT)

    def ip(self, *args, tool="ip"):
        done = subprocess.run([tool, *map(str, args)], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(f"{tool} {' '.join(map(str, args))}: {done.stderr.strip()}")

    def space(self, host):
        return f"{self.lab.name}-{host}"

    def ends(self, host, way):
        """The queues of a host's link in one way or both: namespace and device."""
        return [end for name, end in (("out", (self.space(host), "eth0")), ("in", (self.space("sw"), f"p{host}"))) if way in (name, "both")]

    def cut(self, host, way):
        """Nothing comes through, and nobody is told: a queue that holds no packet drops all."""
        for space, device in self.ends(host, way):
            self.ip("-n", space, "qdisc", "replace", "dev", device, "root", "bfifo", "limit", 1, tool="tc")

    def mend(self, host, way):
        for space, device in self.ends(host, way):
            self.ip("-n", space, "qdisc", "del", "dev", device, "root", tool="tc")

    def cut_connections(self, member):
        """Those of the data plane, at a process that may have ended."""
        self.log(f"{cut.cut(member.process.pid, PORT)} connections of {member.name} are cut")

    def interface(self, host, state):
        """The host sees it: its routes go, and its programs get errors."""
        self.ip("-n", self.space(host), "link", "set", "eth0", state)

    def neighbours(self, host, others, way, address):
        for other in others:
            for here, there in ((host, other), (other, host)):
                if way == "both" or way == ("out" if here == host else "in"):
                    self.ip("-n", self.space(here), "neigh", "replace", self.lab.address(there), "lladdr", address(there), "dev", "eth0", "nud",
                            "permanent")

    def part(self, host, others, way):
        """Packets between this host and the others go to nobody."""
        self.neighbours(host, others, way, lambda there: ABSENT)

    def join(self, host, others, way):
        self.neighbours(host, others, way, lambda there: f"02:00:00:00:00:{there:02x}")
