"""ProcessGroupZenps alone, on three ranks, with torchft or what standin/ has of it. As a program: one more replica, which is
killed; arguments: the address of the store, its rank."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time
import warnings
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Callable, List, Optional

import torch

import zenps
from torch import nn
from torch.distributed.distributed_c10d import AllreduceOptions, BroadcastOptions, ReduceOp
from zenps.torch.torchft import ProcessGroupZenps, average_gradients

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message="Sparse invariant checks")
SOON = 120.0  # seconds, for what takes milliseconds


def opened(job: zenps.Job, name: str, group: Optional[ProcessGroupZenps] = None, more: int = 0) -> ProcessGroupZenps:
    """In the quorum `name`, with `more` replicas beside the ranks."""
    group = group or ProcessGroupZenps(timeout=timedelta(seconds=240))
    group.configure(f"host:1/torchft/{name}/0", "replica", job.rank, job.world + more, 1)
    return group


def options(op: Any) -> AllreduceOptions:
    made = AllreduceOptions()
    made.reduceOp = op
    return made


def raises(kind: Any, words: str, call: Callable[[], Any]) -> Any:
    try:
        call()
    except kind as error:
        assert words in str(error), error
        return error
    raise AssertionError(f"{kind} was not raised")


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def works(job: zenps.Job, group: ProcessGroupZenps) -> None:
    """A sum is right, and there is no error."""
    tensor = torch.full((1000,), float(job.rank + 1))
    assert group.allreduce([tensor], options(ReduceOp.SUM)).wait() and group.errored() is None
    assert torch.equal(tensor, torch.full((1000,), job.world * (job.world + 1) / 2))


def case_dense(job: zenps.Job) -> None:
    group = opened(job, "dense")
    assert group.size() == job.world and group.getBackendName() == "torchft-zenps"
    for dtype in (torch.float32, torch.float64):
        for shape in ((1,), (), (5, 7), (64, 1000)):
            every = [noise(rank, *shape, dtype=dtype) for rank in range(job.world)]
            total = torch.zeros_like(every[0])
            for each in every:
                total += each
            for op, wanted in ((ReduceOp.SUM, total), (ReduceOp.AVG, total * (1 / job.world))):
                mine = every[job.rank].clone()
                work = group.allreduce([mine], options(op))
                assert work.wait(timedelta(seconds=240)) and work.is_completed() and work.is_success()
                assert torch.equal(mine, wanted), (dtype, shape, op)
                assert work.result()[0] is mine
            mine = every[job.rank].clone()
            group.allreduce([mine], ReduceOp.MAX).wait()
            assert torch.equal(mine, torch.stack(every).max(0).values)
            mine = torch.full(shape, float(job.rank), dtype=dtype)
            group.allreduce([mine], ReduceOp.MIN).wait()
            assert not mine.any()  # a zero is a value
    for dtype in (torch.bfloat16, torch.float16):
        mine = torch.full((100,), 2.0**job.rank, dtype=dtype)
        group.allreduce([mine], options(ReduceOp.SUM)).wait()
        assert torch.equal(mine, torch.full((100,), 2.0**job.world - 1, dtype=dtype))
    across = torch.ones(6, 4).t()  # not contiguous
    several = [across, torch.empty(0), torch.ones(3, 2)]
    group.allreduce_coalesced(several, options(ReduceOp.SUM)).wait()
    assert bool((across == job.world).all()) and bool((several[2] == job.world).all())
    group.shutdown()


def case_sparse(job: zenps.Job) -> None:
    """Rows in any order, repeated or none, come back as torch adds them; what a replica that heals gives is nothing."""
    group = opened(job, "sparse")

    def of(rank: int, empty: int) -> torch.Tensor:
        if rank == empty:
            return torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 6), (200, 6))
        ids = torch.randint(0, 200, (40,), generator=torch.Generator().manual_seed(rank))
        return torch.sparse_coo_tensor(ids[None], noise(rank, 40, 6), (200, 6))

    for empty in (-1, 1):
        total, rows = torch.zeros(200, 6), set()
        for rank in range(job.world):
            own = of(rank, empty)
            total += torch.zeros(200, 6).index_add_(0, own._indices()[0], own._values())
            rows |= set(own._indices()[0].tolist())
        for op, factor in ((ReduceOp.SUM, 1.0), (ReduceOp.AVG, 1 / job.world)):
            mine = of(job.rank, empty)
            group.allreduce([mine], options(op)).wait()
            assert mine.is_coalesced() and mine.indices()[0].tolist() == sorted(rows)
            assert torch.equal(mine.to_dense(), total * factor)
            mine /= 2  # the Manager does this
            assert torch.equal(mine.to_dense(), total * factor / 2)
    healing = of(job.rank, -1)
    if job.rank == 0:
        healing.zero_()
    group.allreduce([healing], options(ReduceOp.SUM)).wait()
    others = {row for rank in range(1, job.world) for row in of(rank, -1)._indices()[0].tolist()}
    assert healing.indices()[0].tolist() == sorted(others)
    group.shutdown()


def case_copies(job: zenps.Job) -> None:
    """Bytes of any dtype."""
    group = opened(job, "copies")
    for root in range(job.world):
        for mine in (torch.full((3, 5), job.rank), torch.tensor(job.rank == root), noise(job.rank, 1000), noise(job.rank, 4, 6).t()):
            wanted = {torch.int64: torch.full((3, 5), root), torch.bool: torch.tensor(True)}.get(mine.dtype)
            if wanted is None:
                wanted = noise(root, 1000) if mine.dim() == 1 else noise(root, 4, 6).t()
            choice = BroadcastOptions()
            choice.rootRank = root
            group.broadcast([mine], choice).wait()
            assert torch.equal(mine, wanted), (root, mine)
    odd = torch.tensor([0x7FF0000000000123, -(2**63), 0, 1]).view(torch.float64)  # a NaN with a payload, -0.0, a denormal
    mine = odd.clone() if job.rank == 0 else torch.zeros(4, dtype=torch.float64)
    choice.rootRank = 0
    group.broadcast([mine], choice).wait()
    assert torch.equal(mine.view(torch.int64), odd.view(torch.int64))
    outputs = [torch.zeros(7, dtype=torch.int32) for _ in range(job.world)]
    nothing = torch.empty(0)
    group.allgather([[nothing] * job.world, outputs], [nothing, torch.full((7,), job.rank, dtype=torch.int32)]).wait()
    assert [each.tolist() for each in outputs] == [[rank] * 7 for rank in range(job.world)]
    whole = torch.zeros(job.world * 2, 3)
    group.allgather_into_tensor_coalesced([whole], [torch.full((2, 3), float(job.rank))]).wait()
    assert torch.equal(whole, torch.arange(float(job.world)).repeat_interleave(2)[:, None].expand(-1, 3))
    for _ in range(3):
        group.barrier().wait()
    group.shutdown()


def case_unequal_copies(job: zenps.Job) -> None:
    """All replicas hear of it, and nothing is written; the futures end, too."""
    group = opened(job, "unequal")
    last = job.rank == job.world - 1
    choice = BroadcastOptions()
    for number in range(5):
        mine = torch.full((11 if last else 10,), float(job.rank), dtype=torch.float64 if number == 1 and last else torch.float32)
        choice.rootRank = job.rank % 2 if number == 2 else 0
        if number == 3:
            mine = torch.empty(0) if last else torch.ones(1)
        before = mine.clone()
        if number == 4:
            work = group.barrier() if last else group.broadcast([mine], choice)
        else:
            work = group.broadcast([mine], choice)
        if number == 0:
            future = work.get_future()
            raises(zenps.ShapeMismatch, "rank 0 broadcast from rank 0 of 40 bytes of float32, rank 2", future.wait)
        raises(zenps.ShapeMismatch, "it must be the same on all ranks", work.wait)
        assert isinstance(group.errored(), zenps.ShapeMismatch) and torch.equal(mine, before)
    mine = torch.full((10,), float(job.rank))
    choice.rootRank = 1
    group.broadcast([mine], choice).wait()
    assert mine.tolist() == [1.0] * 10
    group.shutdown()


def case_futures(job: zenps.Job) -> None:
    """They are resolved whether somebody waits for the Work or not, and an error keeps its type."""
    group = opened(job, "futures")
    for first in (True, False):
        tensor = torch.ones(10)
        work = group.allreduce([tensor], options(ReduceOp.SUM))
        if not first:
            work.wait()
        halves = work.get_future().then(lambda future: future.value()[0] / 2)
        assert torch.equal(halves.wait(), torch.full((10,), job.world / 2))
        assert work.get_future().wait()[0] is tensor and work.exception() is None
    job.barrier()
    seen: List[BaseException] = []
    if job.rank == 0:
        work = group.allreduce([torch.ones(10)], options(ReduceOp.SUM))
        future = work.get_future()
        group.abort()

        def look(done: Any) -> None:
            try:
                done.wait()
            except Exception as error:
                seen.append(error)

        future.then(look).wait()
        assert [type(each) for each in seen] in ([zenps.Canceled], [zenps.Closed]), seen
        assert work.exception() is seen[0] and not work.is_success()
        assert isinstance(group.errored(), zenps.Closed)
    job.barrier()
    group.shutdown()


def case_many(job: zenps.Job) -> None:
    """More of one shape than zenps has in flight at once, also in one call, and Works that nobody keeps."""
    group = opened(job, "many")
    tensors = [torch.full((64, 3), float(i)) for i in range(100)]
    kept = [group.allreduce([each], options(ReduceOp.SUM)) for each in tensors[:50]]
    kept.append(group.allreduce_coalesced(tensors[50:], options(ReduceOp.SUM)))
    for each in kept:
        each.wait()
    assert [float(each[0, 0]) for each in tensors] == [i * job.world for i in range(100)]
    dropped = [torch.ones(8) for _ in range(10)]
    for each in dropped:
        group.allreduce([each], options(ReduceOp.SUM))
    group.barrier().wait()
    works(job, group)  # it puts in place what is done
    assert all(bool((each == job.world).all()) for each in dropped)
    group.shutdown()


def case_refusals(job: zenps.Job) -> None:
    raises(zenps.Invalid, "world is the quorum's", lambda: ProcessGroupZenps(world=3))
    group = ProcessGroupZenps()
    raises(zenps.Closed, "call configure() first", lambda: group.allreduce([torch.ones(3)], options(ReduceOp.SUM)))
    opened(job, "refusals", group)
    for call, words in (
        (lambda: group.send([], 1, 0), "ProcessGroupZenps has no send: use broadcast()"),
        (lambda: group.recv([], 1, 0), "ProcessGroupZenps has no recv"),
        (lambda: group.alltoall_base(None, None, [], [], None), "allgather()"),
        (lambda: group.allreduce([torch.ones(3)], options(ReduceOp.BAND)), "zenps has sum, avg, min and max of floats"),
        (lambda: group.allreduce([torch.ones(3, dtype=torch.int64)], options(ReduceOp.AVG)), "avg of torch.int64"),
        (lambda: group.allgather([[]], [torch.eye(3).to_sparse()]), "its indices and values"),
    ):  # fmt: skip
        raises(NotImplementedError, words, call)
    choice = BroadcastOptions()
    choice.rootRank = job.world
    raises(zenps.Invalid, f"root {job.world}; must be 0 to {job.world - 1}", lambda: group.broadcast([torch.ones(3)], choice))
    raises(zenps.Invalid, "3 of 12 bytes of float32 each", lambda: group.allgather([[torch.ones(3)]], [torch.ones(3)]))
    raises(zenps.Invalid, "3 times 1 of float32 are wanted", lambda: group.allgather_into_tensor_coalesced([torch.ones(4)], [torch.ones(1)]))
    works(job, group)  # nothing of it has hurt
    group.shutdown()
    raises(zenps.Closed, "call configure() first", group.barrier)
    os.environ["ZENPS_MAX_WORLD_SIZE"] = "1"
    try:
        alone = ProcessGroupZenps()
        raises(zenps.Invalid, "ZENPS_MAX_WORLD_SIZE is set: unset", lambda: alone.configure(f"elastic/{job.rank}", "r", 0, 1, 1))
    finally:
        del os.environ["ZENPS_MAX_WORLD_SIZE"]


def case_long_names(job: zenps.Job) -> None:
    """Of 127 bytes, the longest that a job has, and of one more."""
    for n in (127, 128):
        group = ProcessGroupZenps(timeout=timedelta(seconds=240))
        group.configure("q" * (n - len("torchft/")), "replica", job.rank, job.world, 1)
        works(job, group)
        group.shutdown()


def case_unequal_sums(job: zenps.Job) -> None:
    """A replica's tensor is empty, of another dtype, or its op is refused: all hear of it, and the next sums meet."""
    last = job.rank == job.world - 1
    for number, (wrong, op, kind) in enumerate((
        (torch.empty(0), ReduceOp.SUM, zenps.ShapeMismatch),
        (torch.ones(3, dtype=torch.int64), ReduceOp.SUM, zenps.ShapeMismatch),
        (torch.ones(3), ReduceOp.BAND, zenps.Unsupported),
    )):  # fmt: skip
        group = opened(job, f"unequal.{number}")
        mine, chosen = (wrong, op) if last else (torch.ones(3), ReduceOp.SUM)
        raises(kind if last else zenps.ShapeMismatch, "", lambda: group.allreduce([mine], options(chosen)).wait())
        mine = torch.full((5,), float(job.rank))
        assert group.allreduce([mine], options(ReduceOp.SUM)).wait()
        assert mine.tolist() == [sum(range(job.world))] * 5
        group.shutdown()


