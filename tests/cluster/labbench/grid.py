"""Which rows each grid has. A row is a dictionary; `key` says what makes two rows the same measurement."""
import functools
import os

from .lab import bits

TRACES = ["news20_lm", "tatoeba_nmt", "movie_lm", "text8_lm"]
DENSE_RIVALS = [("mpi", "dense-ring"), ("mpi", "dense-inplace"), ("gloo", "dense")]
ALL_RIVALS = DENSE_RIVALS + [("mpi", "dense-default"), ("mpi", "allgather"), ("gloo", "sparse")]
DENSE_SCHEMES = ["ring", "dense-ps"]
M16 = 1 << 24
SETTLE = 1000  # steps that auto has at most until it stays with a scheme
KEY = ("system", "scheme", "n", "rate", "rows", "width", "density", "trace", "batch", "codec", "servers", "racks", "uplink", "size",
       "ranks_per_host", "overlap", "shared", "layout")


def key(row):
    """Of a row as asked for; a finished one carries its own."""
    return "/".join(f"{name}={os.path.basename(str(row[name]))}" for name in KEY if row.get(name) not in (None, "", 0))


def find(folder, *names):
    """The path of a file of one of these names, anywhere below the folder; None where there is none."""
    for top, _, files in os.walk(folder or "/nonexistent"):
        for name in names:
            if name in files:
                return os.path.join(top, name)
    return None


