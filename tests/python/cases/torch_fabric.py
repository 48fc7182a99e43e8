"""Lightning's Fabric."""

from __future__ import annotations

from typing import Any

import torch
from integration import Net, batches, check, invalid

import lightning_fabric
import zenps
from zenps.torch import integrations


def trained(attach: Any) -> Any:
    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    net = Net()
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.3))
    states = attach(model)
    for batch in batches():
        optimizer.zero_grad()
        fabric.backward(model(batch))
        optimizer.step()
    return net, states


def case_fabric(job: zenps.Job) -> None:
    print("Fabric", lightning_fabric.__version__, "torch", torch.__version__)
    net, states = trained(lambda model: integrations.fabric(model, job))
    check(job, net, trained(lambda _: None)[0], states[0])


def case_not_wrapped(job: zenps.Job) -> None:
    class Other:
        _forward_module = torch.nn.Linear(2, 2)

    invalid("the model is a Linear and no DistributedDataParallel", lambda: integrations.fabric(Other(), job))
