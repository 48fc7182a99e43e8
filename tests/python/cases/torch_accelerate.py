"""Accelerate."""

from __future__ import annotations

from typing import Any

import torch
from integration import STEPS, Net, batches, check

import accelerate
import zenps
from zenps.torch import integrations


def trained(attach: Any, accumulated: int = 1) -> Any:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    states = attach(accelerator)
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.3))
    for batch in batches():
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
    return net, states


def case_accelerator(job: zenps.Job) -> None:
    print("Accelerate", accelerate.__version__, "torch", torch.__version__)
    net, states = trained(lambda accelerator: integrations.accelerate(accelerator, job))
    check(job, net, trained(lambda _: None)[0], states[0])


def case_accumulation(job: zenps.Job) -> None:
    net, states = trained(lambda accelerator: integrations.accelerate(accelerator, job, name="accumulated"), 3)
    check(job, net, trained(lambda _: None, 3)[0], states[0], STEPS // 3)


def case_two_models_and_an_evaluated_one(job: zenps.Job) -> None:
    """Each with tensors of its own."""
    accelerator = accelerate.Accelerator(cpu=True)
    states = integrations.accelerate(accelerator, job, name="two")
    first, second = accelerator.prepare(torch.nn.Linear(4, 4), torch.nn.Linear(5, 4))
    accelerator.prepare_model(torch.nn.Linear(3, 3), evaluation_mode=True)
    for model, width in ((first, 4), (second, 5)):
        model(torch.full((2, width), float(job.rank))).sum().backward()
        assert float(model.module.weight.grad[0, 0]) == 1.0
    assert [state.name for state in states] == ["two", "two.1"] and [state.stats.steps for state in states] == [1, 1]