def case_abort(job: zenps.Job) -> None:
    """One aborts from another thread: operations end with typed errors, on it and on the others, and the next quorum works."""
    group = opened(job, "abort.1")
    works(job, group)
    work = None
    if job.rank != 1:  # waits for rank 1
        work = group.allreduce([torch.ones(1000)], options(ReduceOp.SUM))
    if job.rank == 0:
        threading.Timer(0.3, group.abort).start()
    since = time.monotonic()
    if work is not None:
        error = raises((zenps.Canceled, zenps.Closed), "", work.wait)
        assert time.monotonic() - since < SOON and work.exception() is error, error
        assert isinstance(group.errored(), (zenps.Canceled, zenps.Closed))
    job.barrier()
    if job.rank == 1:
        late = group.allreduce([torch.ones(1000)], options(ReduceOp.SUM))
        raises((zenps.Canceled, zenps.Closed), "", late.wait)
        assert time.monotonic() - since < SOON
    for number in (2, 3):
        works(job, opened(job, f"abort.{number}", group))
    group.abort()
    group.abort()
    group.shutdown()


def case_lost(job: zenps.Job) -> None:
    """A replica is killed with SIGKILL while the others wait for it."""
    command = [sys.executable, __file__, "host:1/torchft/lost.1/0", str(job.world)]
    peer = subprocess.Popen(command) if job.rank == 0 else None
    group = opened(job, "lost.1", more=1)
    group.barrier().wait()
    work = group.allreduce([torch.ones(1000)], options(ReduceOp.SUM))
    killed = time.monotonic()
    if peer is not None:
        time.sleep(0.3)
        killed = time.monotonic()
        peer.kill()
    error = raises(zenps.PeerLost, f"rank {job.world} ", work.wait)
    ended = time.monotonic()
    (killed,) = struct.unpack("<d", job.gather(struct.pack("<d", killed))[0])
    print(f"rank {job.rank}: PeerLost {1000 * (ended - killed):.1f} ms after the kill", flush=True)
    assert ended - killed < SOON and error.missing_ranks == (job.world,), (ended - killed, error.missing_ranks)
    assert group.errored() is error and work.exception() is error
    again = group.allreduce([torch.ones(1000)], options(ReduceOp.SUM))  # an error of the Work, and not of the call
    raises(zenps.PeerLost, "", again.wait)
    job.barrier()
    since = time.monotonic()
    opened(job, "lost.2", group)
    print(f"rank {job.rank}: configure() of {job.world} replicas: {1000 * (time.monotonic() - since):.1f} ms", flush=True)
    works(job, group)
    group.shutdown()
    if peer is not None:
        peer.wait()


