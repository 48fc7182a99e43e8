"""Cases of one job of four ranks, in which nothing goes wrong. numpy is here for the reference alone."""

import asyncio
import array
import gc
import hashlib
import os
import threading

import numpy as np
import reference
import zenps


def raises(kind, call, *words):
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error!r}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def agree(job, data):
    """All ranks have these bytes."""
    digests = job.gather(hashlib.sha1(data).digest())
    assert len(set(digests)) == 1, digests


def case_exact(job):
    for dtype in ("f32", "f64"):
        for width in (1, 7, 64):
            rows = 5000
            tensor = job.tensor(f"exact.{dtype}.{width}", rows, width, dtype, op="sum")
            every = [reference.gradient(rank, rows, width, dtype, 700 + 100 * rank) for rank in range(job.world)]
            expected_ids, expected = reference.total(every, rows, width, dtype)
            ids, values = every[job.rank]
            for step in range(2):
                result = tensor.allreduce(values, ids).wait()
                assert result.nnz == len(expected_ids)
                assert reference.same(result.row_ids, expected_ids)
                assert reference.same(result.values, expected), (dtype, width, step)
            agree(job, result.row_ids.tobytes() + result.values.tobytes())
            assert tensor.next_step == 2


def case_mean_max(job):
    mean, most = job.tensor("mean", 10), job.tensor("max", 10, op="max")
    assert mean.op == "mean"
    requests = [mean.allreduce([float(job.rank)], [3]), most.allreduce([float(job.rank)], [4])]
    zenps.wait_all(requests)
    sums, greatest = (request.wait() for request in requests)
    assert (sums.row_ids.tolist(), sums.values.tolist()) == ([3], [[sum(range(job.world)) / job.world]])
    assert (greatest.row_ids.tolist(), greatest.values.tolist()) == ([4], [[job.world - 1]])


def case_mean_present(job):
    tensor = job.tensor("present", 10, op="mean_present")
    got = tensor.allreduce([3.0], [1]).wait() if job.rank % 2 else tensor.allreduce().wait()
    assert (got.contributors, got.values.tolist()) == (2, [[3.0]])
    got = tensor.allreduce(contributes=True).wait() if job.rank else tensor.allreduce([3.0], [1]).wait()
    assert (got.contributors, got.values.tolist()) == (4, [[0.75]])


def _without_the_last(job, among):
    last = job.world - 1
    in_time = range(last + 1 - among.world, last)
    tensor = among.tensor("quorum", 10, op="mean", quorum=len(in_time))
    if job.rank == last:
        among.barrier()  # the others have their sum
    request = tensor.allreduce([float(job.rank)], [3])
    got = request.wait()
    if job.rank != last:
        among.barrier()
    assert (got.contributors, got.values.tolist()) == (len(in_time), [[sum(in_time) / len(in_time)]])
    assert got.late == request.stats.late == (job.rank == last)
    assert request.stats.late_ranks == (last,)
    return tensor


def case_quorum(job):
    tensor = _without_the_last(job, job)
    if job.rank >= 2:
        _without_the_last(job, job.group("quorum", [2, 3]))
    got = job.tensor("all in time", 10, op="sum", quorum=1, grace_ms=60_000).allreduce([1.0], [3]).wait()
    assert (got.contributors, got.late, got.values.tolist()) == (job.world, False, [[float(job.world)]])
    raises(zenps.Invalid, lambda: job.tensor("too many", 10, quorum=job.world + 1), "a quorum of 5 ranks", "want 1 to 4")
    raises(zenps.Invalid, lambda: job.tensor("negative", 10, quorum=-1), "quorum -1")
    raises(zenps.Invalid, lambda: job.tensor("no quorum", 10, grace_ms=5), "a grace of 5 ms without a quorum")
    raises(zenps.Unsupported, lambda: job.tensor("between", 10, quorum=1, scheme="ring"), "is for scheme balanced")
    raises(zenps.Unsupported, lambda: tensor.push([1.0], [3]), "on a tensor with a quorum")
    job.barrier()


