"""The C interface of libzenps, from <zenps/zenps.h>, <zenps/elastic.h> and <zenps/sparsify.h>.

Written by worker/python/make-abi; do not edit.
"""

from __future__ import annotations

import enum
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32,
                    c_uint64, c_void_p)
from typing import Any, Dict, List, Tuple, Type

VERSION = (0, 1, 0)  # ZENPS_VERSION_* of the headers


class Status(enum.IntEnum):
    IN_PROGRESS = 1
    OK = 0
    ERR_AGAIN = -1
    ERR_INVALID = -2
    ERR_NOMEM = -3
    ERR_TIMEOUT = -4
    ERR_CANCELED = -5
    ERR_CLOSED = -6
    ERR_CONNECT = -7
    ERR_REFUSED = -8
    ERR_VERSION = -9
    ERR_PROTOCOL = -10
    ERR_SHAPE = -11
    ERR_UNKNOWN = -12
    ERR_RANK_TAKEN = -13
    ERR_MISSING = -14
    ERR_PEER_LOST = -15
    ERR_SERVER_LOST = -16
    ERR_STALE = -17
    ERR_TRUNCATED = -18
    ERR_UNSUPPORTED = -19
    ERR_IO = -20
    ERR_FABRIC = -21
    ERR_FORKED = -22
    ERR_BUSY = -23
    ERR_INTERNAL = -24
    ERR_QUOTA = -25
    ERR_TRAINER = -26


class Dtype(enum.IntEnum):
    F32 = 1
    F64 = 2
    BF16 = 4
    F16 = 5


class Op(enum.IntEnum):
    SUM = 1
    MEAN = 2
    MAX = 3
    MIN = 4
    MEAN_PRESENT = 5


class Codec(enum.IntEnum):
    AUTO = 1
    PAPER = 2
    COO = 3


class Values(enum.IntEnum):
    RAW = 1
    BF16 = 2
    F16 = 3
    QSGD2 = 4
    QSGD4 = 5
    QSGD8 = 6


class Order(enum.IntEnum):
    RANKS = 1
    ANY = 2


class Layout(enum.IntEnum):
    DENSE = 1
    ROWS = 2


class Memory(enum.IntEnum):
    HOST = 0
    DEVICE = 1


class Sparsify(enum.IntEnum):
    TOPK = 1
    SAMPLED = 2
    REUSED = 3
    GAUSSIAN = 4
    BUCKETS = 5
    THRESHOLD = 6
    SCHEME = 7


class Residual(enum.IntEnum):
    SENT = 0
    GLOBAL = 1


# The header's name of each enum, and what its constants' names have in front.
ENUMS: Dict[str, Tuple[Type[enum.IntEnum], str]] = {
    "zenps_status": (Status, "ZENPS_"),
    "zenps_dtype": (Dtype, "ZENPS_"),
    "zenps_op": (Op, "ZENPS_OP_"),
    "zenps_codec": (Codec, "ZENPS_CODEC_"),
    "zenps_values": (Values, "ZENPS_VALUES_"),
    "zenps_order": (Order, "ZENPS_ORDER_"),
    "zenps_layout": (Layout, "ZENPS_"),
    "zenps_memory": (Memory, "ZENPS_"),
    "zenps_sparsify": (Sparsify, "ZENPS_SPARSIFY_"),
    "zenps_residual": (Residual, "ZENPS_RESIDUAL_"),
}

LogFn = CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)


class Options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("coordinator", c_char_p),
        ("job", c_char_p),
        ("rank", c_int),
        ("world", c_int),
        ("provider", c_char_p),
        ("interface", c_char_p),
        ("subnet", c_char_p),
        ("join_timeout_ms", c_uint64),
        ("round_timeout_ms", c_uint64),
        ("threads", c_int),
        ("log", LogFn),
        ("log_ctx", c_void_p),
        ("device", c_int),
        ("min_world", c_int),
        ("max_world", c_int),
        ("join_wait_ms", c_uint64),
        ("server_places", c_int),
        ("refused_timeout_ms", c_uint64),
    ]


class TensorOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_int),
        ("partitions", c_uint32),
        ("codec", c_int),
        ("values", c_int),
        ("scheme", c_char_p),
        ("order", c_int),
        ("keep_zero_rows", c_int),
        ("group", c_void_p),
        ("staleness", c_uint32),
        ("quorum", c_uint32),
        ("grace_ms", c_uint32),
    ]


class TensorInfo(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", c_uint64),
        ("seed", c_uint64),
        ("id", c_uint32),
        ("width", c_uint32),
        ("partitions", c_uint32),
        ("block_bits", c_uint32),
        ("dtype", c_int),
        ("op", c_int),
        ("codec", c_int),
        ("values", c_int),
        ("scheme", c_char_p),
        ("partitioner", c_char_p),
    ]


class Part(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("row_base", c_uint64),
        ("n_rows", c_uint64),
        ("layout", c_int),
        ("nnz", c_uint64),
        ("capacity", c_uint64),
        ("row_ids", c_void_p),
        ("values", c_void_p),
    ]


