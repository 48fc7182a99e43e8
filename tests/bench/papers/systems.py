"""The papers' systems as this tree has them, and measurements of their rounds: bytes by zenpsrun, links and times in a lab."""

import json

from labbench import rivals
from labbench.grid import Grids
from labbench.lab import Failure
from labbench.zenps import Service, program

# name in the papers: (scheme, codec, what it is here)
ZEN = {
    "AllReduce": ("ring", None),
    "AGsparse": ("agsparse", "coo"),
    "SparCML": ("recursive-doubling", "coo"),
    "OmniReduce": ("omnireduce", None),
    "Sparse PS": ("sparse-ps", "coo"),
    "Zen": ("balanced", "paper"),
    "zenps": ("balanced", "auto"),
}
SPARCML = {
    "SSAR_Recursive_double": ("recursive-doubling", "paper"),
    "SSAR_Split_allgather": ("split-allgather", "paper"),
    "DSAR_Split_allgather": ("dsar", "paper"),
    "sparse allgather": ("agsparse", "coo"),
    "dense ring": ("ring", None),
    "dense Rabenseifner": ("rabenseifner", None),
}
OKTOPK = {
    "Dense": ("rabenseifner", None),
    "TopkA": ("topka", "coo"),
    "TopkDSA": ("topkdsa", "coo"),
    "gTopk": ("gtopk", "coo"),
    "Gaussiank": ("gaussiank", "coo"),
    "Ok-Topk": ("oktopk", "coo"),
}
TRAINED = {  # how each of table 1's systems trains
    "Dense": ["--scheme", "rabenseifner"],
    "DenseOvlp": ["--scheme", "rabenseifner", "--overlap"],
    "TopkA": ["--scheme", "topka", "--select", "topk"],
    "TopkDSA": ["--scheme", "topkdsa", "--select", "topk"],
    "gTopk": ["--scheme", "gtopk", "--select", "topk"],
    "Gaussiank": ["--scheme", "topka", "--select", "gaussian"],  # corrected below 3/4 k, as in the paper's section 5.4
    "Ok-Topk": ["--scheme", "oktopk", "--select", "reused"],
}
DENSE_RIVALS = [("mpi", "dense-ring"), ("gloo", "dense")]


def arguments(scheme, codec):
    return ["--scheme", scheme] + (["--codec", codec] if codec else [])


class Links:
    """A lab of n hosts, a worker and a server on each, for one measurement after another."""

    def __init__(self, run, n, rate, **place):
        run.lab_allowed()
        self.run, self.grids = run, Grids(None)
        self.base = {"n": n, "rate": rate, "verify": False, **place}
        self.service = Service(self.base, run.build)

    def __enter__(self):
        self.service.__enter__()
        return self

    def __exit__(self, *error):
        self.service.__exit__(*error)

    def perf(self, scheme, codec=None, args=(), **work):
        """A row of zenps-perf: median_ms, bytes_in and bytes_out of the busiest host, limit_ms."""
        if scheme == "balanced" and codec in ("paper", "coo"):
            scheme += ":partitioner=hierarchical"  # Zen's Algorithm 1, of its own h0
        spec = self.grids.complete(system="zenps", scheme=scheme, **{**self.base, **work})
        spec["args"] = arguments(scheme, codec) + [str(word) for word in args]
        self.run.progress(f"{scheme} on {self.base['n']} hosts")
        return self.service.measure(spec)

    def train(self, name, args, rounds, codec=None, timeout_s=300):
        """Lines of a trainer's rank 0, and the traffic of the busiest host per round."""
        self.run.progress(f"{name} {' '.join(map(str, args))[:60]} on {self.base['n']} hosts")
        lab, before = self.service.lab, self.service.lab.counters()
        folder, base = name.rsplit("/", 1) if "/" in name else ("", name)
        command = [program(f"{self.run.build}/{folder}", base), *args]
        ended = lab.await_end(
            self.service.job(command, {"ZENPS_SHARED_MEMORY": "no", **({"ZENPS_CODEC": codec} if codec else {})}), timeout_s
        )
        lines = [json.loads(line) for line in ended[0][0].splitlines() if line.startswith("{")]
        return lines, lab.traffic(before, rounds, self.service.hosts)


def rival_rows(run, n, rate, found, **work):
    """What Open MPI and Gloo take on the same gradients; those that are not installed are named."""
    rows = []
    for system, scheme in DENSE_RIVALS:
        why = rivals.missing(system)
        if why:
            found.note(f"{system} {scheme}: not here: {why}")
            continue
        spec = Grids(None).complete(system=system, scheme=scheme, n=n, rate=rate, **work)
        run.progress(f"{system} on {n} hosts")
        try:
            rows.append((f"{'Open MPI' if system == 'mpi' else 'Gloo'} {scheme}", rivals.run(spec, run.build)))
        except Failure as failure:
            found.note(f"{system} {scheme}: failed: {failure}")
    return rows


def busiest(row):
    return max(row["bytes_in"], row["bytes_out"])


def trained(run, density, steps, every, *args, n=8, timeout_s=180):
    """Lines of a perceptron's training."""
    key = ("trained", density, steps, every, args, n)
    return run.once(
        key,
        lambda: run.near(
            n,
            [run.program("tests/bench/perceptron-rank"), "--density", density, "--steps", steps, "--every", every, *args],
            servers=2,
            timeout_s=timeout_s,
        ),
    )
