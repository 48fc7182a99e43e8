"""OuterSync with a quorum on three ranks: two close an outer step, and the third is late, or catches up."""

from __future__ import annotations

import dataclasses
from typing import Any, Collection, Dict, List

import torch
from core import raises
from torch_outer import local_step, model_of, outer_of, sgd, values_of
from torch_sync import RANK, ROUND_TIMEOUT, WORLD, assert_bits, job, near, same_everywhere

import zenps
import zenps.torch as zt
from torch import nn
from zenps.torch.convert import tensor_of

assert ROUND_TIMEOUT  # runner.py has this timeout, too
RAW: Dict[str, Any] = {"values": "raw", "decay": 1.0, "broadcast_buffers": False, "quorum": 2, "grace": 0.0}
CUT = zt.ChunkTopK(4, 64)


class Training:
    """A model with its OuterSync, whose outer steps close in a chosen order. due: this rank's local progress."""

    def __init__(self, seed: int = 1, **arguments: Any) -> None:
        self.model = model_of(seed)
        self.outer = outer_of(self.model, outer=sgd(self.model, 1.0, 0.0), **{**RAW, **arguments})
        self.step = 0
        self.due = [torch.zeros_like(each) for each in self.model.parameters()]
        self.applied = [torch.zeros_like(each) for each in self.model.parameters()]
        self.lates: List[Any] = []

    def local(self, rank: int = RANK) -> None:
        self.step += 1
        before = values_of(self.model)
        local_step(self.model, self.step, rank)
        for total, was, now in zip(self.due, before, self.model.parameters()):
            total += was - now.detach()

    def count(self, applied: bool, before: Dict[str, torch.Tensor]) -> bool:
        """Adds the sum of an outer step: its mean times the ranks that it is of."""
        if applied:
            stats = self.outer.stats
            assert stats.contributors == WORLD - len(stats.late_ranks)
            self.lates.append(stats.late_ranks)
            for total, was, now in zip(self.applied, before.values(), self.outer.start.values()):
                total += stats.contributors * (was - now)
        return applied

    def once(self) -> None:
        """Local steps up to the next outer step."""
        applied = False
        while not applied:
            before = {name: value.clone() for name, value in self.outer.start.items()}
            self.local()
            applied = self.count(self.outer.step(), before)

    def together(self, late: Collection[int]) -> None:
        """The same. The late ranks begin when the others have ended."""
        if RANK in late:
            job.barrier()
        self.once()
        if RANK not in late:
            job.barrier()

    def check(self) -> None:
        """Of what all ranks gave, each value is in a sum, or kept."""
        self.outer.state_dict()  # ends what is pending
        kept = self.kept()
        for (name, parameter), total, due, applied in zip(self.model.named_parameters(), kept, self.due, self.applied):
            due -= self.outer.start[name] - parameter.detach()  # not given yet
            for each in (total, due):
                zt.all_reduce(each, job=job)
            near(applied + total, due, 1e-5)

    def kept(self) -> List[torch.Tensor]:
        residuals = self.outer._residuals()
        late = self.outer.state_dict()["late"]
        made = []
        for name, parameter in self.model.named_parameters():
            if name in residuals:
                assert name not in late
                made.append(tensor_of(residuals[name].residual, parameter.dtype).clone().view(parameter.shape))
            else:
                made.append(late.get(name, torch.zeros_like(parameter)).clone())
        return made


def case_late_ranks_lose_nothing(_: zenps.Job) -> None:
    """Each rank is late once: all apply the same means, of two ranks each, and late gradients come with the next step."""
    for arguments in ({"select": None}, {"select": CUT}, {"select": None, "fragments": 2}, {"select": CUT, "fragments": 2}):
        training = Training(every=3, **arguments)
        for late in ([2], [0], [1], [2], [2], [0]):
            training.together(late)
            assert training.outer.stats.late_ranks == tuple(late), training.outer.stats
            same_everywhere(*training.outer.start.values())
            if arguments.get("fragments", 1) == 1:
                same_everywhere(*values_of(training.model))
        assert training.outer.stats.late == {0: 2, 1: 1, 2: 3}[RANK] and training.outer.stats.steps == 6
        assert len(set(job.gather(str(training.outer.local_steps).encode()))) == 1
        assert training.lates == [(2,), (0,), (1,), (2,), (2,), (0,)]
        training.check()
        kept = sum(float(each.abs().sum()) for each in training.kept())
        assert len(training.outer._fragments) > 1 or (kept > 0) == (RANK == 0 or arguments["select"] is not None), kept
        training.outer.close()


