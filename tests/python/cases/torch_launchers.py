"""A trainer that knows nothing of what has started it. Argument: "crash" makes rank 1 die in step 5 of the first attempt."""

from __future__ import annotations

import os
import sys

import torch

import zenps.torch as zt
from torch import nn

torch.set_num_threads(1)
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
job = zt.init()
torch.manual_seed(job.rank)
model = nn.Sequential(nn.EmbeddingBag(5000, 8, sparse=True), nn.Linear(8, 3))
sync = zt.GradientSync(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    if "crash" in sys.argv and attempt == 0 and job.rank == 1 and step == 5:
        os._exit(3)
    optimizer.zero_grad(set_to_none=True)
    model(torch.randint(0, 5000, (4, 6))).pow(2).sum().backward()
    optimizer.step()
sums = [float(parameter.sum()) for parameter in model.parameters()]
alike = len(set(job.gather(repr(sums).encode()))) == 1
print(f"trained: rank {job.rank} of {job.world}, attempt {attempt}, {'alike' if alike else 'DIFFERENT'}", flush=True)
