"""OuterSync on three ranks, beside a plain simulation of all ranks."""

from __future__ import annotations

import copy
import io
from typing import Any, Callable, Dict, List, Optional

import torch
from core import raises
from torch_sync import RANK, ROUND_TIMEOUT, WORLD, assert_bits, job, near, same_everywhere

import zenps
import zenps.torch as zt
from torch import nn
from zenps.torch.convert import tensor_of

assert ROUND_TIMEOUT  # runner.py has this timeout, too
_count = 0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(60, 24)
        self.norm = nn.BatchNorm1d(24)
        self.hidden = nn.Linear(24, 40)
        self.out = nn.Linear(40, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(self.norm(self.words(ids)))))


def model_of(seed: int = 1) -> Model:
    torch.manual_seed(seed)
    return Model()


def local_step(model: nn.Module, step: int, rank: int = RANK) -> None:
    """Of plain SGD, with a rate of the rank's own."""
    ids = torch.randint(0, 60, (8,), generator=torch.Generator().manual_seed(100 * step + rank))
    model.zero_grad(set_to_none=True)
    (model(ids) - rank).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter -= (0.002 + 0.001 * rank) * parameter.grad


def outer_of(model: nn.Module, **arguments: Any) -> zt.OuterSync:
    global _count
    _count += 1
    return zt.OuterSync(model, job, name=f"o{_count}", **arguments)


def sgd(model: nn.Module, lr: float = 0.7, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)


def values_of(module: nn.Module) -> List[torch.Tensor]:
    return [each.detach().clone() for each in module.parameters()]


def simulated(steps: int, every: int, parts: List[List[int]], delay: int) -> List[nn.Module]:
    """All ranks' models after DiLoCo with dense exchanges. parts: the parameters of each fragment, by place."""
    models = [model_of() for _ in range(WORLD)]
    common = model_of()
    optimizer = sgd(common)
    own = [list(model.parameters()) for model in models]
    starts = list(common.parameters())
    pending: Optional[Any] = None

    def end(part: List[int], sent: List[List[torch.Tensor]]) -> None:
        for parameter in starts:
            parameter.grad = None
        for j, i in enumerate(part):
            starts[i].grad = sum(starts[i].detach() - each[j] for each in sent) / WORLD
        optimizer.step()
        with torch.no_grad():
            for rank in range(WORLD):
                for j, i in enumerate(part):
                    own[rank][i].copy_(starts[i] + (own[rank][i] - sent[rank][j]))

    for step in range(1, steps + 1):
        for rank, model in enumerate(models):
            local_step(model, step, rank)
        if pending is not None and pending[0] == step:
            end(*pending[1:])
        for at, part in enumerate(parts):
            if step % every == (at + 1) * every // len(parts) % every:
                pending = step + delay, part, [[each[i].detach().clone() for i in part] for each in own]
                if not delay:
                    end(*pending[1:])
    return [common, *models]