def case_left_at_once(job: zenps.Job) -> None:
    """Who has its sum leaves, and the others still get theirs."""
    group = ProcessGroupZenps(timeout=timedelta(seconds=240))
    for number in range(20):
        opened(job, f"left.{number}", group)
        for _ in range(3):
            tensor = torch.ones(50000)
            group.allreduce([tensor], options(ReduceOp.SUM)).wait()
            assert bool((tensor == job.world).all())
        group.shutdown()
    assert len(sys.modules["zenps.job"]._jobs) < 5  # those that are over are forgotten


def case_reconfigure(job: zenps.Job) -> None:
    """Newer torchft has handles of all replicas in the place of a store."""
    group = ProcessGroupZenps(timeout=timedelta(seconds=240))
    handles = [each.decode() for each in job.gather(group.get_reconfigure_handle().encode())]
    assert len(set(handles)) == job.world
    for quorum in (7, 8):
        assert group.reconfigure(SimpleNamespace(uuid=quorum, handles=handles)).wait()
        works(job, group)
    stranger = SimpleNamespace(uuid=9, handles=["another"])
    raises(zenps.Invalid, "quorum 9 of 1 replicas lacks this one's handle", lambda: group.reconfigure(stranger))
    group.configure("h" * 300, "replica", job.rank, job.world)  # longer than a job's name may be
    works(job, group)
    group.shutdown()


