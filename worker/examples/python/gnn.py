#!/usr/bin/env python3
"""GraphSAGE over learnable node embeddings: ranks touch rows that hardly overlap; AUC of edges held out.

    zenpsrun -n 4 -- worker/examples/python/gnn.py

Graph: WordNet's synsets and the pointers between them (Debian's wordnet-base); --data FILE with an edge a line; or --rmat SCALE.
"""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import torch
from torch import nn

import common
import data
from metrics import auc


class Model(nn.Module):
    """Two rounds of means over sampled neighbours."""

    def __init__(self, n_nodes: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.nodes = nn.Embedding(n_nodes, width, sparse=sparse)
        nn.init.normal_(self.nodes.weight, std=0.3)
        self.near, self.far = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

    def embed(self, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        """near [n, 1 + f]: a node and its neighbours; far [n, 1 + f, g]: neighbours of each of those; [n, width]."""
        middle = torch.relu(self.far(torch.cat([self.nodes(near), self.nodes(far).mean(2)], 2)))
        return self.near(torch.cat([middle[:, 0], middle[:, 1:].mean(1)], 1))

    def scores(self, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        """Two nodes an edge, one after the other: near [2 n, 1 + f]; [n]."""
        ends = self.embed(near, far)
        return (ends[0::2] * ends[1::2]).sum(1)

    def forward(self, near: torch.Tensor, far: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.scores(near, far), labels)


class Links(common.Task):
    name, metric, lower_is_better = "gnn", "AUC", False

    def __init__(self, arguments: Any) -> None:
        if arguments.rmat:
            self.n_nodes, edges = data.rmat(arguments.rmat, seed=arguments.seed)
        else:
            self.n_nodes, edges = data.edges(arguments.data) if arguments.data else data.graph()
        rng = np.random.default_rng(arguments.seed)
        edges = edges[rng.permutation(len(edges))]
        n_held_out = min(len(edges) // 10, 10000)
        self.train, held_out = edges[:-n_held_out], edges[-n_held_out:]
        self.n_samples, self.seed, self.fan = len(self.train), arguments.seed, arguments.fan
        both = np.concatenate([self.train, self.train[:, ::-1]])
        both = both[np.argsort(both[:, 0], kind="stable")]
        self.starts = np.searchsorted(both[:, 0], np.arange(self.n_nodes + 1))
        self.others = both[:, 1]
        self.held_out = self.inputs(held_out, np.random.default_rng(0))
        self.model = Model(self.n_nodes, arguments.width, common.sparse(arguments))

    def neighbours(self, nodes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """`fan` neighbours of each node, with repetition; the node itself where it has none."""
        start, count = self.starts[nodes], self.starts[nodes + 1] - self.starts[nodes]
        drawn = (rng.random(nodes.shape + (self.fan,)) * count[..., None]).astype(np.int64)
        at = np.minimum(start[..., None] + drawn, len(self.others) - 1)
        return np.where(count[..., None] > 0, self.others[at], nodes[..., None])

    def inputs(self, edges: np.ndarray, rng: np.random.Generator) -> Tuple[torch.Tensor, ...]:
        """Each edge, and one that starts alike and ends anywhere, which is no edge but by chance."""
        wrong = np.stack([edges[:, 0], rng.integers(0, self.n_nodes, len(edges))], 1)
        nodes = np.stack([edges, wrong], 1).reshape(-1)
        near = np.concatenate([nodes[:, None], self.neighbours(nodes, rng)], 1)
        labels = torch.tensor([1.0, 0.0]).repeat(len(edges))
        return torch.from_numpy(near), torch.from_numpy(self.neighbours(near, rng)), labels

    def batch(self, samples: List[int], step: int) -> Any:
        # Drawn sample by sample, so that it does not matter which rank has it.
        parts = [self.inputs(self.train[i : i + 1], np.random.default_rng((self.seed, step, i))) for i in samples]
        return tuple(torch.cat(each) for each in zip(*parts))

    @torch.no_grad()
    def evaluate(self) -> float:
        near, far, labels = self.held_out
        scores = torch.cat([self.model.scores(n, f) for n, f in zip(near.split(4096), far.split(4096))])
        return auc(scores.numpy(), labels.numpy())


if __name__ == "__main__":
    options = common.parser(__doc__.split("\n")[0], batch=128, lr=0.3)
    options.add_argument("--width", type=int, default=32)
    options.add_argument("--fan", type=int, default=4, help="neighbours that are sampled")
    options.add_argument("--rmat", type=int, default=0, metavar="SCALE", help="a generated graph of 2^SCALE nodes")
    common.run(Links, options.parse_args())
