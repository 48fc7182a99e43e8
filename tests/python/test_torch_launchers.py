"""A trainer under zenpsrun and torchrun, once and after a crash, alone and beside another run."""

import contextlib
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest
from conftest import CASES, DEADLINE, TOP, has

if not has(sys.executable, "torch"):
    pytest.skip(f"{sys.executable} has no torch", allow_module_level=True)
TRAINER = [sys.executable, str(CASES / "torch_launchers.py")]
torchrun = pytest.mark.skipif(not shutil.which("torchrun"), reason="torchrun is not installed")


def start(command, **more):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **more)


def ended(process):
    output, _ = process.communicate(timeout=DEADLINE)
    return process.returncode, output


def left(folder):
    """The commands of processes that have the variable of the test."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"OF_THE_TEST={folder}\0".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
    return found


def free_port():
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


def torchrun_of(logs, *arguments):
    """On a port of its own, since two of them may run at once. Standard output goes to files, too: torch 1.13 does not know
    what 0 means there under Python 3.11."""
    output = ["--redirects=1", "--tee=1", f"--log_dir={logs}"]
    return ["torchrun", "--nproc_per_node=2", f"--master_port={free_port()}", *output, *arguments]


def check(status, output, attempt=0):
    assert status == 0, output
    for rank in range(2):
        assert f"trained: rank {rank} of 2, attempt {attempt}, alike" in output, output


def test_zenpsrun():
    check(*ended(start(["zenpsrun", "-n", "2", "--", *TRAINER])))


@torchrun
def test_zenpsrun_in_front_of_each_rank(tmp_path):
    """torchrun starts it; rank 0's starts the daemons."""
    command = torchrun_of(tmp_path, "--no_python", "zenpsrun", "--port", str(free_port()), "--", *TRAINER)
    check(*ended(start(command)))


@torchrun
def test_torchrun_alone(monkeypatch, tmp_path):
    """No coordinator is named: rank 0 starts one, in each attempt, and for each of two runs at once. It ends with its run."""
    monkeypatch.delenv("ZENPS_COORDINATOR", raising=False)
    monkeypatch.setenv("OF_THE_TEST", str(tmp_path))
    crashing, other = tmp_path / "crashing", tmp_path / "other"
    runs = [start(torchrun_of(crashing, "--max_restarts=1", TRAINER[1], "crash")), start(torchrun_of(other, TRAINER[1]))]
    for run, attempt in zip(runs, (1, 0)):
        status, output = ended(run)
        check(status, output, attempt)
        assert output.count("rank 0 has started one, and one server") == attempt + 1, output
    end = time.monotonic() + DEADLINE
    while left(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left(tmp_path), left(tmp_path)


@torchrun
def test_first_minutes_of_the_guide(monkeypatch, tmp_path):
    """The program of the page, as it stands, and what it prints."""
    monkeypatch.delenv("ZENPS_COORDINATOR", raising=False)
    monkeypatch.chdir(tmp_path)
    page = (TOP / "deploy" / "guide" / "pytorch.md").read_text()
    program, output = re.search(r"<<'END'\n(.*?)END\ntorchrun [^\n]* train.py\n```\n```text\n(.*?)```", page, re.S).groups()
    pathlib.Path("train.py").write_text(program)
    status, said = ended(start(torchrun_of(tmp_path, "train.py")))
    assert status == 0 and pathlib.Path("model.pt").exists(), said
    for line in output.splitlines():
        assert line.split(": loss ")[0] in said, said
    assert float(re.findall(r"loss ([\d.]+)", said)[-1]) < 2, said


@torchrun
def test_two_runs_without_an_id(coordinator, monkeypatch, tmp_path):
    """At one coordinator they are two jobs."""
    monkeypatch.setenv("ZENPS_COORDINATOR", coordinator)
    for run in [start(torchrun_of(tmp_path, TRAINER[1])) for _ in range(2)]:
        check(*ended(run))


@torchrun
def test_restart_after_a_crash(coordinator, monkeypatch, tmp_path):
    monkeypatch.setenv("ZENPS_COORDINATOR", coordinator)
    command = torchrun_of(tmp_path, "--max_restarts=1", "--rdzv_id=restarted", TRAINER[1], "crash")
    check(*ended(start(command)), attempt=1)