class Grad(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("layout", c_int),
        ("memory", c_int),
        ("nnz", c_uint64),
        ("capacity", c_uint64),
        ("row_ids", c_void_p),
        ("values", c_void_p),
        ("device", c_int),
        ("stream", c_void_p),
        ("contributes", c_int),
        ("contributors", c_int),
        ("taken", c_void_p),
        ("parts", POINTER(Part)),
        ("n_parts", c_uint32),
    ]


class Error(Structure):
    _fields_ = [
        ("status", c_int),
        ("text", c_char * 512),
        ("tensor", c_char * 128),
        ("step", c_uint64),
        ("needed", c_uint64),
        ("n_missing", c_uint32),
        ("missing_ranks", c_uint32 * 64),
    ]


class RequestStats(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bytes_out", c_uint64),
        ("bytes_in", c_uint64),
        ("payload_out", c_uint64),
        ("payload_in", c_uint64),
        ("nnz_in", c_uint64),
        ("nnz_out", c_uint64),
        ("total_ns", c_uint64),
        ("encode_ns", c_uint64),
        ("push_ns", c_uint64),
        ("wait_ns", c_uint64),
        ("pull_ns", c_uint64),
        ("decode_ns", c_uint64),
        ("partitions", c_uint32),
        ("bound_bytes", c_uint64),
        ("shared_out", c_uint64),
        ("shared_in", c_uint64),
        ("scheme", c_char_p),
        ("hash_parallel", c_uint64),
        ("hash_serial", c_uint64),
        ("hash_lost_races", c_uint64),
        ("partitioned_in", c_int),
        ("merged_in", c_int),
        ("step", c_uint64),
        ("copied_bytes", c_uint64),
        ("late", c_int),
    ]


class TensorSpec(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("rows", c_uint64),
        ("width", c_uint32),
        ("dtype", c_int),
        ("options", POINTER(TensorOptions)),
    ]


class Rows(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("first", c_uint64),
        ("count", c_uint64),
        ("row_ids", c_void_p),
    ]


class Generation(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("number", c_uint32),
        ("rank", c_int),
        ("world", c_int),
        ("source", c_int),
        ("step", c_uint64),
    ]


class SparsifierOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int),
        ("residual", c_int),
        ("k", c_uint64),
        ("density", c_double),
        ("period", c_uint32),
        ("bucket", c_uint32),
        ("sample", c_uint64),
        ("seed", c_uint64),
        ("momentum", c_double),
        ("clip_norm", c_double),
        ("threshold", c_double),
        ("unrefined", c_int),
        ("capped", c_int),
        ("memory", c_int),
        ("device", c_int),
        ("decay", c_double),
    ]


class SparsifierStats(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("k", c_uint64),
        ("selected", c_uint64),
        ("threshold", c_double),
        ("steps", c_uint64),
        ("refined", c_uint64),
    ]


class Sample(Structure):
    _fields_ = [
        ("magnitudes", c_void_p),
        ("n", c_uint64),
        ("of", c_uint64),
    ]


STRUCTS: Dict[str, Type[Structure]] = {
    "zenps_options": Options,
    "zenps_tensor_options": TensorOptions,
    "zenps_tensor_info": TensorInfo,
    "zenps_part": Part,
    "zenps_grad": Grad,
    "zenps_error": Error,
    "zenps_request_stats": RequestStats,
    "zenps_tensor_spec": TensorSpec,
    "zenps_rows": Rows,
    "zenps_generation": Generation,
    "zenps_sparsifier_options": SparsifierOptions,
    "zenps_sparsifier_stats": SparsifierStats,
    "zenps_sample": Sample,
}

