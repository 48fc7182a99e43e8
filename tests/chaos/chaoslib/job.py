"""A job of ranks that sum without pause: what they said, and what is wrong with it."""
import os
import statistics
import time

from .cluster import WORLD, now_us

HANG_S = 60  # beyond what a rank itself waits


class Job:
    """`wrong`, `errors`, `hangs`, `lost`, `died`: sentences. Steps are as all ranks have finished them: (begin, end), microseconds."""

    def __init__(self, cluster, name, seed, window, wait_ms):
        self.cluster, self.name, self.wait_ms = cluster, name, wait_ms
        self.wrong, self.errors, self.hangs, self.lost, self.died = [], [], [], [], []
        self.servers = {server.name for server in cluster.servers.values()}
        self.left = set(self.servers)  # those that no fault may have made the job lose
        self.end_file = os.path.join(cluster.lab.scratch, name + ".end")
        cluster.start_ranks(name, seed, window, wait_ms, self.end_file)
        self.logs = [open(os.path.join(cluster.lab.scratch, rank.process.name + ".log")) for rank in cluster.ranks]
        self.rest, self.done, self.pending = [""] * WORLD, [0] * WORLD, {}
        self.steps, self.grown = [], []
        self.n_in, self.is_ending, self.heard_us, self.ending_us = 0, False, now_us(), 0

    # ---------------------------------------------------------------- what ranks say

    def read(self):
        for r, log in enumerate(self.logs):
            *lines, self.rest[r] = (self.rest[r] + log.read()).split("\n")
            for line in lines:
                self.take(r, line)

    def take(self, r, line):
        word, *words = line.split(" ", 4)
        if word == "step" and len(words) == 4:
            self.take_step(r, int(words[0]), int(words[1]), int(words[2]), words[3])
        elif word == "in":
            self.n_in += 1
        elif word == "wrong":
            self.wrong.append(f"{self.name}, rank {r}: {line}")
        elif word == "error":
            self.errors.append(f"{self.name}, rank {r}: {line}")
        elif word == "hang":
            self.hangs.append(f"{self.name}, rank {r}: {line}")
        elif word == "left":
            at_first, at_last, kib_first, kib_last = map(int, line.split()[2:])
            self.grown.append((at_last - at_first, kib_last - kib_first))
        else:
            return
        self.heard_us = now_us()

    def take_step(self, r, number, begin, end, digest):
        if number != self.done[r] + 1:
            self.lost.append(f"{self.name}, rank {r}: step {number} follows step {self.done[r]}")
        self.done[r] = number
        others = self.pending.setdefault(number, [])
        others.append((begin, end, digest))
        if len(others) < WORLD:
            return
        del self.pending[number]
        if len({other[2] for other in others}) > 1:
            self.wrong.append(f"{self.name}: step {number}: ranks have different sums: {', '.join(other[2] for other in others)}")
        begin, end, _ = max(others, key=lambda other: other[1] - other[0])
        self.steps.append((begin, end))

    # ---------------------------------------------------------------- its course

    def is_running(self):
        return self.n_in == WORLD and min(self.done) >= 10 and not self.is_ending and not self.is_broken()

    def is_broken(self):
        return bool(self.wrong or self.errors or self.hangs or self.died)

    def end(self):
        if not self.is_ending:
            self.is_ending, self.ending_us = True, now_us()
            open(self.end_file, "w").close()

    def kill(self):
        for rank in self.cluster.ranks:
            if rank.process.poll() is None:
                rank.is_killed = True
                rank.process.kill()
                rank.process.wait()

    def watch(self):
        """Looks for ranks that say nothing, or have died. Returns whether all have ended."""
        self.read()
        ended = [rank.process.poll() for rank in self.cluster.ranks]
        if None not in ended:
            self.read()
            self.judge(ended)
            return True
        limit_us = self.wait_ms * 1000 + HANG_S * 1000000
        if now_us() - self.heard_us > limit_us:
            silent = [str(r) for r, status in enumerate(ended) if status is None]
            self.hangs.append(f"{self.name}: nothing is heard of ranks {', '.join(silent)} for {limit_us // 1000000} s "
                              f"(steps {self.done}{', all are to end' if self.is_ending else ''})")
            self.kill()
        return False

    def judge(self, ended):
        for r, status in enumerate(ended):
            is_told = any(f"{self.name}, rank {r}:" in text for text in self.wrong + self.errors + self.hangs)
            if status != 0 and not is_told and not self.cluster.ranks[r].is_killed:
                self.died.append(f"{self.name}: rank {r} ended with status {status}: {self.cluster.lab.said(self.cluster.ranks[r].process)}")
        if not self.is_broken() and not self.lost and len(set(self.done)) > 1:
            self.lost.append(f"{self.name}: ranks ended after different steps: {self.done}")
        for log in self.logs:
            log.close()

    def median_ms(self, faults):
        """Of the steps that no fault touched."""
        quiet = [end - begin for begin, end in self.steps if not any(touches(fault, begin, end) for fault in faults)]
        times = quiet or [end - begin for begin, end in self.steps]
        return statistics.median(times) / 1000 if times else 0.0


def touches(fault, begin, end):
    return any(begin <= last and end >= first for first, last in fault.windows)


def run_quiet(job, n_steps, timeout_s=300):
    """Runs a job without faults for at least so many steps."""
    deadline = time.monotonic() + timeout_s
    while not job.watch():
        if min(job.done) >= n_steps:
            job.end()
        if time.monotonic() > deadline:
            job.hangs.append(f"{job.name}: not over after {timeout_s} s without a fault (steps {job.done})")
            job.kill()
        time.sleep(0.05)
