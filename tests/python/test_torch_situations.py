"""Situations of training by GradientSync and by the hook, against DistributedDataParallel over Gloo; cases/situation.py."""

import pytest
from conftest import CASES, TORCH_PYTHON, has, names_of

if not has(TORCH_PYTHON, "torch"):
    pytest.skip(f"{TORCH_PYTHON} has no torch", allow_module_level=True)

ALL = [case for module in sorted(CASES.glob("situations_*.py")) for case in names_of(module.stem)]


@pytest.mark.parametrize("case", ALL, ids=[case[5:] for case in ALL])
def test_situation(launched, case):
    launched("torch_situations", 2, python=TORCH_PYTHON).check(case)


def test_launch_ends_well(launched):
    outcome = launched("torch_situations", 2, python=TORCH_PYTHON)
    assert outcome.status == 0, outcome.output[-3000:]
