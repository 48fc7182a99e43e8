"""cases/device.py: arrays in the memory of the emulated GPU, on three ranks."""

import pytest
from conftest import BUILD, names_of

LIBRARY = BUILD / ".libs" / "libzenps_emu.so"
if not LIBRARY.exists():
    pytest.skip("this build has no emulated GPU", allow_module_level=True)


@pytest.mark.parametrize("case", names_of("device"))
def test_device(launched, case):
    launched("device", 3, env={"ZENPS_DEVICE_LIBRARY": str(LIBRARY)}).check(case)


def test_device_ends_well(launched):
    outcome = launched("device", 3, env={"ZENPS_DEVICE_LIBRARY": str(LIBRARY)})
    assert outcome.status == 0, outcome.output[-3000:]
