"""Elastic training: ranks die in backward(), others come. Arguments: the coordinator, a folder, scenarios. Each process of a
scenario is a fork of this one, which has imported torch already; it leaves what it has seen in SCENARIO.PROCESS.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import signal
import sys
import traceback
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

import zenps
import zenps.torch as zt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
COORDINATOR, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
KILLED_AT = 4  # step of the process that dies in it
MORE = 3  # steps in the smaller world before another one may come, and after it has
COMPRESS = zt.TopK(0.1, kind="topk", min_numel=2000, start_iter=1)
SCHEME = "balanced"  # an elastic job has no other, and the reference is to have its bits


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(500, 8)
        self.norm = nn.BatchNorm1d(8)
        self.hidden = nn.Linear(8, 300)
        self.out = nn.Linear(300, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(self.norm(self.table(ids)))))


class Trainer:
    """A model with all that belongs to it. how: "sync", "compress" or "ddp"."""

    def __init__(self, how: str, job: zenps.Job, seed: int) -> None:
        torch.manual_seed(seed)
        self.job = job
        self.model = self.trained = Model()
        if how == "ddp":
            self.trained = DistributedDataParallel(self.model)
            self.sync: Any = zt.ddp(self.trained, job, tables=["table.weight"], dense_scheme=SCHEME)
        else:
            compress = COMPRESS if how == "compress" else None
            self.sync = zt.GradientSync(self.model, job, tables=["table.weight"], compress=compress, dense_scheme=SCHEME)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def step(self, number: int) -> str:
        """The loss of this rank, as bits."""
        seed = 1000 * number + 10 * self.job.rank + self.job.world
        ids = torch.randint(0, 500, (16,), generator=torch.Generator().manual_seed(seed))
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.trained(ids).square().mean()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return float(loss).hex()

    def digest(self, buffers: bool = True) -> str:
        """Of parameters, momenta and settings; and of buffers, which are each rank's own while a generation lasts."""
        made = hashlib.sha256()
        for value in [*self.model.parameters(), *(self.model.buffers() if buffers else ())]:
            made.update(value.detach().numpy().tobytes())
        state = self.optimizer.state_dict()
        for _, each in sorted(state["state"].items()):
            for key in ("step", "exp_avg", "exp_avg_sq"):
                made.update(torch.as_tensor(each[key]).numpy().tobytes())
        made.update(repr([(group["lr"], group["betas"]) for group in state["param_groups"]]).encode())
        made.update(repr(self.schedule.last_epoch).encode())
        return made.hexdigest()[:16]

    def checkpoint(self) -> Dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "sync": self.sync}
        return {name: each.state_dict() for name, each in parts.items()}

    def load(self, saved: Dict[str, Any]) -> None:
        for name, state in saved.items():
            getattr(self, name).load_state_dict(state)


def reference(how: str, process: int) -> Tuple[Dict[int, str], str]:
    """Losses of three ranks, and of two from KILLED_AT on that start from a checkpoint; the digest there."""
    losses: Dict[int, str] = {}
    with zenps.init(COORDINATOR, f"{how}.three", process, 3) as job:
        three = Trainer(how, job, 5)
        for number in range(KILLED_AT):
            losses[number] = three.step(number)
        saved, digest = three.checkpoint(), three.digest()
    if process < 2:
        with zenps.init(COORDINATOR, f"{how}.two", process, 2) as job:
            two = Trainer(how, job, 6)
            two.load(saved)
            for number in range(KILLED_AT, KILLED_AT + MORE):
                losses[number] = two.step(number)
    return losses, digest


def train(how: str, process: int, come: Tuple[int, int]) -> Dict[str, Any]:
    """Process 2 dies, process 3 comes later."""
    if how == "ddp":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    expected: Tuple[Dict[int, str], str] = ({}, "")
    if process < 3:
        expected = reference(how, process)
        with zenps.init(COORDINATOR, f"{how}.ready", process, 3) as ready:
            ready.barrier()  # all come at once: the first generation has three
    else:
        os.read(come[0], 1)
    place = (process, 3) if process < 3 else (0, 1)
    job = zt.init(COORDINATOR, f"{how}.elastic", *place, min_world=2, max_world=3, join_wait=2)
    trainer = Trainer(how, job, 5 if process == 0 else 50 + process)
    objects = dict(model=trainer.model, optimizer=trainer.optimizer, schedule=trainer.schedule, sync=trainer.sync)
    state = zt.State(copies=how == "compress", **objects, seen=[0])
    losses: Dict[int, str] = {}
    begins: List[Tuple[int, int, int, str]] = []

    def body(given: zt.State) -> str:
        assert given is state
        first, begin = job.generation, state.step
        begins.append((first.number, first.world, begin, trainer.digest()))
        assert begin == first.step and state.seen == list(range(begin + 1)), (begin, first, state.seen)
        while not (first.number > 1 and first.world == 3 and state.step >= begin + MORE):
            if process == 2 and state.step == KILLED_AT:
                trainer.model.table.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            if process == 0 and state.step == KILLED_AT + MORE:
                os.write(come[1], b"!")
            losses[state.step] = trainer.step(state.step)
            state.seen = state.seen + [state.step + 1]
            state.commit()
        return "trained"

    said = zt.elastic(body, state)
    assert said == "trained"
    return {"losses": losses, "begins": begins, "expected": expected, "steps": state.step, "end": trainer.digest(buffers=False)}


