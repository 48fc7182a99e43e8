"""What the examples share: arguments, the four ways of synchronising, the loop, and what is printed.

An example gives run() a function that makes a Task from the arguments. A batch is a share of the global batch: with N
ranks and --batch B a step takes the same N * B samples, in the same order, as one process with --batch N * B. So N ranks
train what one process trains, to rounding.

    --how zenps         zenps.torch.GradientSync, no torch.distributed
    --how ddp           DistributedDataParallel with zenps's communication hook; ddp-torch: Gloo sums what is no embedding
    --how gloo-sparse   DistributedDataParallel over Gloo, embeddings with sparse gradients
    --how gloo-dense    the same with dense ones; gloo-fp16, gloo-powersgd: with torch's own hooks
    --how outer         zenps.torch.OuterSync: steps of each rank's own, and a common one after each --every
    --how alone         one process, nothing synchronised: the reference
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch import nn

import data

HOWS = ("zenps", "ddp", "ddp-torch", "gloo-sparse", "gloo-dense", "gloo-fp16", "gloo-powersgd", "outer", "alone")


class Task:
    """What an example is made of. `model(*batch)` returns the loss, the mean over the batch's samples."""

    name = ""
    metric = ""  # what evaluate() returns
    lower_is_better = True
    model: nn.Module
    n_samples = 0  # of training

    def optimiser(self, lr: float) -> torch.optim.Optimizer:
        # An accumulator that begins at 0 makes of the first gradient its sign, of roundings, too: no two runs would be alike.
        return torch.optim.Adagrad(self.model.parameters(), lr=lr, initial_accumulator_value=1e-4)

    def batch(self, samples: List[int], step: int) -> Any:
        """Arguments of the model for these samples. What is drawn by chance is drawn from `step` alone."""
        raise NotImplementedError

    def evaluate(self) -> float:
        """The metric over the held-out samples, the same on every rank."""
        raise NotImplementedError


