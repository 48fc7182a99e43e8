"""cases/torch_cuda.py where zenps has no support for GPUs: gradients go through copies in host memory."""

from __future__ import annotations

import torch_cuda
from torch_sync import ROUND_TIMEOUT  # noqa: F401

import zenps

assert torch_cuda.FALLBACK


def case_place(job: zenps.Job) -> None:
    torch_cuda.case_place(job)


def case_dense(job: zenps.Job) -> None:
    torch_cuda.case_dense_is_summed_in_place(job)


def case_buckets(job: zenps.Job) -> None:
    torch_cuda.case_buckets_are_copied_on_the_gpu(job)


def case_rows(job: zenps.Job) -> None:
    torch_cuda.case_rows_come_back_in_a_copy(job)


def case_stream(job: zenps.Job) -> None:
    torch_cuda.case_a_stream_of_its_own(job)


def case_sync(job: zenps.Job) -> None:
    torch_cuda.case_sync(job)


def case_training(job: zenps.Job) -> None:
    torch_cuda.case_training(job)


def case_autocast(job: zenps.Job) -> None:
    torch_cuda.case_autocast(job)


def case_collectives(job: zenps.Job) -> None:
    torch_cuda.case_collectives(job)


def case_ddp(job: zenps.Job) -> None:
    torch_cuda.case_ddp(job)
