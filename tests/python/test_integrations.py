"""Other libraries over zenps: Horovod's names with any torch; Lightning, Fabric, Accelerate, Transformers and JAX where a Python
has them.

ZENPS_INTEGRATIONS_PYTHON names that Python, of an environment of its own as a rule; else it is the one that runs pytest.
"""

import functools
import os
import subprocess
import sys

import pytest
from conftest import launch, names_of

PYTHON = os.environ.get("ZENPS_INTEGRATIONS_PYTHON", sys.executable)
NEEDS = {  # module of cases: what that Python must be able to run
    "torch_horovod": "import torch",
    # torch 1.13 has a part that Python 3.11 cannot import, and Lightning's modules need it.
    "torch_lightning": "import pytorch_lightning; pytorch_lightning.LightningModule()",
    "torch_fabric": "import lightning_fabric",
    "torch_accelerate": "import accelerate",
    "torch_transformers": "import transformers",
    "jax_sums": "import jax",
}
ALL = [(module, case) for module in NEEDS for case in names_of(module)]


@functools.lru_cache(maxsize=None)
def why_not(statement):
    """Empty where that Python can run it."""
    run = subprocess.run([PYTHON, "-c", statement], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return run.stdout.decode(errors="replace").strip().rpartition("\n")[2] if run.returncode else ""


def outcome(launched, module):
    reason = why_not(NEEDS[module])
    if reason:
        pytest.skip(f"{PYTHON}: {NEEDS[module]}: {reason}")
    return launched(module, 2, python=PYTHON, env={"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("module,case", ALL, ids=[f"{module}-{case[5:]}" for module, case in ALL])
def test_case(launched, module, case):
    outcome(launched, module).check(case)


@pytest.mark.parametrize("module", NEEDS)
def test_launch_ends_well(launched, module):
    made = outcome(launched, module)
    print(made.output)  # versions
    assert made.status == 0, made.output[-3000:]
