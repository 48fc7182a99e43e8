"""compress= of GradientSync, on four ranks."""

from __future__ import annotations

import copy
import io
from typing import Any, Dict, List

import torch
from core import raises
from torch_sync import RANK, ROUND_TIMEOUT, WORLD, assert_bits, job, near, same_everywhere, sync_of

import zenps
import zenps.torch as zt
from torch import nn

ROWS, WIDTH = 300, 40  # of the one large parameter


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Linear(WIDTH, ROWS, bias=False)
        self.second = nn.Linear(ROWS, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.large(x)))


def model_of() -> Model:
    torch.manual_seed(1)
    return Model()


def inputs(step: int, rank: int) -> torch.Tensor:
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(31 * step + rank))


def backward(model: nn.Module, step: int, rank: int = RANK) -> None:
    model.zero_grad(set_to_none=True)
    model(inputs(step, rank)).pow(2).mean().backward()


def local_gradients(model: nn.Module, steps: int) -> Dict[str, torch.Tensor]:
    """The sums of this rank's gradients at the parameters that `model` has, over the steps."""
    alone = copy.deepcopy(model)
    totals = {name: torch.zeros_like(value) for name, value in alone.named_parameters()}
    for step in range(steps):
        backward(alone, step)
        for name, value in alone.named_parameters():
            totals[name] += value.grad
    return totals


class Tied(nn.Module):
    """The last layer has the embedding's weights, of which every gradient fills all rows."""

    def __init__(self, n: int = 5000) -> None:
        super().__init__()
        self.words = nn.Embedding(n, 16)
        self.out = nn.Linear(16, n, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(ids))


def case_compressors_by_name(_: zenps.Job) -> None:
    """A name is the compressor with its defaults. All else is refused with the names. So is a second momentum."""
    for name, meant in (("topk", zt.TopK(0.01)), ("DGC", zt.DGC()), ("oktopk", zt.OkTopk()), ("buckets", zt.Buckets()),
                        ("chunktopk", zt.ChunkTopK())):  # fmt: skip
        sync = sync_of(model_of(), compress=name)
        assert sync._compress == meant, (name, sync._compress)
        sync.close()
    for wrong in ("topkk", "", 0.01, zt.TopK):
        raises(zenps.Invalid, lambda: zt.GradientSync(model_of(), compress=wrong), "compress ", '"topk"')  # noqa: B023
        raises(zenps.Invalid, lambda: zt.HookState(job, model_of(), compress=wrong), "compress ", '"topk"')  # noqa: B023
    model = model_of()
    sync = sync_of(model, compress=zt.DGC(min_numel=1000))
    raises(zenps.Invalid, lambda: sync.attach(torch.optim.Adam(model.parameters())), "give the optimiser betas=(0.0, 0.999)")
    sync.attach(torch.optim.Adam(model.parameters(), betas=(0.0, 0.999)))
    sync.close()


def case_tied_weights_are_cut(_: zenps.Job) -> None:
    ids = torch.arange(20) + RANK
    for tables, entries in (("auto", 800), (["words.weight"], 80000)):
        torch.manual_seed(5)
        model = Tied()
        sync = sync_of(model, tables=tables, compress=zt.TopK(0.01, kind="topk", start_iter=0))
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            model(ids).pow(2).mean().backward()
        n = int((model.words.weight.grad != 0).sum())
        assert 0 < n <= WORLD * entries and (n > WORLD * 800) == (entries > 800), (tables, n)
        sync.close()


KINDS = {
    "topk": zt.TopK(0.02, kind="topk", min_numel=1000, start_iter=1),
    "sampled": zt.TopK(0.02, min_numel=1000, start_iter=1),
    "oktopk": zt.OkTopk(0.02, period=4, min_numel=1000, start_iter=1),
    "gtopk": zt.GTopk(0.02, min_numel=1000, start_iter=1),
    "gaussiank": zt.Gaussiank(0.02, min_numel=1000, start_iter=1),
    "buckets": zt.Buckets(4, 512, values="raw", min_numel=1000, start_iter=1),
    "chunktopk": zt.ChunkTopK(64, 4096, values="raw", min_numel=1000, start_iter=1),
}


