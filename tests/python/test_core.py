"""cases/core.py: four ranks, one job; cases/limits.py: two ranks."""

import pytest
from conftest import names_of


@pytest.mark.parametrize("case", names_of("core"))
def test_core(launched, case):
    launched("core", 4).check(case)


def test_core_ends_well(launched):
    assert launched("core", 4).status == 0, launched("core", 4).output[-3000:]


@pytest.mark.parametrize("case", names_of("limits"))
def test_limits(launched, case):
    launched("limits", 2).check(case)
