"""Situations of several backward passes a step, none, or passes that are not alike on all ranks."""

from __future__ import annotations

import contextlib
from typing import Any, List

import torch
from situation import Way, needs, net, sgd, square, steps
from torch import nn


def _accumulate(way: Way, alone: bool, number: int = 3) -> None:
    """alone: all but the last pass of a step within no_sync()."""
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        for part in range(number):
            last = part == number - 1
            with way.no_sync(model) if alone and not last else contextlib.nullcontext():
                (square(model(way.inputs(10 * step + part))) / number).backward()
        optimizer.step()
    way.keep_model(module)


def case_accumulation(way: Way) -> None:
    _accumulate(way, True)


def case_accumulation_without_no_sync(way: Way) -> None:
    _accumulate(way, False, 2)


def case_accumulation_of_three_without_no_sync(way: Way) -> None:
    _accumulate(way, False)


def case_accumulation_by_flag(way: Way) -> None:
    """require_backward_grad_sync, which scripts set themselves: nanoGPT does."""
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        for part in range(3):
            model.require_backward_grad_sync = part == 2
            (square(model(way.inputs(10 * step + part))) / 3).backward()
        optimizer.step()
    way.keep_model(module)


def case_zero_grad_keeps_tensors(way: Way) -> None:
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        square(model(way.inputs(step))).backward()
        optimizer.step()
    way.keep_model(module)


def case_loop_by_hand(way: Way) -> None:
    """`.data` leaves no trace in version counters."""
    module = net()
    model = way.wrap(module)
    for step in range(4):
        square(model(way.inputs(step))).backward()
        for parameter in module.parameters():
            parameter.data -= 0.1 * parameter.grad.data
            parameter.grad.data.zero_()
    way.keep_model(module)


def case_loop_by_hand_zeros_first(way: Way) -> None:
    module = net()
    model = way.wrap(module)
    for step in range(4):
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()
        square(model(way.inputs(step))).backward()
        for parameter in module.parameters():
            parameter.data.add_(parameter.grad.data, alpha=-0.1)
    way.keep_model(module)


def case_gan(way: Way) -> None:
    """The discriminator has two passes a step, and gets gradients that nobody wants in the generator's."""
    generator, judge = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)), net()
    make, tell = way.wrap(generator), way.wrap(judge)
    optimizers = [sgd(generator.parameters()), sgd(judge.parameters())]
    for step in range(3):
        judge.zero_grad(set_to_none=True)
        square(tell(way.inputs(step)) - 1).backward()
        fake = make(way.inputs(50 + step))
        square(tell(fake.detach())).backward()
        optimizers[1].step()
        generator.zero_grad(set_to_none=True)
        square(tell(fake) - 1).backward()
        optimizers[0].step()
    way.keep_model(generator)
    way.keep_model(judge)


def case_retain_graph_two_losses(way: Way) -> None:
    """DDP leaves the second pass to each rank; the reference is one pass of both losses."""
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        out = model(way.inputs(step))
        if way.kind == "gloo":
            (square(out) + out.abs().mean()).backward()
        else:
            square(out).backward(retain_graph=True)
            out.abs().mean().backward()
        optimizer.step()
    way.keep_model(module)


def case_two_forwards_one_backward(way: Way) -> None:
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        (square(model(way.inputs(step))) + square(model(way.inputs(step + 20)) - 1)).backward()
        optimizer.step()
    way.keep_model(module)


def case_create_graph(way: Way) -> None:
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(2):
        optimizer.zero_grad(set_to_none=True)
        square(model(way.inputs(step))).backward(create_graph=True)
        optimizer.step()
    way.keep_model(module)


def case_gradient_penalty(way: Way) -> None:
    """A second derivative: a gradient by the inputs has a part in the loss."""
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        x = way.inputs(step).requires_grad_(True)
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (square(out) + (slope.norm(dim=-1) - 1).pow(2).mean()).backward()
        optimizer.step()
    way.keep_model(module)


def case_two_models_one_backward(way: Way) -> None:
    first, second = nn.Linear(6, 4), nn.Linear(4, 3)
    models = way.wrap(first), way.wrap(second)
    optimizer = sgd([*first.parameters(), *second.parameters()])
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        square(models[1](torch.tanh(models[0](way.inputs(step))))).backward()
        optimizer.step()
    way.keep_model(first)
    way.keep_model(second)


def case_two_models_in_another_order(way: Way) -> None:
    """Models of the same shapes, whose sums start in another order on each rank. Not from the start: DDP makes its buckets
    anew in the second forward pass, over Gloo, in the order of models."""
    modules = [nn.Linear(6, 4), nn.Linear(6, 4)]
    models = [way.wrap(module, own_group=True) for module in modules]
    optimizer = sgd([parameter for module in modules for parameter in module.parameters()])
    for step in range(5):
        order = [1, 0] if way.rank % 2 and step > 1 else [0, 1]
        optimizer.zero_grad(set_to_none=True)
        outs = {which: square(models[which](way.inputs(step)) - which) for which in order}
        (outs[0] + outs[1]).backward()
        optimizer.step()
    for module in modules:
        way.keep_model(module)