def case_nothing_is_lost(_: zenps.Job) -> None:
    """The parameters do not move, so each step's gradients are known: what came out of the sums, plus all ranks'
    residuals, is the sum of all gradients of all ranks."""
    for name, compress in KINDS.items():
        model = model_of()
        sync = sync_of(model, compress=compress, average=False)
        steps = 6
        got = {label: torch.zeros_like(value) for label, value in model.named_parameters()}
        for step in range(steps):
            backward(model, step)
            for label, value in model.named_parameters():
                got[label] += value.grad
            cut = [value.grad != 0 for value in (model.large.weight, model.second.weight)]
            share = sum(int(each.sum()) for each in cut) / sum(each.numel() for each in cut)
            assert not step or 0 < share <= 0.17, (name, share)
        same_everywhere(*got.values())
        gathered = sync.state_dict(gather_state=True)["compress"]
        assert sorted(gathered) == ["large.weight", "second.weight"], sorted(gathered)
        wanted = local_gradients(model, steps)
        for label, total in wanted.items():
            zt.all_reduce(total, job=job)
            if RANK == 0:
                rest = gathered[label]["residual"].view_as(total) if label in gathered else torch.zeros_like(total)
                near(got[label] + rest, total, 1e-5)
            elif label in gathered:
                assert not gathered[label]["residual"].any()
        sync.load_state_dict(sync.state_dict(gather_state=True))  # another number of ranks would load it like this
        again = sync.state_dict(gather_state=True)["compress"]
        for label, state in gathered.items():
            assert_bits(again[label]["residual"] + 0.0, state["residual"] + 0.0)
        sync.close()


def case_all_of_it_is_the_dense_sum(_: zenps.Job) -> None:
    """Density 1: the bits of no compression, where that adds in the order of ranks."""
    results: List[List[torch.Tensor]] = []
    for compress in (None, zt.TopK(1.0, kind="topk", min_numel=1000, start_iter=0)):
        model = model_of()
        sync = sync_of(model, compress=compress, **({} if compress else {"dense_scheme": "balanced"}))
        for step in range(3):
            backward(model, step)
        results.append([value.grad.clone() for value in model.parameters()])
        sync.close()
    for dense, cut in zip(*results):
        assert_bits(cut + 0.0, dense + 0.0)


def case_momentum_and_warmup(_: zenps.Job) -> None:
    model = model_of()
    compress = zt.DGC(0.01, warmup=(0.5, 0.1), warmup_steps=2, min_numel=1000, start_iter=1, clip_norm=1.0)
    sync = sync_of(model, compress=compress)
    shares = []
    for step in range(6):
        backward(model, step)
        shares.append(float((model.large.weight.grad != 0).float().mean()))
    assert shares[0] == 1.0 and shares[1] >= 0.5 and shares[2] >= 0.5, shares
    assert 0.08 <= shares[3] <= 0.5 and shares[5] <= 0.08, shares
    large = [each for each in model.parameters() if each.numel() >= 1000]
    small = [each for each in model.parameters() if each.numel() < 1000]
    twice = torch.optim.SGD([{"params": small}, {"params": large}], 0.1, momentum=0.9)
    raises(zenps.Invalid, lambda: sync.attach(twice), "takes its place", "of 0.9 for large.weight")
    sync.attach(torch.optim.SGD([{"params": small, "momentum": 0.9}, {"params": large}], 0.1))
    sync.close()
    shares = [zt.DGC(density).warmup for density in (0.001, 0.01, 0.05, 0.5)]  # its end is the density
    assert shares == [(0.25, 0.0625, 0.0156, 0.004), (0.25, 0.0625, 0.0156), (0.25, 0.0625), ()], shares


def case_checkpoint(_: zenps.Job) -> None:
    """10 steps, save, load, and 10 more: the bits of 20 steps."""

    def run(model: nn.Module, sync: zt.GradientSync, steps: range) -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for step in steps:
            backward(model, step)
            optimizer.step()

    small: Dict[str, Any] = {"min_numel": 1000}
    kinds = ("topk", "sampled", "reused")
    for compress in (zt.DGC(0.02, warmup=(0.1,), warmup_steps=5, **small), *(zt.TopK(0.02, kind=k, **small) for k in kinds)):
        whole = model_of()
        sync = sync_of(whole, compress=compress)
        run(whole, sync, range(20))
        sync.close()
        model = model_of()
        sync = sync_of(model, compress=compress)
        run(model, sync, range(10))
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "sync": sync.state_dict()}, file)
        sync.close()
        file.seek(0)
        state = torch.load(file)
        model = model_of()
        model.load_state_dict(state["model"])
        sync = sync_of(model, compress=compress)
        sync.load_state_dict(state["sync"])
        run(model, sync, range(10, 20))
        for own, wanted in zip(model.parameters(), whole.parameters()):
            assert_bits(own, wanted)
        try:
            sync.load_state_dict({"steps": 1, "compress": {}})
            raise AssertionError("a state of nothing")
        except zenps.Invalid as error:
            assert "large.weight" in str(error)
        sync.close()