def case_requests_that_the_collector_frees(job):
    tensor = job.tensor("dropped", 10, op="sum")
    circle = [tensor.allreduce([1.0], [3])]
    circle.append(circle)
    held = len(job._requests)
    del circle
    with job._state:  # the collector may run at any time, also here
        gc.collect()
    assert len(job._requests) == held - 1
    job.barrier()


def case_halves(job):
    half = job.tensor("f16", 100, 2, "f16", op="sum")
    got = half.allreduce(np.full((1, 2), 0.5, np.float16), [7]).wait()
    assert np.asarray(got.values).dtype == np.float16 and np.asarray(got.values).tolist() == [[2.0, 2.0]]
    brain = job.tensor("bf16", 100, 2, "bf16", op="sum")
    got = brain.allreduce(np.full((1, 2), 0x3F00, np.uint16), [7]).wait()  # 0.5
    assert got.values.data.format == "H" and got.values.tolist() == [[0x4000, 0x4000]]  # 2.0


def case_corners(job):
    rows, width = 1000, 2
    tensor = job.tensor("corners", rows, width, op="sum")
    nan, inf = float("nan"), float("inf")
    mine = {0: ([0, rows - 1], [[1, -1], [2, 0]]), 1: ([5], [[nan, inf]]), 2: ([6, 6], [[-0.0, -0.0], [1, -1]])}
    ids, values = mine.get(job.rank, ([], []))
    if ids:
        got = tensor.allreduce(np.array(values, np.float32), ids).wait()
    else:
        got = tensor.allreduce().wait()
    assert got.row_ids.tolist() == [0, 5, 6, rows - 1]
    sums = np.asarray(got.values)
    assert sums[[0, 2, 3]].tolist() == [[1, -1], [1, -1], [2, 0]] and np.isnan(sums[1, 0]) and np.isinf(sums[1, 1])
    nothing = tensor.allreduce(np.empty((0, width), np.float32), np.empty(0, np.int64)).wait()
    assert nothing.nnz == 0 and nothing.row_ids.tolist() == [] and np.asarray(nothing.values).shape == (0, width)


def case_zero_rows(job):
    tensor = job.tensor("zeros", 100, 2, op="sum", keep_zero_rows=True)
    got = tensor.allreduce(np.zeros((1, 2), np.float32), [9]).wait()
    assert got.row_ids.tolist() == [9] and got.values.tolist() == [[0, 0]]


def case_layouts(job):
    tensor = job.tensor("layouts", 50, 3, op="sum")
    expected = np.zeros((50, 3), np.float32)
    expected[7] = sum(range(1, job.world + 1))
    dense = np.zeros((50, 3), np.float32)
    dense[7] = job.rank + 1
    before = dense.copy()
    result = tensor.allreduce(dense).wait()
    assert result.row_ids is None and reference.same(result.values, expected) and (dense == before).all()
    result = tensor.allreduce(dense, out="rows").wait()
    assert result.row_ids.tolist() == [7] and reference.same(result.values, expected[7])
    tensor.allreduce(dense, out=dense).wait()
    assert reference.same(dense, expected)
    # Ranks need not have the same layout.
    values = np.full((1, 3), job.rank + 1, np.float32)
    request = tensor.allreduce(before) if job.rank % 2 else tensor.allreduce(values, [7], out="dense")
    assert reference.same(request.wait().values, expected)
    ids, into = np.full(5, -1), np.zeros((5, 3), np.float32)
    result = tensor.allreduce(values, [7], out=(ids, into)).wait()
    assert result.nnz == 1 and ids[0] == 7 and reference.same(result.values, expected[7]) and into[0, 0] == expected[7, 0]


