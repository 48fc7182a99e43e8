"""What zenps.torch hands over of gradients in a GPU's memory, on the emulated GPU; and where there is no support for one."""

import pytest
from conftest import BUILD, TORCH_PYTHON, has, names_of

LIBRARY = BUILD / ".libs" / "libzenps_emu.so"
if not has(TORCH_PYTHON, "torch"):
    pytest.skip(f"{TORCH_PYTHON} has no torch", allow_module_level=True)


@pytest.mark.skipif(not LIBRARY.exists(), reason="this build has no emulated GPU")
@pytest.mark.parametrize("case", names_of("torch_device"))
def test_device(launched, case):
    launched("torch_device", 2, python=TORCH_PYTHON, env={"ZENPS_DEVICE_LIBRARY": str(LIBRARY)}).check(case)


@pytest.mark.skipif(not LIBRARY.exists(), reason="this build has no emulated GPU")
def test_device_ends_well(launched):
    outcome = launched("torch_device", 2, python=TORCH_PYTHON, env={"ZENPS_DEVICE_LIBRARY": str(LIBRARY)})
    assert outcome.status == 0, outcome.output[-3000:]


@pytest.mark.parametrize("case", names_of("torch_no_device"))
def test_no_device(launched, case):
    launched("torch_no_device", 2, python=TORCH_PYTHON, env={"ZENPS_DEVICE_LIBRARY": "/nowhere"}).check(case)
