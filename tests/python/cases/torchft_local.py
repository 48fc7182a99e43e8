"""torchft's LocalSGD and DiLoCo over ProcessGroupZenps: two replica groups of two ranks each. Arguments: the coordinator, a
folder. Each process is a fork of this one; rank GROUP.RANK leaves its weights, and the right ones, in GROUP.RANK.json.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import traceback
from datetime import timedelta
from typing import Any, Dict, List

import torch
import torchft

import zenps
from torch import nn
from torch.distributed import TCPStore
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD
from zenps.torch.torchft import ProcessGroupZenps

torch.set_num_threads(1)
COORDINATOR, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
WAIT = timedelta(seconds=240)
GROUPS, RANKS = 2, 2
EVERY, ROUNDS = 3, 3
HOWS = ("local", "diloco")


def made(rank: int) -> nn.Module:
    """Each rank of a group has a part of the model of its own."""
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 1))


def loss(model: nn.Module, group: int, rank: int, step: int) -> torch.Tensor:
    seed = 1000 * group + 100 * rank + step
    return model(torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))).square().mean()


def inner(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def outer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)


def train(how: str, group: int, rank: int, store: int) -> List[float]:
    model = made(rank)
    optimizer = inner(model)
    process_group = ProcessGroupZenps(timeout=WAIT, coordinator=COORDINATOR)
    state: Dict[str, Any] = {}
    manager = torchft.Manager(
        pg=process_group, load_state_dict=lambda _: None, state_dict=lambda: state, min_replica_size=GROUPS, timeout=WAIT,
        quorum_timeout=WAIT, connect_timeout=WAIT, rank=rank, world_size=RANKS, store_addr="localhost", store_port=store,
        lighthouse_addr=until(FOLDER / f"lighthouse.{how}"), replica_id=f"{how}_{group}", hostname="localhost",
        use_async_quorum=False, init_sync=False,
    )  # fmt: skip
    if how == "local":
        context: Any = LocalSGD(manager, model, optimizer, sync_every=EVERY)
    else:
        context = DiLoCo(manager, [model], optimizer, outer(model), sync_every=EVERY, pin_memory=False)
    with context:
        for step in range(EVERY * ROUNDS):
            optimizer.zero_grad()
            loss(model, group, rank, step).backward()
            optimizer.step()
    assert manager.current_step() == ROUNDS and process_group.errored() is None, process_group.errored()
    assert process_group._current().world == GROUPS
    manager.shutdown(wait=False)
    process_group.shutdown()
    return flat(model)


def flat(model: nn.Module) -> List[float]:
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).tolist()


def right(how: str, rank: int) -> List[float]:
    """One process, with the models of both groups."""
    models = [made(rank) for _ in range(GROUPS)]
    common = made(rank)
    optimizers = [inner(model) for model in models]
    outside = outer(common)
    for number in range(ROUNDS):
        for group, (model, optimizer) in enumerate(zip(models, optimizers)):
            for step in range(number * EVERY, (number + 1) * EVERY):
                optimizer.zero_grad()
                loss(model, group, rank, step).backward()
                optimizer.step()
        with torch.no_grad():
            for own, *each in zip(common.parameters(), *(model.parameters() for model in models)):
                if how == "local":
                    own.copy_((each[0] + each[1]) / 2)
                else:
                    own.grad = ((own - each[0]) + (own - each[1])) / 2
        if how == "diloco":
            outside.step()
        for model in models:
            model.load_state_dict(common.state_dict())
    return flat(common)


def until(path: pathlib.Path) -> str:
    end = time.monotonic() + WAIT.total_seconds()
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path.name} did not come within {WAIT}")
        time.sleep(0.02)
    return path.read_text()


def put(path: pathlib.Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def process(group: int, rank: int) -> None:
    """Rank 0 has the group's store, and one process the lighthouses."""
    houses = []
    if (group, rank) == (0, 0):
        for how in HOWS:
            house = LighthouseServer("[::]:0", min_replicas=GROUPS, join_timeout_ms=60000, quorum_tick_ms=20, heartbeat_timeout_ms=60000)
            put(FOLDER / f"lighthouse.{how}", f"http://localhost:{house.address().rpartition(':')[2]}")
            houses.append(house)
    seen: Dict[str, Any] = {}
    for how in HOWS:
        address = FOLDER / f"store.{how}.{group}"
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
        if store is not None:
            put(address, str(store.port))
        seen[how] = [train(how, group, rank, int(until(address))), right(how, rank)]
        with zenps.init(COORDINATOR, f"over.{how}", RANKS * group + rank, GROUPS * RANKS) as over:
            over.barrier()
    put(FOLDER / f"{group}.{rank}.json", json.dumps(seen))
    os._exit(0)


if __name__ == "__main__":
    pids = []
    for number in range(GROUPS * RANKS):
        pid = os.fork()
        if not pid:
            try:
                process(*divmod(number, RANKS))
            except BaseException:
                print(f"process {number}:\n{traceback.format_exc()}", flush=True)
            os._exit(1)
        pids.append(pid)
    print("torch", torch.__version__, "codes", [os.waitpid(pid, 0)[1] for pid in pids], flush=True)