def case_truncated(job):
    tensor = job.tensor("truncated", 50, 1, op="sum")
    room = (np.zeros(2, np.int64), np.zeros((2, 1), np.float32))
    request = tensor.allreduce([1.0, 2.0, 3.0], [4, 5, 6], out=room)
    error = raises(zenps.Truncated, request.wait)
    assert error.needed == 3 and error.tensor == "truncated"
    raises(zenps.Truncated, lambda: request.fetch(room))
    got = request.fetch((np.zeros(3, np.int64), np.zeros((3, 1), np.float32)) if job.rank else "rows")
    assert (got.row_ids.tolist(), got.values.tolist()) == ([4, 5, 6], [[4], [8], [12]])
    assert request.wait() is got and request.exception() is None and request.stats.total > 0
    raises(zenps.Invalid, request.fetch, "not truncated")
    assert tensor.allreduce([1.0], [4], out=room).wait().nnz == 1


class OnlyDLPack:
    def __init__(self, inner):
        self.inner = inner

    def __dlpack__(self, **more):
        return self.inner.__dlpack__(**more)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


class OnlyInterface:
    def __init__(self, inner):
        self.inner = inner
        self.__array_interface__ = inner.__array_interface__


def case_inputs(job):
    """Every kind of array, and what is wrong with an array is told before the step is used up."""
    tensor = job.tensor("inputs", 50, 2, op="sum")
    ids, values = np.array([3, 1]), np.ones((2, 2), np.float32)
    kinds = [
        (values, ids), (array.array("f", [1] * 4), array.array("q", [3, 1])), ([1, 1, 1, 1], (3, 1)),
        (memoryview(values), memoryview(ids)), (OnlyDLPack(values), OnlyDLPack(ids)),
        (OnlyInterface(values), OnlyInterface(ids)), (values.tobytes() and zenps.Array(values.ctypes.data, "f32", (2, 2), values), ids),
    ]  # fmt: skip
    for given, rows in kinds:
        got = tensor.allreduce(given, rows).wait()
        assert got.row_ids.tolist() == [1, 3] and got.values.tolist() == [[job.world] * 2] * 2
    step = tensor.next_step
    for bad, words in (
        (lambda: tensor.allreduce(values.astype(np.float64), ids), ("inputs", "f64", "f32 is wanted")),
        (lambda: tensor.allreduce(np.ones((2, 4), np.float32)[:, ::2], ids), ("not contiguous",)),
        (lambda: tensor.allreduce(OnlyDLPack(np.ones((2, 4), np.float32)[:, ::2]), ids), ("not contiguous",)),
        (lambda: tensor.allreduce(values, [1, 2, 3]), ("[2, 2]", "[3, 2]")),
        (lambda: tensor.allreduce(values), ("[2, 2]", "[50, 2]")),
        (lambda: tensor.allreduce(None, [1]), ("without values",)),
        (lambda: tensor.allreduce("abcd", ids), ("str is no array",)),
        (lambda: tensor.allreduce(values, ids, out="all"), ("must be same, rows, dense",)),
        (lambda: tensor.allreduce(values, ids, out=b"x" * 400), ("out",)),
        (lambda: tensor.allreduce(values, ids, step=-1), ("step -1",)),
        (lambda: job.tensor("bad", 0), ("0 rows",)),
        (lambda: job.tensor("bad", 10, dtype="f8"), ("f8", "f32, f64, bf16, f16")),
        (lambda: job.tensor("bad", 10, op="add"), ("add", "sum, mean")),
        (lambda: job.tensor("bad", 10, partitions=-1), ("partitions -1",)),
    ):  # fmt: skip
        raises(zenps.Invalid, bad, *words)
    raises(zenps.Unsupported, lambda: job.tensor("bad", 10, scheme="fast"), "fast", "balanced")
    raises(zenps.Invalid, lambda: job.tensor("bad", 10, colour=1), "has no option 'colour'", "block_bits")
    raises(zenps.Invalid, lambda: job.tensor("bad", 10, scheme="oktopk:k=5", tua=4), "no option 'tua'", "did you mean 'tau'?")
    raises(zenps.Invalid, lambda: job.tensor("bad", 10, scheme="oktopk:k=5", k=4), "k is given twice")
    raises(zenps.Invalid, lambda: job.tensor("bad", 10, scheme="oktopk", k={}), "k {}")
    assert tensor.next_step == step
    raises(zenps.Invalid, tensor.allreduce(values, [50, 1]).wait, "50")  # found out while it is encoded
    assert isinstance(raises(ValueError, lambda: tensor.allreduce(values, [1])), zenps.ZenpsError)


