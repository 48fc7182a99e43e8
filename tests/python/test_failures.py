"""What a trainer sees when ranks, daemons or users end things."""

import json
import pathlib
import pickle
import subprocess
import sys

import pytest
import zenps
from conftest import launch, script


@pytest.mark.parametrize("case", ["case_interrupted_wait", "case_interrupted_barrier"])
def test_interrupts(tmp_path, case):
    outcome = launch(tmp_path, 3, "failures", cases=[case])
    outcome.check(case)
    assert outcome.status == 0, outcome.output[-3000:]


def test_killed_rank(tmp_path):
    outcome = launch(tmp_path, 3, "failures", cases=["case_killed"], arguments=["--linger", "60s"])
    for rank in (0, 1):
        assert outcome.ranks[rank] == {"case_killed": "ok"}, (outcome.ranks, outcome.output[-3000:])
    assert outcome.status != 0 and outcome.ranks[2] == {}


def test_killed_server(tmp_path):
    outcome = launch(tmp_path, 3, "failures", cases=["case_killed_server"])
    outcome.check("case_killed_server")
    assert outcome.status == 0 and "goes on with 1 server;" in outcome.output, outcome.output[-3000:]


def test_missing_rank(tmp_path):
    launch(tmp_path, 3, "missing").check("case_missing")


def test_no_coordinator():
    with pytest.raises(zenps.ConnectFailed) as raised:
        zenps.init("127.0.0.1:1", "nobody", 0, 1, join_timeout=0.2)
    assert "127.0.0.1:1" in str(raised.value) and isinstance(raised.value, ConnectionError)


def test_nobody_listens_on_this_host():
    """The log says so after 2 s, and the error in one line of the user's program, what to do."""
    said = script(
        """
import time, traceback, zenps
begun = time.monotonic()
try:
    zenps.init("127.0.0.1:1", "nobody", 0, 1, join_timeout=300, refused_timeout=3)
except zenps.ConnectFailed as error:
    print(error)
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)], error.__cause__, error.__context__)
    print(time.monotonic() - begun >= 2.8)
"""
    )
    assert said.returncode == 0, said.stderr
    text, frames, waited = said.stdout.splitlines()
    assert "127.0.0.1:1: connection refused" in text and "torchrun ... --no_python zenpsrun" in text, text
    assert frames == "['<module>', 'init'] None None" and waited == "True", said.stdout
    assert said.stderr.count("no zenpsd yet, retrying: cannot connect to 127.0.0.1:1") == 1 and "run under zenpsrun" in said.stderr


def test_nobody_comes(coordinator):
    with pytest.raises(zenps.ZenpsError) as raised:
        zenps.init(coordinator, "lonely", 1, 3, join_timeout=0.5)
    assert raised.value.missing_ranks == (0, 2) or "0" in str(raised.value)


def test_interrupted_join(coordinator):
    said = script(
        """
import sys, zenps
sys.path.insert(0, sys.argv[2])
from failures import interrupted
interrupted(lambda: zenps.init(sys.argv[1], "half", 0, 2, join_timeout=240))
print("interrupted")
""",
        coordinator,
        "",
    )
    assert (said.returncode, said.stdout) == (0, "interrupted\n"), said.stderr


def test_wrong_arguments():
    for arguments, words in (
        (dict(rank=-1), "rank -1"),
        (dict(world=0), "world 0"),
        (dict(join_timeout=0), "join_timeout"),
        (dict(rank=3, world=2), "3"),
        (dict(provider="carrier-pigeon", rank=0, world=1), "carrier-pigeon"),
    ):
        with pytest.raises(zenps.ZenpsError, match=words):
            zenps.init("127.0.0.1:1", **arguments)


def test_name_again(coordinator):
    """The name of a job that has ended is free; that of one that runs is not, for the same rank."""
    for _ in range(2):
        with zenps.init(coordinator, "again", 0, 1) as job:
            tensor = job.tensor("t", 10, op="sum")
            assert tensor.allreduce([1.0], [2]).wait().row_ids.tolist() == [2]
            assert zenps.init(coordinator, "again", 0, 1) is job
            with pytest.raises(zenps.ZenpsError) as raised:
                zenps.init(coordinator, "again", 0, 1, round_timeout=7, join_timeout=5)
            assert isinstance(raised.value, (zenps.RankTaken, zenps.Refused)), repr(raised.value)


def test_ranks_as_threads(coordinator):
    """Several ranks of a job in one process, each with a Job of its own."""
    import threading

    world, sums = 3, {}

    def body(rank):
        with zenps.init(coordinator, "threads", rank, world) as job:
            sums[rank] = job.tensor("t", 10, op="sum").allreduce([1.0], [rank]).wait().row_ids.tolist()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {rank: [0, 1, 2] for rank in range(world)}


def test_server_gone(tmp_path):
    """Coordinator and servers die: a typed error within the deadline."""
    said = script(
        """
import os, signal, subprocess, sys, time, zenps
folder = sys.argv[1]
daemon = subprocess.Popen(["zenpsd", "--control-listen=127.0.0.1:0", f"--control-address-file={folder}/address", "--log-level=error"])
while not os.path.exists(f"{folder}/address") or not open(f"{folder}/address").read().strip(): time.sleep(0.02)
job = zenps.init(open(f"{folder}/address").read().strip(), "j", 0, 1, round_timeout=240)
tensor = job.tensor("t", 100, op="sum")
tensor.allreduce([1.0], [1]).wait()
daemon.kill(); daemon.wait()
try:
    tensor.allreduce([1.0], [1]).wait()
except zenps.ZenpsError as error:
    print(type(error).__name__)
job.close()
""",
        tmp_path,
    )
    assert said.returncode == 0 and said.stdout.strip() in ("ServerLost", "RoundTimeout", "IOFailed", "FabricError"), (
        said.stdout + said.stderr
    )


