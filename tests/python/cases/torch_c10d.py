"""torch's own tests of torch.distributed over the backend zenps: those of c10d_tests.py, as far as this torch has them. Each
has a process group of its own, in processes that have run the ones before it."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import unittest
from datetime import timedelta
from typing import Any, Callable

import c10d_tests
import torch
import torch.distributed as dist

import zenps
import zenps.torch
from torch.testing._internal import common_distributed, common_utils

torch.set_num_threads(1)
FOLDER = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
os.environ.update(BACKEND="zenps", TEMP_DIR=str(FOLDER), INIT_METHOD=f"file://{FOLDER}/init")
for folder in ("barrier", "test_dir"):
    (FOLDER / folder).mkdir(exist_ok=True)
features = common_distributed.DistTestCases.backend_feature
features["plugin"].add("zenps")
for feature in ("ddp", "subgroup"):
    features[feature].add("zenps")
common_distributed.skip_if_small_worldsize = lambda test: test  # it wants 8 ranks for a group of ranks 1 and 2

torch.manual_seed(1)  # The tests make objects and models at random, when imported: the same on all ranks.
from torch.testing._internal.distributed import distributed_test  # noqa: E402  pylint: disable=wrong-import-position

SKIPS = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}


class Suite(distributed_test.DistributedTest._DistTestBase, common_utils.TestCase):  # type: ignore[misc]
    job: zenps.Job

    @property
    def rank(self) -> int:
        return self.job.rank

    @property
    def world_size(self) -> int:
        return self.job.world

    def _barrier(self, *_: Any, **__: Any) -> None:
        self.job.barrier()


def case_of(name: str) -> Callable[[zenps.Job], None]:
    def case(job: zenps.Job) -> None:
        if not hasattr(Suite, name):
            raise unittest.SkipTest(f"torch {torch.__version__} has no {name}")
        suite = Suite(name)
        suite.job = job
        where = FOLDER / name  # of the store
        dist.init_process_group("zenps", init_method=f"file://{where}", rank=job.rank, world_size=job.world,
                                timeout=timedelta(seconds=240))  # fmt: skip
        torch.manual_seed(1)
        try:
            getattr(suite, name)()
        except SystemExit as skip:
            raise unittest.SkipTest(SKIPS.get(skip.code, str(skip.code))) from None
        finally:
            dist.destroy_process_group()
            job.barrier()

    return case


for each in c10d_tests.TESTS:
    globals()[f"case_{each}"] = case_of(each)
