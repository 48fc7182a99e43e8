"""Gradients that all ranks can make, and their sum by definition: a rank's rows in order, then ranks in order."""

import numpy as np

KIND = {"f32": np.float32, "f64": np.float64}


def gradient(rank, rows, width, dtype, n, seed=0):
    """Rows in any order, many of them twice."""
    draw = np.random.default_rng(1000 * seed + rank)
    ids = draw.integers(0, rows, n)
    ids[: n // 4] = ids[n // 4 : n // 4 + n // 4][::-1]
    return ids, draw.standard_normal((n, width)).astype(KIND[dtype])


def total(gradients, rows, width, dtype):
    """The rows that any rank has, and their sums."""
    sums = np.zeros((rows, width), KIND[dtype])
    present = np.zeros(rows, bool)
    for ids, values in gradients:
        own = np.zeros((rows, width), KIND[dtype])
        np.add.at(own, ids, values)  # in order of appearance, unbuffered
        sums += own
        present[ids] = True
    (ids,) = present.nonzero()
    return ids, sums[ids]


def same(array, expected):
    """Bit for bit."""
    return array.tobytes() == np.ascontiguousarray(expected).tobytes()
