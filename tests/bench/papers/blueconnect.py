"""BlueConnect: Novel Hierarchical All-Reduce on Multi-tired Network for Deep Learning."""

from .figure import figure
from .systems import Links, busiest, rival_rows

SYSTEMS = {
    "Ring": "ring",
    "two-level (Gloo's)": "two-level",
    "BlueConnect": "blueconnect",
    "Rabenseifner": "rabenseifner",
}
RACKS = 2
SIZES = "256,512,256,20"  # of the perceptron that computes: 268308 values


def levels_of(hosts, per_host):
    in_rack = hosts // RACKS
    return {
        "two-level": f"{per_host}x{hosts}",
        "blueconnect": f"{per_host}x{in_rack}x{RACKS}" if in_rack > 1 else f"{per_host}x{RACKS}",
    }


def reduced(run, found, hosts, per_host, rate, uplink):
    """All-reduces alone: rows of each system, and of rivals."""
    place = {"ranks_per_host": per_host, "racks": RACKS, "uplink": uplink}
    job = {"rows": 1 << 18, "width": 1, "density": 1.0, "steps": 2 if run.quick else 4, "warmup": 1}
    levels = levels_of(hosts, per_host)
    got = {}
    with Links(run, hosts, rate, **place) as links:
        for name, scheme in SYSTEMS.items():
            text = f"{scheme}:levels={levels[scheme]}" if scheme in levels else scheme
            got[name] = links.perf(text, **job)
    rivals = [] if run.quick else rival_rows(run, hosts, rate, found, racks=RACKS, uplink=uplink, **job)
    return got, rivals


@figure(
    "blueconnect-3",
    "communication overhead of ResNet-50's 100 MB over GPUs",
    [
        (
            "192 GPUs, 4 a host, 3 racks of 16 hosts: BlueConnect 31.0 ms, Gloo (two-level) 58.0 ms, the ring scales worst (section"
            " 4, figure 3a)"
        ),
        "throughput on 192: 11% more than Gloo, 45% more than the ring (3c)",
    ],
    "ranks of a host and hosts of a rack are namespaces of one machine, links 1/1000 as fast, 1 MB, 2 racks; a perceptron in place"
    " of ResNet-50 in the second table",
)
def overhead(run, found):
    per_host, rate, values = (2 if run.quick else 4), "100mbit", 1 << 18
    table, curves = [], {}
    for uplink in ("25mbit",) if run.quick else ("25mbit", "100mbit"):
        for hosts in (4,) if run.quick else (2, 4, 8):
            ranks = hosts * per_host
            got, rivals = reduced(run, found, hosts, per_host, rate, uplink)
            for name, row in [*got.items(), *rivals]:
                times = (f"{row['median_ms']:.1f}", f"{row['limit_ms']:.1f}")
                table.append([uplink, ranks, name, *times, f"{busiest(row) / 1e3:.0f}"])
                if name in SYSTEMS:
                    curves.setdefault(f"{name}, {uplink}", []).append((ranks, row["median_ms"]))
            at, best = f"{ranks} ranks, uplinks of {uplink}", got["BlueConnect"]
            found.holds(
                f"{at}: a host's busiest link carries 2 (h - 1) / h of the tensor with BlueConnect, to 5%",
                abs(busiest(best) / (4 * values * 2 * (hosts - 1) / hosts) - 1) < 0.05,
                f"{busiest(best) / 1e3:.0f} kB",
            )
            # 2 (r - 1) / r of the tensor passes an uplink, or a host's link is what binds.
            binds = max(4 * values * 8 * 2 * (RACKS - 1) / RACKS / mbit(uplink), busiest(best) * 8 / mbit(rate)) / 1000
            found.holds(
                f"{at}: its slowest link needs what the hierarchy says, to 8%",
                abs(best["limit_ms"] / binds - 1) < 0.08,
                f"{best['limit_ms']:.1f} ms, {binds:.1f}",
            )
            others = [got[name]["limit_ms"] for name in ("Ring", "two-level (Gloo's)")]
            if uplink != rate and hosts > RACKS:  # else a host's link binds, or BlueConnect is two-level
                found.holds(
                    f"{at}: the others' slowest link needs a third more at least",
                    min(others) > best["limit_ms"] * 4 / 3,
                    ", ".join(f"{other / best['limit_ms']:.2f} times" for other in others),
                )
            found.shape(
                f"{at}: BlueConnect is faster than two-level and ring",
                best["median_ms"] < min(got[name]["median_ms"] for name in ("Ring", "two-level (Gloo's)")),
                ", ".join(f"{name} {row['median_ms'] / best['median_ms']:.2f} times its time" for name, row in got.items()),
            )
    found.table(
        f"ms of an all-reduce of {4 * values / 1e6:.1f} MB, {per_host} ranks a host, {RACKS} racks, links of {rate}",
        ["uplinks", "ranks", "system", "ms", "ms that the slowest link needs", "kB of the busiest host"],
        table,
    )
    found.plot("overhead", "ranks", "ms", curves, "x")
    if not run.quick:
        throughput(run, found, rate, "25mbit")


def mbit(rate):
    return int(rate.removesuffix("mbit"))


def throughput(run, found, rate, uplink):
    """Figures 3b and 3c: a model that computes, several times as long as BlueConnect communicates, as there. What it computes is
    the same under each system: the least time of the three stands for all, since other work on the machine comes and goes."""
    hosts, per_host, steps, batch = 8, 4, 4, 256
    lines = {}
    with Links(run, hosts, rate, ranks_per_host=per_host, racks=RACKS, uplink=uplink) as links:
        for name in ("Ring", "two-level (Gloo's)", "BlueConnect"):
            args = ["--sizes", SIZES, "--batch", batch, "--steps", steps, "--every", steps, "--scheme", SYSTEMS[name]]
            (lines[name],), _ = links.train("tests/bench/perceptron-rank", args, steps)
    computing = min(line["compute_ms"] for line in lines.values())
    whole = {name: computing + line["sync_ms"] for name, line in lines.items()}
    gains = {name: 100 * (ms / whole["BlueConnect"] - 1) for name, ms in whole.items() if name != "BlueConnect"}
    found.shape(
        "3c: BlueConnect trains faster than two-level and ring",
        min(gains.values()) > 0,
        ", ".join(f"{gain:.0f}% more than {name}" for name, gain in gains.items()),
    )
    found.table(
        f"3b, 3c: a perceptron of 268308 values, {hosts * per_host} ranks, links of {rate}, uplinks of {uplink}",
        ["system", "ms computing", "ms communicating", "samples/s, by the least computing", "efficiency"],
        [
            [
                name,
                f"{line['compute_ms']:.0f}",
                f"{line['sync_ms']:.0f}",
                f"{1000 * batch * hosts * per_host / whole[name]:.0f}",
                f"{computing / whole[name]:.2f}",
            ]
            for name, line in lines.items()
        ],
    )