def case_dense_outer_steps(_: zenps.Job) -> None:
    """The parameters are those of a process that simulates all ranks; the start has the same bits on all ranks."""
    for every, fragments, delay, host in ((4, 1, 0, False), (1, 1, 0, False), (6, 1, 5, True), (7, 3, 2, False), (5, 5, 0, False)):
        model = model_of() if RANK == 0 else model_of(RANK + 5)  # made those of rank 0
        outer = outer_of(model, select=None, values="raw", every=every, fragments=fragments, delay=delay, outer=sgd(model),
                         host_start=host, broadcast_buffers=False)  # fmt: skip
        names = [name for name, _ in model.named_parameters()]
        parts = [[names.index(slot.name) for slot in each.slots] for each in outer._fragments]
        assert len(parts) == fragments and sorted(sum(parts, [])) == list(range(len(names)))
        applied = []
        for step in range(1, 22):
            local_step(model, step)
            kept = model.out.weight.grad
            applied += [step] * outer.step()
            assert model.out.weight.grad is kept
        ends = sorted(n * every + (i + 1) * every // fragments + delay for n in range(22) for i in range(fragments))
        assert applied == [end for end in ends if end <= 21], (applied, ends)
        assert outer.stats.steps == len(applied) and outer.stats.bytes_out > 0 and outer.local_steps == 21
        common, *all_ranks = simulated(21, every, parts, delay)
        for own, right in zip(model.parameters(), all_ranks[RANK].parameters()):
            near(own.detach(), right.detach(), 1e-5)
        for name, right in common.named_parameters():
            near(outer.start[name], right.detach(), 1e-5)
        same_everywhere(*outer.start.values())
        outer.close()


def case_bits_are_the_same_everywhere(_: zenps.Job) -> None:
    """With every kind of values, after an outer step, parameters and BatchNorm's buffers; not between them."""
    kinds: List[Dict[str, Any]] = [{}, {"select": None, "values": "bf16"}, {"select": None}, {"select": None, "values": "qsgd8"}]
    kinds += [{"select": "topk", "values": "qsgd4"}, {"select": zt.ChunkTopK(8, 256), "values": "raw", "fragments": 2}]
    for kind in kinds:
        model = model_of(RANK)
        outer = outer_of(model, every=4, **kind)
        same_everywhere(*values_of(model), *model.buffers())
        before = values_of(model)
        for step in range(1, 9):
            local_step(model, step)
            if step == 6:  # the ranks differ
                assert len(set(job.gather(str(float(model.out.weight[0, 0])).encode()))) == WORLD
            outer.step()
        same_everywhere(*outer.start.values(), *model.buffers())
        if "fragments" not in kind:  # the first of two fragments had its turn two steps ago
            same_everywhere(*values_of(model))
        assert all(torch.isfinite(own).all() for own in values_of(model))
        assert any(not torch.equal(own, was) for own, was in zip(values_of(model), before))
        assert int(model.norm.num_batches_tracked) == 8
        outer.close()


def check_kept(model: nn.Module, outer: zt.OuterSync, first: List[torch.Tensor], due: List[torch.Tensor]) -> None:
    """With a rate of 1, no momentum and no decay: what the start moved by, and the residuals, are all the local progress."""
    residuals = outer._residuals()
    for (name, parameter), was, whole in zip(model.named_parameters(), first, due):
        kept = tensor_of(residuals[name].residual, parameter.dtype).clone().view(parameter.shape)
        zt.all_reduce(kept, "avg", job=job)
        zt.all_reduce(whole, "avg", job=job)
        near(was - outer.start[name] + kept, whole, 1e-5)


def case_nothing_is_lost(_: zenps.Job) -> None:
    """Also where steps fail on all ranks, and are tried again; with and without a delay."""
    for fails, delay in ((None, 0), (with_error, 0), (with_error, 2), (None, 3), (torn, 0), (torn, 2)):
        model = model_of()
        outer = outer_of(model, every=4, select=zt.ChunkTopK(4, 64), values="raw", decay=1.0, outer=sgd(model, 1.0, 0.0), delay=delay)
        first, due = values_of(model), [torch.zeros_like(each) for each in model.parameters()]
        for step in range(1, 14):
            before = values_of(model)
            local_step(model, step)
            for total, was, now in zip(due, before, model.parameters()):
                total += was - now.detach()
            if fails and step == 8 + delay:
                before = values_of(model)
                fails(outer, outer.step)
                assert all(torch.equal(own, was) for own, was in zip(values_of(model), before))
                if delay:
                    continue
            outer.step()
        outer.wait()
        outer.state_dict()  # ends what is pending
        for total, start, now in zip(due, outer.start.values(), model.parameters()):
            total -= start - now.detach()  # not given to the residual yet
        check_kept(model, outer, first, due)
        outer.close()


def with_error(outer: zt.OuterSync, call: Callable[[], Any]) -> None:
    """The exchange fails when its sum is there, on all ranks alike, with the buffers."""

    def fail(*_: Any) -> None:
        wait(*_)
        if outer._buffers is not None and outer._buffers._request is not None:
            outer._buffers._request.wait()
        raise zenps.Canceled("of the test")

    wait = outer._wait
    outer._wait = fail  # type: ignore[method-assign]
    raises(zenps.Canceled, call, "of the test")
    outer._wait = wait  # type: ignore[method-assign]


def torn(outer: zt.OuterSync, call: Callable[[], Any]) -> None:
    """The outer optimiser raises when it has stepped."""

    def fail() -> None:
        step()
        raise ValueError("of the test")

    step = outer.outer.step
    outer.outer.step = fail  # type: ignore[method-assign]
    raises(ValueError, call, "of the test")
    outer.outer.step = step  # type: ignore[method-assign]


def case_out_of_range(_: zenps.Job) -> None:
    """A sum that `values` cannot hold stays in the residuals."""
    model = model_of()
    outer = outer_of(model, every=1, select=zt.ChunkTopK(4, 64), values="f16", decay=1.0)
    with torch.no_grad():
        model.out.bias += 1e6
    raises(zenps.Invalid, outer.step, "the sum of out.bias is out of the range of values=")
    outer.state_dict()  # ends what is pending
    assert abs(float(tensor_of(outer._residuals()["out.bias"].residual, torch.float32)[0])) > 0.9e6
    outer.close()


def case_rates_change(_: zenps.Job) -> None:
    """What waits in a residual counts at the outer rate of its own step."""
    model = model_of()
    optimizer = sgd(model, 1.0, 0.0)
    outer = outer_of(model, every=2, select=zt.ChunkTopK(4, 64), values="raw", decay=1.0, outer=optimizer)
    first, due = values_of(model), [torch.zeros_like(each) for each in model.parameters()]
    for step, rate in enumerate((1.0, 1.0, 0.5, 0.5, 0.8, 0.8), 1):
        local_step(model, step)
        optimizer.param_groups[0]["lr"] = rate
        if step % 2 == 0:
            for total, start, now in zip(due, outer.start.values(), model.parameters()):
                total += rate * (start - now.detach())
        outer.step()
    for residual in outer._residuals().values():
        tensor_of(residual.residual, torch.float32).mul_(0.8)
    check_kept(model, outer, first, due)
    outer.close()


def case_missed_steps(_: zenps.Job) -> None:
    """A step fails on one rank, and the others have the sum. Its gradient counts once, and it keeps its local steps since then. A newcomer
    begins at the start. A rank that has missed nothing keeps its local steps, too."""
    for delay in (0, 1):
        model = model_of()
        outer = outer_of(model, every=2, select=zt.ChunkTopK(4, 64), values="raw", decay=1.0, outer=sgd(model, 1.0, 0.0), delay=delay)
        first, due = values_of(model), [torch.zeros_like(each) for each in model.parameters()]
        for step in range(1, 9 + delay):
            before = values_of(model)
            local_step(model, step)
            for total, was, now in zip(due, before, model.parameters()):
                total += was - now.detach()
            if RANK == 2 and step == 6 + delay:
                with_error(outer, outer.step)
            else:
                outer.step()
            if step == 6 + delay:
                outer.take(zt.broadcast_object(outer.shared() if RANK == 0 else None, 0, job=job))
                same_everywhere(*(values_of(model) if not delay else outer.start.values()))
        for total, start, now in zip(due, outer.start.values(), model.parameters()):
            total -= start - now.detach()  # not sent yet
        check_kept(model, outer, first, due)
        local_step(model, 9 + delay)
        outer.step()
        own = values_of(model)
        outer.take(zt.broadcast_object(outer.shared() if RANK == 0 else None, 0, job=job))
        assert all(torch.equal(now, was) for now, was in zip(values_of(model), own))
        newcomer = outer_of(model_of(7 + RANK), every=2, broadcast=False)
        with torch.no_grad():
            newcomer.module.out.bias += 1.0  # no local step
        residuals = [each.values.fill_(1.0) for each in newcomer._residuals().values()]  # from an earlier checkpoint
        newcomer.take(outer.shared())
        assert residuals and all(float(each.abs().max()) == 0.0 for each in residuals)
        for parameter, start in zip(newcomer.module.parameters(), outer.start.values()):
            assert_bits(parameter.detach(), start)
        assert newcomer.local_steps == 9 + delay and newcomer.stats.steps == 4
        newcomer.close()
        outer.close()


def case_missed_steps_of_fragments(_: zenps.Job) -> None:
    """A fragment's exchange failed on all ranks, then the next one's on one rank alone: of that rank the second alone counts as
    sent."""
    model = model_of()
    outer = outer_of(model, every=4, fragments=2, delay=1, select=zt.ChunkTopK(4, 64), values="raw", outer=sgd(model, 1.0, 0.0))
    for step in range(1, 7):
        local_step(model, step)
        if step == 3:  # the step does not count
            with_error(outer, outer.step)
        if step == 6 and RANK == 2:
            with_error(outer, outer.step)
        elif step != 3:
            outer.step()
    residuals = outer._residuals()

    def kept(at: int) -> List[torch.Tensor]:
        names = [slot.name for slot in outer._fragments[at].slots]
        return [tensor_of(residuals[name].residual, torch.float32).clone() for name in names]

    first, second = kept(0), kept(1)
    outer.take(zt.broadcast_object(outer.shared() if RANK == 0 else None, 0, job=job))
    assert all(torch.equal(now, was) for now, was in zip(kept(0), first))
    assert all(torch.equal(now, was) for now, was in zip(kept(1), second)) == (RANK != 2)
    outer.close()


def case_a_group_fails_to_start(_: zenps.Job) -> None:
    """Of a fragment with two dtypes, one is given to its residuals, and the other not. Both count once, when it is tried again."""
    for delay in (0, 1):
        model = model_of()
        model.out.double()
        outer = outer_of(model, every=2, select=zt.ChunkTopK(4, 64), values="raw", decay=1.0, outer=sgd(model, 1.0, 0.0), delay=delay)
        groups = outer._fragments[0].groups
        assert len(groups) == 2
        first, due = values_of(model), [torch.zeros_like(each) for each in model.parameters()]
        for step in range(1, 8):
            for i, (total, parameter) in enumerate(zip(due, model.parameters())):
                moved = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(97 * step + 7 * i + RANK)).to(parameter.dtype)
                total += moved
                parameter.data -= moved
            if step == 4:
                start = groups[1].start
                groups[1].start = no_memory  # type: ignore[method-assign]
                raises(MemoryError, outer.step, "of the test")
                groups[1].start = start  # type: ignore[method-assign]
                job.barrier()
            outer.step()
        outer.wait()
        outer.state_dict()
        for total, start, now in zip(due, outer.start.values(), model.parameters()):
            total -= start - now.detach()  # not given to the residual yet
        check_kept(model, outer, first, due)
        outer.close()


