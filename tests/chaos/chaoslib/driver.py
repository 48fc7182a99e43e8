"""Injects a sequence of faults into a cluster whose ranks sum without pause, and starts jobs as they are needed."""
import time

from .cluster import N_SERVERS, now_us
from .job import Job, run_quiet
from .leftovers import measure, settle

N_QUIET_STEPS = 40  # of the jobs ahead of the faults and behind them
PATIENCE_S = 60  # the longest that a fault waits for a target, or a job for its servers
FAILURES_MAX = 5
MOMENT_STEPS = 20  # of a job in which a process comes to its moment
LATE_MAX = 0.25  # of control.dead: a short fault that ends later may cost the job its server
AFTER_S = 1.0  # in which a fault that is over may still hold steps up
OVER = object()  # of a generator


class Stuck(Exception):
    """It cannot go on; the text says why."""


class Driver:
    def __init__(self, cluster, args, faults, log):
        self.cluster, self.args, self.log = cluster, args, log
        self.waiting, self.active, self.over = list(faults), [], []
        self.jobs, self.job, self.died = [], None, []
        self.next_at, self.dead_s = time.monotonic(), args.dead / 1000
        self.base = self.end = None
        self.ask_at = 0
        self.waits_since = time.monotonic()
        self.moved_from = 0  # steps of the job when the last fault was over
        self.beginning = None  # a fault that has not begun yet, and its generator
        self.look_from = 0  # steps of the job when it was seen last that it may come to its moment

    # ---------------------------------------------------------------- the whole run

    def run(self):
        self.quiet_job()
        self.base = settle(self.cluster)
        try:
            while self.waiting or self.active or self.beginning:
                self.turn()
                if self.failures() >= FAILURES_MAX:
                    self.log("too much is wrong already: no more faults")
                    break
                time.sleep(0.01)
        finally:
            if self.beginning:
                self.withdraw()
        self.finish()

    def finish(self):
        self.waiting.clear()
        for fault in list(self.active):
            self.end_fault(fault)
        while self.cluster.later:  # a coordinator that is away does not hear that ranks leave
            self.turn()
            time.sleep(0.02)
        if self.job:
            self.job.end()
            while not self.job.watch():
                time.sleep(0.02)
            self.job_over()
        self.waits_since = time.monotonic()
        while not self.is_calm() or not self.all_are_in():
            self.cluster.do_due()
            self.must_not_wait("servers to come back")
            time.sleep(0.1)
        self.quiet_job()
        settle(self.cluster)
        self.end = measure(self.cluster)

    def quiet_job(self):
        while not self.all_are_in():
            self.must_not_wait("servers")
            time.sleep(0.1)
        self.start_job()
        run_quiet(self.job, N_QUIET_STEPS)
        self.job_over()

    def failures(self):
        return len(self.died) + sum(1 for job in self.jobs if job.is_broken() or job.lost)

    def must_not_wait(self, what):
        if time.monotonic() - self.waits_since > PATIENCE_S:
            raise Stuck(f"waited {PATIENCE_S} s for {what}: {self.cluster.ask('members')}")

    def turn(self):
        self.cluster.do_due()
        now = now_us()
        for fault in [fault for fault in self.active if now >= fault.due_us]:
            self.end_fault(fault)
        member = self.cluster.dead_by_itself()
        if member:
            self.died.append(f"{member.name} ended with status {member.process.poll()}: {self.cluster.lab.said(member.process)}")
            self.cluster.servers.pop(member.host, None)
            self.cluster.do_later(0.5, lambda: self.cluster.start_server(member.host))
        if self.job and self.job.watch():
            self.job_over()
        if not self.job and self.waiting and self.is_calm() and time.monotonic() > self.ask_at:
            self.ask_at = time.monotonic() + 0.1
            if self.all_are_in():
                self.start_job()
        if self.beginning:
            self.go_on_beginning()
        elif self.waiting and time.monotonic() >= self.next_at and not self.try_begin(self.waiting[0]):
            self.must_not_wait(f"a target for {self.waiting[0].kind.name}")

    # ---------------------------------------------------------------- jobs

    def is_calm(self):
        return not self.active and not self.beginning and not self.cluster.later

    def all_are_in(self):
        members = self.cluster.ask("members")
        names = {row["name"] for row in members["servers"] if row["state"] == "in"} if members else set()
        return names == {server.name for server in self.cluster.servers.values()} and len(names) == N_SERVERS

    def start_job(self):
        name = f"job{len(self.jobs) + 1}"
        self.job = Job(self.cluster, name, self.args.seed * 1000 + len(self.jobs), self.args.window, self.args.wait)
        self.jobs.append(self.job)
        self.waits_since = time.monotonic()
        self.log(f"{name} begins with servers {', '.join(sorted(self.job.servers))}")

    def job_over(self):
        job, self.job = self.job, None
        for text in job.wrong + job.errors + job.hangs + job.lost + job.died:
            self.log("FAILED: " + text)
        self.log(f"{job.name} is over after {len(job.steps)} steps")
        self.cluster.ranks = []
        self.waits_since = time.monotonic()

    # ---------------------------------------------------------------- faults

    def targets(self, fault):
        """Those that it may befall now: never the last server of the job that is well."""
        kind = fault.kind
        free = [member for member in self.cluster.members(kind.target) if not member.fault and not member.is_killed and self.is_up(member)]
        if kind.target != "server":
            return [member for member in free if self.are_rested()]
        well = [server.name for server in self.cluster.servers.values() if server.name in self.job.left and not server.fault]
        may_not = well[0] if len(well) == 1 else None
        free = [server for server in free if server.name != may_not]
        if kind.has_moment:
            return [server for server in free if server.name in self.job.left]
        ours = [server for server in free if server.name in self.job.servers]
        return ours if ours and fault.pick < 0.9 else free

    def is_up(self, member):
        """A server that is still starting ends, and says why, where it finds no interface."""
        table = None if member.is_up else self.cluster.ask("members")
        if table:
            member.is_up = any(row["name"] == member.name for row in table["servers"])
        return member.is_up

    def goes_on(self):
        """Whether the job has outlived the last fault: while it has not, it comes to no moment."""
        return self.over == [] or self.over[-1].job != self.job.name or min(self.job.done) > self.moved_from + self.args.window

    def well_but(self, member):
        """The servers that the job surely has, but for this member."""
        return [server for server in self.cluster.servers.values()
                if server is not member and server.name in self.job.left and not server.fault and not server.is_killed]

    def are_in_job(self, *members):
        """Whether the coordinator says so of those that are servers. A server that the job has lost is chosen no more."""
        table = self.cluster.ask("members")
        names = {member.name for member in members if member and member.kind == "server"}
        missing = names - {row["name"] for row in table["servers"] if row["jobs"] > 0} if table else set()
        if missing:
            self.log(f"{self.job.name} has lost {', '.join(sorted(missing))}, though no fault may have made it")
            self.job.left -= missing
        return not missing

    def are_rested(self):
        """No rank, and not the coordinator, is under a fault, or was just now: short ones shall not add up to a long one."""
        members = [*self.cluster.ranks, self.cluster.coordinator]
        return all(not member.fault and now_us() - member.free_us > 1e6 * self.dead_s for member in members)

    def try_begin(self, fault):
        if not self.job or not self.job.is_running():
            return False
        if (fault.kind.target == "server" or fault.kind.has_moment) and len(self.job.left) < 2:
            if not self.active and not self.cluster.later and now_us() - self.over[-1].ended_us > 1e6 * AFTER_S:  # what came of the last ones was seen
                self.log(f"{self.job.name} may have but one server left: it ends")
                self.job.end()
            return False
        targets = self.targets(fault)
        if not targets:
            return False
        fault.target = targets[int(fault.pick * 1000) % len(targets)]
        if fault.kind.has_moment and not (self.goes_on() and fault.choose_moment(self.well_but(fault.target))
                                          and self.are_in_job(fault.target, fault.other)):
            return False
        coordinator = self.cluster.coordinator
        if fault.other and (coordinator.is_killed or coordinator.fault):  # nobody would say that this one is lost, until it is back
            return False
        fault.name, fault.job, fault.step = fault.target.name, self.job.name, max(self.job.done)
        if fault.kind.target == "server" and fault.kind.may_lose(fault):
            self.job.left.discard(fault.name)
        if fault.other:
            self.job.left.discard(fault.other.name)
        self.log(f"{fault.says()}, {fault.job} at step {fault.step}")
        fault.began_us = now_us()
        self.waiting.remove(fault)
        steps = fault.kind.begin(self.cluster, fault.target, fault)
        self.look_from = min(self.job.done)
        if steps:
            self.beginning = fault, steps
            self.go_on_beginning()
        else:
            self.has_begun(fault)
        return True

    def has_begun(self, fault):
        if fault.kind.end:
            fault.target.fault, fault.due_us = fault, now_us() + int(fault.length_s * 1e6)
            self.active.append(fault)
        else:
            self.close(fault)
        self.next_at = time.monotonic() + (self.waiting[0].gap_s if self.waiting else 0)
        self.waits_since = time.monotonic()

    def go_on_beginning(self):
        """Other faults end meanwhile, and processes start: what it waits for may need that."""
        fault, steps = self.beginning
        if next(steps, OVER) is OVER:
            self.beginning = None
            self.has_begun(fault)
        elif not fault.kind.has_moment:
            self.must_not_wait(f"{fault.kind.name} to begin")
        elif not self.job or self.job.name != fault.job or self.job.is_broken():
            self.log(f"{fault.name} comes to no moment: {fault.job} is over")
            self.withdraw()
        elif min(self.job.done) > self.look_from + self.args.window + MOMENT_STEPS:
            self.look_from = min(self.job.done)
            if self.are_in_job(fault.target):
                fault.n_looks += 1
                if fault.n_looks > 1:
                    raise Stuck(f"{fault.name} did not come to '{fault.moment.name}' in {self.look_from - fault.step} steps of {fault.job}")
            else:
                self.withdraw()

    def withdraw(self):
        """The fault is tried again, with whatever target there is then."""
        (fault, steps), self.beginning = self.beginning, None
        steps.close()
        fault.n_looks = 0
        self.waiting.insert(0, fault)
        self.next_at = self.waits_since = time.monotonic()

    def end_fault(self, fault):
        self.active.remove(fault)
        fault.kind.end(self.cluster, fault.target, fault)
        fault.target.fault = None
        fault.target.free_us = now_us()
        if self.job and now_us() - fault.due_us > LATE_MAX * 1e6 * self.dead_s:
            self.job.left.discard(fault.name)  # A busy machine makes a short fault long.
        self.close(fault)

    def close(self, fault):
        fault.ended_us = now_us()
        # What was sent while a link was down is sent again after up to as long once more.
        fault.windows = [(fault.began_us, 2 * fault.ended_us - fault.began_us + int(1e6 * AFTER_S))]
        self.over.append(fault)
        self.moved_from = max(self.job.done) if self.job else 0
