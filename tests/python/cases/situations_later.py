"""Situations in which a module is not what it was when it was wrapped. DDP is wrapped anew then, for the right values."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from situation import Way, needs, net, sgd, steps
from torch import nn


def _later(way: Way, module: nn.Module, change: Callable[[nn.Module], Optional[nn.Module]],
           inputs: Callable[[int], Any]) -> None:  # fmt: skip
    """Two steps, the change, and three more."""

    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.SGD([parameter for parameter in module.parameters() if parameter.requires_grad], 0.1)

    model: Any = way.wrap(module)
    steps(way, model, optimizer(), 2, inputs=inputs)
    change(module)
    if way.kind == "gloo":
        del model
        model = way.wrap(module)
    steps(way, model, optimizer(), 3, first=2, inputs=inputs)
    way.keep_model(module)


class _Any(nn.Sequential):
    """Takes inputs of any dtype, and has a layer of the name `more` or not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x.to(self[0].weight.dtype)) if isinstance(self[0], nn.Linear) else super().forward(x)
        return x


def _net() -> nn.Module:
    return _Any(*net())


def _same_seed() -> None:
    torch.manual_seed(77)


def case_added_later(way: Way) -> None:
    def add(module: nn.Module) -> None:
        _same_seed()
        module.add_module("more", nn.Linear(3, 3))

    _later(way, _net(), add, way.inputs)


def case_replaced_later(way: Way) -> None:
    def replace(module: Any) -> None:
        _same_seed()
        module[2] = nn.Linear(9, 5)

    _later(way, _net(), replace, way.inputs)


def case_table_replaced_later(way: Way) -> None:
    """Words are added to the vocabulary."""

    def replace(module: Any) -> None:
        _same_seed()
        module[0] = nn.Embedding(4250, 4)

    _later(way, nn.Sequential(nn.Embedding(4200, 4), nn.Linear(4, 2)), replace, lambda step: way.ids(step, 4200))


def case_removed_later(way: Way) -> None:
    def remove(module: Any) -> None:
        module[2] = nn.Identity()
        module[4] = nn.Identity()

    _later(way, _net(), remove, way.inputs)


def case_unfrozen_later(way: Way) -> None:
    module = _net()
    module[0].requires_grad_(False)
    _later(way, module, lambda changed: changed.requires_grad_(True), way.inputs)


def case_double_later(way: Way) -> None:
    _later(way, _net(), lambda module: module.double(), way.inputs)


def case_half_later(way: Way) -> None:
    needs((2, 3))  # Gloo's sums of bf16
    _later(way, _net(), lambda module: module.to(torch.bfloat16), way.inputs)


def case_same_dtype_later(way: Way) -> None:
    """Nothing changes."""
    _later(way, _net(), lambda module: module.float().to("cpu"), way.inputs)


def case_load_state_dict_later(way: Way) -> None:
    """In place: the parameters are the same ones."""

    def load(module: nn.Module) -> None:
        module.load_state_dict({name: value * 0.5 for name, value in module.state_dict().items()})

    _later(way, _net(), load, way.inputs)


def case_load_state_dict_assigned_later(way: Way) -> None:
    needs((2, 1))

    def load(module: nn.Module) -> None:
        module.load_state_dict({name: value * 0.5 for name, value in module.state_dict().items()}, assign=True)

    _later(way, _net(), load, way.inputs)


def case_one_parameter_replaced_later(way: Way) -> None:
    def replace(module: Any) -> None:
        module[2].bias = nn.Parameter(torch.zeros(5))

    _later(way, _net(), replace, way.inputs)


def case_data_replaced_later(way: Way) -> None:
    """The same parameters, in other memory."""

    def replace(module: nn.Module) -> None:
        for parameter in module.parameters():
            parameter.data = parameter.data.clone() * 0.5

    _later(way, _net(), replace, way.inputs)


def case_pruned_later(way: Way) -> None:
    """A weight becomes another parameter, and a product of it."""
    import torch.nn.utils.prune

    def prune(module: Any) -> None:
        torch.nn.utils.prune.l1_unstructured(module[2], "weight", amount=0.3)

    _later(way, _net(), prune, way.inputs)


def case_optimizer_later(way: Way) -> None:
    """Another optimiser after some steps."""
    module = net()
    model = way.wrap(module)
    steps(way, model, sgd(module.parameters()), 2)
    steps(way, model, torch.optim.Adam(module.parameters(), 0.01), 2, first=2)
    way.keep_model(module)
