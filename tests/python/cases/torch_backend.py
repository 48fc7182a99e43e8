"""The backend zenps of torch.distributed on four ranks: sums, copies, Works, groups; DDP, FSDP2 and HSDP beside Gloo's. As a
program: one more rank, which is killed; arguments: the job, its rank."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import unittest
from datetime import timedelta
from typing import Any, Callable, List, Sequence

import torch
import torch.distributed as dist

import zenps
import zenps.torch
from torch import nn
from torch.distributed.distributed_c10d import AllreduceOptions, BroadcastOptions, ReduceOp
from torch.nn.parallel import DistributedDataParallel
from zenps.torch import copies
from zenps.torch.backend import ZenpsBackend

torch.set_num_threads(1)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
WAIT = timedelta(seconds=240)
DEVICE = torch.device("cpu")
SOON = 120.0  # seconds, for what takes milliseconds
NEW = hasattr(dist, "reduce_scatter_tensor") and hasattr(dist, "device_mesh")


begun = 0


def begin() -> None:
    """The default process group, where there is none."""
    global begun
    if not dist.is_initialized():
        begun += 1
        rank, world = int(os.environ["ZENPS_RANK"]), int(os.environ["ZENPS_WORLD_SIZE"])
        where = f"file://{sys.argv[2]}/store.{begun}"
        dist.init_process_group("zenps", init_method=where, rank=rank, world_size=world, timeout=WAIT)


def raises(kind: Any, words: str, call: Callable[[], Any]) -> Any:
    try:
        call()
    except kind as error:
        assert words in str(error), error
        return error
    raise AssertionError(f"{kind} was not raised")


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def summed(every: Sequence[torch.Tensor]) -> torch.Tensor:
    """In the order of ranks; as zenps has them, those of 16 bits in 32 and rounded once."""
    wide = every[0].dtype in (torch.bfloat16, torch.float16)
    total = torch.zeros(every[0].shape, dtype=torch.float32 if wide else every[0].dtype)
    for each in every:
        total += each.to(total.dtype)
    return total


def right(every: Sequence[torch.Tensor], op: Any) -> torch.Tensor:
    dtype = every[0].dtype
    if op == ReduceOp.MAX:
        return torch.stack(list(every)).max(0).values
    if op == ReduceOp.MIN:
        return torch.stack(list(every)).min(0).values
    return (summed(every) * (1 / len(every) if op == ReduceOp.AVG else 1)).to(dtype)


def case_sums(job: zenps.Job) -> None:
    """The bits of a sum in the order of ranks, in every form of one."""
    begin()
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend().lower()) == (job.rank, job.world, "zenps")
    world, rank = job.world, job.rank
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for shape in ((), (7,), (8, 130)):
            every = [noise(each, *shape, dtype=dtype) for each in range(world)]
            for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX):
                wanted = right(every, op)
                mine = every[rank].clone()
                dist.all_reduce(mine, op)
                assert torch.equal(mine, wanted), (dtype, shape, op)
            mine = every[rank].clone()
            dist.reduce(mine, 2)
            assert torch.equal(mine, right(every, ReduceOp.SUM) if rank == 2 else every[rank])
        blocks = [[noise(world * each + i, 5, 33, dtype=dtype) for i in range(world)] for each in range(world)]
        for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX):
            wanted = right([blocks[each][rank] for each in range(world)], op)
            output = torch.zeros(5, 33, dtype=dtype)
            dist.reduce_scatter(output, blocks[rank], op)
            assert torch.equal(output, wanted), (dtype, op)
            output.zero_()
            dist.distributed_c10d._get_default_group()._reduce_scatter_base(output, torch.stack(blocks[rank]), op).wait()
            assert torch.equal(output, wanted), (dtype, op)
    for op, sign in ((ReduceOp.MAX, -1.0), (ReduceOp.MIN, 1.0)):  # of some ranks' values and of others' zeros: a zero is a value
        for n in (3, 200):
            mine = torch.full((n,), sign if rank else 0.0)
            dist.all_reduce(mine, op)
            output = torch.full((n,), sign)
            dist.reduce_scatter(output, [torch.full((n,), sign if rank else 0.0)] * world, op)
            assert not mine.any() and not output.any(), (op, n)
    several = [torch.ones(6, 4).t(), torch.empty(0), torch.ones(3, 2)]  # the first is not contiguous
    dist.all_reduce_coalesced(several)
    assert bool((several[0] == world).all()) and bool((several[2] == world).all())


def case_integers(job: zenps.Job) -> None:
    """What the servers do not sum, ranks do."""
    begin()
    every = [[3, 2**40 + rank, -rank] for rank in range(job.world)]
    total = [3 * job.world, job.world * 2**40 + 6, -6]
    product = torch.tensor([1, 1, 1])
    for each in every:
        product *= torch.tensor(each)
    for op, wanted in ((ReduceOp.SUM, torch.tensor(total)), (ReduceOp.PRODUCT, product), (ReduceOp.MIN, torch.tensor([3, 2**40, -3])),
                       (ReduceOp.MAX, torch.tensor([3, 2**40 + 3, 0])), (ReduceOp.BOR, torch.tensor([3, 2**40 + 3, -1]))):  # fmt: skip
        mine = torch.tensor(every[job.rank])
        dist.all_reduce(mine, op)
        assert torch.equal(mine, wanted), (op, mine)
    for dtype in (torch.int32, torch.uint8, torch.int16):
        mine = torch.arange(job.world, dtype=dtype)
        dist.all_reduce(mine)
        assert mine.dtype == dtype and mine.tolist() == [each * job.world for each in range(job.world)]
    used = torch.tensor([job.rank == 1, False])
    dist.all_reduce(used, ReduceOp.MAX)
    assert used.tolist() == [True, False]
    factors = torch.tensor([0.5, 3.0])
    dist.all_reduce(factors, ReduceOp.PRODUCT)
    assert factors.tolist() == [0.5**job.world, 3.0**job.world]
    mine = torch.tensor([1 + 2j, complex(job.rank, 0)])
    dist.all_reduce(mine)
    assert torch.equal(mine, torch.tensor([4 + 8j, 6 + 0j]))
    output = torch.zeros(2, dtype=torch.int64)
    dist.reduce_scatter(output, [torch.tensor([each, job.rank]) for each in range(job.world)])
    assert output.tolist() == [job.rank * job.world, 6]


def case_sparse(job: zenps.Job) -> None:
    begin()
    total, rows = torch.zeros(200, 6), set()
    for rank in range(job.world):
        ids = torch.randint(0, 200, (40,), generator=torch.Generator().manual_seed(rank))
        own = torch.zeros(200, 6).index_add_(0, ids, noise(rank, 40, 6))
        total += own
        rows |= set(ids.tolist())
        if rank == job.rank:
            mine = torch.sparse_coo_tensor(ids[None], noise(rank, 40, 6), (200, 6))
    dist.all_reduce(mine)
    assert mine.is_coalesced() and mine.indices()[0].tolist() == sorted(rows) and torch.equal(mine.to_dense(), total)
    for dims in (2, 3):  # sparse dimensions, as many as before
        whole = torch.zeros(6, 5, 4)
        whole[job.rank : job.rank + 2, 1:3, job.rank] = 1.0 + job.rank
        mine = whole.to_sparse(dims)
        dist.all_reduce(whole)
        dist.all_reduce(mine)
        assert mine.sparse_dim() == dims and mine.is_coalesced() and torch.equal(mine.to_dense(), whole)
        assert torch.equal(mine.indices(), whole.to_sparse(dims).indices())


def case_copies(job: zenps.Job) -> None:
    """Bits of any dtype."""
    begin()
    world, rank = job.world, job.rank
    odd = torch.tensor([0x7FF0000000000123, -(2**63), 0, 1]).view(torch.float64)  # a NaN with a payload, -0.0, a denormal
    mine = odd.clone() if rank == 3 else torch.zeros(4, dtype=torch.float64)
    dist.broadcast(mine, 3)
    assert torch.equal(mine.view(torch.int64), odd.view(torch.int64))
    for dtype in (torch.int64, torch.bool, torch.bfloat16, torch.uint8, torch.complex64):
        own = torch.full((3, 5), rank % 2).to(dtype)
        outputs = [torch.zeros(5, 3, dtype=dtype).t() for _ in range(world)]
        dist.all_gather(outputs, own)
        assert all(torch.equal(each, torch.full((3, 5), i % 2).to(dtype)) for i, each in enumerate(outputs)), dtype
    whole = torch.zeros(world * 2, 3)
    dist.distributed_c10d._get_default_group()._allgather_base(whole, torch.full((2, 3), float(rank))).wait()
    assert torch.equal(whole, torch.arange(float(world)).repeat_interleave(2)[:, None].expand(-1, 3))
    gathered = [torch.zeros(4) for _ in range(world)] if rank == 1 else None
    dist.gather(torch.full((4,), float(rank)), gathered, dst=1)
    assert gathered is None or [each.tolist() for each in gathered] == [[float(i)] * 4 for i in range(world)]
    own = torch.zeros(2, 2)
    dist.scatter(own, [torch.full((2, 2), float(10 + i)) for i in range(world)] if rank == 2 else None, src=2)
    assert torch.equal(own, torch.full((2, 2), float(10 + rank)))
    objects: List[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "more": "x" * 100 * rank})
    assert [each["rank"] for each in objects] == list(range(world))
    for _ in range(3):
        dist.barrier()


def case_works(job: zenps.Job) -> None:
    """Whoever looks, waits for or asks a future, has the result; waiting has an end."""
    begin()
    first = torch.empty_strided((64, 3), (1, 64)).fill_(1.0)  # its result is put in place afterwards
    work = dist.all_reduce(first, async_op=True)
    end = time.monotonic() + SOON
    while not work.is_completed():
        assert time.monotonic() < end
    assert bool((first == job.world).all()) and work.exception() is None and work.is_success()
    second = torch.ones(10)
    halves = dist.all_reduce(second, async_op=True).get_future().then(lambda future: future.value()[0] / 2)
    assert torch.equal(halves.wait(), torch.full((10,), job.world / 2))
    kept = [dist.all_reduce(torch.full((64, 3), float(i)), async_op=True) for i in range(100)]
    for i, each in enumerate(kept):
        each.wait()
        assert float(each.result()[0][0, 0]) == i * job.world
    copied = [torch.full((64,), float(i if job.rank == 0 else -1)) for i in range(100)]
    for work in [dist.broadcast(each, 0, async_op=True) for each in copied]:
        work.wait()
    assert all(bool((each == i).all()) for i, each in enumerate(copied))
    for _ in range(50):
        dist.barrier()
    flying = dist.distributed_c10d._get_default_group().job._collective.compared
    assert len(flying) <= 1, len(flying)  # those that are over are not kept
    late = torch.ones(5)
    if job.rank == 0:
        work = dist.all_reduce(late, async_op=True)
        raises(TimeoutError, "still in flight after 0.05 s", lambda: work.wait(timedelta(seconds=0.05)))
        assert not work.is_completed()
        job.barrier()
        assert work.wait(WAIT)
    else:
        job.barrier()
        dist.all_reduce(late)
    assert late.tolist() == [job.world] * 5


def several(n: int, size: int = 5) -> List[torch.Tensor]:
    """Sums n tensors in one call; the last has that size."""
    tensors = [torch.full((5 if at + 1 < n else size,), float(at)) for at in range(n)]
    dist.distributed_c10d._get_default_group().allreduce(tensors, AllreduceOptions()).wait()
    return tensors


def case_several(job: zenps.Job) -> None:
    """Many tensors of a call share a tensor of zenps, of which 32 rounds are in flight."""
    begin()
    for _ in range(2):
        assert all(bool((each == at * job.world).all()) for at, each in enumerate(several(100)))
    assert not several(0)
    sparse = [torch.eye(4)[at : at + 2].to_sparse() for at in range(2)]
    dist.distributed_c10d._get_default_group().allreduce(sparse, AllreduceOptions()).wait()
    assert all(torch.equal(each.to_dense(), job.world * torch.eye(4)[at : at + 2]) for at, each in enumerate(sparse))


def case_differences(job: zenps.Job) -> None:
    """Ranks that call other things, or with other sizes, all hear of it at once, and the group goes on."""
    begin()
    last = job.rank == job.world - 1
    for call, words in (
        (lambda: dist.broadcast(torch.ones(10000 if last else 10), 0), "rank 3 broadcast from rank 0 of 40000 bytes of float32"),
        (lambda: dist.barrier() if last else dist.all_reduce(torch.ones(3)), "rank 0 all_reduce(sum) of 3 values of f32, rank 3 barrier"),
        (lambda: dist.all_reduce(torch.ones(3, dtype=torch.int64 if last else torch.float32)), "allreduce(sum) of 24 bytes of int64"),
        (lambda: dist.broadcast(torch.ones(5), 1 if last else 0), "rank 3 broadcast from rank 1"),
        (lambda: several(2 if last else 3), "rank 0 allreduce of 3 tensors, rank 3 allreduce of 2 tensors; it must"),
        (lambda: several(0 if last else 1), "rank 0 all_reduce(sum) of 5 values of f32, rank 3 allreduce of 0 tensors"),
        (lambda: several(3, 7 if last else 5),
         "allreduce of 3 tensors, tensor 3: rank 0 all_reduce(sum) of 5 values of f32, rank 3 all_reduce(sum) of 7 values of f32"),
    ):  # fmt: skip
        error = raises(zenps.ShapeMismatch, words, call)
        assert "must be the same on all ranks" in str(error)
    fine = torch.ones(3)
    dist.all_reduce(fine)
    assert fine.tolist() == [job.world] * 3


def case_refusals(job: zenps.Job) -> None:
    begin()
    group = dist.distributed_c10d._get_default_group()
    for call, words in (
        (lambda: dist.send(torch.ones(3), (job.rank + 1) % job.world), "ZenpsBackend has no send: use broadcast()"),
        (lambda: dist.recv(torch.ones(3), (job.rank + 1) % job.world), "ZenpsBackend has no recv"),
        (lambda: dist.all_to_all([torch.ones(1)] * job.world, [torch.ones(1)] * job.world), "no alltoall: use allgather()"),
        (lambda: dist.all_to_all_single(torch.ones(job.world), torch.ones(job.world)), "no alltoall"),
        (lambda: dist.all_reduce(torch.ones(3), ReduceOp.BAND), "allreduce: band of torch.float32; zenps has sum, avg"),
        (lambda: dist.all_reduce(torch.ones(3, dtype=torch.int64), ReduceOp.AVG), "allreduce: avg of torch.int64"),
        (lambda: group.broadcast([torch.eye(3).to_sparse()], BroadcastOptions()), "broadcast: a sparse tensor"),
    ):  # fmt: skip
        raises(NotImplementedError, words, call)
    raises(zenps.Invalid, "1 of 12 bytes of float32; 4 of 12 bytes of float32 each are wanted",
           lambda: dist.all_gather([torch.ones(3)], torch.ones(3)))  # fmt: skip
    fine = torch.ones(3)
    dist.all_reduce(fine)
    assert fine.tolist() == [job.world] * 3


def case_refusals_of_one_rank(job: zenps.Job) -> None:
    """The others hear of it, of each tensor of a call, and the next calls of all ranks meet. An empty tensor is no refusal."""
    begin()
    group, last = dist.distributed_c10d._get_default_group(), job.rank == job.world - 1
    three, four, odd, root = torch.ones(3), torch.ones(3 * job.world), torch.ones(3).to_sparse(), BroadcastOptions()
    root.rootRank = job.world if last else 0
    sums = AllreduceOptions()
    wrong = zenps.Invalid if last else zenps.ShapeMismatch
    unsupported = zenps.Unsupported if last else zenps.ShapeMismatch
    for kind, words, call in (
        (unsupported, "allreduce: band of", lambda: dist.all_reduce(three, ReduceOp.BAND if last else ReduceOp.SUM)),
        (unsupported, "is of torch.int64", lambda: group.allreduce([three, odd.long() if last else odd, three], sums).wait()),
        (unsupported, "broadcast: a sparse tensor", lambda: dist.broadcast(odd if last else three, 0)),
        (wrong, "broadcast: root 4", lambda: group.broadcast([three, three], root).wait()),
        (wrong, "1 of 12 bytes", lambda: dist.all_gather([three.clone() for _ in range(1 if last else job.world)], three)),
        (wrong, "the output has 3 values", lambda: group._allgather_base(three if last else four, three.clone()).wait()),
        (wrong, "the input has 3 values", lambda: group._reduce_scatter_base(three.clone(), three if last else four).wait()),
        (wrong, "reduce_scatter: inputs: 1 of", lambda: dist.reduce_scatter(three.clone(), [three] * (1 if last else job.world))),
        (wrong, "reduce_scatter: 1 outputs and 2 inputs",
         lambda: group.reduce_scatter([three.clone()], [[three] * job.world] * (2 if last else 1)).wait()),
        (unsupported, "ZenpsBackend has no alltoall",
         lambda: dist.all_to_all_single(four.clone(), four) if last else dist.all_reduce(three.clone())),
        (unsupported, "coalescing of single calls", lambda: group._start_coalescing(DEVICE) if last else dist.barrier()),
        (zenps.ShapeMismatch, " of 0 values", lambda: dist.all_reduce(torch.ones(0 if last else 3))),
        (zenps.ShapeMismatch, " of 0 values", lambda: dist.reduce_scatter(torch.ones(0 if last else 3), [torch.ones(0 if last else 3)] * 4)),
    ):  # fmt: skip
        raises(kind, words, call)
        fine = torch.ones(3)
        dist.all_reduce(fine)
        assert fine.tolist() == [job.world] * 3, words


def case_groups(job: zenps.Job) -> None:
    """Each is a job of its own; destroy_process_group() closes it, and the next one is another."""
    begin()
    groups = [dist.new_group([0, 1], timeout=WAIT), dist.new_group([1, 2, 3], timeout=WAIT), dist.new_group([2], timeout=WAIT)]
    sums = []
    for group, ranks in zip(groups, ([0, 1], [1, 2, 3], [2])):
        if job.rank in ranks:
            mine = torch.tensor([float(job.rank)])
            dist.all_reduce(mine, group=group)
            assert float(mine) == sum(ranks) and group.job.world == len(ranks)
            dist.broadcast(mine, ranks[-1], group=group)
            sums.append(group.job)
    whole = dist.distributed_c10d._get_default_group()
    names = {each.name for each in [*sums, whole.job, job]}
    assert len(names) == len(sums) + 2, names
    assert all(each.name.startswith(f"{os.environ['ZENPS_JOB']}/") for each in [*sums, whole.job])
    job.barrier()
    first = whole.job
    if job.rank in (0, 1):
        dist.destroy_process_group(groups[0])
        del group, groups
        assert closed(sums[0]) and not first.closed
    again = torch.ones(2)
    dist.all_reduce(again)
    for _ in range(2):
        dist.destroy_process_group()
        if NEW:
            raises(zenps.Closed, "was destroyed or aborted; call init_process_group() again", whole.barrier)
        group = groups = whole = None
        assert closed(first) and all(each.closed for each in sums)
        begin()
        whole = dist.distributed_c10d._get_default_group()
        assert whole.job.name != first.name
        first = whole.job
        again = torch.ones(2)
        dist.all_reduce(again)
        assert again.tolist() == [job.world] * 2
    job.barrier()


def closed(job: zenps.Job) -> bool:
    """destroy_process_group() of torch 1.13 closes it when nothing refers to the group."""
    if not NEW:
        gc.collect()
    return job.closed


class Model(nn.Module):
    """A table with sparse gradients, layers, and one that only some ranks use."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(60, 8, sparse=True)
        self.hidden = nn.Linear(8, 300)
        self.sometimes = nn.Linear(300, 300)
        self.out = nn.Linear(300, 1)

    def forward(self, ids: torch.Tensor, use: bool) -> torch.Tensor:
        inner = torch.tanh(self.hidden(self.table(ids)))
        return self.out(torch.tanh(self.sometimes(inner)) if use else inner).square().mean()


