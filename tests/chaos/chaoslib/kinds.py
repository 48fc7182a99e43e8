"""The kinds of faults, and the sequence that a seed gives. A new kind is a line of the table, and perhaps a way to begin and end it."""
import dataclasses
import random
import signal

from . import moments

SHORT, LONG = "short", "long"  # against control.dead: far below it, or above it


@dataclasses.dataclass(frozen=True)
class Kind:
    """`target`: server, rank or coordinator. `lengths`: what is drawn from.

    `begin` and `end` take (cluster, target, fault). `begin` may return a generator, which yields until the fault has begun."""
    name: str
    target: str
    lengths: tuple
    begin: object
    end: object = None
    default: bool = True
    weight: int = 2
    why_not: str = ""  # for those that are no default
    has_moment: bool = False  # it comes at one of moments.TABLE

    def may_lose(self, fault):
        """Whether the coordinator may take the target for lost."""
        return fault.length == LONG


@dataclasses.dataclass
class Fault:
    """One of the sequence. What is drawn does not depend on what happens: `pick` chooses among the targets that there are."""
    number: int
    kind: Kind
    gap_s: float
    length: str
    length_s: float
    pick: float
    way: str  # of links: both, in or out, as the target sees them
    restart_s: float
    # Filled in as it happens. Times are microseconds of the monotonic clock.
    target: object = None
    name: str = ""
    job: str = ""
    step: int = 0
    began_us: int = 0
    due_us: int = 0  # its end
    ended_us: int = 0
    extra_ms: float = None
    is_alone: bool = False
    moment: object = None
    n_looks: int = 0  # looks at which the moment could still come
    other: object = None  # the server whose loss brings the moment about
    windows: list = dataclasses.field(default_factory=list)  # in which it may hold steps up: (begin, end)

    def says(self):
        length = f" for {self.length_s:.2f} s" if self.kind.end else ""
        way = f" ({self.way})" if self.kind.name in WITH_WAYS else ""
        moment = f" at '{self.moment.name}'" if self.moment else ""
        other = f", by the loss of {self.other.name}" if self.other else ""
        return f"fault {self.number}: {self.kind.name}{way} of {self.name}{moment}{other}{length}"

    def choose_moment(self, others):
        """One that can come, now that `others` are the servers that are well and not the target. False: there is none."""
        may = [moment for moment in moments.TABLE if moment.target == self.kind.target and (not moment.of_loss or len(others) > 1)]
        if not may:
            return False
        self.moment = may[int(self.pick * 1000000) % len(may)]
        self.other = others[int(self.pick * 1000) % len(others)] if self.moment.of_loss else None
        return True


def _kill(cluster, target, fault):
    cluster.kill(target, fault.restart_s)


def _at_moment(number):
    return lambda cluster, target, fault: cluster.at_moment(target, fault.moment.name, number, fault.other, fault.restart_s)


def _fill_disk(cluster, target, fault):
    return cluster.fill_disk(fault.restart_s)


def _stop(cluster, target, fault):
    cluster.stop(target)


def _go_on(cluster, target, fault):
    cluster.go_on(target)


def _cut(cluster, target, fault):
    cluster.cut(target.host, fault.way)


def _mend(cluster, target, fault):
    cluster.mend(target.host, fault.way)


def _cut_connections(cluster, target, fault):
    cluster.cut_connections(target)


def _down(cluster, target, fault):
    cluster.interface(target.host, "down")


def _up(cluster, target, fault):
    cluster.interface(target.host, "up")


def _control_hosts(cluster):
    return [cluster.coordinator.host]


def _data_hosts(cluster):
    return cluster.rank_hosts  # Also where no job has ranks: a link is mended after the job that it was cut for.


def _part(hosts):
    return lambda cluster, target, fault: cluster.part(target.host, hosts(cluster), fault.way)


def _join(hosts):
    return lambda cluster, target, fault: cluster.join(target.host, hosts(cluster), fault.way)


WITH_WAYS = {"link", "control", "data", "rank-link", "coordinator-link"}
TABLE = [
    Kind("kill", "server", (LONG,), _kill, weight=4),
    Kind("stop", "server", (SHORT, LONG), _stop, _go_on, weight=4),
    Kind("link", "server", (SHORT, LONG), _cut, _mend, weight=4),
    Kind("interface", "server", (SHORT, LONG), _down, _up),
    Kind("control", "server", (SHORT, LONG), _part(_control_hosts), _join(_control_hosts)),
    Kind("data", "server", (SHORT, LONG), _part(_data_hosts), _join(_data_hosts)),
    Kind("connections", "server", (SHORT,), _cut_connections, _cut_connections, weight=4),
    Kind("rank-connections", "rank", (SHORT,), _cut_connections, _cut_connections),
    Kind("rank-stop", "rank", (SHORT,), _stop, _go_on),
    Kind("rank-link", "rank", (SHORT,), _cut, _mend),
    Kind("coordinator-stop", "coordinator", (SHORT,), _stop, _go_on, weight=1),
    Kind("coordinator-link", "coordinator", (SHORT,), _cut, _mend, weight=1),
    Kind("coordinator-restart", "coordinator", (LONG,), _kill, weight=1),
    Kind("moment", "server", (LONG,), _at_moment(signal.SIGKILL), has_moment=True),
    Kind("moment-stop", "server", (SHORT, LONG), _at_moment(signal.SIGSTOP), _go_on, has_moment=True),
    Kind("coordinator-moment", "coordinator", (LONG,), _at_moment(signal.SIGKILL), weight=1, has_moment=True),
    Kind("disk-full", "coordinator", (LONG,), _fill_disk, weight=1),
    Kind("rank-kill", "rank", (LONG,), _kill, default=False, why_not="a job ends with any of its ranks"),
]
NAMES = [kind.name for kind in TABLE]
DEFAULTS = [kind.name for kind in TABLE if kind.default]


def sequence(seed, n, names, dead_s, longest_s, gap_s):
    """The same for the same arguments. One fault in five begins together with the one before it."""
    draw = random.Random(seed)
    kinds = [kind for kind in TABLE if kind.name in names]
    faults = []
    for number in range(1, n + 1):
        kind = draw.choices(kinds, [kind.weight for kind in kinds])[0]
        pause_s, length = (0.0 if draw.random() < 0.2 else draw.uniform(0.05, 2) * gap_s), draw.choice(kind.lengths)
        # TCP sends again after up to twice the time that a link was down.
        least_s, most_s = (0.02, 0.2 * dead_s) if length == SHORT else (1.5 * dead_s, max(longest_s, 1.5 * dead_s))
        faults.append(Fault(number, kind, pause_s, length, draw.uniform(least_s, most_s), draw.random(),
                            draw.choice(("both", "both", "in", "out")), draw.uniform(0.2, 1.5)))
    return faults
