"""Situations of one backward pass a step: models, optimisers and dtypes."""

from __future__ import annotations

import copy
import threading
from typing import Any, List

import torch
from situation import Way, needs, net, sgd, square, steps, train
from torch import nn
from torch.utils.checkpoint import checkpoint


def case_sgd(way: Way) -> None:
    train(way, net())


def case_adam(way: Way) -> None:
    train(way, net(), optimizer=lambda parameters: torch.optim.Adam(parameters, 0.01))


def case_lstm(way: Way) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.LSTM(6, 5, 2), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.rnn(x)[0])

    train(way, Model(), inputs=lambda step: way.inputs(step, 3, 4, 6))


def case_different_seeds(way: Way) -> None:
    torch.manual_seed(way.rank)
    train(way, net())


def case_frozen(way: Way) -> None:
    module = net()
    module[2].requires_grad_(False)
    train(way, module)


def case_freeze_later(way: Way) -> None:
    module = net()
    model = way.wrap(module, find_unused_parameters=True)
    optimizer = sgd(module.parameters())
    steps(way, model, optimizer, 2)
    module[0].requires_grad_(False)
    steps(way, model, optimizer, 2, first=2)
    way.keep_model(module)


def case_clip_grad_norm(way: Way) -> None:
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        (square(model(way.inputs(step))) * 100).backward()
        way.share("norm", nn.utils.clip_grad_norm_(module.parameters(), 0.5))
        optimizer.step()
    way.keep_model(module)


def case_autocast(way: Way) -> None:
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = square(model(way.inputs(step)))
        loss.backward()
        optimizer.step()
    way.keep_model(module)


def case_bf16_model(way: Way) -> None:
    needs((2, 3))  # Gloo's sums of bf16
    train(way, net().bfloat16(), inputs=lambda step: way.inputs(step).bfloat16())


def case_f64_model(way: Way) -> None:
    train(way, net().double(), inputs=lambda step: way.inputs(step).double())


def case_mixed_dtypes(way: Way) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.single, self.double_ = nn.Linear(6, 5), nn.Linear(5, 3).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.double_(self.single(x).double())

    train(way, Model())


def case_grad_scaler(way: Way) -> None:
    """An inf on one rank; unscale_() ahead of clipping."""
    needs((2, 3))  # a GradScaler for the CPU
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        loss = square(model(way.inputs(step)))
        scaler.scale(loss * (float("inf") if step == 1 and way.rank == 1 else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        way.share("scale", torch.tensor(scaler.get_scale()))
    way.keep_model(module)


def case_gradient_as_bucket_view(way: Way) -> None:
    train(way, net(), gradient_as_bucket_view=True)


def case_small_buckets(way: Way) -> None:
    train(way, net(), bucket_cap_mb=0.0001, sync={"bucket_mb": 0.0001})


def case_channels_last(way: Way) -> None:
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 3)).to(memory_format=torch.channels_last)
    train(way, module, inputs=lambda step: way.inputs(step, 2, 3, 7, 7).to(memory_format=torch.channels_last))


def case_scalar_and_empty_parameters(way: Way) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.nothing = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0))
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.scale + self.nothing.sum()

    train(way, Model())


def case_weight_norm(way: Way) -> None:
    train(way, nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 4)), nn.Linear(4, 2)))


def case_tied_dense(way: Way) -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    module[2].weight = module[0].weight
    train(way, module)


def case_complex_parameters(way: Way) -> None:
    needs((2, 3))  # Gloo's sums of complex numbers

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(6, dtype=torch.complex64))
            self.linear = nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = torch.view_as_real(self.factor * torch.complex(x, 2 * x))
            return self.linear(made[..., 0]) + self.linear(made[..., 1])

    train(way, Model())


def case_lbfgs(way: Way) -> None:
    module = net()
    model = way.wrap(module)
    optimizer = torch.optim.LBFGS(module.parameters(), 0.2, max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = square(model(way.inputs(0)))
        loss.backward()
        return loss.detach()

    for _ in range(2):
        optimizer.step(closure)
    way.keep("parameters", *module.parameters())  # loss is each rank's own, and with it the end of a step


def case_parameter_group_later(way: Way) -> None:
    module = net()
    model, optimizer = way.wrap(module), sgd(module[0].parameters())
    steps(way, model, optimizer, 2)
    optimizer.add_param_group({"params": list(module[2].parameters()), "lr": 0.05})
    steps(way, model, optimizer, 2, first=2)
    way.keep_model(module)


def case_empty_batch_on_one_rank(way: Way) -> None:
    train(way, net(), inputs=lambda step: way.inputs(step)[: 0 if step == way.rank else 4], loss=torch.sum)


def case_backward_in_another_thread(way: Way) -> None:
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss = square(model(way.inputs(step)))
        failed: List[BaseException] = []

        def backward(loss: torch.Tensor = loss) -> None:
            try:
                loss.backward()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        optimizer.step()
    way.keep_model(module)


def case_deepcopy_and_averages(way: Way) -> None:
    """A copy of the model follows its parameters, and can be used."""
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    averages = copy.deepcopy(module)
    for step in range(3):
        steps(way, model, optimizer, 1, first=step)
        with torch.no_grad():
            for own, new in zip(averages.parameters(), module.parameters()):
                own.mul_(0.9).add_(new, alpha=0.1)
        averages(way.inputs(step)).sum().backward()  # a pass of this rank alone
    way.keep_model(module)
    way.keep_model(averages)


def case_data_loader(way: Way) -> None:
    """Workers are children of this process."""
    data = [way.inputs(step, 6) for step in range(6)]
    batches = list(torch.utils.data.DataLoader(data, batch_size=2, num_workers=1))
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    again = iter(torch.utils.data.DataLoader(data, batch_size=2, num_workers=1))
    steps(way, model, optimizer, 3, inputs=lambda step: (batches[step] + next(again)) / 2)
    way.keep_model(module)


class _Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.first, x.requires_grad_(True), use_reentrant=self.reentrant)
        return self.out(checkpoint(self.second, torch.tanh(x), use_reentrant=self.reentrant))


def case_checkpoint(way: Way) -> None:
    train(way, _Checkpointed(False))


def case_checkpoint_reentrant(way: Way) -> None:
    train(way, _Checkpointed(True))


def case_static_graph(way: Way) -> None:
    train(way, net(), static_graph=True)


def case_static_graph_checkpoint(way: Way) -> None:
    train(way, _Checkpointed(True), static_graph=True)


def case_static_graph_unused(way: Way) -> None:
    module = net()
    module.unused = nn.Linear(3, 3)
    train(way, nn.Sequential(*list(module)[:5]), static_graph=True)


def _compiled(way: Way, before: bool) -> None:
    needs((2, 1))
    module = net()
    backend = "aot_eager"  # inductor takes a compiler's seconds
    torch._dynamo.reset()
    used: Any = torch.compile(module, backend=backend) if before else module
    model = way.wrap(used)
    model = model if before else torch.compile(model, backend=backend)
    steps(way, model, sgd(module.parameters()), 3)
    way.keep_model(module)


def case_compile_before(way: Way) -> None:
    _compiled(way, True)


def case_compile_after(way: Way) -> None:
    _compiled(way, False)