class Manager:
    """As far as average_gradients() needs torchft's."""

    def __init__(self, group: ProcessGroupZenps) -> None:
        self._group = group

    def allreduce(self, tensor: torch.Tensor) -> Any:
        return self._group.allreduce([tensor], options(ReduceOp.AVG))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 4, sparse=True)
        self.unused = nn.Embedding(50, 4, sparse=True)
        self.bag = nn.EmbeddingBag(300, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.large = nn.Linear(4, 70000)
        self.small = nn.Linear(4, 2)


def case_average(job: zenps.Job) -> None:
    """Also of parameters that only some replicas use, or none."""
    group = opened(job, "average")
    torch.manual_seed(3)
    model = Model()

    def loss(rank: int) -> torch.Tensor:
        ids = torch.randint(0, 300, (8,), generator=torch.Generator().manual_seed(rank))
        inner = model.frozen(model.table(ids) + model.bag(ids[:, None]))
        return (model.large(inner) if rank else model.small(inner)).square().mean()

    totals = {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    for rank in range(job.world):
        model.zero_grad(set_to_none=True)
        loss(rank).backward()
        for name, each in model.named_parameters():
            if each.grad is not None:
                totals[name] += each.grad.to_dense() if each.grad.is_sparse else each.grad
    model.zero_grad(set_to_none=True)
    loss(job.rank).backward()
    average_gradients(Manager(group), model)
    assert model.table.weight.grad.is_sparse and model.unused.weight.grad.is_sparse and model.frozen.weight.grad is None
    for name, each in model.named_parameters():
        if each.requires_grad:
            got = each.grad.to_dense() if each.grad.is_sparse else each.grad
            assert torch.allclose(got, totals[name] / job.world, rtol=1e-6, atol=1e-9), name
    group.shutdown()


def main() -> None:
    group = ProcessGroupZenps(timeout=timedelta(seconds=240))
    rank = int(sys.argv[2])
    group.configure(sys.argv[1], "replica", rank, rank + 1, 1)
    group.barrier().wait()
    time.sleep(600)


if __name__ == "__main__":
    main()
