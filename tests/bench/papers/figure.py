"""What a figure is, what it finds, and the run that it is part of."""

import dataclasses
import json
import os
import subprocess

from labbench.lab import Failure, HERE
from labbench.zenps import environment, program

FIGURES = {}  # by name, in the papers' order


class Missing(Exception):
    """A figure cannot be shown here; its text is one line that says why."""


@dataclasses.dataclass
class Figure:
    name: str
    title: str
    paper: list  # the paper's own numbers: lines with section or figure
    differs: str  # one line: scale, links, model
    make: object  # (Run, Found)


@dataclasses.dataclass
class Table:
    title: str
    columns: list
    rows: list


@dataclasses.dataclass
class Plot:
    name: str
    x: str
    y: str
    series: dict  # name: [(x, y), ...]
    log: str = ""  # gnuplot's logscale: "x", "y", "xy"


class Found:
    """A figure's tables, plots, and what became of the paper's shape."""

    def __init__(self):
        self.tables, self.plots, self.checks, self.notes = [], [], [], []
        self.missing, self.seconds = None, 0  # why nothing is shown

    def table(self, title, columns, rows):
        self.tables.append(Table(title, columns, [list(row) for row in rows]))

    def plot(self, name, x, y, series, log=""):
        self.plots.append(Plot(name, x, y, series, log))

    def holds(self, text, good, detail=""):
        """Of bytes and counts, which the same inputs give again: a miss is a failure."""
        self.checks.append(("ok" if good else "failed", text, detail))

    def shape(self, text, good, detail=""):
        """Of times, and of what depends on the model: a miss is said, and no failure."""
        self.checks.append(("ok" if good else "differs", text, detail))

    def note(self, text):
        self.notes.append(text)


def figure(name, title, paper, differs):
    def add(make):
        FIGURES[name] = Figure(name, title, paper, differs, make)
        return make

    return add


class Run:
    """Where programs and data are, and how much time there is. Results that several figures use are kept here."""

    def __init__(self, build, data, out, quick):
        self.build, self.data, self.out, self.quick = build, data, out, quick
        self.kept = {}
        self.progress = lambda text: None
        os.makedirs(out, exist_ok=True)

    def path(self, name):
        return os.path.join(self.out, name)

    def once(self, key, make):
        """What make() gave the first time."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def program(self, name):
        folder, base = os.path.split(name)
        path = program(os.path.join(self.build, folder), base)
        if not os.access(path, os.X_OK):
            raise Missing(f"no {name} in {self.build}: build it (make)")
        return path

    def call(self, command, env=None, timeout_s=180, stdin=None):
        """Standard output of a program that ended well."""
        try:
            done = subprocess.run(
                [str(word) for word in command],
                env={**os.environ, **environment(self.build), **(env or {})},
                capture_output=True,
                text=True,
                timeout=timeout_s,
                stdin=stdin or subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"{os.path.basename(command[0])}: not over after {timeout_s} s") from None
        if done.returncode != 0:
            raise Failure(
                f"{os.path.basename(command[0])} ended with {done.returncode}: {' | '.join(done.stderr.strip().splitlines()[-3:])}"
            )
        return done.stdout

    def has_option(self, name, option):
        """Whether a program has an option: some come later than the figures that use them."""
        text = self.once(("help", name), lambda: self.call([self.program(name), "--help"]))
        return any(word.rstrip(",").split("=")[0].split("[")[0] == option for word in text.split())

    def near(self, n, command, servers=None, env=None, timeout_s=180):
        """Ranks on this host by zenpsrun, over the loopback interface and not through shared memory: lines of JSON."""
        text = self.call(
            [
                self.program("zenpsrun"),
                "-n",
                n,
                "--servers",
                servers or n,
                "--prefix=no",
                f"--zenpsd={self.program('zenpsd')}",
                "--",
                *command,
            ],
            {"ZENPS_SHARED_MEMORY": "no", "ZENPS_ROUND_TIMEOUT": "120s", **(env or {})},
            timeout_s,
        )
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def perf(self, n, cases, servers=None, env=None, timeout_s=180):
        """zenps-perf for each of `cases`, lists of arguments, in one job: what it says of each."""
        path = self.path("cases.txt")
        with open(path, "w") as out:
            out.writelines(" ".join(str(word) for word in case) + "\n" for case in cases)
        got = self.near(n, [self.program("zenps-perf"), "--json", "--cases", path], servers, env, timeout_s)
        if len(got) != len(cases):
            raise Failure(f"zenps-perf told of {len(got)} of {len(cases)} cases")
        return got

    def lab_allowed(self):
        """Missing, with the lab's own reason, where namespaces are not allowed."""

        def ask():
            done = subprocess.run([os.path.join(HERE, "lab"), "allowed"], capture_output=True, text=True)
            return None if done.returncode == 0 else done.stdout.strip() or done.stderr.strip()

        why = self.once("lab", ask)
        if why:
            raise Missing(why)
