"""Arrays in the memory of a GPU, here the emulated one, which ZENPS_DEVICE_LIBRARY names."""

import array
import ctypes
import os
import re
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p

import zenps
from core import raises

DEVICE = 2  # ZPS_MEMORY_DEVICE
with open(os.path.join(os.environ["ZPS_TOP_SRCDIR"], "gpu/device.h"), encoding="utf-8") as header:
    ABI = int(re.search(r"#define ZPS_DEVICE_ABI (\d+)", header.read()).group(1))
ANY = c_void_p


class Error(ctypes.Structure):
    _fields_ = [("code", c_int), ("text", c_char * 500)]


def call(*kinds):
    return CFUNCTYPE(c_int, ANY, *kinds, POINTER(Error))


class Ops(ctypes.Structure):
    """The first members of struct zps_device_ops (gpu/device.h)."""

    _fields_ = [
        ("kind", c_char_p),
        ("close", CFUNCTYPE(None, ANY)),
        ("allocate", call(c_int, c_size_t, POINTER(ANY))),
        ("release", CFUNCTYPE(None, ANY, c_int, ANY)),
        ("allocate_on", ANY),
        ("release_on", ANY),
        ("copy", call(ANY, ANY, c_size_t, ANY)),
        ("clear", ANY),
        ("check", ANY),
        ("stream_create", call(POINTER(ANY))),
        ("stream_destroy", CFUNCTYPE(None, ANY, ANY)),
        ("event_create", call(POINTER(ANY))),
        ("event_destroy", CFUNCTYPE(None, ANY, ANY)),
        ("event_record", call(ANY, ANY)),
        ("event_query", ANY),
        ("event_sync", call(ANY)),
    ]


class Gpu:
    """The device of a rank, and a stream of it."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ["ZENPS_DEVICE_LIBRARY"])
        self.device, self.error = ANY(), Error()
        code = self.library.zps_cuda_device_open(c_uint(ABI), c_uint(0), ctypes.byref(self.device), ctypes.byref(self.error))
        assert code == 0, self.error.text
        self.ops = ctypes.cast(self.device, POINTER(POINTER(Ops))).contents.contents
        assert self.ops.kind == b"cuda"
        self.stream = self.new_stream()
        self.event = self.made(self.ops.event_create)

    def do(self, function, *arguments):
        assert function(self.device, *arguments, ctypes.byref(self.error)) == 0, self.error.text

    def made(self, function, *arguments):
        it = ANY()
        self.do(function, *arguments, ctypes.byref(it))
        return it.value

    def new_stream(self):
        return self.made(self.ops.stream_create)

    def upload(self, numbers):
        """Device memory with an array.array's numbers."""
        at = self.made(self.ops.allocate, DEVICE, len(numbers) * numbers.itemsize)
        self.do(self.ops.copy, at, numbers.buffer_info()[0], len(numbers) * numbers.itemsize, self.stream)
        self.sync(self.stream)
        return at

    def download(self, at, code, n, stream=None):
        """What is there in the order of a stream."""
        numbers = array.array(code, bytes(n * array.array(code).itemsize))
        self.do(self.ops.copy, numbers.buffer_info()[0], at, n * numbers.itemsize, stream or self.stream)
        self.sync(stream or self.stream)
        return numbers.tolist()

    def sync(self, stream):
        self.do(self.ops.event_record, self.event, stream)
        self.do(self.ops.event_sync, self.event)

    def free(self, *places):
        for at in places:
            self.ops.release(self.device, DEVICE, at)

    def hold(self, holds):
        self.library.zps_emu_hold.argtypes = [c_void_p, ctypes.c_bool]
        self.library.zps_emu_hold(self.stream, holds)


GPU = Gpu()


class Interface:
    """What CuPy's arrays, Numba's, and torch's of a GPU have."""

    def __init__(self, at, typestr, shape, readonly=False):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (at, readonly), "version": 3}


def floats(numbers):
    return array.array("f", numbers)


