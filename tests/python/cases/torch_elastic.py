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
import time
import traceback
from typing import Any, Collection, Dict, List, Optional, Tuple

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
    """Process 2 comes with an argument of its own, process 3 with another model, process 5 with a process group. Process 4 trains as
    the first two."""
    if process > 1:
        os.read(come[0], 1)
    place = (process, 2) if process < 2 else (0, 1)
    job = zt.init(COORDINATOR, "stranger", *place, min_world=2, max_world=5, join_wait=0.5)
    trainer = Trainer("sync", job, 5 if process == 0 else 50 + process)
    if process == 2:
        trainer.sync.close()
        trainer.sync = zt.GradientSync(trainer.model, job, tables=["table.weight"], average=False, dense_scheme=SCHEME)
    if process == 5:
        trainer.sync.close()
        trainer.sync = zt.GradientSync(trainer.model, job, tables=["table.weight"], dense_scheme=SCHEME, dense="torch")
    objects = dict(optimizer=trainer.optimizer, schedule=trainer.schedule, sync=trainer.sync)
    state = zt.State(model=nn.Linear(2, 2) if process == 3 else trainer.model, **objects)

    def is_over() -> bool:
        there = [(FOLDER / f"stranger.{refused}.json").exists() for refused in (2, 3, 5)]
        flag = torch.tensor([float(all(there) and job.world == 3)])
        zt.all_reduce(flag, "min", job=job)
        return bool(flag)

    def body(_: zt.State) -> None:
        while not is_over():
            if process == 0 and state.step == 3:
                os.write(come[1], b"!!!!")
            trainer.step(state.step)
            state.commit()

    try:
        zt.elastic(body, state)
    except zenps.ShapeMismatch as error:
        return {"error": str(error), "closed": job.closed}
    return {"world": job.world, "end": trainer.digest(buffers=False)}


def odd(_: str, process: int, __: Any) -> Dict[str, Any]:
    """Two ranks begin with other arguments."""
    job = zt.init(COORDINATOR, "odd", process, 2, min_world=1, max_world=2)
    outer_steps = zt.OuterSync(nn.Linear(2, 2), job, every=2 + process)
    raises(zenps.ShapeMismatch, "elastic: rank 0 has every 2, ", lambda: zt.elastic(lambda _: None, zt.State(outer=outer_steps)))
    return {"ok": True}


class Counted:
    """OuterSync with a quorum in an elastic job. due: this process's local progress. applied: the sums of outer steps."""

    def __init__(self, how: str, process: int, quorum: int = 2, **places: Any) -> None:
        if process < 3:
            with zenps.init(COORDINATOR, f"{how}.ready", process, 3) as ready:
                ready.barrier()
        self.job = zt.init(COORDINATOR, how, **places)
        torch.manual_seed(process)
        self.model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 4)).double()
        travel: Dict[str, Any] = {"every": 4, "delay": 1, "fragments": 2} if "delay" in how else {"every": 2}
        self.outer = zt.OuterSync(
            self.model, self.job, values="raw", decay=1.0, quorum=quorum, grace=0.0, select=zt.ChunkTopK(4, 64) if "cut" in how else None,
            outer=torch.optim.SGD(self.model.parameters(), lr=1.0), **travel
        )  # fmt: skip
        self.state = zt.State(model=self.model, outer=self.outer)
        self.draws = torch.Generator().manual_seed(process)
        self.due = [torch.zeros_like(each) for each in self.model.parameters()]
        self.applied: Dict[int, List[torch.Tensor]] = {}
        self.starts: Dict[int, str] = {}
        self.lates: Dict[int, List[int]] = {}

    def digest(self) -> str:
        return hashlib.sha256(b"".join(each.numpy().tobytes() for each in self.outer.start.values())).hexdigest()[:16]

    def move(self) -> None:
        for total, parameter in zip(self.due, self.model.parameters()):
            move = torch.randn(parameter.shape, dtype=torch.float64, generator=self.draws)
            parameter.data -= move
            total += move

    def once(self, late: Collection[int] = ()) -> None:
        """Local steps up to the next outer step. The late ranks begin it when the others have ended it."""
        if self.job.rank in late:
            self.job.barrier()
        is_applied = False
        while not is_applied:
            self.move()
            before = [each.clone() for each in self.outer.start.values()]
            is_applied = self.outer.step()
        stats = self.outer.stats
        self.applied[stats.steps] = [stats.contributors * (was - now) for was, now in zip(before, self.outer.start.values())]
        self.starts[stats.steps], self.lates[stats.steps] = self.digest(), list(stats.late_ranks)
        if late and self.job.rank not in late:
            self.job.barrier()

    def given(self) -> List[torch.Tensor]:
        """What sums have of the local progress."""
        late, residuals = self.outer.state_dict()["late"], self.outer._residuals()
        made = []
        for (name, parameter), due in zip(self.model.named_parameters(), self.due):
            kept = late.get(name, torch.zeros_like(due))
            if name in residuals:
                kept = zt.convert.tensor_of(residuals[name].residual, torch.float64).view_as(due)
            made.append(due - kept - (self.outer.start[name] - parameter.detach()))
        return made

    def check(self, others: List[List[torch.Tensor]]) -> None:
        """Sums are of what the ranks gave, and `others` that are gone."""
        known = [json.loads(part) for part in self.job.gather(json.dumps(sorted(self.applied)).encode())]
        assert set().union(*known) == set(range(1, self.outer.stats.steps + 1)), known
        owned = [step for step in self.applied if not any(step in each for each in known[: self.job.rank])]
        for i, given in enumerate(self.given()):
            total = sum((self.applied[step][i] for step in owned), torch.zeros_like(given))
            zt.all_reduce(given, job=self.job)
            zt.all_reduce(total, job=self.job)
            given += sum(other[i] for other in others)
            assert torch.allclose(given, total, rtol=0.0, atol=1e-9), (i, float((given - total).abs().max()))