def no_memory(_: int) -> None:
    raise MemoryError("of the test")


def case_checkpoint(_: zenps.Job) -> None:
    """7 steps, save, load, and 8 more: the bits of 15."""
    kinds: List[Dict[str, Any]] = [{"every": 3, "values": "raw"}, {"every": 6, "fragments": 2, "delay": 2, "values": "bf16"}]
    kinds.append({"every": 4, "select": None, "values": "bf16"})
    for kind in kinds:

        def run(model: nn.Module, outer: zt.OuterSync, first: int, last: int) -> None:
            for step in range(first, last + 1):
                local_step(model, step)
                outer.step()

        whole = model_of()
        outer = outer_of(whole, **kind)
        run(whole, outer, 1, 7)
        outer.wait()
        run(whole, outer, 8, 15)
        starts = [each.clone() for each in outer.start.values()]
        outer.close()
        model = model_of()
        outer = outer_of(model, **kind)
        run(model, outer, 1, 7)
        file = io.BytesIO()
        torch.save({"outer": outer.state_dict(), "model": model.state_dict()}, file)
        outer.close()
        file.seek(0)
        saved = torch.load(file)
        model = model_of(3)
        outer = outer_of(model, **kind)
        model.load_state_dict(saved["model"])
        outer.load_state_dict(saved["outer"])
        run(model, outer, 8, 15)
        for own, right in zip([*model.parameters(), *outer.start.values()], [*whole.parameters(), *starts]):
            assert_bits(own.detach(), right.detach())
        gathered = outer.state_dict(gather_state=True)["compress"]
        assert all(not each["residual"].any() for each in gathered.values()) or RANK == 0
        small = copy.deepcopy(saved["outer"])
        del small["start"]["out.bias"]
        raises(zenps.Invalid, lambda: outer.load_state_dict(small), "parameter out.bias is missing in the state, and [1] here")  # noqa: B023
        outer.close()