def case_dense_in_place(job):
    tensor = job.tensor("dense", 50, 2, op="sum")
    numbers = floats([float(i % 7 == job.rank) for i in range(100)])
    at = GPU.upload(numbers)
    values = zenps.Array(at, "f32", (50, 2), device=0)
    got = tensor.allreduce(values, out=values, stream=GPU.stream).wait()
    assert got.values.address == at and got.values.device == 0 and got.row_ids is None
    assert GPU.download(at, "f", 100) == [float(i % 7 < job.world) for i in range(100)]
    raises(zenps.Unsupported, lambda: got.values.tolist(), "GPU")
    GPU.free(at)


def case_rows_in_and_out(job):
    tensor = job.tensor("rows", 1000, 2, op="sum")
    ids, values = GPU.upload(array.array("q", [job.rank, 500])), GPU.upload(floats([1, 2, 3, 4]))
    out_ids, out_values = GPU.upload(array.array("q", [-1] * 10)), GPU.upload(floats([0] * 20))
    pair = zenps.Array(out_ids, "i64", (10,), device=0), zenps.Array(out_values, "f32", (10, 2), device=0)
    given = Interface(values, "<f4", (2, 2)), Interface(ids, "<i8", (2,))
    got = tensor.allreduce(*given, out=pair, stream=GPU.stream).wait()
    n = job.world + 1
    assert got.nnz == n and got.values.shape == (n, 2) and got.row_ids.device == 0
    assert GPU.download(out_ids, "q", n) == [*range(job.world), 500]
    assert GPU.download(out_values, "f", 2 * n) == [1.0, 2.0] * job.world + [3.0 * job.world, 4.0 * job.world]
    onto_host = tensor.allreduce(*given, out="rows", stream=GPU.stream).wait()
    assert onto_host.row_ids.tolist() == [*range(job.world), 500]
    from_host = tensor.allreduce(floats([1, 2]), array.array("q", [7]), out=pair, stream=GPU.stream).wait()
    assert from_host.nnz == 1 and GPU.download(out_values, "f", 2) == [float(job.world), 2.0 * job.world]
    GPU.free(ids, values, out_ids, out_values)


def case_streams_wait(job):
    """Nobody waits on the host: the gradient comes late, and another stream reads the sum."""
    tensor = job.tensor("streams", 20, op="sum")
    at, other = GPU.upload(floats([0] * 20)), GPU.new_stream()
    GPU.hold(True)
    late = floats([job.rank + 1] * 20)
    GPU.do(GPU.ops.copy, at, late.buffer_info()[0], 80, GPU.stream)
    values = zenps.Array(at, "f32", (20,), device=0)
    request = tensor.allreduce(values, out=values, stream=GPU.stream)
    raises(zenps.Invalid, lambda: request.stream_wait(GPU.stream), "would wait for itself")
    request.stream_wait(other)
    assert not request.done()
    GPU.hold(False)
    assert GPU.download(at, "f", 20, other) == [float(sum(range(1, job.world + 1)))] * 20
    request.wait()
    request.stream_wait(other)  # it is done: nothing to wait for
    GPU.free(at)
    GPU.ops.stream_destroy(GPU.device, other)


def case_refusals(job):
    tensor = job.tensor("refused", 20, op="sum")
    at = GPU.upload(floats([0] * 20))
    values = zenps.Array(at, "f32", (20,), device=0)
    raises(zenps.Invalid, lambda: tensor.allreduce(values, list(range(20))), "not in the same memory")
    raises(zenps.Invalid, lambda: tensor.allreduce(Interface(at, "<f8", (20,))), "f64")
    raises(zenps.Invalid, lambda: tensor.allreduce(Interface(at, "<f4", (20,)), out=Interface(at, "<f4", (20,), True)), "read-only")
    raises(zenps.ZenpsError, lambda: tensor.allreduce(zenps.Array(at, "f32", (20,), device=5)), "5")
    host = floats([0] * 20)
    wrong = zenps.Array(host.buffer_info()[0], "f32", (20,), owner=host, device=0)
    raises(zenps.ZenpsError, lambda: tensor.allreduce(wrong, out=wrong), "refused")
    assert tensor.next_step == 0
    GPU.free(at)