def trained(group: Any, place: int, **arguments: Any) -> "tuple[List[float], List[torch.Tensor]]":
    """Losses of this rank, and parameters, under DistributedDataParallel."""
    torch.manual_seed(3)
    model = DistributedDataParallel(Model(), process_group=group, bucket_cap_mb=0.1, **arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        ids = torch.randperm(60, generator=torch.Generator().manual_seed(10 * step + place))[:8]
        optimizer.zero_grad()
        loss = model(ids, "find_unused_parameters" not in arguments or (place + step) % 2 == 0)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, [each.detach().clone() for each in model.parameters()]




def groups_of(backend: str, ranks: "tuple[tuple[int, ...], ...]") -> Any:
    own = None
    for each in ranks:
        group = dist.new_group(list(each), backend=backend, timeout=WAIT)
        if dist.get_rank() in each:
            own = group
    return own


def close(first: Any, second: Any, what: str) -> None:
    """Losses and parameters within 1e-6."""
    for one, other in zip(first[0], second[0]):
        assert abs(one - other) <= 1e-6 * max(abs(other), 1), (what, first[0], second[0])
    for one, other in zip(first[1], second[1]):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-6), (what, float((one - other).abs().max()))


def equal(first: Any, second: Any, what: str) -> None:
    assert first[0] == second[0], (what, first[0], second[0])
    assert all(torch.equal(one, other) for one, other in zip(first[1], second[1])), what


