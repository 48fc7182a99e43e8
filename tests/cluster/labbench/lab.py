"""A lab for one run: hosts, processes on them, and what their links and processors did meanwhile."""
import bisect
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = 66  # bytes of Ethernet, IP and TCP (with timestamps) around each packet's payload
PAUSE_S = 0.02  # ahead of the first step, and after the last
TICK = os.sysconf("SC_CLK_TCK")
CORES = len(os.sched_getaffinity(0))


class Failure(Exception):
    """A run that did not happen or did not end well; its text says why."""


def bits(rate):
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    return None if rate == "none" else float(rate[:-4]) * units[rate[-4:]]


def cpu_s(pid):
    """Processor seconds of a process until now."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK
    except OSError:
        return 0.0


def peak_rss_mb(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return 0.0


class Watch(threading.Thread):
    """Samples how busy the machine and some processes are, and, where asked for, what the hosts of these got and sent."""

    def __init__(self, pids=(), interfaces=False):
        super().__init__(daemon=True)
        self.pids, self.interfaces, self.done = pids, interfaces, threading.Event()
        self.busy, self.cpu, self.series = [], [], []  # of the last: (time, [payload bytes in, out] of each host)
        self.period_s = 0.01 if interfaces else 0.05

    def run(self):
        while not self.done.wait(self.period_s):
            with open("/proc/stat") as stat:
                ticks = [int(field) for field in stat.readline().split()[1:9]]
            now = time.monotonic()
            self.busy.append((now, sum(ticks) - ticks[3] - ticks[4]))
            self.cpu.append((now, sum(cpu_s(pid) for pid in self.pids)))
            if self.interfaces:
                self.series.append((now, [self.payload(pid) for pid in self.pids]))

    @staticmethod
    def payload(pid):
        """Of what an interface counts as packets, however large, each has its headers once."""
        try:
            with open(f"/proc/{pid}/net/dev") as dev:
                fields = next(line for line in dev if "eth0:" in line).split()
            return [int(fields[i]) - HEADERS * int(fields[i + 1]) for i in (1, 9)]
        except (OSError, StopIteration):
            return [0, 0]

    @staticmethod
    def at(samples, t):
        """What a growing count was at a time; None outside of the samples."""
        i = bisect.bisect(samples, (t, 0))
        if i == 0 or i == len(samples):
            return None
        (t0, b0), (t1, b1) = samples[i - 1], samples[i]
        return b0 + (b1 - b0) * (t - t0) / (t1 - t0)

    def hosts_at(self, t):
        """What each host had got and sent at a time."""
        i = min(max(bisect.bisect(self.series, t, key=lambda sample: sample[0]), 1), len(self.series) - 1)
        (t0, before), (t1, after) = self.series[i - 1], self.series[i]
        share = min(max((t - t0) / (t1 - t0), 0), 1)
        return [[b + (a - b) * share for b, a in zip(*host)] for host in zip(before, after)]

    def limit_ms(self, timeline, rate):
        """The median over the steps of how long each step's busiest host had to send or to get. A step's bytes are those
        from the middle of the pause before it to that of the pause after it, in which hardly anything is sent."""
        begins = [step["start_s"] for step in timeline]
        ends = [step["start_s"] + step["ms"] / 1000 for step in timeline]
        edges = [begins[0] - PAUSE_S, *((e + b) / 2 for e, b in zip(ends, begins[1:])), ends[-1] + PAUSE_S]
        at = [self.hosts_at(t) for t in edges]
        return statistics.median(max(a - b for host in zip(*ways) for b, a in zip(*host)) * 8000 / bits(rate)
                                 for ways in zip(at, at[1:]))

    def cpu_per_step_ms(self, timeline):
        """What the processes computed for a step; they are idle between steps."""
        begin, end = timeline[0]["start_s"], timeline[-1]["start_s"] + timeline[-1]["ms"] / 1000
        first, last = self.at(self.cpu, begin), self.at(self.cpu, end)
        if not self.cpu:
            return 0.0
        first, last = self.cpu[0][1] if first is None else first, self.cpu[-1][1] if last is None else last
        return (last - first) * 1000 / len(timeline)

    def utilisation(self, timeline):
        """Share of all cores that were busy, with anything, during the timed steps; None if too short to tell."""
        busy = total = 0.0
        for step in timeline:
            ends = [self.at(self.busy, step["start_s"] + dt) for dt in (0, step["ms"] / 1000)]
            if None not in ends:
                busy, total = busy + (ends[1] - ends[0]) / TICK, total + step["ms"] / 1000 * CORES
        return busy / total if total > 0.1 else None


class Lab:
    """`with Lab(9, "100mbit") as lab:` hosts 0..8; the last is by convention the one of coordinators and launchers.
    Racks hold the first `racked` hosts, by default all but the last: the others are on the switch between racks."""

    def __init__(self, hosts, rate, racks=1, uplink="none", racked=None):
        self.hosts, self.rate, self.racks, self.uplink = hosts, rate, racks, uplink
        self.racked = hosts - 1 if racked is None else racked
        self.name = f"b{os.getpid() % 10**8}"
        self.script = os.path.join(HERE, "lab")
        self.env = dict(os.environ, LAB_NAME=self.name, LAB_OWNER=str(os.getpid()))
        self.running = []

    def call(self, *args):
        done = subprocess.run([self.script, *map(str, args)], env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def __enter__(self):
        self.scratch = tempfile.mkdtemp(prefix="zenps-bench.")
        racks = ["--racks", self.racks, "--uplink", self.uplink, "--racked", self.racked] if self.racks > 1 else []
        try:
            self.call("up", self.hosts, self.rate, *racks)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            for process in self.running:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            self.call("down")
            for process in self.running:
                process.wait()
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def rack_of(self, host):
        """The number of a host's rack; None: it is in none."""
        return host * self.racks // self.racked if self.racks > 1 and host < self.racked else None

    def address(self, host):
        return f"10.77.0.{host + 1}"

    def spawn(self, host, command, name, env=None, capture=False):
        """Starts a command; its pid is the process's own. What it says goes to a file, or stdout to a pipe."""
        with open(os.path.join(self.scratch, name + ".log"), "w") as log:
            process = subprocess.Popen([self.script, "exec", str(host), *map(str, command)], env={**self.env, **(env or {})},
                                       stdin=subprocess.DEVNULL, stderr=log, text=True, stdout=subprocess.PIPE if capture else log)
        process.name = name
        self.running.append(process)
        return process

    def said(self, process):
        """The last lines that a process wrote to its log."""
        with open(os.path.join(self.scratch, process.name + ".log")) as log:
            return " | ".join(log.read().strip().splitlines()[-4:])

    def await_end(self, processes, timeout_s):
        """Until all have ended; (stdout, rusage) of each. Failure, when one fails, names it."""
        outputs, usages = [""] * len(processes), [None] * len(processes)
        readers = [threading.Thread(target=lambda i=i, p=p: outputs.__setitem__(i, p.stdout.read() if p.stdout else ""))
                   for i, p in enumerate(processes)]
        for reader in readers:
            reader.start()
        deadline = time.monotonic() + timeout_s
        left = set(range(len(processes)))
        while left:
            for i in sorted(left):
                process = processes[i]
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid == 0:
                    continue
                process.returncode = os.waitstatus_to_exitcode(status)
                usages[i] = usage
                left.discard(i)
                if process.returncode != 0:
                    raise Failure(f"{process.name} ended with {process.returncode}: {self.said(process)}")
            if left and time.monotonic() > deadline:
                raise Failure(f"not over after {timeout_s:.0f} s: {', '.join(processes[i].name for i in sorted(left)[:4])}")
            time.sleep(0.01)
        for reader in readers:
            reader.join()
        return list(zip(outputs, usages))

    def counters(self):
        """Per ("host" or "rack", number): (bytes out, packets out, bytes in, packets in) on the wire since the lab is up."""
        fields = [line.split() for line in self.call("stat").splitlines()]
        return {(f[0], int(f[1])): (int(f[3]), int(f[5]), int(f[10]), int(f[12])) for f in fields}

    def traffic(self, before, rounds, hosts):
        """Per round: payload of the busiest of the first `hosts` hosts in each direction; the time that the slowest link needs
        for what it carried."""
        if self.rate == "none":  # no queue counts there
            return {"bytes_in": None, "bytes_out": None, "limit_ms": None}
        out, into, limit_ms = 0, 0, 0
        for (kind, number), a in self.counters().items():
            b = before[kind, number]
            ways = [max(0, a[i] - b[i] - HEADERS * (a[i + 1] - b[i + 1])) / rounds for i in (0, 2)]
            if kind == "host" and number < hosts:
                out, into = max(out, ways[0]), max(into, ways[1])
            rate = bits(self.rate if kind == "host" else self.uplink)
            if rate and (kind == "rack" or number < hosts):
                limit_ms = max(limit_ms, max(ways) * 8000 / rate)
        return {"bytes_in": round(into), "bytes_out": round(out), "limit_ms": limit_ms}