# Result and arguments of each function. Opaque objects, and arrays of numbers, are c_void_p.
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "zenps_options_init": (None, [POINTER(Options), c_size_t]),
    "zenps_tensor_options_init": (None, [POINTER(TensorOptions), c_size_t]),
    "zenps_grad_init": (None, [POINTER(Grad), c_size_t]),
    "zenps_open": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "zenps_close": (None, [c_void_p]),
    "zenps_job_fail": (c_int, [c_void_p, c_char_p]),
    "zenps_set_log": (c_int, [c_void_p, LogFn, c_void_p]),
    "zenps_rank": (c_int, [c_void_p]),
    "zenps_world": (c_int, [c_void_p]),
    "zenps_servers": (c_int, [c_void_p]),
    "zenps_job_name": (c_char_p, [c_void_p]),
    "zenps_round_timeout_ms": (c_uint64, [c_void_p]),
    "zenps_provider": (c_char_p, [c_void_p]),
    "zenps_group_open": (c_int, [c_void_p, c_char_p, c_void_p, c_uint32, POINTER(c_void_p)]),
    "zenps_group_close": (c_int, [c_void_p]),
    "zenps_tensor_open": (c_int, [c_void_p, c_char_p, c_uint64, c_uint32, c_int, POINTER(TensorOptions), POINTER(c_void_p)]),
    "zenps_tensor_open_many": (c_int, [c_void_p, POINTER(TensorSpec), c_uint32, POINTER(c_void_p)]),
    "zenps_tensor_close": (c_int, [c_void_p]),
    "zenps_tensor_info": (c_int, [c_void_p, POINTER(TensorInfo)]),
    "zenps_tensor_partitions": (c_uint32, [c_void_p]),
    "zenps_tensor_owner": (c_int, [c_void_p, c_uint32]),
    "zenps_allreduce": (c_int, [c_void_p, c_uint64, POINTER(Grad), POINTER(Grad), POINTER(c_void_p)]),
    "zenps_push": (c_int, [c_void_p, c_uint64, POINTER(Grad), POINTER(c_void_p)]),
    "zenps_pull": (c_int, [c_void_p, c_uint64, POINTER(Rows), POINTER(Grad), POINTER(c_void_p)]),
    "zenps_pull_newest": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(Rows), POINTER(Grad), POINTER(c_void_p)]),
    "zenps_reduce_scatter": (c_int, [c_void_p, c_uint64, POINTER(Grad), POINTER(Rows), POINTER(Grad), POINTER(c_void_p)]),
    "zenps_allgather": (c_int, [c_void_p, c_uint64, POINTER(Grad), POINTER(Grad), POINTER(c_void_p)]),
    "zenps_mem_register": (c_int, [c_void_p, c_int, c_int, c_void_p, c_size_t]),
    "zenps_mem_deregister": (c_int, [c_void_p, c_void_p]),
    "zenps_barrier": (c_int, [c_void_p]),
    "zenps_broadcast": (c_int, [c_void_p, c_void_p, c_size_t, c_int]),
    "zenps_group_barrier": (c_int, [c_void_p]),
    "zenps_group_broadcast": (c_int, [c_void_p, c_void_p, c_size_t, c_int]),
    "zenps_test": (c_int, [c_void_p]),
    "zenps_wait": (c_int, [c_void_p, c_int]),
    "zenps_wait_all": (c_int, [POINTER(c_void_p), c_uint32, c_int]),
    "zenps_request_stream_wait": (c_int, [c_void_p, c_void_p]),
    "zenps_cancel": (c_int, [c_void_p]),
    "zenps_request_free": (None, [c_void_p]),
    "zenps_request_fetch": (c_int, [c_void_p, POINTER(Grad)]),
    "zenps_request_take": (c_int, [c_void_p, POINTER(Grad)]),
    "zenps_rows_free": (None, [POINTER(Grad)]),
    "zenps_request_error": (POINTER(Error), [c_void_p]),
    "zenps_request_stats": (c_int, [c_void_p, POINTER(RequestStats)]),
    "zenps_request_partition_nnz": (c_int, [c_void_p, c_void_p, c_void_p]),
    "zenps_request_late": (c_int, [c_void_p, c_void_p, c_uint32, c_void_p]),
    "zenps_request_contributed": (c_int, [c_void_p, POINTER(Grad)]),
    "zenps_get_fd": (c_int, [c_void_p]),
    "zenps_last_error": (POINTER(Error), []),
    "zenps_strerror": (c_char_p, [c_int]),
    "zenps_version": (c_char_p, []),
    "zenps_job_generation": (c_int, [c_void_p, POINTER(Generation)]),
    "zenps_job_changed": (c_bool, [c_void_p]),
    "zenps_status_recoverable": (c_bool, [c_int]),
    "zenps_job_next": (c_int, [POINTER(c_void_p), c_uint64, POINTER(Generation)]),
    "zenps_sparsifier_options_init": (None, [POINTER(SparsifierOptions), c_size_t]),
    "zenps_sparsifier_create": (c_int, [POINTER(SparsifierOptions), c_uint64, c_int, POINTER(c_void_p)]),
    "zenps_sparsifier_destroy": (None, [c_void_p]),
    "zenps_sparsifier_select": (c_int, [c_void_p, c_void_p, POINTER(Grad)]),
    "zenps_sparsifier_sample": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_uint64, c_void_p]),
    "zenps_sparsify_threshold": (c_int, [POINTER(Sample), c_uint32, c_double, c_void_p]),
    "zenps_sparsifier_commit": (c_int, [c_void_p, POINTER(Grad)]),
    "zenps_sparsifier_cancel": (c_int, [c_void_p]),
    "zenps_sparsifier_set_k": (c_int, [c_void_p, c_uint64]),
    "zenps_sparsifier_set_threshold": (c_int, [c_void_p, c_double]),
    "zenps_sparsifier_residual": (c_void_p, [c_void_p]),
    "zenps_sparsifier_velocity": (c_void_p, [c_void_p]),
    "zenps_sparsifier_save": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "zenps_sparsifier_load": (c_int, [c_void_p, c_void_p, c_size_t]),
    "zenps_sparsifier_stats": (c_int, [c_void_p, POINTER(SparsifierStats)]),
}