def case_buffers(_):
    """What Python 3.12 gives numpy.asarray() has shape and type, also of no elements; where it cannot, numpy asks elsewhere."""
    for dtype, kind in (("f32", "f4"), ("f64", "f8"), ("bf16", "u2"), ("f16", "f2"), ("i64", "i8"), ("u8", "u1")):
        for shape in ((0, 4), (3, 0), (0,), (2, 3)):
            made = zenps.Array(np.zeros(6).ctypes.data, dtype, shape)
            seen = [np.asarray(made)]
            if dtype == "f16":
                raises(BufferError, lambda: made.__buffer__(0), "no f16")  # noqa: B023
            else:
                seen.append(np.asarray(made.__buffer__(0)))
            assert all((each.shape, each.dtype) == (shape, np.dtype(kind)) for each in seen), (dtype, shape, seen)


def case_outputs(job):
    """Results as other libraries see them, without copies."""
    tensor = job.tensor("outputs", 50, 2, op="sum")
    got = tensor.allreduce(np.ones((2, 2), np.float32), [3, 1]).wait()
    seen = np.asarray(got.values)
    assert seen.ctypes.data == got.values.address and seen.shape == (2, 2) and seen.dtype == np.float32
    through = np.from_dlpack(got.values)
    assert through.ctypes.data == got.values.address
    seen[0, 0] = 99
    assert got.values.data[0, 0] == 99 and got.values[0, 0] == 99 and through[0, 0] == 99
    assert len(got.row_ids) == 2 and list(got.row_ids) == [1, 3] and got.values.nbytes == 16
    view = got.row_ids.data
    del got, through
    gc.collect()
    tensor.allreduce().wait()
    assert view.tolist() == [1, 3] and seen[0, 0] == 99


def case_push_pull(job):
    tensor = job.tensor("pushed", 100, 2, op="sum")
    pull = tensor.pull(range(10, 20))
    tensor.push(np.ones((2, 2), np.float32), [12, 30]).wait()
    got = pull.wait()
    assert got.row_ids.tolist() == [12] and got.values.tolist() == [[job.world] * 2]
    tensor.push(np.ones((1, 2), np.float32), [job.rank]).wait()
    got = tensor.pull([3, 0, 50], out="dense").wait()
    assert got.values.tolist() == [[1, 1], [1, 1], [0, 0]]
    own = range(25 * job.rank, 25 * (job.rank + 1))
    got = tensor.reduce_scatter(np.ones((2, 2), np.float32), [1, 99], rows=own).wait()
    assert got.row_ids.tolist() == [row for row in (1, 99) if row in own]
    raises(zenps.Invalid, lambda: tensor.pull(range(0, 10, 2)), "step 1")


def case_pull_newest(job):
    """A rank ahead of the others gets the newest sum that is complete."""
    tensor = job.tensor("stale", 10, op="sum", staleness=2)
    raises(zenps.Invalid, lambda: tensor.pull_newest(-1), "staleness -1")
    tensor.push([1.0], [0]).wait()
    got = tensor.pull_newest(0)
    assert got.wait().values.tolist() == [[job.world]] and got.stats.step == 0
    job.barrier()
    if job.rank == 0:
        tensor.push([2.0], [1]).wait()
        got = tensor.pull_newest(1)
        assert got.wait().row_ids.tolist() == [0] and (got.step, got.stats.step) == (1, 0)
    job.barrier()
    if job.rank:
        tensor.push([2.0], [1]).wait()
    assert tensor.pull_newest(0).wait().row_ids.tolist() == [1]