def case_ddp(job: zenps.Job) -> None:
    """Two ranks have Gloo's bits; four add in another order than Gloo."""
    begin()
    pairs = ((0, 1), (2, 3))
    over, beside = groups_of("zenps", pairs), groups_of("gloo", pairs)
    for arguments in ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
        place = job.rank % 2
        equal(trained(over, place, **arguments), trained(beside, place, **arguments), str(arguments))
    close(trained(None, job.rank), trained(groups_of("gloo", ((0, 1, 2, 3),)), job.rank), "four ranks")


def case_ddp_many_buckets(job: zenps.Job) -> None:
    """C++ holds many Works at once when it copies a large model to all ranks."""
    begin()
    torch.manual_seed(job.rank)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(60)])
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.01)
    wrapped(torch.ones(2, 64) * job.rank).sum().backward()
    sums = [float(each.double().sum()) for each in model.parameters()] + [float(each.grad.double().sum()) for each in model.parameters()]
    every: List[Any] = [None] * job.world
    dist.all_gather_object(every, sums)
    assert all(each == sums for each in every)


def case_ddp_errors(job: zenps.Job) -> None:
    """An error ends the backward pass as itself, also in the first pass of a static graph, which C++ waits for."""
    begin()
    for arguments in ({}, {"static_graph": True}):
        model = DistributedDataParallel(nn.Linear(4, 1), **arguments)
        loss = model(torch.ones(2, 4)).sum()
        if arguments and job.rank == 3:
            dist.all_reduce(torch.ones(2, dtype=torch.int32))  # The pass begins with a sum of which of the 2 parameters are used.
        raises(zenps.ShapeMismatch, "rank 3 barrier", dist.barrier if job.rank == 3 else loss.backward)
    real = copies.reduce

    def lost(*_: Any) -> Any:
        raise zenps.Canceled("a sum that does not start")

    model = DistributedDataParallel(nn.Linear(4, 1))
    loss = model(torch.ones(2, 4)).sum()
    copies.reduce = lost
    try:
        raises(zenps.Canceled, "a sum that does not start", loss.backward)
    finally:
        copies.reduce = real
    fine = torch.ones(3)
    dist.all_reduce(fine)
    assert fine.tolist() == [job.world] * 3