def few(_: str, process: int, __: Any) -> Dict[str, Any]:
    """Two are needed, and one dies."""
    job = zt.init(COORDINATOR, "few", process, 2, min_world=2, max_world=2, join_wait=0.1, join_timeout=15)
    trainer = Trainer("sync", job, 5)
    state = zt.State(model=trainer.model, optimizer=trainer.optimizer, sync=trainer.sync)
    digests: List[str] = []

    def body(_: zt.State) -> None:
        while True:
            digests.append(trainer.digest())
            if process == 1 and state.step == 2:
                trainer.model.table.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            trainer.step(state.step)
            state.commit()

    try:
        zt.elastic(body, state)
    except zenps.MissingRanks as error:
        return {"error": str(error), "steps": state.step, "same": digests[-1] == trainer.digest(), "closed": job.closed}
    return {}


def outer(_: str, process: int, come: Tuple[int, int]) -> Dict[str, Any]:
    """Process 2 dies at an outer step, process 3 comes later. The ranks have other parameters between outer steps."""
    if process < 3:
        with zenps.init(COORDINATOR, "outer.ready", process, 3) as ready:
            ready.barrier()
    else:
        os.read(come[0], 1)
    place = (process, 3) if process < 3 else (0, 1)
    job = zt.init(COORDINATOR, "outer.elastic", *place, min_world=2, max_world=3, join_wait=2)
    torch.manual_seed(process)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = zt.OuterSync(model, job, every=3, select=zt.ChunkTopK(8, 256), values="qsgd4")
    state = zt.State(model=model, optimizer=optimizer, outer=steps, epoch=0)
    begins: List[Any] = []
    starts: Dict[int, str] = {}
    own = [""]

    def digest(values: Any) -> str:
        return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in values)).hexdigest()[:16]

    def body(_: zt.State) -> None:
        first, begin = job.generation, state.step
        assert steps.local_steps == begin, (steps.local_steps, begin)
        begins.append([first.number, first.world, begin, digest(steps.start.values()), digest(model.parameters()), own[0]])
        while not (first.number > 1 and first.world == 3 and state.step >= begin + 6):
            if process == 0 and state.step == 8:
                os.write(come[1], b"!")
            ids = torch.randint(0, 500, (16,), generator=torch.Generator().manual_seed(10 * state.step + process))
            optimizer.zero_grad(set_to_none=True)
            model(ids).square().mean().backward()
            optimizer.step()
            own[0] = digest(model.parameters())
            if process == 2 and state.step == 5:  # ahead of its push, without which no sum is whole
                os.kill(os.getpid(), signal.SIGKILL)
            if steps.step():
                own[0] = digest(model.parameters())
                starts[steps.stats.steps] = digest(steps.start.values())
                assert own[0] == starts[steps.stats.steps]
            state.commit()

    zt.elastic(body, state)
    return {"begins": begins, "starts": starts, "steps": state.step}


def stranger(_: str, process: int, come: Tuple[int, int]) -> Dict[str, Any]:
    """Process 2 comes with an argument of its own, and process 3 with another model. Process 4 trains as the first two."""
    if process > 1:
        os.read(come[0], 1)
    place = (process, 2) if process < 2 else (0, 1)
    job = zt.init(COORDINATOR, "stranger", *place, min_world=2, max_world=5, join_wait=0.5)
    trainer = Trainer("sync", job, 5 if process == 0 else 50 + process)
    if process == 2:
        trainer.sync.close()
        trainer.sync = zt.GradientSync(trainer.model, job, tables=["table.weight"], average=False, dense_scheme=SCHEME)
    objects = dict(optimizer=trainer.optimizer, schedule=trainer.schedule, sync=trainer.sync)
    state = zt.State(model=nn.Linear(2, 2) if process == 3 else trainer.model, **objects)

    def is_over() -> bool:
        there = [(FOLDER / f"stranger.{refused}.json").exists() for refused in (2, 3)]
        flag = torch.tensor([float(all(there) and job.world == 3)])
        zt.all_reduce(flag, "min", job=job)
        return bool(flag)

    def body(_: zt.State) -> None:
        while not is_over():
            if process == 0 and state.step == 3:
                os.write(come[1], b"!!!")
            trainer.step(state.step)
            state.commit()

    try:
        zt.elastic(body, state)
    except zenps.ShapeMismatch as error:
        return {"error": str(error), "closed": job.closed}
    return {"world": job.world, "end": trainer.digest(buffers=False)}


def last(_: str, process: int, __: Any) -> Dict[str, Any]:
    """One dies when all steps are done: the other has what it trained."""
    job = zt.init(COORDINATOR, "last", process, 2, min_world=2, max_world=2, join_wait=0.1, join_timeout=15)
    trainer = Trainer("sync", job, 5)
    state = zt.State(model=trainer.model, optimizer=trainer.optimizer, sync=trainer.sync)

    def body(_: zt.State) -> int:
        while state.step < 2:
            trainer.step(state.step)
            state.commit()
        if process == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return state.step

    return {"steps": zt.elastic(body, state), "closed": job.closed}