def quorum(how: str, process: int, come: Tuple[int, int]) -> Dict[str, Any]:
    """Process 0 misses the outer steps 3 to 5. Then process 2 dies, and process 3 comes later; or it comes at once ("joins").

    In "away" process 0 has not pushed step 3, and has committed more than the others. In "late" it has pushed step 3 too late. In
    "unheard" it was in time, and has not heard the sum. In "dies" process 1 is alone with the steps 3 to 5, and dies before it gives
    its state. In "left" process 0 is slow, and generation 2 begins without it."""
    if process == 3:
        os.read(come[0], 1)
    joins, dies, left = "joins" in how, "dies" in how, "left" in how
    places = dict(rank=process % 3, world=3 if process < 3 else 1, min_world=2 + joins, max_world=3 + joins)
    it = Counted(how, process, **places, join_wait=2, join_timeout=12 if left and process < 3 else None)
    outer, wait = it.outer, it.outer._wait
    begins: List[Any] = []

    def flag(name: str) -> None:
        (FOLDER / f"{how}.{name}").touch()

    def await_flag(name: str) -> None:
        while not (FOLDER / f"{how}.{name}").exists():
            time.sleep(0.01)

    def gives() -> None:
        torch.save(it.given(), FOLDER / f"{how}.{process}.given")

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def await_change() -> None:
        if left:
            await_flag("left")
        while not it.job.changed:
            time.sleep(0.01)

    def give_state() -> None:
        os.write(come[1], b"!")
        die()

    def unheard(flight: Any) -> None:
        if "unheard" in how:
            wait(flight)
        flag("pushed")
        await_change()
        raise zenps.Canceled("of the test")

    def miss() -> None:
        """Process 0, from step 3 on."""
        if "away" in how:
            it.move()
            flag("pushed")
            it.state.step += 40
            await_change()
            it.state.commit()
        if "late" in how:
            await_flag("five")
        outer._wait = unheard  # type: ignore[method-assign]
        it.once()

    def first() -> None:
        """Generation 1."""
        for late in ([2], [0]):
            it.once(late)
            it.state.commit()
        if dies and process > 0:
            gives()
        if process == 0:
            miss()
        if process == 2 and "unheard" in how:
            await_flag("three")
        while True:
            it.once()
            if process == 1 and outer.stats.steps == 3:
                flag("three")
            if process == 2 and outer.stats.steps == 5:
                flag("five")
                await_flag("pushed")
                if joins:
                    os.write(come[1], b"!")
                    if left:
                        while not it.job.changed:
                            time.sleep(0.01)
                        flag("moves")
                elif dies:
                    die()
                else:
                    gives()
                    die()
            if left and process == 1 and outer.stats.steps == 5:
                await_flag("moves")
                it.once()  # waits for process 0
            it.state.commit()

    def body(state: zt.State) -> None:
        outer._wait = wait  # type: ignore[method-assign]
        number, world, source = it.job.generation.number, it.job.world, it.job.generation.source
        begins.append([number, world, source, outer.furthest, outer.stats.steps, it.digest(), state.step, outer.local_steps])
        if dies and process == 1:
            outer.shared = give_state  # type: ignore[assignment,method-assign]
        if number == 1:
            first()
        if world == 2 and not dies:
            it.once()
            state.commit()
            os.write(come[1], b"!")
            while True:
                it.once()
                state.commit()
        if left and world == 3:
            it.once()
            state.commit()
            flag("left")
            while True:
                it.once()
                state.commit()
        for late in ([], [], []) if dies else ([2], [0], [1], []):
            it.once(late)
        it.check([torch.load(each) for each in FOLDER.glob(f"{how}.?.given")])

    zt.elastic(body, it.state)
    return {"begins": begins, "starts": it.starts, "lates": it.lates, "steps": outer.stats.steps}


