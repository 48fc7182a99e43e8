"""The backend zenps of torch.distributed: its own cases, and tests of torch's own, each set in one launch of four ranks."""

import sys

import pytest
from conftest import CASES, TORCH_PYTHON, has, names_of

sys.path.insert(0, str(CASES))
from c10d_tests import TESTS  # noqa: E402  pylint: disable=wrong-import-position

if not has(TORCH_PYTHON, "torch"):
    pytest.skip(f"{TORCH_PYTHON} has no torch", allow_module_level=True)

RANKS = 4


@pytest.mark.parametrize("case", names_of("torch_backend"))
def test_case(launched, case):
    launched("torch_backend", RANKS, python=TORCH_PYTHON).check(case)


def test_launch_ends_well(launched):
    outcome = launched("torch_backend", RANKS, python=TORCH_PYTHON)
    assert outcome.status == 0, outcome.output[-3000:]


needs_expecttest = pytest.mark.skipif(
    not has(TORCH_PYTHON, "expecttest"),
    reason=f"{TORCH_PYTHON} has no expecttest, which torch's tests need; ZENPS_TORCH_PYTHON names one with torch 2.15 and expecttest",
)


@needs_expecttest
@pytest.mark.parametrize("case", TESTS)
def test_c10d(launched, case):
    """Of torch.testing._internal.distributed.distributed_test."""
    launched("torch_c10d", RANKS, python=TORCH_PYTHON).check(f"case_{case}")