case_two_models_in_another_order.round_timeout = 15.0  # type: ignore[attr-defined]


class Branches(nn.Module):
    """`which` branch a batch takes; None: none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.left, self.right = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, which: Any) -> torch.Tensor:
        x = torch.tanh(self.start(x))
        return x if which is None else (self.right if which else self.left)(x)


def _branches(way: Way, choice: List[Any], average: bool = True, zero: bool = True, unused: bool = True) -> None:
    """choice: of each step. average False: sums. zero: all gradients are dropped ahead
    of each step, not only those that it makes."""
    module = Branches()
    model = way.wrap(module, sync={"average": average}, hook={"average": average}, find_unused_parameters=unused)
    optimizer = sgd(module.parameters())
    factor = way.world if way.kind == "gloo" and not average else 1  # a power of two: exact
    for step, which in enumerate(choice):
        used = module if zero else nn.ModuleList([module.start, module.right if which else module.left])
        used.zero_grad(set_to_none=True)
        (square(model(way.inputs(step), which)) * factor).backward()
        optimizer.step()
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                way.share(f"gradient of {name} in step {step}", parameter.grad)
    way.keep_model(module)


def case_unused_on_one_rank(way: Way) -> None:
    _branches(way, [way.rank % 2, None if way.rank % 2 else 1, 0])


def case_branches_alternate(way: Way) -> None:
    _branches(way, [0, 1, 0, 1])


def case_unused_by_all(way: Way) -> None:
    """Without find_unused_parameters Gloo's second pass is an error."""
    _branches(way, [0, 0, 0], unused=False)


def case_sums(way: Way) -> None:
    _branches(way, [way.rank % 2, 1, 0], average=False)


def case_stale_gradients_of_sums(way: Way) -> None:
    """A gradient of an earlier pass is there still, and not used in this one: it is not summed again."""
    _branches(way, [0, 1, 1, 1, 0], average=False, zero=False)


def case_stale_gradients_of_means(way: Way) -> None:
    _branches(way, [0, 1, 1, 1, 0], zero=False)


def _actor_and_critic(way: Way, average: bool) -> None:
    """Two optimisers in one module: each drops the gradients of its own half alone."""
    module = Branches()
    model = way.wrap(module, sync={"average": average}, hook={"average": average}, find_unused_parameters=True)
    optimizers = [sgd(module.left.parameters()), sgd([*module.start.parameters(), *module.right.parameters()])]
    factor = way.world if way.kind == "gloo" and not average else 1
    for step in range(4):
        optimizers[step % 2].zero_grad(set_to_none=True)
        module.start.zero_grad(set_to_none=True)
        (square(model(way.inputs(step), step % 2)) * factor).backward()
        optimizers[step % 2].step()
    way.keep_model(module)


def case_actor_and_critic(way: Way) -> None:
    _actor_and_critic(way, True)


def case_actor_and_critic_of_sums(way: Way) -> None:
    _actor_and_critic(way, False)


def case_optimizer_in_backward(way: Way) -> None:
    """torch's recipe that saves memory: each gradient is used and dropped as soon as it is there."""
    needs((2, 1))
    module = net()
    optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in module.parameters()}
    model = way.wrap(module)

    def use(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(use)
    for step in range(3):
        square(model(way.inputs(step))).backward()
    way.keep_model(module)


def _join(way: Way, module: nn.Module, inputs: Any, **ddp: Any) -> None:
    model = way.wrap(module)
    with way.join(model, **ddp):
        steps(way, model, torch.optim.SGD(module.parameters(), 0.1), 2 + 2 * way.rank, inputs=inputs)
    way.keep_model(module)


def case_join(way: Way) -> None:
    """Means over all ranks, as DDP has them unless it is told otherwise."""
    _join(way, net(), None)


def case_join_of_present_ranks(way: Way) -> None:
    """Means over ranks that have data."""
    _join(way, net(), None, divide_by_initial_world_size=False)


def case_join_dense_table(way: Way) -> None:
    """A table under "auto", by its rows, whose gradients are dense."""
    module = nn.Sequential(nn.Embedding(4200, 3), nn.Linear(3, 2))
    _join(way, module, lambda step: way.ids(step, 4200), divide_by_initial_world_size=False)


def case_join_evenly(way: Way) -> None:
    module = net()
    model = way.wrap(module)
    with way.join(model):
        steps(way, model, sgd(module.parameters()), 3)
    way.keep_model(module)


def case_a_rank_that_is_late(way: Way) -> None:
    """Rank 0 validates until rank 1 has given up."""
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    steps(way, model, optimizer, 2)  # DDP makes other buckets after the first, together
    if way.rank == 0:
        way.barrier()
        steps(way, model, optimizer, 1, first=2)
        return
    try:
        steps(way, model, optimizer, 1, first=2)
    finally:
        way.barrier()


case_a_rank_that_is_late.round_timeout = 10.0  # type: ignore[attr-defined]  # less than Gloo's, which ends the barrier
