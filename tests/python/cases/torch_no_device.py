"""zenps.torch where zenps has no support for GPUs: found out once, and said once."""

from __future__ import annotations

import logging
from typing import List

import torch
from torch_sync import ROUND_TIMEOUT, job  # noqa: F401

import zenps
from zenps.torch import devices


def case_fallback(_: zenps.Job) -> None:
    asked: List[torch.device] = []

    def refused(own: zenps.Job, device: torch.device) -> object:
        """Of a device that this torch may not have."""
        asked.append(device)
        return devices.refusal(own, zenps.Array(id(own), "f32", (1,), device=device.index))

    devices._refused = refused
    lines: List[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("zenps").addHandler(handler)
    for _ in range(2):
        for index in (0, 1):
            assert devices.place(job, torch.device("cuda", index)) == devices.HOST
    assert asked == [torch.device("cuda", 0), torch.device("cuda", 1)], asked
    assert len(lines) == 2, lines
    for index, line in enumerate(lines):
        assert f"gradients on cuda:{index} go through copies in host memory: " in line, line
        assert "no support for GPUs here" in line and "/nowhere" in line, line