def test_left_open(coordinator):
    """An interpreter that ends closes its jobs: the next run of the name need not wait, and results need no order."""
    text = """
import sys, zenps
job = zenps.init(sys.argv[1], "open", 0, 1)
rows = job.tensor("t", 10, op="sum").allreduce([1.0], [1]).wait()
pending = job.tensor("u", 10, op="sum").push([1.0], [1])
"""
    for _ in range(2):
        said = script(text, coordinator)
        assert (said.returncode, said.stderr) == (0, ""), said.stderr


@pytest.mark.parametrize(
    "end, cause",
    [
        ('raise ValueError("batch 7 is empty\\nand more")', "ValueError: batch 7 is empty"),
        ('with job: raise KeyError("w")', "KeyError: 'w'"),
        ("with job: sys.exit(3)", "exit: 3"),
        ('job.fail("out of data")', "out of data"),
        ("class E(Exception): __str__ = None\nwith job: raise E()", "E"),
        ("with job: sys.exit(0)", ""),
        ("with job: raise KeyboardInterrupt", ""),
        ("try: 1 / 0\nexcept ZeroDivisionError: pass", ""),
    ],
)
def test_a_trainers_own_error_is_the_cause(coordinator, end, cause):
    text = 'import sys, zenps\njob = zenps.init(sys.argv[1], "own", 0, 1)\njob.barrier()\n' + end
    said = script(text, coordinator)
    assert "zenps" not in said.stderr.replace('File "<string>"', ""), said.stderr
    tables = subprocess.run(
        ["zenpsctl", "-e", coordinator, "-o", "json", "jobs", "--all"],
        stdout=subprocess.PIPE,
        check=True,
    )
    (ended,) = json.loads(tables.stdout)["ended"]
    assert ended["code"] == ("ERR_TRAINER" if cause else "")
    assert cause in ended["failure"] and "more" not in ended["failure"], ended


def test_log(coordinator):
    said = script(
        """
import logging, sys, zenps
records = []
class Handler(logging.Handler):
    def emit(self, record): records.append(record)
logging.getLogger("zenps").addHandler(Handler())
logging.getLogger("zenps").setLevel(1)
zenps.init(sys.argv[1], "logged", 0, 1).close()
assert any("rank 0 of job logged" in record.getMessage() and record.levelno == logging.INFO for record in records), records
assert all(record.component for record in records) and records[-1].rank == 0
""",
        coordinator,
        env={"ZENPS_LOG_LEVEL": "debug"},
    )
    assert said.returncode == 0 and said.stderr == "", said.stderr


def test_import_is_light():
    said = script("import sys, zenps; print(sorted({'numpy', 'torch'} & set(sys.modules)))", env={"ZENPS_LIBRARY": "/none"})
    assert (said.returncode, said.stdout) == (0, "[]\n"), said.stderr
    said = script("import zenps; zenps.init()", env={"ZENPS_LIBRARY": "/none"})
    assert said.returncode == 1 and "ImportError: ZENPS_LIBRARY: /none" in said.stderr
    said = script("import zenps; zenps.init()", env={"ZENPS_LIBFABRIC": "/none"})
    assert said.returncode == 1 and "ZENPS_LIBFABRIC=/none" in said.stderr


@pytest.mark.parametrize("kind", sorted(set(zenps.errors.BY_STATUS.values()), key=lambda each: each.__name__))
def test_errors_pickle(kind):
    error = kind("the sentence", job="j", tensor="t", step=3, missing_ranks=(1, 2), needed=9)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind and str(copy) == "the sentence" and copy._fields() == error._fields()
    assert copy.status == kind.default_status and zenps.errors.BY_STATUS[copy.status] is kind


def test_doctor(coordinator):
    doctor = "import sys; from zenps.__main__ import main; sys.exit(main(sys.argv[1:]))"
    said = script(doctor, "doctor", "--coordinator", coordinator)
    assert said.returncode == 0, said.stdout + said.stderr
    for word in ("libzenps.so.0", "libfabric", "the system's", "net", "zenpsd", f"{coordinator}: running", "1 servers"):
        assert word in said.stdout, said.stdout
    said = script(doctor, "doctor", "--coordinator", "127.0.0.1:1")
    assert said.returncode == 1 and "127.0.0.1:1: NOT REACHED" in said.stdout
    said = script(doctor, "doctor", env={"ZENPS_LIBRARY": "/none"})
    assert said.returncode == 1 and "NOT FOUND" in said.stdout
    folder = pathlib.Path(zenps.__file__).parents[1]
    command = ["sh", "-c", f"PYTHONPATH='{folder}' '{sys.executable}' -m zenps doctor --coordinator 127.0.0.1:1 | true"]
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, check=False)
    assert said.stderr == "", said.stderr


def test_selftest(tmp_path):
    command = ["zenpsrun", "-n", "2", "--servers", "2", "--", sys.executable, "-m", "zenps.selftest"]
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    assert said.returncode == 0 and "are right, bit for bit" in said.stdout, said.stdout
