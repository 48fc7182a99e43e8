"""Limits and kinds of arguments, on two ranks: tensors of a job, names, row numbers."""

import array
from typing import Any, Callable

import numpy as np

import zenps

TENSORS = 4096  # beside those of a job's own that zenps opens
TENSORS_MAX = 8192  # limit of a job


def refused(call: Callable[[], Any], kind: type, *texts: str) -> None:
    try:
        call()
    except zenps.ZenpsError as error:
        assert type(error) is kind and all(text in str(error) for text in texts), repr(error)
        return
    raise AssertionError(f"no {kind.__name__} with {texts}")


def case_many_tensors(job: zenps.Job) -> None:
    """More at once than a connection has calls in flight, and one more than there may be."""
    with zenps.init(job=f"{job.name}.many", round_timeout=120) as own:
        opened = own.tensors([{"name": f"t{i}", "rows": 8, "op": "sum"} for i in range(TENSORS)])
        assert [each.name for each in opened[::1000]] == ["t0", "t1000", "t2000", "t3000", "t4000"]
        requests = [each.allreduce(array.array("f", [i] * 8)) for i, each in enumerate(opened)]
        for i, request in enumerate(requests):
            assert request.wait().values.tolist() == [[float(i * job.world)]] * 8
        asked = [{"name": f"more{i}", "rows": 8} for i in range(TENSORS_MAX)]
        own.barrier()
        refused(lambda: own.tensors(asked), zenps.QuotaExceeded, "8192 tensors", "job.max_tensors")
        assert opened[5].allreduce([1.0] * 8).wait().values.tolist() == [[float(job.world)]] * 8


def case_names(job: zenps.Job) -> None:
    """Refused here, before anything is sent, by a text that has the name, its bytes and the limit."""
    for name, texts in (
        ("n" * 128, ("n" * 128, "has 128 bytes", "1 to 127")),
        ("\u00e4" * 64, ("\u00e4" * 64, "has 128 bytes", "1 to 127")),
        ("n" * 1000, ("n" * 140 + "...", "has 1000 bytes", "1 to 127")),
        ("", ("has 0 bytes", "1 to 127")),
        ("a\tb", ('"a?b" has 3 bytes', "byte 1 is 0x09", "printable")),
        ("a\nb", ("byte 1 is 0x0a",)),
        ("a\0b", ("'a\\x00b' has a NUL at byte 1",)),
        ("a\ud800b", ("Unicode",)),
    ):
        refused(lambda name=name: job.tensor(name, 8), zenps.Invalid, "tensor name", *texts)
        refused(lambda name=name: job.tensors([{"name": "fine", "rows": 8}, {"name": name, "rows": 8}]), zenps.Invalid, *texts)
        group = [text.replace("1 to 127", "1 to 120") for text in texts]
        refused(lambda name=name: job.group(name, range(job.world)), zenps.Invalid, "group name", *group)
        if name:
            refused(lambda name=name: zenps.init(job=name), zenps.Invalid, "job", *texts)
    refused(lambda: job.group("n" * 121, range(job.world)), zenps.Invalid, "has 121 bytes", "1 to 120")
    refused(lambda: job.tensor("@mine", 8), zenps.Invalid, '"@mine" starts with \'@\'')
    refused(lambda: job.group("@mine", range(job.world)), zenps.Invalid, '"@mine" starts with \'@\'')
    longest = job.tensor("n" * 127, 8, op="sum")
    assert longest.allreduce([1.0], [3]).wait().values.tolist() == [[float(job.world)]]


class OnlyDLPack:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __dlpack__(self, **more: Any) -> Any:
        return self.held.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.held.__dlpack_device__()


class OnlyInterface:
    def __init__(self, held: Any) -> None:
        self.held = held
        self.__array_interface__ = held.__array_interface__


