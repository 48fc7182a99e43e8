"""zenps.torch.torchft: the process group alone on real ranks.

ZENPS_TORCHFT_PYTHON names the Python that has torchft, of an environment of its own as a rule. Without torchft the process group
runs with cases/standin, which has the two classes it derives from and uses.
"""

import os
import re
import subprocess

import pytest
from conftest import CASES, TORCH_PYTHON, names_of

PYTHON = os.environ.get("ZENPS_TORCHFT_PYTHON", TORCH_PYTHON)


def runs(statement, **env):
    run = subprocess.run([PYTHON, "-c", statement], stderr=subprocess.PIPE, env=dict(os.environ, **env), check=False)
    return run.stderr.decode(errors="replace") if run.returncode else ""


if runs("import torch"):
    pytest.skip(f"{PYTHON} has no torch", allow_module_level=True)

MISSING = runs("import torchft").strip().rpartition("\n")[2]
STANDIN = os.pathsep.join([os.environ["PYTHONPATH"], str(CASES / "standin")]) if MISSING else os.environ["PYTHONPATH"]
RANKS = 3


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