def case_nan(_: zenps.Job) -> None:
    """One rank's NaN is an error of all ranks, which names rank and parameter; nothing has changed, and training goes on."""
    for kind in ({}, {"select": None, "values": "bf16"}):
        model = model_of()
        outer = outer_of(model, every=2, **kind)
        local_step(model, 1)
        assert not outer.step()
        local_step(model, 2)
        good = values_of(model)
        if RANK == 1:
            with torch.no_grad():
                model.hidden.bias[3] = float("nan")
                model.out.weight[0, 0] = float("inf")
        before = values_of(model)
        error = raises(zenps.Invalid, outer.step, "outer step 0: rank 1: outer gradient of hidden.bias, out.weight holds NaN or infinity")
        assert "rank 0" not in str(error) and not error.recoverable
        for own, was in zip(model.parameters(), before):
            assert_bits(own.detach(), was)
        assert outer.local_steps == 1
        with torch.no_grad():
            for own, was in zip(model.parameters(), good):
                own.copy_(was)
        assert outer.step() and outer.stats.steps == 1
        same_everywhere(*values_of(model))
        assert all(torch.isfinite(each).all() for each in outer.start.values())
        outer.close()
    model = model_of()
    outer = outer_of(model, every=1, select=None, values="f16")
    with torch.no_grad():
        model.out.bias += 1e6
    raises(zenps.Invalid, outer.step, "the sum of out.bias is out of the range of values=")
    outer.close()


