#!/usr/bin/env python3
"""Replicas that may die and come back while the others train on, under torchft; their gradients go over zenps.

    zenpsd --control-listen=127.0.0.1:4840 &                 # for other hosts 0.0.0.0:4840, with --tls-ca, --tls-cert and --tls-key
    torchft_lighthouse --min_replicas 2 &
    export ZENPS_COORDINATOR=HOST:4840 TORCHFT_LIGHTHOUSE=http://HOST:29510
    worker/examples/python/replicas.py --replica 0           # start 1, 2, ... in other terminals, or on other hosts

Kill one with any signal, and start it again with the same number: it takes the others' weights, and goes on with them. Each has
the same weights at the end, and says their checksum.

The model learns which of two items belong together, from the vectors of a table whose gradients are sparse.
"""

from __future__ import annotations

import argparse
import zlib
from datetime import timedelta
from typing import Any, Dict, Tuple

import torch
import torchft
from torch import nn
from torch.distributed import TCPStore

from zenps.torch.torchft import ProcessGroupZenps, average_gradients


class Model(nn.Module):
    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(items, width, sparse=True)
        nn.init.normal_(self.table.weight, std=0.3)
        self.turn = nn.Linear(width, width)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (self.turn(self.table(first)) * self.table(second)).sum(1)


def pairs(arguments: Any, step: int, rank: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Items of the same remainder belong together."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    first = torch.randint(0, arguments.items, (arguments.batch,), generator=draw)
    second = torch.randint(0, arguments.items, (arguments.batch,), generator=draw)
    together = torch.rand(arguments.batch, generator=draw) < 0.5
    second = torch.where(together, second - second % 4 + first % 4, second).clamp_(max=arguments.items - 1)
    return first, second, (first % 4 == second % 4).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--replica", type=int, required=True, help="number of this one")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--min-replicas", type=int, default=2, help="a step needs so many")
    parser.add_argument("--every", type=int, default=20, help="steps between two lines")
    parser.add_argument("--host", default="localhost", help="name of this host, for the others")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    model = Model(arguments.items, arguments.width)
    inner = torch.optim.Adagrad(model.parameters(), lr=arguments.lr)

    def state() -> Dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load(others: Dict[str, Any]) -> None:
        model.load_state_dict(others["model"])
        inner.load_state_dict(others["optimizer"])

    store = TCPStore(arguments.host, 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupZenps(timeout=timedelta(seconds=60))
    manager = torchft.Manager(
        pg=group, load_state_dict=load, state_dict=state, min_replica_size=arguments.min_replicas,
        quorum_timeout=timedelta(minutes=10), rank=0, world_size=1, store_addr=arguments.host, store_port=store.port,
        hostname=arguments.host, replica_id=f"replica_{arguments.replica}",
    )  # fmt: skip
    optimizer = torchft.Optimizer(manager, inner)
    while manager.current_step() < arguments.steps:
        optimizer.zero_grad()
        step = manager.current_step()
        first, second, labels = pairs(arguments, step, manager.participating_rank() or 0)
        loss = nn.functional.binary_cross_entropy_with_logits(model(first, second), labels)
        loss.backward()
        average_gradients(manager, model)
        optimizer.step()
        if step % arguments.every == 0:
            print(f"step {step}: loss {loss.item():.4f}, {manager.num_participants()} replicas", flush=True)
    checksum = 0
    for parameter in model.parameters():
        checksum = zlib.crc32(parameter.detach().numpy().tobytes(), checksum)
    print(f"step {manager.current_step()}: weights {checksum:08x}", flush=True)
    group.shutdown()
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