def needs_new() -> None:
    if not NEW:
        raise unittest.SkipTest(f"torch {torch.__version__} has no fully_shard(); ZENPS_TORCH_PYTHON names a newer one")


def sharded(mesh: Any, place: int) -> "tuple[List[float], List[torch.Tensor]]":
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 4))
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = model(noise(100 * step + place, 8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, [each.full_tensor().detach().clone() for each in model.parameters()]


def case_fsdp(job: zenps.Job) -> None:
    """fully_shard() over four ranks: Gloo adds in another order."""
    needs_new()
    begin()
    from torch.distributed.device_mesh import DeviceMesh

    everyone = ((0, 1, 2, 3),)
    results = [sharded(DeviceMesh.from_group(groups_of(each, everyone), "cpu"), job.rank) for each in ("zenps", "gloo")]
    close(*results, "FSDP2")
    assert results[0][0][-1] < results[0][0][0]


def case_hsdp(job: zenps.Job) -> None:
    """Two replicas of two shards: every sum is of two, so it has Gloo's bits, whichever group is over zenps."""
    needs_new()
    begin()
    from torch.distributed.device_mesh import DeviceMesh

    results = {}
    for replicate, shard in (("gloo", "gloo"), ("zenps", "gloo"), ("zenps", "zenps")):
        groups = [groups_of(replicate, ((0, 2), (1, 3))), groups_of(shard, ((0, 1), (2, 3)))]
        mesh = DeviceMesh.from_group(groups, "cpu", mesh=torch.tensor([[0, 1], [2, 3]]), mesh_dim_names=("replicate", "shard"))
        results[replicate, shard] = sharded(mesh, job.rank)
    equal(results["zenps", "gloo"], results["gloo", "gloo"], "HSDP, replicas over zenps")
    equal(results["zenps", "zenps"], results["gloo", "gloo"], "HSDP, both over zenps")


def case_meshes(job: zenps.Job) -> None:
    """Meshes that torch makes over the default backend, DTensor and functional collectives."""
    needs_new()
    begin()
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    assert dist.get_backend(mesh.get_group("shard")).lower() == "zenps"
    losses, _ = sharded(mesh, job.rank)
    assert losses[-1] < losses[0]
    whole = torch.arange(24.0).view(8, 3)
    flat = init_device_mesh("cpu", (4,))
    parts = distribute_tensor(whole, flat, [Shard(0)])
    assert torch.equal(parts.full_tensor(), whole)
    assert float((parts * 2).sum().full_tensor()) == 2 * float(whole.sum())
    assert torch.equal(parts.redistribute(flat, [Replicate()]).to_local(), whole)
    group = dist.distributed_c10d._get_default_group()
    assert torch.equal(functional.all_reduce(torch.ones(3), "sum", group) + 0, torch.full((3,), 4.0))
    assert torch.equal(functional.reduce_scatter_tensor(torch.ones(8), "avg", 0, group) + 0, torch.ones(2))
    assert torch.equal(functional.all_gather_tensor(torch.full((1,), float(job.rank)), 0, group) + 0, torch.arange(4.0))


def case_lost(job: zenps.Job) -> None:
    """A rank is killed with SIGKILL while the others wait for it in a collective."""
    name = "/".join([job.name, "lost"])
    peer = subprocess.Popen([sys.executable, __file__, name, str(job.world)]) if job.rank == 0 else None
    group = ZenpsBackend(name, job.rank, job.world + 1, WAIT)
    group.barrier().wait()
    work = group.allreduce([torch.ones(1000)])
    job.barrier()
    since = time.monotonic()
    if peer is not None:
        peer.kill()
    error = raises(zenps.PeerLost, f"rank {job.world} ", work.wait)
    assert time.monotonic() - since < SOON and error.missing_ranks == (job.world,)
    assert work.exception() is error and group.errored() is error
    raises(zenps.PeerLost, "", group.barrier().wait)
    group.shutdown()
    if peer is not None:
        peer.wait()


def main() -> None:
    rank = int(sys.argv[2])
    group = ZenpsBackend(sys.argv[1], rank, rank + 1, WAIT)
    group.barrier().wait()
    time.sleep(600)


if __name__ == "__main__":
    main()
