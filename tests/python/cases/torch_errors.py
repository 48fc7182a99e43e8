"""What a training loop sees when ranks die, stop or are interrupted in the middle of backward(). The argument says which."""

from __future__ import annotations

import os
import pathlib
import resource
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import zenps
import zenps.torch as zt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
what = sys.argv[1]
job = zt.init(round_timeout=15 if what == "stop" else 120)
RANK = job.rank


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5000, 16, sparse=True)
        self.out = nn.Linear(16, 200)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(ids))


def ids(step: int) -> torch.Tensor:
    return torch.randint(0, 5000, (64,), generator=torch.Generator().manual_seed(10 * step + RANK))


def in_backward(model: Model, action: object) -> None:
    """Has `action` called in the middle of the next backward pass, when the first sums are on their way."""
    model.table.weight.register_hook(lambda grad: action() or grad)  # type: ignore[operator]


def report(error: BaseException, since: float) -> None:
    missing = list(getattr(error, "missing_ranks", []))
    print(f"rank {RANK}: {type(error).__name__} {missing} after {time.monotonic() - since:.2f} s: {error}", flush=True)


def kill() -> None:
    """Where there is a process group, it sums the dense gradients: its collectives fail as well."""
    model = Model()
    if what in ("kill-ddp", "kill-torch"):
        dist.init_process_group("gloo")
    if what == "kill-ddp":
        trained: nn.Module = DistributedDataParallel(model)
        zt.ddp(trained, job)
    elif what == "kill-backend":
        dist.init_process_group("zenps")
        trained = DistributedDataParallel(model)
    else:
        trained = model
        zt.GradientSync(model, job)
    try:
        for step in range(4):
            if step == 3 and RANK == 2:
                in_backward(model, lambda: os.kill(os.getpid(), signal.SIGKILL))
            model.zero_grad(set_to_none=True)
            loss = trained(ids(step)).sum()
            since = time.monotonic()
            loss.backward()  # of step 2 or 3: the others may still be waiting for sums that rank 2 has
    except zenps.ZenpsError as error:
        report(error, since)
        with torch.no_grad():
            trained(ids(4))  # the model can be used, and saved
        os._exit(7)


def stop() -> None:
    model = Model()
    sync = zt.GradientSync(model, job)
    pids = [int(pid) for pid in job.gather(str(os.getpid()).encode())]
    model(ids(0)).sum().backward()
    model.zero_grad(set_to_none=True)
    if RANK == 1:
        in_backward(model, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    since = time.monotonic()
    try:
        model(ids(1)).sum().backward()
    except zenps.ZenpsError as error:
        report(error, since)
    os.kill(pids[1], signal.SIGCONT)
    sync.close()
    os._exit(7)


def interrupt() -> None:
    """Rank 1 comes when the interrupt has ended rank 0's wait for it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    model, over = Model(), pathlib.Path(sys.argv[2])
    zt.GradientSync(model, job)
    model(ids(0)).sum().backward()
    model.zero_grad(set_to_none=True)
    loss = model(ids(1)).sum()
    if RANK == 0:
        in_backward(model, lambda: threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start())
    while RANK == 1 and not over.exists():
        time.sleep(0.05)
    since = time.monotonic()
    try:
        loss.backward()
    except (KeyboardInterrupt, zenps.ZenpsError) as error:
        report(error, since)
    over.touch()
    model.zero_grad(set_to_none=True)
    job.barrier()
    model(ids(2)).sum().backward()  # nobody has died, so training can go on
    print(f"rank {RANK}: went on", flush=True)


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 256

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.tensor(at)


def lifetime() -> None:
    """Children by fork() leave the job alone, and memory stays as it is."""
    model = Model()
    sync = zt.GradientSync(model, job)
    for batch in torch.utils.data.DataLoader(Data(), batch_size=64, num_workers=2):
        model.zero_grad(set_to_none=True)
        model(batch).sum().backward()
    child = os.fork()
    if child == 0:
        try:
            job.barrier()
            code = 1
        except zenps.Forked:
            code = 0
        sys.exit(code)  # with the interpreter's exit handlers
    assert os.waitpid(child, 0)[1] == 0
    marks = []
    steps = int(os.environ.get("ZENPS_TEST_STEPS", "2500"))
    for step in range(steps):
        model.zero_grad(set_to_none=True)
        model(ids(step)).sum().backward()
        if step in (700, steps - 1):
            with open("/proc/self/statm", encoding="ascii") as statm:
                marks.append(int(statm.read().split()[1]) * resource.getpagesize())
    assert marks[1] <= 1.02 * marks[0], marks
    assert sync.stats.steps == steps + 4, sync.stats
    grad = model.table.weight.grad
    assert grad is not None
    held = grad._values().clone()
    sync.close()
    job.close()
    assert torch.equal(grad._values(), held)  # results outlive the job
    print(f"rank {RANK}: {marks[0] >> 20} MB then {marks[1] >> 20} MB", flush=True)


ways = {"kill": kill, "kill-ddp": kill, "kill-torch": kill, "kill-backend": kill, "stop": stop, "interrupt": interrupt}
{**ways, "lifetime": lifetime}[what]()
