"""zenps.torch: real ranks, daemons and torch. A launch of several ranks runs many cases, since importing torch takes seconds."""

import re
import subprocess

import pytest
from conftest import CASES, DEADLINE, TOP, TORCH_PYTHON, has, names_of

if not has(TORCH_PYTHON, "torch"):
    pytest.skip(f"{TORCH_PYTHON} has no torch", allow_module_level=True)

MODULES = {  # module: ranks
    "torch_sync": 4,
    "torch_passes": 2,
    "torch_models": 2,
    "torch_compress": 4,
    "torch_ddp": 2,
    "torch_ddp_four": 4,
    "torch_dense": 2,
    "torch_outer": 3,
    "torch_quorum": 3,
    "torch_quorum_two": 2,
}
LAUNCHES = {"torch_passes": "torch_dense", "torch_ddp": "torch_dense"}  # modules whose cases another one's launch runs
ALL = [(module, case) for module in MODULES for case in names_of(module)]


@pytest.mark.parametrize("module,case", ALL, ids=[f"{module[6:]}-{case[5:]}" for module, case in ALL])
def test_case(launched, module, case):
    launched(LAUNCHES.get(module, module), MODULES[module], python=TORCH_PYTHON).check(case)


@pytest.mark.parametrize("module", sorted(set(MODULES) - set(LAUNCHES)))
def test_launch_ends_well(launched, module):
    outcome = launched(module, MODULES[module], python=TORCH_PYTHON)
    assert outcome.status == 0, outcome.output[-3000:]


def errors(world, *arguments):
    """cases/torch_errors.py on `world` ranks; exit status and output. Survivors have time to say what they have seen."""
    command = ["zenpsrun", "-n", str(world), "--linger", "300s", "--", TORCH_PYTHON, str(CASES / "torch_errors.py")]
    run = subprocess.run(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE, check=False
    )
    return run.returncode, run.stdout.decode(errors="replace")


def said(output, rank):
    found = re.search(rf"rank {rank}: (.*)", output)
    assert found, output
    return found.group(1)


@pytest.mark.parametrize("how", ["kill", "kill-torch", "kill-ddp", "kill-backend"])
def test_a_rank_dies_in_backward(how):
    status, output = errors(3, how)
    for rank in (0, 1):
        line = said(output, rank)
        assert line.startswith("PeerLost [2] after "), output
        assert float(line.split()[3]) < 60, line  # half of the deadline
    assert status == 128 + 9, output


def test_a_rank_stops_in_backward():
    status, output = errors(3, "stop")
    for rank in (0, 2):  # it may have announced a gradient that nobody can read any more
        assert re.match(r"(MissingRanks|RoundTimeout) \[1\] after ", said(output, rank)), output
    assert status == 7, output


def test_interrupt_in_backward(tmp_path):
    status, output = errors(2, "interrupt", str(tmp_path / "over"))
    assert said(output, 0).startswith("KeyboardInterrupt"), output
    assert said(output, 1).startswith("Canceled"), output
    assert output.count("went on") == 2 and status == 0, output


def test_children_and_memory():
    status, output = errors(2, "lifetime")
    assert status == 0 and output.count("MB then") == 2, output


def test_the_benchmark_of_chunks():
    """At most 9.9 bits an entry of 64 of each 4096, with its place."""
    program = [TORCH_PYTHON, str(TOP / "tests" / "bench" / "chunk_bits_rank.py"), "--values", str(1 << 18)]
    command = ["zenpsrun", "-n", "2", "--servers", "1", "--prefix=no", "--", *program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    sent = re.findall(r"2 ranks, common 0.5, (\w+): ([\d.]+) bits an entry sent, [\d.]+ bits a parameter received", run.stdout)
    assert [name for name, _ in sent] == ["qsgd2", "qsgd4"], run.stdout
    assert float(sent[0][1]) <= 9.9 and float(sent[1][1]) <= 11.9, run.stdout


@pytest.mark.parametrize(
    "name,arguments,ways",
    [
        ("sync_cost_rank.py", [], ("by hand", "sync", "hook")),
        ("dense_cost_rank.py", ["--layers=1"], ("DDP alone", 'ddp(), "torch"', 'GradientSync, "torch"', 'ddp(), "zenps"')),
    ],
)
def test_the_benchmark_of_what_it_costs(name, arguments, ways):
    program = [TORCH_PYTHON, str(TOP / "tests" / "bench" / name), "--rows=500", "--turns=1", "--steps=3", *arguments]
    command = ["zenpsrun", "-n", "2", "--servers", "1", "--prefix=no", "--", *program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert all(f"| {way} | " in run.stdout for way in ways), run.stdout