def stale(how: str, process: int, _: Any) -> Dict[str, Any]:
    """Process 0 is too late for the sums that servers keep. It goes on with the others, and its gradient counts."""
    it = Counted(how, process, rank=process, world=3, min_world=3, max_world=3)
    forty = FOLDER / f"{how}.forty"
    seen: Dict[str, Any] = {}

    def body(state: zt.State) -> None:
        if it.job.generation.number == 1:
            it.once()
            while process == 0 and not forty.exists():
                time.sleep(0.01)
            while True:
                try:
                    it.once()
                except zenps.ZenpsError as error:
                    seen["error"] = type(error).__name__
                    raise
                if it.outer.stats.steps == 40:
                    forty.touch()
                state.commit()
        seen["steps"] = it.outer.stats.steps
        for late in ([0], [2]):
            it.once(late)
        it.check([])

    zt.elastic(body, it.state)
    return {**seen, "start": it.digest()}


def shrinks(how: str, process: int, _: Any) -> Dict[str, Any]:
    """Process 2 dies. Fewer ranks than the quorum go on: all are needed then."""
    it = Counted(how, process, quorum=3, rank=process, world=3, min_world=2, max_world=3, join_wait=2)

    def body(state: zt.State) -> List[int]:
        worlds.append(it.job.world)
        while state.step < 6:
            if process == 1 and state.step == 1:
                time.sleep(1.0)  # the others wait
            it.once()
            state.commit()
            if process == 2 and state.step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        return worlds

    worlds: List[int] = []
    zt.elastic(body, it.state)
    return {"worlds": worlds, "steps": it.outer.stats.steps, "late": it.outer.stats.late}


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
    words = "quorum 4097 of 4096 ranks; must be 1 to 4096"
    raises(zenps.Invalid, words, lambda: zt.OuterSync(nn.Linear(2, 2), job, name="quorum", quorum=4097))
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
    "stranger": (stranger, 6), "odd": (odd, 2), "refusals": (refusals, 1),
    "quorum": (quorum, 4), "shrinks": (shrinks, 3), "stale": (stale, 3),
}  # fmt: skip


def child(scenario: str, process: int, come: Tuple[int, int]) -> None:
    code = 1
    try:
        seen = SCENARIOS[scenario.split("-")[0]][0](scenario, process, come)
        (FOLDER / f"{scenario}.{process}.json").write_text(json.dumps(seen))
        code = 0
    except BaseException:
        print(f"{scenario}, process {process}:\n{traceback.format_exc()}", flush=True)
    os._exit(code)


for name in sys.argv[3:]:
    pipe = os.pipe()
    pids = []
    for number in range(SCENARIOS[name.split("-")[0]][1]):
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