def case_allgather(job):
    tensor = job.tensor("gathered", 100, 2, "f64")
    got = tensor.allgather(np.full((1, 2), -0.0 if job.rank else 7.5), [job.rank]).wait()
    assert got.row_ids.tolist() == list(range(job.world))
    assert np.signbit(np.asarray(got.values)[1:]).all() and got.values.tolist()[0] == [7.5, 7.5]


def case_gather_sum(job):
    for data in (b"", b"x" * job.rank, bytes(range(256)) * (300 * job.rank + 1)):
        mine = data + bytes([job.rank])
        got = job.gather(mine)
        assert got[job.rank] == mine and [each[-1] for each in got] == list(range(job.world))
    assert job.sum(0.1, job.rank, -0.0) == [sum([0.1] * job.world), sum(range(job.world)), 0.0]
    assert job.sum() == []
    raises(zenps.ShapeMismatch, lambda: job.sum(*[1.0] * (1 + (job.rank == 2))), "[1, 1, 2, 1]")


def case_unequal_broadcasts(job):
    """All ranks hear of it, and nothing is written."""
    for among in (job, job.group("unequal", [1, 2, 3])) if job.rank else (job,):
        last = job.rank == 3
        for call, *words in (
            (lambda at: among.broadcast(at[: 44 if last else 40]), "of 40 bytes", "rank 3", "of 44 bytes"),
            (lambda at: among.broadcast(at[: 0 if last else 40]), "of 40 bytes", "rank 3", "of 0 bytes"),
            (lambda at: among.barrier() if last else among.broadcast(at), "of 50 bytes", "rank 3 zenps_barrier()"),
            (lambda at: among.broadcast(at, 3 if last else 1), "from rank 1", "rank 3", "from rank 3"),
        ):
            data = np.full(50, job.rank, "u1")
            raises(zenps.ShapeMismatch, lambda: call(data), *words)
            assert (data == job.rank).all()
        among.broadcast(data, 2)
        assert (data == 2).all()


def case_broadcast_barrier(job):
    for n_bytes in (0, 1, 64, 1000003):
        expected = bytes(i * 7 % 256 for i in range(min(n_bytes, 1000))) + b"z" * max(0, n_bytes - 1000)
        buffer = bytearray(expected if job.rank == 1 else n_bytes)
        job.broadcast(buffer, root=1)
        assert buffer == expected
    values = np.arange(12, dtype=np.float64).reshape(3, 4) * (job.rank == 0)
    job.broadcast(values)
    assert values[2, 3] == 11
    job.barrier()
    if job.rank:
        raises(zenps.Invalid, lambda: job.broadcast(b"abc"), "read-only")
    else:
        raises(zenps.ShapeMismatch, lambda: job.broadcast(b"abc"), "barrier")
    raises(zenps.Invalid, lambda: job.broadcast(bytearray(3), root=job.world), "root")


