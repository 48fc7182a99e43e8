"""zenps.torch.torchft: the process group alone on real ranks, and training under torchft's Manager and lighthouse.

ZENPS_TORCHFT_PYTHON names the Python that has torchft, of an environment of its own as a rule. Without torchft the process group
runs with cases/standin, which has the two classes it derives from and uses; training is skipped.
"""

import json
import os
import re
import subprocess

import pytest
from conftest import CASES, DEADLINE, TOP, TORCH_PYTHON, has, names_of, running_coordinator

PYTHON = os.environ.get("ZENPS_TORCHFT_PYTHON", TORCH_PYTHON)


def runs(statement, **env):
    run = subprocess.run([PYTHON, "-c", statement], stderr=subprocess.PIPE, env=dict(os.environ, **env), check=False)
    return run.stderr.decode(errors="replace") if run.returncode else ""


if not has(PYTHON, "torch"):
    pytest.skip(f"{PYTHON} has no torch", allow_module_level=True)

MISSING = runs("import torchft").strip().rpartition("\n")[2]
needs_torchft = pytest.mark.skipif(MISSING != "", reason=f"{PYTHON}: {MISSING}; ZENPS_TORCHFT_PYTHON names one with torchft")
STANDIN = os.pathsep.join([os.environ["PYTHONPATH"], str(CASES / "standin")]) if MISSING else os.environ["PYTHONPATH"]
RANKS, KILLED_AT, MORE = 3, 4, 3  # of the cases
SOON = 120.0  # seconds after a kill, for what takes 40 ms


def test_without_torchft():
    """zenps.torch is as ever, and the module says what it needs."""
    assert not runs("import sys; sys.modules['torchft'] = None; import zenps.torch")
    error = runs("import sys; sys.modules['torchft'] = None; import zenps.torch.torchft")
    said = error.strip().rpartition("\n")[2]
    assert re.match(r"ImportError: zenps.torch.torchft needs torchft, which cannot be imported here \(.*torchft.*\): pip install", said)


@pytest.mark.parametrize("case", names_of("torchft_group"))
def test_group(launched, case):
    launched("torchft_group", RANKS, python=PYTHON, env={"PYTHONPATH": STANDIN}).check(case)


def test_group_ends_well(launched):
    outcome = launched("torchft_group", RANKS, python=PYTHON, env={"PYTHONPATH": STANDIN})
    print(outcome.output)  # times
    assert outcome.status == 0, outcome.output[-3000:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """seen(how): what each process left, None for one that has died; output."""
    outcomes = {}

    def seen(how):
        if how not in outcomes:
            folder = tmp_path_factory.mktemp(how)
            with running_coordinator(folder) as address:
                run = subprocess.run(
                    [PYTHON, str(CASES / "torchft_training.py"), address, str(folder), how],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    universal_newlines=True,
                    timeout=DEADLINE,
                    check=False,
                )
            files = [folder / f"{process}.json" for process in range(4)]
            outcomes[how] = [json.loads(file.read_text()) if file.exists() else None for file in files], run.stdout
        return outcomes[how]

    return seen


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """Each of the four processes' results, None for one that failed; output."""
    folder = tmp_path_factory.mktemp("rounds")
    with running_coordinator(folder) as address:
        run = subprocess.run(
            [PYTHON, str(CASES / "torchft_local.py"), address, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            timeout=DEADLINE,
            check=False,
        )
    files = [folder / f"{group}.{rank}.json" for group in range(2) for rank in range(2)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files], run.stdout


# torchft 0.2.0's DistributedDataParallel raises an AssertionError of its own when a sum fails, over Gloo, too. Newer
# ones import this.
OUTLIVES = "import torchft.ddp; torchft.ddp._completed"


@needs_torchft
@pytest.mark.parametrize("how", ["average", "ddp"])
def test_training(trained, how):
    """A replica is killed within backward(): the others drop that step and go on; it comes back and heals; weights are the same
    on all, and those of one process that adds the replicas' gradients in their order, bit for bit."""
    if how == "ddp" and runs(OUTLIVES):
        pytest.skip("DistributedDataParallel of this torchft does not outlive a sum that fails")
    seen, output = trained(how)
    there = [seen[process] for process in (0, 1, 3)]
    assert seen[2] is None and all(there), output[-5000:]
    history = there[0]["history"]
    assert history[:KILLED_AT] == [3] * KILLED_AT and history[-MORE:] == [3] * MORE
    assert history[KILLED_AT : KILLED_AT + MORE] == [2] * MORE and set(history) == {2, 3}
    for each in there:
        assert each["history"] == history and each["weights"] == each["expected"] == there[0]["weights"]
        assert each["group_error"] == "None"
    assert there[2]["began"] >= KILLED_AT + MORE and not there[2]["errors"]  # it was healed
    for each in there[:2]:
        ((step, kind, seconds),) = each["errors"]
        assert step == KILLED_AT and kind == "PeerLost" and 0 <= seconds < SOON, each["errors"]
        print(f"{kind} {1000 * seconds:.0f} ms after the kill")


@needs_torchft
@pytest.mark.parametrize("how", ["local", "diloco"])
def test_local(rounds, how):
    """LocalSGD and DiLoCo, with groups of two ranks: each rank has the weights of one process that trains both replicas."""
    seen, output = rounds
    assert all(seen), output[-5000:]
    for each in seen:
        got, right = each[how]
        assert max(abs(one - other) for one, other in zip(got, right)) <= 1e-6, output[-3000:]
    assert seen[0][how][0] == seen[2][how][0] and seen[1][how][0] == seen[3][how][0]  # A rank's part is equal in both replicas.
    assert seen[0][how][0] != seen[1][how][0]


LIGHTHOUSE = """
import sys, torchft.coordination
server = torchft.coordination.LighthouseServer("[::]:0", min_replicas=2, join_timeout_ms=60000, quorum_tick_ms=20)
print("http://localhost:" + server.address().rpartition(":")[2], flush=True)
sys.stdin.read()
"""


@needs_torchft
def test_example(coordinator, tmp_path):
    """Two replicas learn, and end with the same weights."""
    command = [PYTHON, "-c", LIGHTHOUSE]
    lighthouse = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    example = [PYTHON, str(TOP / "worker" / "examples" / "python" / "replicas.py"), "--steps", "61", "--replica"]
    files, replicas = [tmp_path / "0", tmp_path / "1"], []
    try:
        env = dict(os.environ, ZENPS_COORDINATOR=coordinator, TORCHFT_LIGHTHOUSE=lighthouse.stdout.readline().strip())
        for number, file in enumerate(files):
            with open(file, "wb") as output:
                replicas.append(subprocess.Popen([*example, str(number)], env=env, stdout=output, stderr=output))
        codes = [each.wait(DEADLINE) for each in replicas]
    finally:
        for each in replicas:
            each.kill()
            each.wait()
        lighthouse.communicate("")
    outputs = [file.read_text(errors="replace") for file in files]
    assert codes == [0, 0], outputs
    weights = [re.findall(r"step 61: weights (\w+)", each) for each in outputs]
    assert len(weights[0]) == 1 and weights[0] == weights[1], outputs
    losses = [float(each) for each in re.findall(r"step \d+: loss ([\d.]+), 2 replicas", outputs[0])]
    assert len(losses) == 4 and losses[-1] < losses[0] / 2, losses