def case_no_rank_is_late(_: zenps.Job) -> None:
    """In time within the grace: the parameters are those without a quorum, bit for bit."""
    models = []
    for arguments in ({"quorum": 1, "grace": 200.0}, {"quorum": 3, "grace": None}, {"quorum": None, "grace": None, "scheme": "balanced"}):
        training = Training(every=2, select=None, **arguments)
        for _step in range(3):
            training.once()
        assert training.outer.stats.late == 0 and training.lates == [()] * 3 and training.outer.stats.contributors == WORLD
        training.check()
        models.append(values_of(training.model))
        training.outer.close()
    for model in models[1:]:
        for own, right in zip(model, models[0]):
            assert_bits(own, right)


def answered(outer: zt.OuterSync) -> None:
    """Waits until a rank that is behind knows whether the others have begun."""
    outer._pace.has_begun(outer._step)
    outer._pace._asked.wait()


def case_catches_up(_: zenps.Job) -> None:
    """A rank that was away for five outer steps gets their sums in as many local steps; its gradient is in the sixth."""
    for arguments in ({"select": None}, {"select": CUT}, {"select": None, "fragments": 2}, {"select": None, "delay": 1}):
        training = Training(every=6, **arguments)
        outer, delay, last = training.outer, arguments.get("delay", 0), 6 // arguments.get("fragments", 1)
        if RANK == 2:
            job.barrier()  # the others have ended five
            training.once()
            assert training.step == last + delay and outer.stats.late == 1 and outer.local_steps == training.step
            for n in range(2, 6):
                answered(outer)
                before = {name: value.clone() for name, value in outer.start.items()}
                training.local()
                applied = outer.step()
                if delay:  # the sum is there with a local step of its own
                    assert not applied
                    for request in [*outer._control.requests, *(each for group in outer._flight.fragment.groups for each in group.requests)]:
                        request.wait()
                    training.local()
                    applied = outer.step()
                assert training.count(applied, before) and outer.stats.late == n and outer.stats.steps == n
            assert training.step == last + delay + 4 * (1 + delay) and outer.local_steps == 5 * last + delay
        else:
            for _step in range(5):
                training.once()
            assert outer.local_steps == training.step == 5 * last + delay
            job.barrier()
        assert training.lates == [(2,)] * 5
        same_everywhere(*outer.start.values())
        training.together([0])
        assert training.lates[-1] == (0,) and outer.stats.late == {0: 1, 1: 0, 2: 5}[RANK]
        same_everywhere(*outer.start.values())
        training.check()
        kept = sum(float(each.abs().sum()) for each in training.kept())
        if arguments["select"] is None and last == 6:
            assert (kept > 0) == (RANK == 0), kept
        training.outer.close()


def case_of_a_group(_: zenps.Job) -> None:
    """Two of three ranks, with other numbers in their group. The late one is named as in the job, and applies the same step."""
    for select in (None, CUT):
        if RANK == 0:
            job.barrier()
            job.barrier()
            continue
        group = job.group("two", [1, 2])
        model = model_of(1)
        words = ("rank 1 has quorum 1", "rank 2 has quorum 2")
        raises(zenps.ShapeMismatch, lambda: zt.OuterSync(model, group, **{**RAW, "quorum": RANK}), *words)  # noqa: B023
        outer = zt.OuterSync(model, group, every=2, outer=sgd(model, 1.0, 0.0), **{**RAW, "quorum": 1, "select": select})
        step = 0
        for n, late in enumerate((2, 1), 1):
            if RANK == late:
                job.barrier()
            applied = False
            while not applied:
                step += 1
                local_step(model, step, RANK)
                applied = outer.step()
            if RANK != late:
                job.barrier()
            assert outer.stats.late_ranks == (late,) and outer.stats.contributors == 1 and outer.stats.steps == n
            for own in (*outer.start.values(), *values_of(model)):
                first, second = group.gather(own.numpy().tobytes())
                assert first == second
        assert outer.stats.late == 1
        outer.close()
        group.close()


