#!/usr/bin/env python3
"""Whether PyTorch models keep their loss when zenps.torch compresses gradients: one rank of `tests/bench/selection torch`.

  zenpsrun -n 2 --servers 1 --prefix=no -- python3 tests/bench/selection_rank.py [--steps 2000] [--models lm,gpt] [--densities 0.01,0.05]

Two models of characters, on the text of Python's own manual: "lm" is an LSTM, "gpt" a transformer. Each is trained densely and under
every compressor of zenps.torch, with SGD with momentum and with Adam. All runs start from the same values and see the same batches.
Each run has a GradientSync's groups of parameters, summed over real daemons: the same code, without its hooks and checks. Passes of
all runs of a model are batched, and their rounds overlap, so that a table takes minutes. Prints a Markdown table: loss on held-out text, and how far it is from the dense loss. The rows "another seed" are dense:
their distance is what chance does. PYTHONPATH has worker/python; ZENPS_LIBRARY names libzenps.so.
"""

import argparse
import math
import time
from pydoc_data.topics import topics

import torch

import zenps.torch as zt
from torch import nn
from zenps.torch.compress import CompressedGroup
from zenps.torch.groups import DenseGroup, open_all
from zenps.torch.tables import plan

LENGTH = 16  # characters of a window
COMPRESSORS = {  # by density; all leave parameters of fewer than SMALL values dense
    "TopK": lambda density, **more: zt.TopK(density, **more),
    "DGC": lambda density, **more: zt.DGC(density, **more),
    "OkTopk": lambda density, **more: zt.OkTopk(density, **more),
    "GTopk": lambda density, **more: zt.GTopk(density, **more),
    "Gaussiank": lambda density, **more: zt.Gaussiank(density, **more),
    "Buckets": lambda density, **more: zt.Buckets(k=max(1, round(512 * density)), **more),
}
SMALL = 1024
RATES = {"SGD": {"lm": 0.5, "gpt": 0.1}, "Adam": {"lm": 1e-2, "gpt": 5e-3}}
SEEDS = 2  # dense runs


def text():
    """The manual as numbers, and how many characters there are."""
    whole = "\n".join(topics[name] for name in sorted(topics)).lower()
    letters = {each: at for at, each in enumerate(sorted(set(whole)))}
    return torch.tensor([letters[each] for each in whole]), len(letters)


def draw(generator, *shape, scale=None):
    return torch.randn(*shape, generator=generator) * (scale or shape[0] ** -0.5)


class Lm:
    """An LSTM; `weights` of many runs are stacked in the first dimension."""

    width, hidden = 32, 64

    def made(self, generator, n):
        bias = torch.zeros(4 * self.hidden)
        bias[self.hidden : 2 * self.hidden] = 1.0  # remember at first
        return {"words": draw(generator, n, self.width, scale=0.3), "bias": bias, "out": draw(generator, self.hidden, n),
                "cell": draw(generator, self.width + self.hidden, 4 * self.hidden, scale=self.hidden**-0.5)}

    def logits(self, weights, ids):
        runs, (batch, length) = len(weights["bias"]), ids.shape
        inner, state = weights["cell"].split([self.width, self.hidden], 1)
        x = weights["words"][:, ids].flatten(1, 2) @ inner + weights["bias"][:, None]
        x = x.view(runs, batch, length, -1).unbind(2)
        h = c = torch.zeros(runs, batch, self.hidden)
        states = []
        for each in x:
            i, f, o, new = (each + h @ state).chunk(4, 2)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.stack(states, 2).flatten(1, 2) @ weights["out"]


