"""zenps.jax on two ranks, on the CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO

import zenps
import zenps.jax as zj

ROUND_TIMEOUT = 240
ROWS, WIDTH = 1000, 4


def gradient(rank: int, step: int = 0) -> Any:
    """40 rows, some of them twice, and values whose sums are exact."""
    draw = np.random.default_rng(10 * step + rank)
    return draw.integers(0, 60, 40).astype(np.int32), draw.integers(-8, 8, (40, WIDTH)).astype(np.float32)


def total(step: int = 0) -> Any:
    sums = np.zeros((ROWS, WIDTH), np.float32)
    for rank in range(2):
        ids, values = gradient(rank, step)
        np.add.at(sums, ids, values)
    return sums


def case_dense(job: zenps.Job) -> None:
    print("JAX", jax.__version__, "numpy", np.__version__)
    tensor = job.tensor("dense", ROWS, WIDTH, op="sum")
    step = jax.jit(lambda ids, values: zj.allreduce(tensor, jnp.zeros((ROWS, WIDTH)).at[ids].add(values)) * 2)
    for number in range(3):
        assert np.array_equal(step(*gradient(job.rank, number)), 2 * total(number))
    assert np.array_equal(zj.allreduce(tensor, jnp.ones((ROWS, WIDTH))), np.full((ROWS, WIDTH), 2.0))  # without jit


def case_rows(job: zenps.Job) -> None:
    """The caller's fillers are left out, and the result's come last."""
    tensor = job.tensor("rows", ROWS, WIDTH, op="sum")

    @jax.jit
    def step(ids: Any, values: Any) -> Any:
        padded = jnp.concatenate([jnp.full(3, ROWS, ids.dtype), ids])
        return zj.allreduce(tensor, jnp.concatenate([jnp.ones((3, WIDTH)), values]), padded, capacity=100)

    for number in range(3):
        ids, values, n = step(*gradient(job.rank, number))
        wanted = sorted(set(gradient(0, number)[0]) | set(gradient(1, number)[0]))
        assert ids.dtype == jnp.int32 and ids.shape == (100,) and int(n) == len(wanted)
        assert ids[: len(wanted)].tolist() == wanted and set(ids[len(wanted) :].tolist()) == {ROWS}
        assert np.array_equal(values[: len(wanted)], total(number)[wanted]) and not values[len(wanted) :].any()
    empty = jnp.zeros(0, jnp.int32)
    assert int(zj.allreduce(tensor, jnp.zeros((0, WIDTH)), empty, capacity=1)[2]) == 0


def case_bcoo(job: zenps.Job) -> None:
    tensor = job.tensor("bcoo", ROWS, WIDTH, op="sum")

    @jax.jit
    def step(ids: Any, values: Any) -> Any:
        matrix = BCOO((values, ids[:, None]), shape=(ROWS, WIDTH))
        return zj.allreduce_bcoo(tensor, matrix, nse=80)

    made = step(*gradient(job.rank))
    assert made.nse == 80 and made.indices_sorted and made.unique_indices
    assert np.array_equal(made.todense(), total())
    again = jax.jit(lambda matrix: zj.allreduce_bcoo(tensor, matrix, nse=80))(made)  # padding in, padding out
    assert np.array_equal(again.todense(), 2 * total())


def loss(parameters: Any, ids: Any) -> Any:
    hidden = jnp.tanh(parameters["table"][ids] @ parameters["hidden"]["weight"] + parameters["hidden"]["bias"])
    return (parameters["scale"] * hidden**2).mean()


def case_training(job: zenps.Job) -> None:
    """Two ranks are one process with both batches."""
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    start = {
        "table": jax.random.normal(keys[0], (ROWS, 8)),
        "hidden": {"weight": jax.random.normal(keys[1], (8, 130)), "bias": jnp.zeros(130)},
        "scale": jnp.array(1.5),
    }

    def updated(parameters: Any, gradients: Any) -> Any:
        return jax.tree_util.tree_map(lambda own, change: own - 0.5 * change, parameters, gradients)

    @jax.jit
    def ours(parameters: Any, ids: Any) -> Any:
        return updated(parameters, zj.allreduce_tree(job, jax.grad(loss)(parameters, ids[job.rank])))

    @jax.jit
    def alone(parameters: Any, ids: Any) -> Any:
        return updated(parameters, jax.grad(lambda own: (loss(own, ids[0]) + loss(own, ids[1])) / 2)(parameters))

    got = wanted = start
    for step in range(10):
        ids = np.random.default_rng(step).integers(0, ROWS, (2, 32))
        got, wanted = ours(got, ids), alone(wanted, ids)
    for own, other in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(wanted)):
        assert float(abs(own - other).max()) < 1e-5
    sums = repr([float(each.sum()) for each in jax.tree_util.tree_leaves(got)])
    assert len(set(job.gather(sums.encode()))) == 1


def case_halves(job: zenps.Job) -> None:
    for dtype in (jnp.bfloat16, jnp.float16):
        tree = {"a": jnp.full((3, 5), job.rank + 1, dtype), "b": jnp.full(7, -1, dtype)}
        summed = zj.allreduce_tree(job, tree, name=f"halves.{jnp.dtype(dtype).name}", op="sum")
        assert summed["a"].dtype == dtype and summed["a"].tolist() == [[3.0] * 5] * 3 and summed["b"].tolist() == [-2.0] * 7
    tensor = job.tensor("rows.bf16", ROWS, WIDTH, "bf16", op="sum")
    values = jnp.ones((2, WIDTH), jnp.bfloat16)
    ids, sums, n = zj.allreduce(tensor, values, jnp.array([5, 5 + job.rank]), capacity=4)
    assert ids.tolist() == [5, 6, ROWS, ROWS] and int(n) == 2 and sums[:, 0].tolist() == [3.0, 1.0, 0.0, 0.0]


def case_large(job: zenps.Job) -> None:
    """64 MB, made by the computation that the callback is part of."""
    tensor = job.tensor("large", 1 << 18, 64, op="sum")

    @jax.jit
    def step(seed: Any) -> Any:
        made = jnp.zeros((1 << 18, 64)).at[jnp.arange(100) + seed].set(1.0)
        return zj.allreduce(tensor, jnp.tanh(made * 1e9)).sum()

    for seed in range(3):
        assert float(step(seed)) == 2 * 100 * 64


def case_errors(job: zenps.Job) -> None:
    """JAX has its own exception; the real one is kept. Later sums are not touched by it."""
    tensor = job.tensor("errors", ROWS, WIDTH, op="sum")
    assert zj.last_error() is None
    for _ in range(2):
        try:
            jax.block_until_ready(zj.allreduce(tensor, jnp.ones((9, WIDTH)), jnp.arange(9), capacity=8))
            raise AssertionError("no error")
        except Exception as error:  # its class has another name in every other version of JAX
            assert "the sum has 9 rows; capacity is 8" in str(error), error
        kept = zj.last_error()
        assert isinstance(kept, zenps.Truncated) and kept.needed == 9
    assert int(zj.allreduce(tensor, jnp.ones((9, WIDTH)), jnp.arange(9), capacity=9)[2]) == 9
    for values, ids, capacity in ((jnp.ones((9, 3)), jnp.arange(9), 9), (jnp.ones((9, WIDTH)), jnp.arange(9), 0)):
        try:
            zj.allreduce(tensor, values, ids, capacity=capacity)
            raise AssertionError("no error")
        except zenps.Invalid as error:
            assert "tensor errors" in str(error)
    try:
        zj.allreduce_tree(job, {"count": jnp.arange(3)})
        raise AssertionError("no error")
    except zenps.Invalid as error:
        assert "['count'] is int32[3]" in str(error), error