def case_two_are_behind(_: zenps.Job) -> None:
    """Two ranks that ask for the next outer step both hear of it when the third begins."""
    training = Training(every=6, select=None, quorum=1)
    outer = training.outer
    training.together([1, 2])
    assert outer.stats.late_ranks == (1, 2)
    assert RANK == 0 or not outer._pace.has_begun(outer._step)
    job.barrier()
    if RANK == 0:
        training.once()
        job.barrier()
    else:
        job.barrier()
        answered(outer)
        before = {name: value.clone() for name, value in outer.start.items()}
        training.local()
        assert training.count(outer.step(), before) and outer.local_steps == 12 and training.step == 7
    same_everywhere(*outer.start.values())
    training.check()
    outer.close()


def case_asks_end(_: zenps.Job) -> None:
    """An ask is given up ahead of its deadline, and no rank's step fails. The rank goes on at its own pace."""
    training = Training(every=2, select=None)
    outer = training.outer
    training.together([2])
    if RANK == 2:
        pace = outer._pace
        pace._quorum = dataclasses.replace(pace._quorum, patience=0.0)
        assert not pace.has_begun(outer._step)
        pace.tend()
        raises(zenps.Canceled, pace._asked.wait)
        pace._quorum = outer._quorum
        assert outer._quorum.patience == ROUND_TIMEOUT / 2 and not pace.has_begun(outer._step)
    job.barrier()
    training.together([0])
    assert outer.local_steps == training.step == 4 and outer.stats.late_ranks == (0,)
    training.together([1])  # rank 0 asks
    assert outer.local_steps == 6 and outer.stats.late_ranks == (1,)
    same_everywhere(*values_of(training.model))
    training.check()
    for place, tensor in enumerate(outer._pace.tensors):
        assert tensor.name.endswith(f".pace/{place}"), tensor.name
    outer.close()


def case_keeps_its_pace(_: zenps.Job) -> None:
    """A rank with its period's last local step ahead of the others is not behind any more."""
    training = Training(every=2, select=None)
    outer = training.outer
    training.together([2])
    assert outer._is_behind == (RANK == 2)
    begin = outer._begin

    def begins(*arguments: Any) -> Any:
        flight = begin(*arguments)
        job.barrier()  # rank 0 may begin
        return flight

    if RANK == 2:
        outer._begin = begins  # type: ignore[method-assign]
    else:
        job.barrier()
    if RANK == 1:
        job.barrier()  # ranks 0 and 2 have closed it
    training.once()
    if RANK != 1:
        job.barrier()
    assert outer.stats.late_ranks == (1,) and outer._is_behind == (RANK == 1)
    assert outer.local_steps == training.step == 4
    same_everywhere(*values_of(training.model))
    outer.close()


