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
NEEDS = {  # module of cases: what it imports
    "torch_horovod": "torch",
    # Its DDPStrategy imports a part of torch that 1.13 cannot under Python 3.11.
    "torch_lightning": "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook, pytorch_lightning",
    "torch_fabric": "lightning_fabric",
    "torch_accelerate": "accelerate",
    "torch_transformers": "transformers",
    "jax_sums": "jax",
}
ALL = [(module, case) for module in NEEDS for case in names_of(module)]


@functools.lru_cache(maxsize=None)
def why_not(package):
    """Empty where that Python can import the packages."""
    run = subprocess.run([PYTHON, "-c", f"import {package}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return run.stdout.decode(errors="replace").strip().rpartition("\n")[2] if run.returncode else ""


def outcome(launched, module):
    reason = why_not(NEEDS[module])
    if reason:
        pytest.skip(f"{PYTHON} cannot import {NEEDS[module]}: {reason}")
    return launched(module, 2, python=PYTHON, env={"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("module,case", ALL, ids=[f"{module}-{case[5:]}" for module, case in ALL])
def test_case(launched, module, case):
    outcome(launched, module).check(case)


@pytest.mark.parametrize("module", NEEDS)
def test_launch_ends_well(launched, module):
    made = outcome(launched, module)
    assert made.status == 0, made.output[-3000:]
    print(made.output)