def case_parameters_change(_: zenps.Job) -> None:
    """Parameters that were frozen, replaced, or of another dtype when it was made would never be exchanged: all ranks say so."""
    for what, said in (("thaw", "hidden.bias"), ("assign", "out.weight"), ("layer", "out.weight, out.bias"), ("double", "words.weight")):
        model = model_of()
        model.hidden.bias.requires_grad_(what != "thaw")
        outer = outer_of(model, every=1, outer=None)
        local_step(model, 1)
        if RANK == 1 and what == "thaw":
            model.hidden.bias.requires_grad_(True)
        elif RANK == 1 and what == "assign":
            model.out.weight = nn.Parameter(model.out.weight.detach().clone())
        elif RANK == 1 and what == "layer":
            model.out = nn.Linear(40, 2)
        elif RANK == 1:
            model.words.double()
        before = values_of(model)
        words = f"outer step 0: rank 1: parameters {said} were added or replaced; make OuterSync anew. No parameter was changed"
        raises(zenps.Invalid, outer.step, words)
        assert all(torch.equal(own, was) for own, was in zip(values_of(model), before))
        model.hidden.bias.requires_grad_(False)  # those that come to rest are no reason
        if what == "thaw":
            assert outer.step()
        outer.close()


def case_refused(_: zenps.Job) -> None:
    """Each argument that cannot be right has its sentence."""
    raises(zenps.Invalid, lambda: zt.ChunkTopK(65, 64), "k 65 of each 64 consecutive entries; k must be 1 to 64")
    raises(zenps.Invalid, lambda: zt.ChunkTopK(0, 64), "k 0 of each 64 consecutive entries; k must be 1 to 64")
    raises(zenps.Invalid, lambda: zt.ChunkTopK(decay=0.0), "decay 0.0; must be over 0, and at most 1")
    model = model_of()
    other = nn.Linear(2, 2)
    for words, arguments in (
        ("every 0; must be 1 local step or more", {"every": 0}),
        ("decay 1.5; must be over 0, and at most 1", {"decay": 1.5}),
        ("fragments 8; must be 1 to 7, the number of parameters", {"fragments": 8}),
        ("fragments 0; must be 1 to 7", {"fragments": 0}),
        ("fragments 4 with every 3; must be at most 3", {"fragments": 4, "every": 3}),
        ("delay 15; must be at least 0, and less than every / fragments, 15", {"delay": 15, "fragments": 2}),
        ("delay -1; must be at least 0", {"delay": -1}),
        ("outer does not step words.weight", {"outer": sgd(other)}),
        ("outer steps 2 parameters of others", {"outer": torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1.0)}),
        ("outer is a float; a torch.optim.Optimizer", {"outer": 0.7}),
        ("select has momentum 0.9; that is for gradients of single steps", {"select": "dgc"}),
        ("select has clip_norm 1.0; that is for gradients of single", {"select": zt.TopK(0.1, kind="topk", clip_norm=1.0)}),
        ("select has scheme 'oktopk'", {"select": "oktopk"}),
        ("compress 'nothing'; must be None", {"select": "nothing"}),
        ("values 'qsgd3'; must be one of", {"values": "qsgd3"}),
    ):
        raises(zenps.Invalid, lambda: outer_of(model, **arguments), words)  # noqa: B023
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0)))
    outer_of(model, outer=sgd(model)).close()
    raises(zenps.Invalid, lambda: outer_of("model"), "OuterSync: a str; a torch.nn.Module is wanted")
    raises(zenps.Invalid, lambda: outer_of(nn.ReLU()), "has no parameter that requires a gradient")
    raises(zenps.Unsupported, lambda: outer_of(model.half()), "parameter words.weight is float16; float32 and float64 are kept")
    model = model_of()
    outer = zt.OuterSync(model, job, name="twice", select=None)
    raises(zenps.Invalid, lambda: zt.OuterSync(model, job, name="twice"), "has the name 'twice'")
    outer.close()
    raises(zenps.ShapeMismatch, lambda: outer_of(model, every=2 + RANK), "rank 0 has every 2", "rank 1 has every 3")
    raises(zenps.ZenpsError, lambda: outer_of(model, every=RANK), "")  # rank 0 alone is refused, and no rank waits for it
    again = zt.OuterSync(model, job, name="twice", every=1)
    local_step(model, 1)
    assert again.step()
    again.close()


