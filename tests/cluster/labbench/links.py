"""How full the links were in the course of a step: what shows whether a schedule or a host holds a round up."""
from .lab import bits


def table(watch, timeline, rate, n_bins=20):
    """Lines of a table for the step of median length: time, then the share of RATE that hosts took and gave: mean, least, most."""
    step = sorted(timeline, key=lambda s: s["ms"])[(len(timeline) - 1) // 2]
    start, seconds = step["start_s"], step["ms"] / 1000
    lines = [f"step of {step['ms']:.1f} ms; share of {rate} in: mean, least, most of the hosts; out: the same"]
    for k in range(n_bins):
        first, last = (watch.hosts_at(start + seconds * i / n_bins) for i in (k, k + 1))
        ways = [[(b[way] - a[way]) * 8 * n_bins / seconds / bits(rate) for a, b in zip(first, last)] for way in (0, 1)]
        lines.append(f"{1000 * seconds * k / n_bins:9.1f} " + "   ".join(
            f"{sum(w) / len(w):.2f} {min(w):.2f} {max(w):.2f}" for w in ways))
    return lines