class Grids:
    def __init__(self, data):
        self.data = data

    @functools.lru_cache(None)
    def trace(self, name):
        """The trace's file, or None where there are no data."""
        return find(self.data, name + ".ids.xz", name + ".ids")

    def zenps(self, scheme, **row):
        """`scheme` is one of zenps-perf's; codec auto, paper or coo; layout dense or rows."""
        args = ["--scheme", scheme]
        if row.get("codec"):
            args += ["--codec", row["codec"]]
        if row.get("layout"):
            args += ["--layout", row["layout"]]
        if scheme == "auto":
            args += ["--settle", SETTLE]
        return self.complete(system="zenps", scheme=scheme, args=args, **row)

    def rival(self, system, scheme, **row):
        return self.complete(system=system, scheme=scheme, **row)

    def complete(self, **row):
        row.setdefault("width", 1)
        row.setdefault("steps", 5)
        row.setdefault("warmup", 1)
        if row.get("trace"):
            row.setdefault("batch", 128)
            row["trace_file"] = self.trace(row["trace"])
        # A step of a dense rival that runs at a third of the link, and something for input and verification.
        values = (row.get("rows") or 140000) * row["width"]
        rate = bits(row["rate"]) or 5e8
        steps = row["steps"] + row["warmup"] + (100 if row["scheme"] == "auto" else 0)
        row.setdefault("timeout_s", 120 + steps * (values * 32 * 6 / rate + row["n"] ** 2 * values / 5e7))
        return row

    def quick(self):
        """Minutes: every system once, small, shaped so that two cores do not matter."""
        base = {"n": 4, "rate": "50mbit", "rows": 1 << 20, "steps": 3}
        for scheme in DENSE_SCHEMES:
            yield self.zenps(scheme, **base, density=1.0)
        for density in (0.01, 0.05):
            yield self.zenps("balanced", **base, density=density)
        yield self.zenps("balanced", **base, density=0.05, codec="paper")
        for system, scheme in DENSE_RIVALS + [("mpi", "allgather"), ("gloo", "sparse")]:
            yield self.rival(system, scheme, **base, density=0.05)
        if self.trace("text8_lm"):
            for one in self.traces(n=4, rate="50mbit", names=["text8_lm"], steps=3):
                yield one
        yield from self.small(sizes=(4,))

    def limits(self, nodes=(8, 16), rate="100mbit"):
        """How near the links' limit: dense and balanced, 16M floats."""
        for n in nodes:
            base = {"n": n, "rate": rate, "rows": M16}
            for scheme in DENSE_SCHEMES:
                yield self.zenps(scheme, **base, density=1.0)
            for density in (0.01, 0.028, 0.05):
                yield self.zenps("balanced", **base, density=density)
            for system, scheme in DENSE_RIVALS:
                yield self.rival(system, scheme, **base, density=0.01, steps=3)

    def gigabit(self):
        for rate in ("1gbit", "500mbit", "250mbit"):
            yield from self.limits(nodes=(4,), rate=rate)

    def traces(self, n=16, rate="25mbit", names=TRACES, steps=5):
        """Balanced on word traces, against dense rivals and an allgather."""
        for name in names:
            base = {"n": n, "rate": rate, "trace": name, "width": 64}
            yield self.zenps("balanced", **base, steps=steps)
            for system, scheme in DENSE_RIVALS:
                yield self.rival(system, scheme, **base, steps=2)
            yield self.rival("mpi", "allgather", **base, steps=steps)

    def nodes(self, rate="25mbit"):
        """Balanced, beside Open MPI and Gloo, over the number of hosts: random rows."""
        for n in (2, 4, 8, 16):
            base = {"n": n, "rate": rate, "rows": 1 << 22, "density": 0.01, "steps": 3}
            yield self.zenps("balanced", **base)
            for system, scheme in DENSE_RIVALS + [("mpi", "allgather"), ("gloo", "sparse")]:
                yield self.rival(system, scheme, **base)

    def planner(self, nodes=(4, 8, 16), rates=("100mbit", "none")):
        """Time over density and hosts, the planner choosing, against every rival here; SparCML's schemes by name are in
        tests/bench/plan-grid. What it tries before it chooses is not what it takes: those steps are not timed. Sparse rivals are
        given rows: so is zenps, once."""
        for rate in rates:
            for n in nodes:
                base = {"n": n, "rate": rate, "rows": M16 if rate == "none" else 1 << 20 if n == 16 else 1 << 22, "steps": 7 if rate == "none" else 3}
                for density in (0.001, 0.01, 0.028, 0.05, 0.2, 0.5):
                    for layout in (None, "rows"):
                        yield self.zenps("auto", **base, density=density, layout=layout)
                    for system, how in ALL_RIVALS:
                        # The time of a dense allreduce does not depend on the number of zeros.
                        if not how.startswith("dense") or density == 0.01:
                            yield self.rival(system, how, **base, density=density)

    def breakdown(self, n=8, rate="25mbit"):
        """What each feature gains, on the gradients of an embedding, in time: COO both ways, Zen's coding, the smallest codes, rows.
        (Zen's figure 15b has throughput, of the first two.)"""
        base = {"n": n, "rate": rate, "trace": "text8_lm", "steps": 3}
        yield self.zenps("balanced", **base, width=16, codec="coo", elements=True)
        yield self.zenps("balanced", **base, width=16, codec="paper", elements=True)
        yield self.zenps("balanced", **base, width=16, codec="auto", elements=True)
        yield self.zenps("balanced", **base, width=16, codec="auto")
        for system, scheme in DENSE_RIVALS:
            yield self.rival(system, scheme, **base, width=16)

    def small(self, sizes=(2, 4, 8, 16)):
        """Rounds of 1,000 rows, of a tensor that has no more and of one of 100,000, unshaped, beside an echo over the raw fabric."""
        yield self.complete(system="fabric", scheme="echo", n=2, rate="none", rows=0, size=64, count=5000, read_mb=256)
        for n in sizes:
            for rows in (1000, 100000):
                yield self.zenps("balanced", n=n, rate="none", rows=rows, density=1000 / rows, steps=300, warmup=50)

    def scale(self, rate="10mbit"):
        """Up to 64 hosts: time, imbalance, memory."""
        for n in (2, 4, 8, 16, 32, 64):
            yield self.zenps("balanced", n=n, rate=rate, rows=1 << 20, density=0.01, steps=10)

    def dedicated(self, rate="25mbit"):
        """Servers on hosts of their own. tests/bench/results has no table of it."""
        for servers in (4, 8):
            yield self.zenps("balanced", n=8, rate=rate, rows=1 << 22, density=0.01, servers=servers, steps=3)

    def racks(self, rate="100mbit", uplink="100mbit"):
        """Four racks of four hosts, whose uplinks are four times too slow for them. tests/bench/results has no table of it."""
        base = {"n": 16, "rate": rate, "rows": 1 << 20, "density": 0.05, "racks": 4, "uplink": uplink, "steps": 3}
        yield self.zenps("balanced", **base)
        for scheme in ("ring", "blueconnect", "hierarchical"):
            yield self.zenps(scheme, **base)
        for system, scheme in DENSE_RIVALS:
            yield self.rival(system, scheme, **base)

    def hosts(self, rate="100mbit", per_host=4):
        """Several ranks a host, which share its link: each for itself, or merged by host, with and without shared memory."""
        for overlap in ("same", "random", "disjoint"):
            for scheme, shared in (("balanced", None), ("hierarchical", None), ("hierarchical", "no")):
                yield self.complete(system="zenps", scheme=scheme, n=4, rate=rate, ranks_per_host=per_host, rows=1 << 20,
                                    density=0.01, overlap=overlap, shared=shared, steps=5,
                                    args=["--scheme", scheme, "--overlap", overlap],
                                    env={"ZENPS_SHARED_MEMORY": shared} if shared else {})

    def merging(self, rate="100mbit"):
        """Bytes out of a host by density: every rank for itself, or merged by host; 4 and 8 ranks a host."""
        for n, per_host in ((4, 4), (2, 8)):
            for density in (0.001, 0.01, 0.05):
                for scheme in ("balanced", "hierarchical"):
                    yield self.complete(system="zenps", scheme=scheme, n=n, rate=rate, ranks_per_host=per_host, rows=1 << 20,
                                        density=density, overlap="random", steps=3,
                                        args=["--scheme", scheme, "--overlap", "random"])


NAMES = ["quick", "limits", "gigabit", "traces", "nodes", "planner", "breakdown", "small", "scale", "dedicated", "racks", "hosts",
         "merging"]