def case_late_in_a_part(_: zenps.Job) -> None:
    """Ranks may be late in the sum of one dtype alone. They keep the gradients of that one."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4, dtype=torch.float64))])
    outer = outer_of(model, every=1, select=None, outer=sgd(model, 1.0, 0.0), **RAW)
    first, second = outer._fragments[0].groups
    starts = [first.start, second.start]

    def start_first(step: int) -> None:
        if RANK == 2:
            job.barrier()
        starts[0](step)
        if RANK != 2:
            first.wait()
            job.barrier()

    def start_second(step: int) -> None:
        if RANK == 1:
            job.barrier()
        starts[1](step)
        if RANK != 1:
            second.wait()
            job.barrier()

    def move() -> None:
        with torch.no_grad():
            for parameter in model:
                parameter -= RANK + 1.0
        assert outer.step()

    first.start, second.start = start_first, start_second  # type: ignore[method-assign]
    move()
    first.start, second.start = starts  # type: ignore[method-assign]
    assert outer.stats.late_ranks == (1, 2) and outer.stats.contributors == 1
    assert list(outer.state_dict()["late"]) == [[], ["1"], ["0"]][RANK]
    for own, right in zip(model, (-1.5, -2.0)):
        assert torch.equal(own.detach(), torch.full_like(own, right)), own
    if RANK == 0:
        job.barrier()
    move()
    if RANK != 0:
        job.barrier()
    for own, right in zip(model, (-1.5 - (2 + 6) / 2, -2.0 - (4 + 3) / 2)):
        assert torch.equal(own.detach(), torch.full_like(own, right)), own
    outer.close()


def case_qsgd_with_a_delay(_: zenps.Job) -> None:
    """A late rank, with scales, and an exchange that is under way for a local step."""
    for select in (None, zt.ChunkTopK(64, 64)):
        training = Training(every=2, delay=1, values="qsgd8", select=select)
        for n, late in enumerate(([2], [2], [0], [1])):
            training.together(late)
            assert training.outer.stats.late_ranks == tuple(late) and training.outer.stats.steps == n + 1
            same_everywhere(*training.outer.start.values())
            assert len(set(job.gather(repr(sorted(training.outer._scales.items())).encode()))) == 1
        training.outer.close()


def case_qsgd(_: zenps.Job) -> None:
    """Ranks have the same scales, though those of a late rank do not count; its values come with the next step."""
    for select in (None, zt.ChunkTopK(100, 100)):
        model = nn.ParameterList([nn.Parameter(torch.zeros(100)) for _ in range(2)])
        outer = outer_of(model, every=1, outer=sgd(model, 1.0, 0.0), **{**RAW, "values": "qsgd8", "select": select})
        for late, size in ((2, 1.0), (0, 1.0), (1, 0.0)):
            if RANK == late:
                job.barrier()
            with torch.no_grad():
                model[0] += 1e-3
                model[1] += 1e3 * size if RANK == 2 else 0.0
            assert outer.step()
            if RANK != late:
                job.barrier()
            same_everywhere(*outer.start.values())
            assert len(set(job.gather(repr(sorted(outer._scales.items())).encode()))) == 1
        # Rank 2 moved parameter 1 twice by 1e3, and its first gradient came with the second. Means are of two ranks.
        near(outer.start["1"], torch.full((100,), 1e3), 0.02)
        # Parameter 0 of the steps: ranks 0 and 1; 1 and 2 (twice); 0 (twice) and 2.
        near(1e3 * outer.start["0"], torch.full((100,), 1.0 + 1.5 + 1.5), 0.1)
        outer.close()


def case_checkpoint(_: zenps.Job) -> None:
    """What is kept for a late rank is in its checkpoint, and in one of all ranks on rank 0."""
    lates = ([2], [1], [2], [2], [0], [1])
    for select in (None, CUT):

        def run(training: Training, first: int, last: int) -> None:
            for late in lates[first:last]:
                training.together(late)

        whole = Training(every=1, select=select)
        run(whole, 0, 6)
        whole.outer.close()
        training = Training(every=1, select=select)
        run(training, 0, 4)
        saved, model = training.outer.state_dict(), training.model.state_dict()
        assert bool(saved["late"]) == (RANK == 2 and select is None)
        alone = training.outer.state_dict(gather_state=True)
        assert RANK == 0 or not alone["late"]
        for name, _parameter in training.model.named_parameters() if select is None else ():
            (right,) = zt.broadcast_object((saved["late"][name],) if RANK == 2 else None, 2, job=job)
            assert RANK != 0 or torch.equal(alone["late"][name], right), name
        training.outer.close()
        again = Training(seed=3, every=1, select=select)
        again.model.load_state_dict(model)
        again.outer.load_state_dict(saved)
        again.step = training.step
        run(again, 4, 6)
        for own, right in zip([*values_of(again.model), *again.outer.start.values()], [*values_of(whole.model), *whole.outer.start.values()]):
            assert_bits(own, right)
        del saved["late"]  # of an older release
        again.outer.load_state_dict(saved)
        assert not again.outer.state_dict()["late"]
        again.outer.close()


def case_without_the_quorum(_: zenps.Job) -> None:
    """A run that goes on from a checkpoint without a quorum has a kept gradient once, of each rank or of all on rank 0."""
    for gather in (False, True):
        training = Training(every=1, select=None)
        training.together([2])
        saved, model = training.outer.state_dict(gather_state=gather), training.model.state_dict()
        assert bool(saved["late"]) == (RANK == (0 if gather else 2))
        training.outer.close()
        again = Training(every=1, select=None, quorum=None, grace=None)
        again.model.load_state_dict(model)
        again.outer.load_state_dict(saved)
        again.step = training.step
        for total, (name, _parameter) in zip(again.due, again.model.named_parameters()):
            total += saved["late"].get(name, torch.zeros_like(total))
        for _step in range(2):
            again.once()
        again.check()
        assert not again.outer.state_dict()["late"]
        again.outer.close()


def poison(training: Training) -> List[torch.Tensor]:
    good = values_of(training.model)
    with torch.no_grad():
        training.model.out.bias += float("nan")
    return good


def case_nan(_: zenps.Job) -> None:
    """A rank in time refuses the step for all, late ranks too. A late rank refuses it for itself."""
    for select in (None, CUT):
        training = Training(every=1, select=select)
        outer = training.outer
        for late in ([2], [0]):
            if RANK in late:
                job.barrier()
            training.local()
            good = poison(training) if RANK == 1 else values_of(training.model)
            error = raises(zenps.Invalid, outer.step, f"OuterSync {outer.name}: outer step 0: rank 1: ", "No parameter was changed")
            assert ("outer gradient of out.bias holds NaN" if RANK == 1 else "its own error says why") in str(error), error
            with torch.no_grad():
                for parameter, value in zip(training.model.parameters(), good):
                    parameter.copy_(value)
            if RANK not in late:
                job.barrier()
        training.together([2])  # the steps count from here
        assert outer.stats.steps == outer.local_steps == 1
        if RANK == 2:
            job.barrier()
            training.local()
            poison(training)
            words = f"OuterSync {outer.name}: outer step 1 was made without this rank, whose outer gradient of out.bias holds NaN"
            raises(zenps.Invalid, outer.step, words)
        else:
            training.once()
            job.barrier()
        assert outer.stats.steps == outer.local_steps == 2
        same_everywhere(*values_of(training.model))
        training.together([0])
        same_everywhere(*values_of(training.model))
        assert all(torch.isfinite(each).all() for each in values_of(training.model))
        outer.close()


def case_nan_after_a_refused_step(_: zenps.Job) -> None:
    """A late rank with NaN has the parameters of the others, though residuals hold the gradient of a step that was refused."""
    training = Training(every=1, select=CUT)
    outer = training.outer
    if RANK == 0:
        job.barrier()
    training.local()
    good = poison(training) if RANK == 1 else values_of(training.model)
    raises(zenps.Invalid, outer.step, "rank 1: ", "No parameter was changed")
    with torch.no_grad():
        for parameter, value in zip(training.model.parameters(), good):
            parameter.copy_(value)
    if RANK != 0:
        job.barrier()
    if RANK == 2:
        job.barrier()
        training.local()
        poison(training)
        raises(zenps.Invalid, outer.step, "was made without this rank", "Its parameters are those of the others")
    else:
        training.once()
        job.barrier()
    same_everywhere(*values_of(training.model))
    assert all(torch.isfinite(each).all() for each in values_of(training.model))
    outer.close()


def case_nan_with_a_delay(_: zenps.Job) -> None:
    """A late rank with NaN can be saved as the others can. Its next step() raises."""
    training = Training(every=2, delay=1, select=None)
    outer = training.outer
    if RANK == 2:
        job.barrier()
        training.local()
        assert not outer.step()
        training.local()
        poison(training)
        assert not outer.step()
        assert outer.state_dict()["steps"] == 1
        training.local()
        raises(zenps.Invalid, outer.step, "outer step 0 was made without this rank, whose outer gradient of out.bias holds NaN")
    else:
        training.once()
        job.barrier()
    assert outer.local_steps == 3
    same_everywhere(*outer.start.values())
    outer.close()


def case_a_rank_is_lost(_: zenps.Job) -> None:
    """A rank that gives up an outer step lacks its sum. The others go on, and it says so from then on."""
    training = Training(every=1, select=None)
    training.together([2])
    outer = training.outer
    if RANK == 2:
        job.barrier()  # a gradient in time would make another rank late

        def fail(*_: Any) -> None:
            raise KeyboardInterrupt

        outer._wait = fail  # type: ignore[method-assign]
        before = values_of(training.model)
        raises(KeyboardInterrupt, outer.step, "")
        for own, was in zip(values_of(training.model), before):
            assert_bits(own, was)
        words = "outer step 1 failed on this rank: KeyboardInterrupt. The others may have gone on without this rank: start all ranks again"
        raises(zenps.Invalid, outer.step, words)
    else:
        for _step in range(3):
            training.once()
        job.barrier()
        assert training.lates == [(2,)] * 4
    job.barrier()
    outer.close()


def case_fails_with_the_sum(_: zenps.Job) -> None:
    """A rank whose outer optimiser raises lacks the sum, too."""
    training = Training(every=1, select=None)
    outer = training.outer
    if RANK == 1:

        def fail(*_: Any) -> None:
            raise MemoryError("none left")

        outer.outer.step = fail  # type: ignore[method-assign]
        training.local()
        before = values_of(training.model)
        raises(MemoryError, outer.step, "none left")
        for own, was in zip(values_of(training.model), before):
            assert_bits(own, was)
        raises(zenps.Invalid, outer.step, "outer step 0 failed on this rank: none left. The others may have gone on without this rank")
    else:
        training.once()
        training.once()
    job.barrier()
    outer.close()


def case_too_late(_: zenps.Job) -> None:
    """Servers keep the sums of 16 outer steps."""
    training = Training(every=1, select=None)
    if RANK == 2:
        job.barrier()
        raises(zenps.Stale, training.once, "outer step 0: this rank is too late for the sum; servers keep 16, or fewer where memory is short. Start")
        raises(zenps.Invalid, training.once, "outer step 0 failed on this rank")
    else:
        for _step in range(40):
            training.once()
        job.barrier()
    job.barrier()
    training.outer.close()


def case_refused(_: zenps.Job) -> None:
    """Each argument that cannot be right has its sentence."""
    model = model_of()
    for words, arguments in (
        ("quorum 0 of 3 ranks; must be 1 to 3, or None to wait for all", {"quorum": 0}),
        ("quorum 4 of 3 ranks; must be 1 to 3", {"quorum": 4}),
        ("quorum 0.5 of 3 ranks; must be 1 to 3", {"quorum": 0.5}),
        ("quorum True of 3 ranks; must be 1 to 3", {"quorum": True}),
        ("grace -1.0; must be 0 to 86400 seconds", {"grace": -1.0}),
        ("grace nan; must be 0 to 86400 seconds", {"grace": float("nan")}),
        ("a grace of 5.0 s without a quorum; give quorum=, 1 to 3 ranks", {"quorum": None, "grace": 5.0}),
        ("quorum 2 with scheme 'ring'; rounds with a quorum have the scheme 'balanced'", {"scheme": "ring"}),
        ("a grace of 240 s with a round_timeout of 240 s; an outer step closes at its deadline", {"grace": float(ROUND_TIMEOUT)}),
        ("quorum 2 with a select of scheme 'agsparse'; rounds with a quorum have the scheme 'balanced': take a selection", {"select": "gaussiank"}),
        ("the module has buffers (norm.running_mean, ...), and rank 0, which gives them, may be late", {"broadcast_buffers": True}),
    ):
        raises(zenps.Invalid, lambda: outer_of(model, **{**RAW, **arguments}), words)  # noqa: B023
    raises(zenps.ShapeMismatch, lambda: outer_of(model, **{**RAW, "quorum": 1 + RANK // 2}), "rank 0 has quorum 1", "rank 2 has quorum 2")
    outer_of(nn.Linear(2, 2), quorum=2).close()  # without buffers
