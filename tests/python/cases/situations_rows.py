"""Situations of embeddings: tables, sparse gradients, batches without rows."""

from __future__ import annotations

from typing import Any, Optional

import torch
from situation import Way, sgd, square, steps, train
from torch import nn

ROWS = 4200  # a table under "auto"


class Words(nn.Module):
    def __init__(self, sparse: bool, rows: int = ROWS) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(rows, 4, sparse=sparse), nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.words(ids)))


def _rows(way: Way, module: nn.Module, optimizer: Any, rows: int = ROWS, **wrap: Any) -> None:
    train(way, module, optimizer=optimizer, inputs=lambda step: way.ids(step, rows), **wrap)


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, 0.2)


def case_sparse_sgd(way: Way) -> None:
    _rows(way, Words(True), _sgd)


def case_sparse_adagrad(way: Way) -> None:
    _rows(way, Words(True), lambda parameters: torch.optim.Adagrad(parameters, 0.1))


def case_sparse_adam(way: Way) -> None:
    """Its moments decay in every row that a gradient names."""
    module = Words(True)
    zero_rows = {"keep_zero_rows": True}
    model = way.wrap(module, sync=zero_rows, hook=zero_rows)
    optimizers = [torch.optim.SparseAdam([module.words.weight], 0.01), sgd(module.out.parameters())]
    for step in range(3):
        module.zero_grad(set_to_none=True)
        square(model(way.ids(step, ROWS))).backward()
        for optimizer in optimizers:
            optimizer.step()
    way.keep_model(module)


def case_small_sparse_table(way: Way) -> None:
    _rows(way, Words(True, 40), _sgd, 40)


def case_dense_table(way: Way) -> None:
    _rows(way, Words(False), _sgd)


def _change_through_data(way: Way, sparse: bool) -> None:
    """Between backward() and the optimiser, where no version of a tensor moves."""
    module = Words(sparse)
    model, optimizer = way.wrap(module), _sgd(module.parameters())
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        square(model(way.ids(step, ROWS))).backward()
        for parameter in module.parameters():
            values = parameter.grad.data._values() if parameter.grad.is_sparse else parameter.grad.data
            values.clamp_(-1e-3, 1e-3).mul_(0.5)
            if step % 2:
                parameter.grad.data = parameter.grad.data * 2.0
        optimizer.step()
    way.keep_model(module)


def case_dense_table_changed_through_data(way: Way) -> None:
    _change_through_data(way, False)


def case_sparse_table_changed_through_data(way: Way) -> None:
    _change_through_data(way, True)


def case_dense_table_adam(way: Way) -> None:
    _rows(way, Words(False), lambda parameters: torch.optim.Adam(parameters, 0.01))


class Tables(nn.Module):
    """Five of one width. one_gradient: the gradients of all are the same tensors."""

    def __init__(self, sparse: bool, one_gradient: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(100 + i, 4, sparse=sparse) for i in range(5))
        self.out = nn.Linear(4, 2)
        self.factors = [1.0 if one_gradient else 0.5 + i for i in range(5)]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        every = [table(ids) for table in self.tables]
        return self.out(sum(each * factor if factor != 1 else each for each, factor in zip(every, self.factors)))


def case_many_tables(way: Way) -> None:
    """Sparse tables of one width share a round."""
    _rows(way, Tables(True, False), _sgd, 100)


def case_many_tables_of_one_gradient(way: Way) -> None:
    """DDP divides such sparse gradients in place, once for each table: dense ones are the reference."""
    _rows(way, Tables(way.kind == "sync", True), _sgd, 100)


class Bag(nn.Module):
    def __init__(self, mode: str, sparse: bool, padding: Optional[int] = None) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, 4, mode=mode, sparse=sparse, padding_idx=padding)
        self.out = nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.bag(ids.view(-1, 4)))


def case_bag_sum(way: Way) -> None:
    _rows(way, Bag("sum", True), _sgd)


def case_bag_mean(way: Way) -> None:
    _rows(way, Bag("mean", True), _sgd)


def case_bag_max(way: Way) -> None:
    _rows(way, Bag("max", False), _sgd)


def case_bag_padding(way: Way) -> None:
    padding = torch.zeros(4, dtype=torch.long)
    train(way, Bag("sum", True, 0), optimizer=_sgd, inputs=lambda step: torch.cat([way.ids(step, ROWS), padding]))


def case_tied_dense_table(way: Way) -> None:
    """An output layer that is the embedding's weight: gradients of all rows."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(ROWS, 4), nn.Linear(4, ROWS, bias=False)
            self.out.weight = self.words.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.words(ids))

    _rows(way, Model(), _sgd)


def case_tied_sparse_table(way: Way) -> None:
    """A sparse gradient and a dense one of the same weight, which Gloo refuses."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(60, 4, sparse=True), nn.Linear(4, 60, bias=False)
            self.out.weight = self.words.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.words(ids))

    _rows(way, Model(), _sgd, 60)


class Padded(nn.Module):
    """`ids` None: a batch that has no use for the table."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(ROWS, 4, padding_idx=0, sparse=sparse), nn.Linear(4, 1)

    def forward(self, ids: Optional[torch.Tensor]) -> torch.Tensor:
        return self.out(self.words(ids) if ids is not None else torch.ones(2, 4))


def _nothing(way: Way, sparse: bool) -> None:
    """Rank 0 does not use the table in a step; the batch of the others is all padding."""
    module = Padded(sparse)
    model = way.wrap(module, find_unused_parameters=True)
    for step in range(3):
        module.zero_grad(set_to_none=True)
        padding = torch.zeros(3, dtype=torch.long)
        square(model((None if way.rank == 0 else padding) if step == 1 else way.ids(step, ROWS))).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-0.2)
    way.keep_model(module)


def case_nothing_in_a_dense_table(way: Way) -> None:
    _nothing(way, False)


def case_nothing_in_a_sparse_table(way: Way) -> None:
    _nothing(way, True)


def case_empty_bags_on_one_rank(way: Way) -> None:
    def bags(step: int) -> Any:
        return way.ids(step, ROWS)[: 0 if step == way.rank else 12]

    train(way, Bag("sum", True), optimizer=_sgd, inputs=bags, loss=torch.sum)


def case_sparse_accumulation(way: Way) -> None:
    """Rows of several passes; each has rows of its own."""
    module = Words(True)
    model, optimizer = way.wrap(module), _sgd(module.parameters())
    for step in range(2):
        optimizer.zero_grad(set_to_none=True)
        ids = way.ids(step, ROWS)
        with way.no_sync(model):
            square(model(ids[:6])).backward()
        square(model(ids[6:])).backward()
        optimizer.step()
    way.keep_model(module)


def case_join_sparse_table(way: Way) -> None:
    module = Words(True)
    model = way.wrap(module)
    with way.join(model, divide_by_initial_world_size=False):
        steps(way, model, _sgd(module.parameters()), 1 + way.rank, inputs=lambda step: way.ids(step, ROWS))
    way.keep_model(module)
