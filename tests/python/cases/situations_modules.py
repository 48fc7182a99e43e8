"""Situations of what a module has beside parameters: buffers, names, what it writes, how it is saved."""

from __future__ import annotations

import io
from typing import Any

import torch
from situation import Way, needs, net, sgd, square, steps, train
from torch import nn


def _normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def case_batch_norm(way: Way) -> None:
    """Running statistics, which DDP takes from rank 0 ahead of each forward pass."""
    train(way, _normed(), number=4)


def case_batch_norm_without_broadcast(way: Way) -> None:
    train(way, _normed(), number=4, broadcast_buffers=False, sync={"broadcast_buffers": False})


def case_batch_norm_accumulation(way: Way) -> None:
    module = _normed()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        with way.no_sync(model):
            square(model(way.inputs(step))).backward()
        square(model(way.inputs(step + 20))).backward()
        optimizer.step()
    way.keep_model(module)


def case_batch_norm_eval_between(way: Way) -> None:
    """Ranks evaluate the module itself between steps, rank 0 more often: no rank waits for another, and all have the
    statistics of rank 0, which under DDP is the program's affair."""
    module = _normed()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    for step in range(3):
        steps(way, model, optimizer, 1, first=step)
        if way.kind != "sync":
            for buffer in module.buffers():
                torch.distributed.broadcast(buffer, 0, group=way.group)
        module.eval()
        with torch.no_grad():
            for batch in range(1 if way.rank else 3):
                way.keep("evaluated", module(way.inputs(50 + batch)))
        module.train()
    way.keep_model(module)


def case_batch_norm_frozen_statistics(way: Way) -> None:
    """A fine-tuned model, in eval() on all ranks."""
    module = _normed()
    module[1].eval()
    train(way, module)


def case_batch_norm_eval_on_one_rank(way: Way) -> None:
    module = _normed()
    if way.rank == 1:
        module.eval()
    train(way, module)


def case_sync_batch_norm(way: Way) -> None:
    """torch's own, which needs torch.distributed and a GPU."""
    train(way, nn.SyncBatchNorm.convert_sync_batchnorm(_normed()))


def case_spectral_norm(way: Way) -> None:
    """Its forward pass writes buffers."""
    train(way, nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), nn.Linear(4, 2)))


def case_forward_writes_parameters(way: Way) -> None:
    """A critic that clips its weights ahead of their use."""

    class Clipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.linear.weight.data.clamp_(-0.2, 0.2)
            with torch.no_grad():
                self.linear.bias.mul_(0.9)
            return self.linear(x)

    train(way, Clipped(), number=4)


def case_forward_replaces_data(way: Way) -> None:
    """Rows of length 1, in another memory after each forward pass."""

    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.linear.weight.data = nn.functional.normalize(self.linear.weight.data, dim=1)
            return self.linear(x)

    train(way, Unit(), number=4)


def _with_buffer(name: str, buffer: torch.Tensor) -> nn.Module:
    module = net()
    module.register_buffer(name, buffer)
    return module


def _ignoring(way: Way, module: nn.Module, name: str) -> None:
    if way.kind != "sync":
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, [name])


def case_expanded_buffer(way: Way) -> None:
    module = _with_buffer("mask", torch.ones(1, 8).expand(16, -1))
    _ignoring(way, module, "mask")
    train(way, module)


def case_overlapping_buffer(way: Way) -> None:
    module = _with_buffer("windows", torch.arange(10.0).as_strided((4, 4), (2, 1)))
    _ignoring(way, module, "windows")
    train(way, module)


def case_sparse_buffer(way: Way) -> None:
    """A graph's adjacency."""
    module = _with_buffer("adjacency", torch.eye(5).to_sparse())
    _ignoring(way, module, "adjacency")
    train(way, module)


def case_sparse_csr_buffer(way: Way) -> None:
    module = _with_buffer("adjacency", torch.eye(5).to_sparse_csr())
    _ignoring(way, module, "adjacency")
    train(way, module)


def case_buffers_of_other_lengths(way: Way) -> None:
    module = _with_buffer("seen", torch.zeros(10 + way.rank))
    module.register_buffer("mean", torch.arange(10.0))
    train(way, module)


def case_buffer_of_one_rank(way: Way) -> None:
    train(way, _with_buffer("seen", torch.zeros(10)) if way.rank == 0 else net())


def case_another_vocabulary(way: Way) -> None:
    module = nn.Sequential(nn.Embedding(4200 + way.rank, 4), nn.Linear(4, 2))
    train(way, module, inputs=lambda step: way.ids(step, 4200))


def case_another_vocabulary_sparse(way: Way) -> None:
    module = nn.Sequential(nn.Embedding(50 + way.rank, 4, sparse=True), nn.Linear(4, 2))
    train(way, module, inputs=lambda step: way.ids(step, 50))


def _named(way: Way, name: str) -> None:
    tables = nn.ModuleDict({name: nn.Embedding(4200, 4, sparse=True)})
    words = nn.ModuleDict({"tables": tables, "out": nn.Linear(4, 2)})

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = words

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.words["out"](tables[name](ids))

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, 0.1)

    train(way, Model(), optimizer=optimizer, inputs=lambda step: way.ids(step, 4200))


def case_long_names(way: Way) -> None:
    _named(way, "n" * 112)


def case_long_names_of_two_bytes(way: Way) -> None:
    _named(way, "\u00e4" * 90)


def case_names_with_tabs(way: Way) -> None:
    _named(way, "a\tb")


def case_names_with_spaces(way: Way) -> None:
    _named(way, "user id (hashed)")


def _saved(way: Way, module: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(module, file)
    saved = file.getvalue()
    assert b"zenps" not in saved, "what is saved can be loaded only where zenps is installed"
    file.seek(0)
    more: Any = {"weights_only": False} if "weights_only" in torch.load.__code__.co_varnames else {}
    loaded = torch.load(file, **more)
    loaded(way.inputs(0)).sum().backward()  # of this rank alone
    for own, wanted in zip(loaded.parameters(), module.parameters()):
        assert torch.equal(own, wanted)
    return saved


def case_save_and_load(way: Way) -> None:
    """The module itself, as word_language_model saves it, between steps."""
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    steps(way, model, optimizer, 2)
    _saved(way, module)
    steps(way, model, optimizer, 2, first=2)
    way.keep_model(module)


def case_script_later(way: Way) -> None:
    module = net()
    model, optimizer = way.wrap(module), sgd(module.parameters())
    steps(way, model, optimizer, 2)
    scripted = torch.jit.script(module)
    way.keep("scripted", scripted(way.inputs(0)))
    way.keep("traced", torch.jit.trace(module, way.inputs(0))(way.inputs(0)))
    steps(way, model, optimizer, 2, first=2)
    way.keep_model(module)


def case_sharded_module(way: Way) -> None:
    """FSDP's parameters are parts: it sums for itself."""
    needs((2, 6))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module = net()
    fully_shard(module, mesh=init_device_mesh("cpu", (way.world,)))
    train(way, module)