def case_groups(job):
    """Two pairs of ranks at work at once, with tensors of one name."""
    ranks = [rank for rank in range(job.world) if rank % 2 == job.rank % 2]
    group = job.group(f"pair{job.rank % 2}", ranks[::-1])
    assert job.group(f"pair{job.rank % 2}", ranks) is group
    assert (group.ranks, group.world, group.rank) == (tuple(ranks), 2, job.rank // 2)
    got = group.tensor("t", 10, op="sum").allreduce([1.0], [job.rank]).wait()
    assert got.row_ids.tolist() == ranks
    assert group.gather(b"%d" % job.rank) == [b"%d" % rank for rank in ranks] and group.sum(1.0) == [2.0]
    buffer = bytearray([job.rank])
    group.broadcast(buffer)
    assert buffer[0] == ranks[0]
    group.broadcast(buffer, root=ranks[1])
    group.barrier()
    raises(zenps.Invalid, lambda: job.group("bad", [job.rank, job.world]), str(job.world))
    raises(zenps.Invalid, lambda: job.group("bad", [(job.rank + 1) % job.world]))
    raises(zenps.Invalid, lambda: job.group("bad", []))
    group.close()
    job.barrier()
    whole = job.group("whole", range(job.world))
    assert whole.sum(1.0) == [4.0]


def case_asyncio(job):
    tensors = [job.tensor(f"async.{i}", 100, op="sum") for i in range(8)]

    async def one(tensor, step):
        rows = await tensor.allreduce([1.0], [step], step=step)
        assert rows.values.tolist() == [[job.world]]
        return tensor.name

    async def main():
        for step in range(50):
            names = await asyncio.gather(*(one(tensor, step) for tensor in tensors))
            assert names == [tensor.name for tensor in tensors]

    asyncio.run(main())
    asyncio.run(main_again(tensors, job))


async def main_again(tensors, job):
    """Another loop, and a wait that is given up: the operation is, too, on all ranks."""
    request = tensors[0].allreduce([1.0], [1]) if job.rank else None
    if job.rank == 1:
        try:
            await asyncio.wait_for(request, 0.2)
        except asyncio.TimeoutError:
            pass
        else:
            raise AssertionError("rank 0 has not come")
    if job.rank:
        raises(zenps.Canceled, request.wait)
    rows = await tensors[1].allreduce([1.0], [1])
    assert rows.nnz == 1


def case_threads(job):
    failures = []

    def body(number):
        try:
            tensor = job.tensor(f"thread.{number}", 1000, 4, op="sum")
            for step in range(20):
                got = tensor.allreduce(np.ones((3, 4), np.float32), [number, step, 999]).wait()
                assert got.values.tolist()[-1] == [job.world] * 4
        except Exception as error:  # for the main thread to raise
            failures.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def case_same_objects(job):
    """240 s are the environment's (conftest.py), given once more."""
    tensor = job.tensor("same", 10, 2)
    assert job.tensor("same", 10, 2) is tensor
    assert zenps.init(round_timeout=240) is job and job.name == os.environ["ZENPS_JOB"]
    assert 0 <= tensor.owner(0) < job.servers and tensor.rows == 10 and tensor.scheme == "balanced"


def case_tensor_closed(job):
    tensor = job.tensor("closed", 10, op="sum")
    got = tensor.allreduce([1.0], [1]).wait()
    tensor.close()
    tensor.close()
    raises(zenps.Closed, tensor.allreduce, "closed")
    again = job.tensor("closed", 20, 2, op="sum")
    assert again is not tensor and again.next_step == 0
    assert again.allreduce([1.0, 1.0], [19]).wait().row_ids.tolist() == [19] and got.values.tolist() == [[job.world]]


def case_tensors_at_once(job):
    asked = [{"name": f"many.{i}", "rows": 10 + i, "op": "sum"} for i in range(20)]
    opened = job.tensors(asked)
    assert [(tensor.name, tensor.rows, tensor.width, tensor.op) for tensor in opened] == [(f"many.{i}", 10 + i, 1, "sum") for i in range(20)]
    assert job.tensor("many.3", 13, op="sum") is opened[3] and job.tensors(asked[5:6]) == [opened[5]] and job.tensors([]) == []
    got = [tensor.allreduce([1.0], [i]) for i, tensor in enumerate(opened[:10])]
    assert [each.wait().row_ids.tolist() for each in got] == [[i] for i in range(10)]
    raises(zenps.ShapeMismatch, lambda: job.tensors([{"name": "many.20", "rows": 5}, {"name": "many.0", "rows": 99}]), "many.0")
    raises(zenps.Invalid, lambda: job.tensors([{"name": "many.21", "rows": 0}]), "many.21")
    raises(zenps.Invalid, lambda: job.tensors([{"name": "many.22", "rows": 5, "color": 1}]), "color")
    raises(TypeError, lambda: job.tensors([{"name": "many.23"}]), "name and rows")


def case_shape_mismatch(job):
    if job.rank == 0:
        job.tensor("mismatch", 10, 2)
    job.barrier()
    if job.rank:
        error = raises(zenps.ShapeMismatch, lambda: job.tensor("mismatch", 10, 3), "mismatch")
        assert isinstance(error, ValueError) and error.status == zenps.Status.ERR_SHAPE
    job.barrier()


def case_timeout_and_cancel(job):
    tensor = job.tensor("late", 10, op="sum")
    request = None
    if job.rank:
        request = tensor.allreduce([1.0], [1])
        raises(TimeoutError, lambda: request.wait(0.05), "late", "in flight")
        assert not request.done() and request.stats is None
    job.barrier()
    if not job.rank:
        request = tensor.allreduce([1.0], [1])
    assert request.wait().values.tolist() == [[job.world]] and request.done() and request.exception() is None
    assert request.stats.total > 0 and request.stats.scheme == "balanced"
    request = tensor.allreduce([1.0], [1]) if job.rank else None
    if job.rank == 1:
        request.cancel()
    if job.rank:
        error = request.exception()
        assert isinstance(error, zenps.Canceled) and (error.tensor, error.step) == ("late", 1), repr(error)
    job.barrier()


def case_dropped(job):
    """Who drops a request gives it up, on all ranks."""
    tensor = job.tensor("dropped", 10, op="sum")
    if job.rank == 1:
        tensor.allreduce([1.0], [1])
        gc.collect()
    elif job.rank > 1:
        raises(zenps.Canceled, tensor.allreduce([1.0], [1]).wait)
    job.barrier()


def case_parts(job):
    """Several arrays in one round have the sums of one array, with what lies between them left out."""
    tensor, whole = job.tensor("parts", 100, 2, op="sum"), job.tensor("parts.whole", 100, 2, op="sum")
    dense, other = np.zeros((40, 2), np.float32), np.full((10, 2), 0.5, np.float32)
    dense[3] = job.rank + 0.25
    ids, values = np.array([29, 0, 29]), np.arange(6, dtype=np.float32).reshape(3, 2) + job.rank / 3
    full = whole.allreduce(np.concatenate([dense[3:4], values, other]), [3, 79, 50, 79, *range(90, 100)]).wait()
    expected = {row: value for row, value in zip(full.row_ids.tolist(), full.values.tolist())}
    parts = [zenps.Part(0, 40, dense), zenps.Part(50, 30, values, ids), zenps.Part(90, 10, other)]
    got = tensor.allreduce_parts(parts).wait()
    assert [each.row_ids is None for each in got] == [True, False, True]
    assert got[1].row_ids.tolist() == [0, 29] and got[1].values.tolist() == [expected[50], expected[79]]
    assert np.asarray(got[0].values)[3].tolist() == expected[3] and np.asarray(got[2].values)[9].tolist() == expected[99]
    view = got[1].values.data
    del got
    got = tensor.allreduce_parts([zenps.Part(0, 40), zenps.Part(90, 10, other)], out=["rows", other]).wait()
    assert got[0].nnz == 0 and (other == 0.5 * job.world).all() and view.tolist()[1] == expected[79]
    raises(zenps.Invalid, lambda: tensor.allreduce_parts([]), "0 parts")
    raises(zenps.Invalid, lambda: tensor.allreduce_parts(parts, out=["rows"]), "1 results for 3 parts")
    raises(zenps.Invalid, lambda: tensor.allreduce_parts([zenps.Part(0, 5, other)]), "[5, 2]")
    raises(zenps.Invalid, lambda: tensor.allreduce_parts(parts[::-1]))


def case_sparsifier(job):
    n = 2000
    tensor = job.tensor("selected", n, op="sum")
    sparsifier = zenps.Sparsifier(n, density=0.01)
    draw = np.random.default_rng(job.rank)
    given, sent = np.zeros(n, np.float64), np.zeros(n, np.float64)
    for _ in range(5):
        gradient = draw.standard_normal(n).astype(np.float32)
        given += gradient
        selection = sparsifier.select(gradient)
        assert selection.nnz == 20 == sparsifier.stats.selected
        sent[np.asarray(selection.row_ids)] += np.asarray(selection.values)[:, 0]
        result = tensor.allreduce(selection.values, selection.row_ids).wait()
        sparsifier.commit(result)
    assert np.abs(given - sent - np.asarray(sparsifier.residual)).max() < 1e-5
    agree(job, result.values.tobytes())
    # Saved, it goes on bit for bit, with its threshold and its place in the period.
    reused = zenps.Sparsifier(n, density=0.05, kind="reused", period=8, momentum=0.9)
    for _ in range(3):
        reused.select(gradient)
        reused.commit()
    again = zenps.Sparsifier(n, density=0.05, kind="reused", period=8, momentum=0.9)
    again.load(reused.save())
    for _ in range(8):
        one, other = again.select(gradient), reused.select(gradient)
        assert reference.same(one.row_ids, other.row_ids) and reference.same(one.values, other.values)
        again.commit()
        reused.commit()
    raises(zenps.Invalid, lambda: again.load(reused.save()[:100]))
    raises(zenps.ShapeMismatch, lambda: zenps.Sparsifier(n + 1, density=0.05).load(reused.save()))
    # All of it is the dense sum, bit for bit.
    whole = zenps.Sparsifier(n, density=1.0)
    selection = whole.select(gradient)
    assert reference.same(
        tensor.allreduce(selection.values, selection.row_ids, out="dense").wait().values,
        tensor.allreduce(gradient).wait().values.data,
    )


def case_contributed(job):
    n = 4096
    tensor = job.tensor("oktopk", n, op="sum", scheme="oktopk:density=0.02", tau=8, contributed=True,
                        without=("rotation", "steering"))  # fmt: skip
    sparsifier = zenps.Sparsifier(n, kind="scheme")
    gradient = np.random.default_rng(job.rank).standard_normal(n).astype(np.float32)
    selection = sparsifier.select(gradient)
    assert selection.row_ids is None
    result = tensor.allreduce(selection.values, out="rows").wait()
    sparsifier.commit(result)
    residual = np.asarray(sparsifier.residual)
    took = np.asarray(result.contributed)
    assert len(took) and (residual[took] == 0).all() and np.count_nonzero(residual) == n - len(took)


def case_fork(job):
    tensor = job.tensor("forked", 10, op="sum")
    child = os.fork()
    if child == 0:
        try:
            raises(zenps.Forked, lambda: tensor.allreduce([1.0], [1]), str(os.getppid()))
            raises(zenps.Forked, job.barrier)
            job.close()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert tensor.allreduce([1.0], [1]).wait().nnz == 1


def case_memory(job):
    """Results are freed with their last view, and not before."""
    tensor = job.tensor("memory", 5000, 64, op="sum")
    values, ids = np.ones((5000, 64), np.float32), np.arange(5000)

    def resident():
        with open("/proc/self/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for step in range(60):
        got = tensor.allreduce(values, ids).wait()
        assert got.values.data[4999, 63] == job.world
        if step == 20:
            before = resident()
    assert resident() - before < 16 * got.values.nbytes, "40 results would be 40 times as much"


def case_outlive(job):
    """Last: the job is closed; results and their views stay."""
    tensor = job.tensor("outlive", 100, 2, op="sum")
    got = tensor.allreduce(np.ones((2, 2), np.float32), [3, 1]).wait()
    seen, view = np.asarray(got.values), got.row_ids.data
    stats = job.stats
    assert stats.requests > 50 and stats.bytes_out > 0
    job.close()
    job.close()
    del got, tensor
    gc.collect()
    assert job.closed and seen.tolist() == [[job.world] * 2] * 2 and view.tolist() == [1, 3]
    raises(zenps.Closed, job.barrier, "closed")
