"""How full the links were in the course of a step: what shows whether a schedule or a host holds a round up."""
import bisect

from .lab import bits


def table(series, timeline, rate, n_bins=20):
    """Lines of a table for the step of median length: time, then the share of RATE that hosts took and gave: mean, least, most.

    `series` is a list of (time, [(bytes in, bytes out) of each host])."""
    step = sorted(timeline, key=lambda s: s["ms"])[(len(timeline) - 1) // 2]
    start, seconds, times = step["start_s"], step["ms"] / 1000, [t for t, _ in series]

    def at(t):
        i = min(max(bisect.bisect(times, t), 1), len(series) - 1)
        (t0, before), (t1, after) = series[i - 1], series[i]
        share = min(max((t - t0) / (t1 - t0), 0), 1)
        return [[a + (b - a) * share for a, b in zip(x, y)] for x, y in zip(before, after)]

    lines = [f"step of {step['ms']:.1f} ms; share of {rate} in: mean, least, most of the hosts; out: the same"]
    for k in range(n_bins):
        first, last = at(start + seconds * k / n_bins), at(start + seconds * (k + 1) / n_bins)
        ways = [[(b[way] - a[way]) * 8 * n_bins / seconds / bits(rate) for a, b in zip(first, last)] for way in (0, 1)]
        lines.append(f"{1000 * seconds * k / n_bins:9.1f} " + "   ".join(
            f"{sum(w) / len(w):.2f} {min(w):.2f} {max(w):.2f}" for w in ways))
    return lines