def parser(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """Arguments of every example; `defaults` override those here."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("--how", choices=HOWS, default="zenps", help="how gradients are synchronised")
    options.add_argument("--epochs", type=int, default=1)
    options.add_argument("--steps", type=int, default=0, help="at most so many steps an epoch; 0: all samples")
    options.add_argument("--batch", type=int, default=64, help="samples a rank and step")
    options.add_argument("--lr", type=float, default=0.1)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--data", default="", help="a file in place of the Debian package's")
    options.add_argument("--scheme", default=None, help="zenps's scheme of embedding tables")
    options.add_argument("--dense-layout", action="store_true", help="embeddings make dense gradients (sparse=False)")
    options.add_argument("--compress", default="none", choices=("none", "topk", "dgc", "oktopk", "gtopk", "gaussiank", "buckets", "chunktopk"))
    options.add_argument("--density", type=float, default=0.01, help="of --compress")
    options.add_argument("--every", type=int, default=30, help="of --how outer: steps from one common step to the next")
    options.add_argument("--outer-lr", type=float, default=1.0, help="of --how outer: the rate of common steps")
    options.add_argument("--outer-momentum", type=float, default=0.0, help="of --how outer: Nesterov's momentum of common steps")
    options.add_argument("--outer-k", type=int, default=64, help="of --how outer: values that travel of each 4096")
    options.add_argument("--outer-values", default="qsgd2", help="of --how outer: what values travel as")
    options.add_argument("--outer-dense", action="store_true", help="of --how outer: all values travel")
    options.add_argument("--target", type=float, default=None, help="end when the metric is this good")
    options.add_argument("--interface", default="", help="count the bytes sent on this network interface")
    options.add_argument("--threads", type=int, default=0, help="of torch; 0: cores / ranks of this host")
    options.add_argument("--json", action="store_true", help="one line of JSON on rank 0's standard output, at the end")
    options.set_defaults(**defaults)
    return options


def sparse(arguments: argparse.Namespace) -> bool:
    """Whether embeddings make sparse gradients."""
    return not arguments.dense_layout and arguments.how in ("zenps", "ddp", "ddp-torch", "gloo-sparse", "outer", "alone")


def _compression(arguments: argparse.Namespace) -> Any:
    if arguments.compress == "none":
        return None
    import zenps.torch as zt

    if arguments.compress in ("buckets", "chunktopk"):
        return zt.Buckets(4, 512, values="qsgd4") if arguments.compress == "buckets" else zt.ChunkTopK()
    kinds = {"topk": zt.TopK, "dgc": zt.DGC, "oktopk": zt.OkTopk, "gtopk": zt.GTopk, "gaussiank": zt.Gaussiank}
    return kinds[arguments.compress](arguments.density)


class Sync:
    """One of the ways of synchronising around a model. `module` is what the loop calls."""

    def __init__(self, task: Task, arguments: argparse.Namespace, job: Any = None) -> None:
        """job: that of another Sync of this process."""
        self.rank, self.world, self.job, self.module, self.outer = 0, 1, job, task.model, None
        self._no_sync: Callable[[], Any] = contextlib.nullcontext
        how = arguments.how
        if how == "alone":
            return
        compress = _compression(arguments) if how in ("zenps", "ddp") else None
        if arguments.compress != "none" and compress is None:
            raise SystemExit(f"--compress {arguments.compress} needs --how zenps or ddp, not {how}")
        if how in ("zenps", "ddp", "ddp-torch", "outer"):
            import zenps.torch as zt

            self.job = job or zt.init()
            self.rank, self.world = self.job.rank, self.job.world
        if how == "outer":
            momentum = arguments.outer_momentum
            common = torch.optim.SGD(task.model.parameters(), arguments.outer_lr, momentum=momentum, nesterov=momentum > 0)
            select = None if arguments.outer_dense else zt.ChunkTopK(arguments.outer_k)
            self.outer = zt.OuterSync(task.model, self.job, every=arguments.every, select=select, values=arguments.outer_values, outer=common)
            return
        if how == "zenps":
            sync = zt.GradientSync(task.model, self.job, scheme=arguments.scheme, compress=compress)
            self._no_sync = sync.no_sync
            self._keep = sync
            return
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        # The only buffers are constants; DDP would send them in every step.
        buckets = {}
        if how == "gloo-powersgd":  # over Gloo its rounds of several buckets cross, and kill the process
            buckets["bucket_cap_mb"] = 1 << 14
            dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 34
        module = nn.parallel.DistributedDataParallel(task.model, broadcast_buffers=False, **buckets)
        if how in ("ddp", "ddp-torch"):
            dense = "torch" if how == "ddp-torch" else "zenps"
            zt.ddp(module, self.job, scheme=arguments.scheme, dense=dense, compress=compress)
        elif how == "gloo-fp16":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            module.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif how == "gloo-powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

            module.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=10), powerSGD_hook.powerSGD_hook)
        self.module, self._no_sync = module, module.no_sync

    def no_sync(self) -> Any:
        return self._no_sync()

    def stepped(self) -> None:
        """After each step of the optimiser."""
        if self.outer is not None:
            self.outer.step()

    @contextlib.contextmanager
    def common(self) -> Iterator[None]:
        """Within it the model has parameters that all ranks have alike."""
        own = []
        if self.outer is not None:
            own = [(parameter, parameter.detach().clone()) for parameter in self.module.parameters()]
            for name, parameter in self.module.named_parameters():
                parameter.data.copy_(self.outer.start[name])
        yield
        for parameter, value in own:
            parameter.data.copy_(value)

    def barrier(self) -> None:
        if self.job is not None:
            self.job.barrier()
        elif self.world > 1:
            torch.distributed.barrier()

    def mean(self, number: float) -> float:
        """Of the ranks' numbers. Collective."""
        if self.job is not None:
            return self.job.sum(number)[0] / self.world
        if self.world == 1:
            return number
        total = torch.tensor(number, dtype=torch.float64)
        torch.distributed.all_reduce(total)
        return total.item() / self.world

    def bytes_sent(self) -> Optional[int]:
        """Payload and frames that zenps has sent from this rank so far; None of other systems."""
        return None if self.job is None else self.job.stats.bytes_out

    def close(self) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        if self.job is not None:
            self.job.close()


def _interface_bytes(name: str) -> Optional[int]:
    if not name:
        return None
    # Of this process's network namespace; /sys shows that of whoever mounted it.
    with open("/proc/self/net/dev", encoding="ascii") as file:
        for line in file:
            if line.split(":")[0].strip() == name:
                return int(line.split(":")[1].split()[8])
    raise SystemExit(f"--interface {name}: there is no such network interface")


def _batches(task: Task, arguments: argparse.Namespace, epoch: int, sync: Sync) -> Iterator[List[int]]:
    """This rank's samples of each step of an epoch."""
    generator = torch.Generator().manual_seed(arguments.seed * 1000003 + epoch)
    order = torch.randperm(task.n_samples, generator=generator).tolist()
    each = arguments.batch * sync.world
    steps = task.n_samples // each
    if steps == 0:
        raise SystemExit(f"{task.name}: {task.n_samples} samples are fewer than one step's {each}: lower --batch")
    for step in range(min(steps, arguments.steps or steps)):
        at = step * each + sync.rank * arguments.batch
        yield order[at : at + arguments.batch]


class _Progress:
    """A line on the terminal that is written over; nothing where standard error is no terminal."""

    def __init__(self, show: bool) -> None:
        self._show = show and sys.stderr.isatty()
        self._last = 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if self._show and now - self._last > 0.2:
            self._last = now
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._show:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _compute_seconds(task: Task, sync: Sync, arguments: argparse.Namespace, steps: int = 3) -> float:
    """Seconds of a step's forward and backward without synchronising: the least of a few, gradients thrown away."""
    least = float("inf")
    for samples in [next(_batches(task, arguments, 0, sync))] * steps:
        start = time.monotonic()
        with sync.no_sync():
            sync.module(*task.batch(samples, 0)).backward()
        least = min(least, time.monotonic() - start)
        task.model.zero_grad(set_to_none=True)
    return least


def run(make: Callable[[argparse.Namespace], Task], arguments: argparse.Namespace) -> None:
    """Trains and prints; the whole of an example's main()."""
    task = made(make, arguments)
    sync = Sync(task, arguments)
    result = train(task, sync, arguments)
    if sync.rank == 0 and arguments.json:
        print(json.dumps(result), flush=True)
    sync.close()


def made(make: Callable[[argparse.Namespace], Task], arguments: argparse.Namespace) -> Task:
    """The task, with the parameters of its seed."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    torch.set_num_threads(arguments.threads or max(1, (os.cpu_count() or 1) // local))
    torch.manual_seed(arguments.seed)
    try:
        return make(arguments)
    except (data.Missing, OSError) as missing:
        raise SystemExit(f"{os.path.basename(sys.argv[0])}: {missing}") from None


def train(task: Task, sync: Sync, arguments: argparse.Namespace) -> Dict[str, Any]:
    """Trains, and prints each epoch on rank 0; what --json prints."""
    optimiser = task.optimiser(arguments.lr)
    first = sync.rank == 0
    progress = _Progress(first)
    compute = _compute_seconds(task, sync, arguments)
    n_values = sum(p.numel() for p in task.model.parameters())
    if first:
        print(f"{task.name}: {n_values / 1e6:.1f} M parameters, {task.n_samples} samples, {sync.world} ranks, {arguments.how}", file=sys.stderr)
    sync.barrier()
    sent, wired = sync.bytes_sent(), _interface_bytes(arguments.interface)
    step, seconds, waited, metrics, losses, ends = 0, 0.0, 0.0, [], [], []
    reached: Optional[float] = None
    for epoch in range(arguments.epochs):
        total = 0.0
        start = time.monotonic()
        steps_before = step
        for samples in _batches(task, arguments, epoch, sync):
            batch = task.batch(samples, step)
            optimiser.zero_grad(set_to_none=True)
            at = time.monotonic()
            loss = sync.module(*batch)
            loss.backward()
            waited += max(0.0, time.monotonic() - at - compute)
            optimiser.step()
            at = time.monotonic()
            sync.stepped()
            waited += time.monotonic() - at
            step += 1
            total += loss.item()
            progress(f"epoch {epoch + 1}, step {step - steps_before}: loss {total / (step - steps_before):.4f}")
        took = time.monotonic() - start
        seconds += took
        ends.append(round(seconds, 3))
        losses.append(sync.mean(total / (step - steps_before)))
        with sync.common():
            metrics.append(task.evaluate())
        progress.clear()
        if first:
            print(f"epoch {epoch + 1}: {step - steps_before} steps, {(step - steps_before) / took:.1f} a second, "
                  f"loss {losses[-1]:.4f}, {task.metric} {metrics[-1]:.4f}", file=sys.stderr)  # fmt: skip
        # Every rank has the same parameters, so every rank ends alike.
        if arguments.target is not None and (metrics[-1] <= arguments.target) == task.lower_is_better:
            reached = seconds
            break
    sync.barrier()
    megabytes = lambda before, now: None if before is None else round((now - before) / step / 1e6, 6)  # noqa: E731
    return {
        "example": task.name, "how": arguments.how, "compress": arguments.compress, "world": sync.world, "batch": arguments.batch,
        "parameters": n_values, "steps": step, "seconds": round(seconds, 3), "steps_per_s": round(step / seconds, 3),
        "waiting": round(waited / seconds, 4), "mb_per_step": megabytes(sent, sync.bytes_sent()),
        "wire_mb_per_step": megabytes(wired, _interface_bytes(arguments.interface)),
        "loss": losses, "metric": task.metric, "lower_is_better": task.lower_is_better, "metrics": metrics, "epochs_s": ends,
        "reached_s": reached, "torch": torch.__version__,
    }  # fmt: skip
