"""Situations of training, each over Gloo, by zt.ddp() and by GradientSync, on two ranks; situation.py runs one."""

from __future__ import annotations

import atexit
import importlib
import os
import unittest
import warnings
from typing import Any, Callable

import situation
import situations_expected as expected
import torch

import zenps

warnings.simplefilter("ignore")
torch.set_num_threads(1)
ROUND_TIMEOUT = 480  # of the job in which ranks exchange outcomes: one may be done long before another that hangs
MODULES = ("situations_plain", "situations_passes", "situations_rows", "situations_modules", "situations_later")
_runner = situation.Runner(zenps.init(round_timeout=ROUND_TIMEOUT))  # the job that runner.py has


def _case(name: str, function: Callable[[situation.Way], None], has_tables: bool) -> Callable[[Any], None]:
    def case(_: Any) -> None:
        kinds = tuple(kind for kind, wanted in expected.of(name).items() if wanted is not None)
        if not has_tables:  # zt.ddp() leaves these models to DDP
            kinds = tuple(kind for kind in kinds if kind != "hook/torch")
        outcomes = _runner.run(name, function, kinds)
        skipped = [each["text"] for each in outcomes[kinds[0]] if each["ended"] == "skipped"]
        if skipped:
            raise unittest.SkipTest(skipped[0])
        faults = expected.faults(name, outcomes)
        if faults:
            raise AssertionError("\n".join(faults))

    return case


for _module in MODULES:
    for _name, _function in vars(importlib.import_module(_module)).items():
        if _name.startswith("case_"):
            globals()[_name] = _case(_name[len("case_") :], _function, _module == "situations_rows")


def _leave() -> None:
    """Threads that hang would be waited for, in the end of an interpreter or in torch's."""
    if _runner.hung:
        os._exit(3)


atexit.register(_leave)