def case_row_numbers(job: zenps.Job) -> None:
    """Integers of any kind, in all that takes rows."""
    tensor = job.tensor("rows", 100, 2, op="sum")
    values, world = np.ones((2, 2), np.float32), job.world
    for code in "bBhHiIlLqQ":
        ids = np.array([3, 1], code)
        for given in (ids, OnlyDLPack(ids), OnlyInterface(ids), memoryview(ids), ids[None, :]):
            got = tensor.allreduce(values, given).wait()
            assert (got.row_ids.tolist(), got.values.tolist()) == ([1, 3], [[world] * 2] * 2), (code, type(given))
        tensor.push(values, ids, step=tensor.next_step).wait()
        assert tensor.pull(ids, step=tensor.next_step - 1, out="dense").wait().values.tolist() == [[world] * 2] * 2
        wanted = tensor.reduce_scatter(values, ids, rows=ids[:1]).wait()
        assert wanted.row_ids.tolist() == [3]
        mine = np.array([2 * job.rank, 2 * job.rank + 1], code)
        assert tensor.allgather(values, mine).wait().row_ids.tolist() == list(range(2 * world))
        part = zenps.Part(10, 20, values, ids)
        assert tensor.allreduce_parts([part], out="rows").wait()[0].row_ids.tolist() == [1, 3]
    empty = tensor.allreduce(np.ones((0, 2), np.float32), np.array([], np.int32)).wait()
    assert empty.nnz == 0
    beyond = np.array([2**63 + 5, 1], np.uint64)
    for given in (beyond, OnlyDLPack(beyond), OnlyInterface(beyond)):
        refused(lambda given=given: tensor.allreduce(values, given), zenps.Invalid, "row 9223372036854775813", "2^63 - 1")
    for given, texts in (
        (np.array([1.0, 2.0]), ("row_ids", "f64", "i64 is wanted")),
        (np.array([True, False]), ("row_ids", "'?'", "i64 is wanted")),
        (b"ab", ("row_ids", "u8", "i64 is wanted")),
        (np.arange(4, dtype=np.int32)[::2], ("row_ids", "not contiguous")),
        (np.array([-1, 0], np.int8), ("row number -1",)),
        (np.array([0, 100], np.uint16), ("row number 100",)),
    ):
        refused(lambda given=given: tensor.allreduce(values, given).wait(), zenps.Invalid, "rows", *texts)
    refused(lambda: tensor.allreduce([[1.0, 1.0], [1.0, 1.0]], [3, 1]), zenps.Invalid, "values: a list of lists", "flat")
    refused(lambda: tensor.allreduce(values, [[3], [1]]), zenps.Invalid, "row_ids: a list of lists", "flat")


def case_broadcasts_of_any_dtype(job: zenps.Job) -> None:
    """The bytes of a buffer, whatever its elements are."""
    kinds = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "S3", "U2", "M8[s]"]
    for kind in kinds:
        expected = np.arange(24).astype("i8").view("u1")[:144].view(kind if kind != "?" else "u1").astype(kind)
        held = expected.copy() if job.rank == 0 else np.zeros_like(expected)
        views = [held]
        if kind != "U2":
            views.append(OnlyInterface(held))
        if kind[0] in "iuf":
            views.append(OnlyDLPack(held))
        for given in views:
            if job.rank:
                held[:] = np.zeros_like(held)
            job.broadcast(given)
            assert held.tobytes() == expected.tobytes(), (kind, type(given))
    refused(lambda: job.broadcast(np.zeros((4, 4), "i4").T[:2]), zenps.Invalid, "contiguous")


def case_shapes_and_numbers(job: zenps.Job) -> None:
    """Wrong shapes and kinds are refused, and the error says what would be right."""
    tensor = job.tensor("shapes", 6, 4, op="sum")
    wide = np.ones((4, 6), np.float32)
    refused(lambda: tensor.allreduce(wide), zenps.Invalid, "values has shape [4, 6]; [6, 4]")
    refused(lambda: tensor.allreduce(wide, np.arange(6)), zenps.Invalid, "values has shape [4, 6]; [6, 4]")
    refused(lambda: tensor.allreduce(wide.reshape(6, 4), out=wide), zenps.Invalid, "out has shape [4, 6]; [6, 4]")
    refused(lambda: tensor.push(wide), zenps.Invalid, "values has shape [4, 6]; [6, 4]")
    refused(lambda: tensor.allgather(wide[:, :3], np.arange(3)), zenps.Invalid, "not contiguous")
    for right in (wide.reshape(6, 4), wide.reshape(24), wide.reshape(6, 2, 2)):
        assert tensor.allreduce(right).wait().values.tolist() == [[float(job.world)] * 4] * 6
    for seconds in (float("inf"), float("nan"), -1.0, 0):
        refused(lambda seconds=seconds: zenps.init(round_timeout=seconds), zenps.Invalid, "round_timeout of", "at most 1000000000")
    tensor.allreduce(wide.reshape(24)).wait(timeout=float("inf"))
    refused(lambda: job.gather(5), zenps.Invalid, "gather: a int; bytes are wanted")
    refused(lambda: job.gather([1, 2]), zenps.Invalid, "gather: a list; bytes are wanted")
    assert job.gather(np.full(2, job.rank, "u1")) == [bytes([rank] * 2) for rank in range(job.world)]
