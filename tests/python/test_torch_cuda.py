"""zenps.torch with gradients on a GPU: on a host with one, and a build with --with-cuda (ZENPS_DEVICE_LIBRARY names another's)."""

import os
import subprocess

import pytest
from conftest import BUILD, TORCH_PYTHON, names_of

LIBRARY = os.environ.get("ZENPS_DEVICE_LIBRARY") or str(BUILD / "libzenps_cuda.so.0")
FINDS = "import torch; assert torch.cuda.is_available()"
if not os.path.exists(LIBRARY) or subprocess.run([TORCH_PYTHON, "-c", FINDS], stderr=subprocess.DEVNULL, check=False).returncode:
    pytest.skip("this build has no libzenps_cuda, or torch finds no GPU", allow_module_level=True)


@pytest.mark.parametrize("case", names_of("torch_cuda"))
def test_cuda(launched, case):
    launched("torch_cuda", 2, python=TORCH_PYTHON, env={"ZENPS_DEVICE_LIBRARY": LIBRARY}).check(case)


def test_cuda_ends_well(launched):
    outcome = launched("torch_cuda", 2, python=TORCH_PYTHON, env={"ZENPS_DEVICE_LIBRARY": LIBRARY})
    assert outcome.status == 0, outcome.output[-3000:]


@pytest.mark.parametrize("case", names_of("torch_cuda_fallback"))
def test_fallback(launched, case):
    launched("torch_cuda_fallback", 2, python=TORCH_PYTHON, env={"ZENPS_DEVICE_LIBRARY": "/nowhere"}).check(case)


def test_fallback_is_said_once(launched):
    outcome = launched("torch_cuda_fallback", 2, python=TORCH_PYTHON, env={"ZENPS_DEVICE_LIBRARY": "/nowhere"})
    assert outcome.output.count("go through copies in host memory") == 2, outcome.output[-3000:]  # by each rank