def case_parameters_of_all_magnitudes(_: zenps.Job) -> None:
    """Parameters that share a block of QSGD levels are rounded by their own magnitudes, from the first outer step on."""
    kinds: List[Dict[str, Any]] = [{"select": None}, {"select": zt.ChunkTopK(100, 100)}, {"select": None, "values": "qsgd4"}]
    for kind in kinds:
        model = nn.ParameterList([nn.Parameter(torch.zeros(100)) for _ in range(4)])
        outer = outer_of(model, every=1, outer=sgd(model, 1.0, 0.0), **kind)
        for step in range(3):
            for i, parameter in enumerate(model):
                moved = (1.0 + torch.arange(100) / 100) * 10.0 ** (2 * i - 6) * 0.1**step
                parameter.data += moved if RANK != 1 or step != 1 else 2 * moved
            before = [start.clone() for start in outer.start.values()]
            outer.step()
            for i, (start, was) in enumerate(zip(outer.start.values(), before)):
                size = 10.0 ** (2 * i - 6) * 0.1**step
                assert 0.3 * size < float((start - was).mean()) < 4 * size, (kind, step, i, float((start - was).mean()), size)
                assert float((start - was).abs().max()) <= 8 * size, (kind, step, i)
        same_everywhere(*outer.start.values())
        outer.close()