class Gpt:
    """A transformer of two layers."""

    width, heads, layers = 48, 4, 2

    def made(self, generator, n):
        d, n_layers = self.width, self.layers
        sizes = {"qkv": (d, 3 * d), "mix": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
        weights = {"words": draw(generator, n, d, scale=0.1), "places": draw(generator, LENGTH, d, scale=0.1), "out": draw(generator, d, n)}
        return {**weights, **{name: draw(generator, n_layers, *size, scale=size[0] ** -0.5) for name, size in sizes.items()}}

    def logits(self, weights, ids):
        runs, (batch, length), d = len(weights["out"]), ids.shape, self.width
        norm = lambda x: nn.functional.layer_norm(x, (d,))  # noqa: E731
        x = (weights["words"][:, ids] + weights["places"][:, None, :length]).flatten(1, 2)
        hidden = torch.full((length, length), -math.inf).triu(1)
        for at in range(self.layers):
            y = (norm(x) @ weights["qkv"][:, at]).view(runs * batch, length, 3, self.heads, d // self.heads)
            q, k, v = y.permute(2, 0, 3, 1, 4).flatten(1, 2)
            seen = torch.softmax(q @ k.transpose(1, 2) * (d // self.heads) ** -0.5 + hidden, 2) @ v
            seen = seen.view(runs * batch, self.heads, length, -1).transpose(1, 2).reshape(runs, batch * length, d)
            x = x + seen @ weights["mix"][:, at]
            x = x + torch.relu(norm(x) @ weights["up"][:, at]) @ weights["down"][:, at]
        return norm(x) @ weights["out"]


class Run(nn.Module):
    """One of the trainings: its weights, the groups that they are summed in, and its optimiser."""

    def __init__(self, weights):
        super().__init__()
        for name, value in weights.items():
            setattr(self, name, nn.Parameter(value.clone()))

    def begin(self, label, optimizer, rate, how, density):
        self.label = optimizer, how, density
        compress = COMPRESSORS[how](density, min_numel=SMALL) if density is not None else None
        momentum = 0.0 if compress is not None and compress.momentum else 0.9  # of the parameters that are compressed
        groups = [{"params": []}, {"params": [], "momentum": momentum, "betas": (momentum, 0.999)}]
        for each in self.parameters():
            groups[each.numel() >= SMALL]["params"].append(each)
        kind, settings = {"SGD": (torch.optim.SGD, {"momentum": 0.9}), "Adam": (torch.optim.Adam, {})}[optimizer]
        self.optimizer = kind([group for group in groups if group["params"]], rate, **settings)
        self.rate = rate
        (slots,) = plan(self, "none").buckets
        small, large = (slots, []) if compress is None else compress.split(slots)
        name = "/".join(str(each) for each in (label, *self.label))
        self.groups = [DenseGroup(f"{name}/dense", small, op="mean")] if small else []
        if large:
            cut = CompressedGroup(f"{name}/cut", DenseGroup(f"{name}/early", large, op="mean"), compress, "mean")
            cut.optimizers = [self.optimizer]
            self.groups.append(cut)
        self.sent = 0
        return self

    def start(self, step, steps):
        """Starts the sums. The rate: a short warm-up, then down to a tenth."""
        part = step / steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, 0.01 + part / 0.05) * (1.0 - 0.9 * part)
        for group in self.groups:
            group.start(step)

    def finish(self):
        for group in self.groups:
            group.wait()
            self.sent += sum(request.stats.bytes_out for request in group.requests)
            group.apply(lambda slot: True, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def losses(model, runs, window):
    weights = {name: torch.stack([getattr(run, name) for run in runs]) for name, _ in runs[0].named_parameters()}
    logits = model.logits(weights, window[:, :-1])
    wanted = window[:, 1:].reshape(1, -1).expand(len(runs), -1)
    return nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none").mean(1)


def train(job, name, model, args, letters, n):
    """(optimiser, how, density) to loss on held-out text and bytes of a step."""
    held_out = letters[-len(letters) // 20 :]
    learned = letters[: -len(letters) // 20]
    runs = []
    kinds = [(f"dense, seed {seed}" if seed else "dense", None) for seed in range(SEEDS)]
    kinds += [(how, density) for density in args.densities for how in COMPRESSORS]
    for optimizer in ("SGD", "Adam"):
        for how, density in kinds:
            seed = int(how.rpartition(" ")[2]) if how.startswith("dense, ") else 0
            weights = model.made(torch.Generator().manual_seed(seed), n)
            runs.append(Run(weights).begin(name, optimizer, RATES[optimizer][name], how, density))
    open_all(job, [group for run in runs for group in run.groups])
    draws = torch.Generator().manual_seed(10 + job.rank)
    begin = time.monotonic()
    for step in range(args.steps):
        at = torch.randint(len(learned) - LENGTH - 1, (args.batch,), generator=draws)
        losses(model, runs, learned[at[:, None] + torch.arange(LENGTH + 1)]).sum().backward()
        for run in runs:
            run.start(step, args.steps)
        for run in runs:
            run.finish()
        if job.rank == 0 and (step + 1) % 100 == 0:
            print(f"{name}: step {step + 1}, {(step + 1) / (time.monotonic() - begin):.1f} a second", flush=True)
    windows = held_out[: len(held_out) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)[:200]
    with torch.no_grad():
        found = torch.stack([losses(model, runs, part) * len(part) for part in windows.split(20)]).sum(0) / len(windows)
    return {run.label: (float(loss), run.sent / args.steps) for run, loss in zip(runs, found)}


def show(name, found):
    """A model's table. Gives the configurations whose loss is at most 1% above the dense one, with both optimisers."""
    optimizers = list(RATES)
    print(f"\n| {name} | density | " + " | ".join(f"{each} | to dense | kB a step" for each in optimizers) + " |")
    print("|---|---:|" + "---:|" * 3 * len(optimizers))
    near = []
    for how, density in dict.fromkeys((how, density) for _, how, density in found):
        cells, ratios = [], []
        for optimizer in optimizers:
            loss, sent = found[optimizer, how, density]
            ratios.append(loss / found[optimizer, "dense", None][0] - 1)
            cells.append(f"{loss:.4f} | {100 * ratios[-1]:+.2f}% | {sent / 1000:.1f}")
        print(f"| {how} | {density or ''} | {' | '.join(cells)} |", flush=True)
        if density is not None and max(ratios) <= 0.01:
            near.append((how, density))
    return near


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=2, help="windows of a rank's batch")
    parser.add_argument("--models", default="lm,gpt")
    parser.add_argument("--densities", default="0.01,0.05")
    args = parser.parse_args()
    args.densities = [float(each) for each in args.densities.split(",")]
    models = {"lm": Lm(), "gpt": Gpt()}
    torch.set_num_threads(1)
    letters, n = text()
    job = zt.init()
    near = []
    for name in args.models.split(","):
        found = train(job, name, models[name], args, letters, n)
        if job.rank == 0:
            near.append(show(name, found))
    if job.rank == 0:
        everywhere = [f"{how} at {density:.0%}" for how, density in near[0] if all((how, density) in each for each in near)]
        print(f"\nAt most 1% above dense in all columns: {', '.join(everywhere) or 'none'}.")
    job.barrier()
    job.close()


if __name__ == "__main__":
    main()
