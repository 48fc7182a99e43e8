#!/usr/bin/env python3
"""Whether the judge of a soak finds what grows, without daemons."""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from soaklib.slope import least_squares, slopes, too_steep  # noqa: E402


def samples(resident_kib, descriptors, registered=lambda n: 1 << 20):
    return [(n, {"coordinator": {"resident_kib": 5000, "descriptors": 14},
                 "servers": {"s0": {"resident_kib": resident_kib(n), "descriptors": descriptors(n), "registered_bytes": registered(n)}}})
            for n in range(50, 2001, 50)]


def judged(*args):
    return [sentence.split(" grows")[0] for sentence in too_steep(slopes(samples(*args)), 1024, 0.01)]


def flat(n):
    return 20


assert least_squares([]) == least_squares([(1, 5)]) == 0
assert abs(least_squares([(x, 3 * x + 7) for x in range(9)]) - 3) < 1e-9
assert judged(flat, flat) == []
assert judged(lambda n: 10000 + min(n, 900) * 30, flat) == [], "what reaches its size in the first half is no leak"
assert judged(lambda n: 10000 + n % 3 * 4, flat) == [], "nor are pages that come and go"
assert judged(lambda n: 10000 + 2 * n, flat) == ["s0: resident"], "2 KiB a job are"
assert judged(lambda n: 10000 + n // 300 * 1000, flat) == ["s0: resident"], "also in steps"
assert judged(flat, lambda n: 20 + n // 50) == ["s0: descriptors"]
assert judged(flat, flat, lambda n: n * 4096) == ["s0: registered"]