def case_gradients_that_grow(_: zenps.Job) -> None:
    """One parameter is frozen at first, then moves by little, then by more, beside others that always move by 1."""
    kinds: List[Dict[str, Any]] = [{"select": None}, {"select": zt.ChunkTopK(100, 100)}, {"select": None, "delay": 1}]
    for kind in kinds:
        model = nn.ParameterList([nn.Parameter(torch.zeros(100)) for _ in range(4)])
        outer = outer_of(model, every=2, outer=sgd(model, 1.0, 0.0), **kind)
        for step, size in enumerate((0.0, 1e-3, 1e-6, 0.0, 1e-2)):
            before = outer.start["1"].clone()
            for i, parameter in enumerate(model):
                parameter.data += (size if i == 1 else 1.0) * (1.0 + torch.arange(100) / 100)
            outer.step()
            outer.step()
            outer.wait()
            moved = outer.start["1"] - before
            assert 0.6 * size <= float(moved.mean()) <= 2.5 * size, (kind, step, float(moved.mean()), size)
            assert float(moved.abs().max()) <= 8 * size, (kind, step)
        same_everywhere(*outer.start.values())
        outer.close()


def case_residuals_that_are_large(_: zenps.Job) -> None:
    """A parameter that has nearly come to rest still sends a large residual; one beside it is rounded no worse for it."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(100)) for _ in range(2)])
    outer = outer_of(model, every=1, select=zt.ChunkTopK(1, 100), decay=1.0, outer=sgd(model, 1.0, 0.0))
    for size in (1.0, 1e-6, 1e-6, 1e-6):
        before = outer.start["1"].clone()
        with torch.no_grad():
            model[0] += size
            model[1][7] += 1.0
        outer.step()
        moved = float((outer.start["1"] - before)[7])
        assert 0.3 <= moved <= 2, (size, moved)
    outer.close()


def case_of_a_group(_: zenps.Job) -> None:
    """Two of three ranks; the third trains alone."""
    group = job.group("pair", [0, 2]) if RANK != 1 else None
    model = model_of(RANK)
    if group is not None:
        outer = zt.OuterSync(model, group, every=2)
        for step in (1, 2):
            local_step(model, step)
            outer.step()
        digests = group.gather(values_of(model)[0].numpy().tobytes())
        assert len(digests) == 2 and digests[0] == digests[1]
        outer.close()
        group.close()
    job.barrier()


def case_bits_of_an_entry(_: zenps.Job) -> None:
    """64 of each 4096, with 2 bits: at most 9.9 bits an entry on the wire, positions included."""
    model = nn.Linear(1024, 1024, bias=False)
    outer = outer_of(model, every=1)
    with torch.no_grad():
        model.weight += torch.randn(1024, 1024, generator=torch.Generator().manual_seed(RANK))
    costs: List[Any] = []
    end = outer._end

    def look(flight: Any) -> None:
        end(flight)
        costs.extend(request.stats for group in flight.fragment.groups for request in group.requests)

    outer._end = look  # type: ignore[method-assign]
    outer.step()
    (cost,) = costs
    bits = 8 * cost.payload_out / (1024 * 1024 / 64)
    print(f"rank {RANK}: {bits:.3f} bits an entry sent, {8 * cost.payload_in / 1024 / 1024:.3f} bits a parameter received", flush=True)
    assert bits <= 9.9, bits
    outer.close()