class Scaler:
    """What compress= asks of a GradScaler, which torch 1.13 has for GPUs alone."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def get_scale(self) -> float:
        return self.scale


def case_scaled_gradients(_: zenps.Job) -> None:
    """The residual is unscaled, so the scale may change; a step that is not finite leaves it whole on every rank."""
    compress = zt.TopK(0.05, "topk", min_numel=1000, start_iter=0)
    plain, scaled = model_of(), model_of()
    scaler = Scaler(1024.0)
    first = sync_of(plain, compress=compress)
    second = sync_of(scaled, compress=zt.TopK(0.05, "topk", min_numel=1000, start_iter=0, scaler=scaler))
    for step, scale in enumerate((1024.0, 512.0, 2048.0)):
        scaler.scale = scale
        backward(plain, step)
        scaled.zero_grad(set_to_none=True)
        (scaled(inputs(step, RANK)).pow(2).mean() * scale).backward()
        near(scaled.large.weight.grad / scale, plain.large.weight.grad, 1e-6)
    scaled.zero_grad(set_to_none=True)
    (scaled(inputs(3, RANK)).pow(2).mean() * (float("inf") if RANK == 1 else 1.0)).backward()
    assert not bool(torch.isfinite(scaled.large.weight.grad).all())
    backward(scaled, 4)
    assert bool(torch.isfinite(scaled.large.weight.grad).all())
    for sync in (first, second):
        sync.close()


def case_learning(_: zenps.Job) -> None:
    """At 2% the loss comes down nearly as far as dense."""
    losses: List[float] = []
    for compress in (None, zt.TopK(0.02, min_numel=1000)):
        model = model_of()
        sync = sync_of(model, compress=compress)
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        for step in range(60):
            backward(model, step % 4)
            optimizer.step()
        with torch.no_grad():
            loss = torch.stack([model(inputs(step, rank)).pow(2).mean() for step in range(4) for rank in range(WORLD)]).mean()
        same_everywhere(*model.parameters())
        losses.append(float(loss))
        sync.close()
    with torch.no_grad():
        start = float(model_of()(inputs(0, 0)).pow(2).mean())
    assert losses[0] < 0.1 * start and losses[1] < 0.2 * start, (start, losses)


def case_residuals_follow_the_rate(_: zenps.Job) -> None:
    """A residual is of rate times gradient: what is sent late is applied at the rate of its own step. [SparCML algorithm 1,
    Ok-Topk algorithm 2] The rate comes from an attached optimiser, or from `lr=`."""
    rates = [0.1, 0.1, 0.01, 0.0, 0.05, 0.05]
    for how in ("attached", "callable", "checkpoint"):
        model = model_of()
        before = model.large.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        named = {"lr": lambda: optimizer.param_groups[0]["lr"]} if how == "callable" else {}
        compress = zt.TopK(0.05, kind="topk", start_iter=0, min_numel=ROWS * WIDTH, **named)
        sync = sync_of(model, compress=compress)
        if how != "callable":
            sync.attach(optimizer)
        due = torch.zeros(ROWS, WIDTH)  # what one process with all batches would have applied
        for step, rate in enumerate(rates):
            optimizer.param_groups[0]["lr"] = rate
            if how == "checkpoint" and step == 4:
                state = sync.state_dict()
                sync.close()
                sync = sync_of(model, compress=compress)
                sync.load_state_dict(state)
                sync.attach(optimizer)
            for rank in range(WORLD):
                alone = copy.deepcopy(model)
                backward(alone, step, rank)
                due += rate * alone.large.weight.grad / WORLD
            backward(model, step)
            optimizer.step()
        (sparsifier,) = [each for group in sync._compressed() for each in group.sparsifiers.values()]
        kept = zt.convert.tensor_of(sparsifier.residual, torch.float32).clone().view(ROWS, WIDTH)
        zt.all_reduce(kept, "avg", job=job)
        near(before - model.large.weight + rates[-1] * kept, due, 1e-6)
        same_everywhere(model.large.weight)
        sync.close()