def raises(kind: Any, words: str, call: Any) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError(f"{kind} was not raised")


def refusals(_: str, __: int, ___: Any) -> Dict[str, Any]:
    """One rank: what goes through elastic(), and what it refuses."""
    with zenps.init(COORDINATOR, "plain", 0, 1) as plain:
        raises(zenps.Invalid, "job plain is not elastic", lambda: zt.elastic(lambda _: None, zt.State(), job=plain))
    raises(zenps.Invalid, "'step' is taken", lambda: zt.State(**{"step": 3}))
    raises(zenps.Invalid, "'commit' is taken", lambda: zt.State(commit=3))
    job = zt.init(COORDINATOR, "alone", 0, 1, max_world=1)
    trainer = Trainer("sync", job, 5)
    raises(zenps.Invalid, "is not opened in generation 1 of job alone", lambda: trainer.step(0))
    outer_steps = zt.OuterSync(nn.Linear(2, 2), job)
    raises(zenps.Invalid, "copies=True does not copy an OuterSync; leave copies out", lambda: zt.State(copies=True, outer=outer_steps))
    words = "quorum 1 in elastic job alone; a quorum is for a job of fixed ranks"
    raises(zenps.Invalid, words, lambda: zt.OuterSync(nn.Linear(2, 2), job, name="quorum", quorum=1))
    zt.State(outer=outer_steps)
    outer_steps.close()
    state = zt.State(model=trainer.model, optimizer=trainer.optimizer, sync=trainer.sync, at=0)

    def fails(error: BaseException, then: Optional[str] = None) -> Any:
        calls = []

        def body(_: zt.State) -> Optional[str]:
            calls.append(state.at)
            if len(calls) == 2:
                return then
            trainer.step(0)
            state.at += 1
            state.commit()
            state.at += 7
            trainer.model.norm(torch.ones(4, 8))  # a forward pass changes buffers
            raise error

        return body

    raises(ZeroDivisionError, "mine", lambda: zt.elastic(fails(ZeroDivisionError("mine")), state))
    raises(zenps.ShapeMismatch, "ours", lambda: zt.elastic(fails(zenps.ShapeMismatch("ours")), state))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    wrapped = DistributedDataParallel(nn.Linear(2, 2))
    wrapped._delay_all_reduce_params = list(wrapped.parameters())
    raises(zenps.Unsupported, "leave that argument out", lambda: zt.ddp(wrapped, job))
    dist.destroy_process_group()
    state.at, before = 0, job.generation.number
    assert zt.elastic(fails(zenps.PeerLost("no rank in truth"), "again"), state) == "again"
    assert state.at == 1 and job.generation.number == before + 1 and job.generation.step == state.step
    assert trainer.model.norm.num_batches_tracked == state._saved["modules"]["model"]["norm.num_batches_tracked"]

    def torn(_: zt.State) -> None:
        trainer.step(0)
        raise zenps.PeerLost("after the optimiser's step")

    raises(zenps.Invalid, "parameters of model were changed after commit", lambda: zt.elastic(torn, state))
    raises(zenps.Unsupported, "a set; None, bools", lambda: zt.elastic(torn, zt.State(what={3})))
    parts = dict(model=trainer.model, optimizer=trainer.optimizer, schedule=trainer.schedule, sync=trainer.sync)
    state = zt.State(copies=True, **parts)
    digests: List[str] = []

    def whole(_: zt.State) -> None:
        digests.append(trainer.digest())
        if len(digests) == 1:
            torn(state)

    zt.elastic(whole, state)
    assert len(digests) == 2 and digests[0] == digests[1], digests
    return {"ok": True}


SCENARIOS: Dict[str, Tuple[Any, int]] = {
    "sync": (train, 4), "compress": (train, 4), "ddp": (train, 4), "few": (few, 2), "last": (last, 2), "outer": (outer, 4),
    "stranger": (stranger, 5), "refusals": (refusals, 1),
}  # fmt: skip


def child(scenario: str, process: int, come: Tuple[int, int]) -> None:
    code = 1
    try:
        seen = SCENARIOS[scenario][0](scenario, process, come)
        (FOLDER / f"{scenario}.{process}.json").write_text(json.dumps(seen))
        code = 0
    except BaseException:
        print(f"{scenario}, process {process}:\n{traceback.format_exc()}", flush=True)
    os._exit(code)


for name in sys.argv[3:]:
    pipe = os.pipe()
    pids = []
    for number in range(SCENARIOS[name][1]):
        pids.append(os.fork())
        if pids[-1] == 0:
            child(name, number, pipe)
    left, codes = set(pids), {}
    while left:
        pid, codes[pid] = os.wait()
        left.discard(pid)
        if os.WIFEXITED(codes[pid]) and codes[pid]:  # the others would wait for it
            for other in left:
                os.kill(other, signal.SIGKILL)
    print(name, [codes[pid] for pid in pids], flush=True)
