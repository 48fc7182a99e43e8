"""Training under torchft: a replica is killed in backward(), the others go on, and it comes back. Arguments: the coordinator, a
folder, and how gradients get to the Manager: "average" (average_gradients()) or "ddp" (torchft's DistributedDataParallel).
Each process is a fork of this one, which has imported torch already; a replica leaves what it has seen in PROCESS.json.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
import traceback
import warnings
from datetime import timedelta
from typing import Any, Callable, Dict, List, Tuple

import torch
import torchft

import zenps
from torch import nn
from torch.distributed import TCPStore
from torchft.coordination import LighthouseServer
from zenps.torch.torchft import ProcessGroupZenps, average_gradients

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message="Sparse invariant checks")
COORDINATOR, FOLDER, HOW = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
KILLED_AT = 4  # step of the replica that dies in it
MORE = 3  # steps of two replicas before the third comes back, and of three after it has
ROWS, BATCH = 500, 16
WAIT = timedelta(seconds=240)


class Model(nn.Module):
    """A table with sparse gradients; a layer that travels alone, and one that travels with others."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(ROWS, 8, sparse=True)
        self.hidden = nn.Linear(8, 40000)
        self.out = nn.Linear(40000, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(self.table(ids)))).square().mean()


def batch(step: int, rank: int, world: int) -> torch.Tensor:
    """Row numbers, none twice."""
    seed = 100 * step + 10 * rank + world
    return torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))[:BATCH]


def bits(model: nn.Module) -> List[str]:
    return [each.detach().numpy().tobytes().hex()[-4000:] + str(float(each.detach().double().sum())) for each in model.parameters()]


def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + WAIT.total_seconds()
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come within {WAIT}")
        time.sleep(0.02)


def lighthouse() -> None:
    """Until the parent ends it."""
    server = LighthouseServer("[::]:0", min_replicas=2, join_timeout_ms=20000, quorum_tick_ms=20, heartbeat_timeout_ms=5000)
    (FOLDER / "lighthouse.new").write_text(f"http://localhost:{server.address().rpartition(':')[2]}")
    (FOLDER / "lighthouse.new").rename(FOLDER / "lighthouse")
    signal.pause()


class Replica:
    """history: of each step that was committed, how many replicas took part; it goes to a replica that heals."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.model = Model(5 if process == 0 else 50 + process)
        self.plain = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.history: List[int] = []
        self.errors: List[Tuple[int, str, float]] = []  # step, kind, seconds since the kill
        self.began = -1
        self.group = ProcessGroupZenps(timeout=WAIT, coordinator=COORDINATOR)
        self.store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.manager = torchft.Manager(
            pg=self.group, load_state_dict=self.load, state_dict=self.state, min_replica_size=2, timeout=WAIT, quorum_timeout=WAIT,
            connect_timeout=WAIT, rank=0, world_size=1, store_addr="localhost", store_port=self.store.port, hostname="localhost",
            lighthouse_addr=(FOLDER / "lighthouse").read_text(), replica_id=f"replica_{min(process, 2)}",
        )  # fmt: skip
        self.trained: nn.Module = self.model
        if HOW == "ddp":
            self.trained = torchft.DistributedDataParallel(self.manager, self.model)
        self.optimizer = torchft.Optimizer(self.manager, self.plain)

    def state(self) -> Dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.plain.state_dict(), "history": list(self.history)}

    def load(self, state: Dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.plain.load_state_dict(state["optimizer"])
        self.history = list(state["history"])

    def done(self) -> bool:
        """The same on all: three replicas have trained for MORE steps since there were two."""
        after = self.history[self.history.index(2) :] if 2 in self.history else []
        return after.count(3) >= MORE

    def step(self) -> None:
        self.optimizer.zero_grad()
        step, rank = self.manager.current_step(), self.manager.participating_rank()
        world = self.manager.num_participants()
        if self.process == 2 and len(self.history) == KILLED_AT:
            self.model.table.weight.register_hook(lambda _: self.die())
        self.trained(batch(len(self.history), rank or 0, world)).backward()
        if HOW == "average":
            average_gradients(self.manager, self.model)
        error = self.manager.errored()
        if error is not None:
            kind = type(error.original_exception).__name__
            killed = FOLDER / "killed"
            self.errors.append((step, kind, time.time() - killed.stat().st_mtime if killed.exists() else -1.0))
        self.optimizer.step()
        if self.manager.current_step() > step:
            self.began = len(self.history) if self.began < 0 else self.began
            self.history.append(world)

    def die(self) -> None:
        (FOLDER / "killed").write_text("")
        os.kill(os.getpid(), signal.SIGKILL)


def reference(history: List[int]) -> List[str]:
    """One process, which adds the replicas' gradients in their order. In the first step all but one heal, and give zeros."""
    model = Model(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, world in enumerate(history):
        sums = [torch.zeros_like(each) for each in model.parameters()]
        ranks = range(world if step else 1)
        rows = torch.cat([batch(step, rank, world) for rank in ranks]).unique()
        for rank in ranks:
            model.zero_grad()
            model(batch(step, rank, world)).backward()
            for total, parameter in zip(sums, model.parameters()):
                total += parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        for total, parameter in zip(sums, model.parameters()):
            total /= world
            sparse = parameter is model.table.weight
            parameter.grad = torch.sparse_coo_tensor(rows[None], total[rows], total.shape).coalesce() if sparse else total
        optimizer.step()
    return bits(model)


def replica(process: int, come: Tuple[int, int]) -> None:
    until((FOLDER / "lighthouse").exists, "the lighthouse's address")
    made = Replica(process)
    if process < 3:  # heartbeats of all: the first quorum has three
        with zenps.init(COORDINATOR, "ready", process, 3) as ready:
            ready.barrier()
    told = False
    while not made.done():
        made.step()
        if process == 0 and not told and len(made.history) >= KILLED_AT + MORE:
            told = os.write(come[1], b"!") == 1
    seen = {
        "history": made.history, "began": made.began, "errors": made.errors, "weights": bits(made.model),
        "expected": reference(made.history), "group_error": repr(made.group.errored()),
    }  # fmt: skip
    (FOLDER / f"{process}.json").write_text(json.dumps(seen))
    made.manager.shutdown(wait=False)
    made.group.shutdown()


def child(body: Callable[..., None], *arguments: Any) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        body(*arguments)
        code = 0
    except BaseException:
        print(f"{body.__name__} {arguments}:\n{traceback.format_exc()}", flush=True)
    os._exit(code)


torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # the first optimiser imports much
house = child(lighthouse)
pipe = os.pipe()
pids = [child(replica, number, pipe) for number in range(3)]
os.close(pipe[1])
if os.read(pipe[0], 1):
    pids.append(child(replica, 3, pipe))
print("torch", torch.__version__, "codes", [os.waitpid(pid, 0)[1] for pid in pids], flush=True)
os.kill(house, signal.SIGKILL)
