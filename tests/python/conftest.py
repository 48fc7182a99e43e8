"""Real daemons and real ranks for the tests of the Python package.

A launch of zenpsrun is slow, so one of them runs many cases: cases/NAME.py has functions case_*(job), which runner.py calls
in turn on every rank; each is a test here. ZPS_TOP_BUILDDIR names the build tree.
"""

import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

TOP = pathlib.Path(os.environ.get("ZPS_TOP_SRCDIR") or pathlib.Path(__file__).resolve().parents[2])
BUILD = pathlib.Path(os.environ.get("ZPS_TOP_BUILDDIR") or TOP / "build")
TORCH_PYTHON = os.environ.get("ZENPS_TORCH_PYTHON") or sys.executable  # of the tests of zenps.torch
CASES = pathlib.Path(__file__).resolve().parent / "cases"
PACKAGE = TOP / "worker" / "python"
DEADLINE = 600  # seconds, for what should take a few; importing torch on busy cores takes many
# Deadlines for hangs alone, below that. A test in which one is to pass sets its own.
os.environ.update(ZENPS_CONTROL_DEAD="300s", ZENPS_JOIN_TIMEOUT="300s", ZENPS_ROUND_TIMEOUT="240s")

os.environ["PYTHONPATH"] = os.pathsep.join([str(PACKAGE), str(CASES)])
os.environ["ZENPS_LIBRARY"] = str(BUILD / ".libs" / "libzenps.so.0")
os.environ["PATH"] = f"{BUILD}{os.pathsep}{os.environ['PATH']}"
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.path[:0] = [str(PACKAGE), str(CASES)]


@functools.lru_cache(maxsize=None)
def has(python, module):
    """Whether that Python finds the module, without the seconds that an import of torch takes."""
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    return subprocess.run([python, "-c", find, module], check=False).returncode == 0


def names_of(module):
    """The cases of cases/MODULE.py, without importing it."""
    lines = (CASES / f"{module}.py").read_text().splitlines()
    return [line[len("def ") : line.index("(")] for line in lines if line.startswith("def case_")]


class Outcome:
    """What a launch left: exit status, output, and per rank what its cases said."""

    def __init__(self, status, output, ranks):
        self.status, self.output, self.ranks = status, output, ranks

    def check(self, case):
        for rank, cases in enumerate(self.ranks):
            said = cases.get(case, "was not reached\n" + self.output[-3000:])
            if said.startswith("skipped: "):
                pytest.skip(said[len("skipped: ") :])
            assert said == "ok", f"rank {rank}: {said}"


def launch(folder, world, module, servers=2, cases=(), env=None, arguments=(), python=sys.executable):
    """zenpsrun of runner.py; cases: names, or all of the module; python: that runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["zenpsrun", "-n", str(world), "--servers", str(servers), *arguments, "--", python]
    command += [str(CASES / "runner.py"), module, str(folder), *cases]
    with open(folder / "output", "w+b") as output:
        run = subprocess.run(
            command, stdout=output, stderr=output, env=dict(os.environ, **(env or {})), timeout=DEADLINE, check=False
        )
        output.seek(0)
        text = output.read().decode(errors="replace")
    ranks = []
    for rank in range(world):
        said = folder / f"{rank}.json"
        ranks.append(json.loads(said.read_text()) if said.exists() else {})
    return Outcome(run.returncode, text, ranks)


@pytest.fixture(scope="session")
def launched(tmp_path_factory):
    """launched(module, world): the outcome of all its cases, which run once."""
    outcomes = {}

    def get(module, world, **more):
        if module not in outcomes:
            outcomes[module] = launch(tmp_path_factory.mktemp(module), world, module, **more)
        return outcomes[module]

    return get


@contextlib.contextmanager
def running_coordinator(folder):
    """Address of a zenpsd, coordinator and server in one, while the context lasts."""
    address = folder / "address"
    with open(folder / "zenpsd.log", "wb") as log:
        daemon = subprocess.Popen(
            ["zenpsd", "--control-listen=127.0.0.1:0", f"--control-address-file={address}", "--log-level=warn"],
            stdout=log,
            stderr=log,
        )
    end = time.monotonic() + DEADLINE
    while not (address.exists() and address.read_text().strip()):
        assert daemon.poll() is None and time.monotonic() < end, (folder / "zenpsd.log").read_text()
        time.sleep(0.02)
    try:
        yield address.read_text().strip()
    finally:
        daemon.terminate()
        daemon.wait(DEADLINE)


@pytest.fixture
def coordinator(tmp_path):
    """Address of a coordinator of this test's own."""
    with running_coordinator(tmp_path) as address:
        yield address


def script(text, *arguments, env=None, timeout=DEADLINE):
    """A Python program of its own."""
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env=dict(os.environ, **(env or {})),
        timeout=timeout,
        check=False,
    )
