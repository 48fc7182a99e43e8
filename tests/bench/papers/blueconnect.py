"""BlueConnect: Decomposing All-Reduce for Deep Learning on Heterogeneous Network Hierarchy."""

from .figure import figure
from .systems import Links, busiest, rival_rows

SYSTEMS = {
    "Ring": ("ring", []),
    "two-level (Gloo's)": ("two-level", ["--levels"]),
    "BlueConnect": ("blueconnect", ["--levels"]),
    "Rabenseifner": ("rabenseifner", []),
}


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
    "ranks of a host and hosts of a rack are namespaces of one machine, links 1/1000 as fast, 1 MB: no model computes beside"
    " (3b, 3c)",
)
def overhead(run, found):
    rows, per_host, steps = 1 << 18, 2 if run.quick else 4, 2 if run.quick else 5
    racks, uplink, rate = 2, "100mbit", "100mbit"
    table, curves = [], {name: [] for name in SYSTEMS}
    for hosts in (4,) if run.quick else (2, 4, 8):
        ranks = hosts * per_host
        place = {"ranks_per_host": per_host, "racks": racks, "uplink": uplink}
        levels = {
            "two-level": f"{per_host}x{hosts}",
            "blueconnect": f"{per_host}x{hosts // racks}x{racks}" if hosts > racks else f"{per_host}x{hosts}",
        }
        got = {}
        with Links(run, hosts, rate, **place) as links:
            for name, (scheme, options) in SYSTEMS.items():
                args = [word for option in options for word in (option, levels[scheme])]
                got[name] = links.perf(scheme, args=args, rows=rows, width=1, density=1.0, steps=steps, warmup=1)
        others = (
            []
            if run.quick
            else rival_rows(
                run, hosts, rate, found, rows=rows, width=1, density=1.0, steps=steps, warmup=1, racks=racks, uplink=uplink
            )
        )
        for name, row in [*got.items(), *others]:
            table.append([ranks, name, f"{row['median_ms']:.1f}", f"{row['limit_ms']:.1f}", f"{busiest(row) / 1e3:.0f}"])
            if name in curves:
                curves[name].append((ranks, row["median_ms"]))
        best = got["BlueConnect"]
        found.holds(
            f"{ranks} ranks: a host's busiest link carries 2 (h - 1) / h of the tensor with BlueConnect, to 5%",
            abs(busiest(best) / (4 * rows * 2 * (hosts - 1) / hosts) - 1) < 0.05,
            f"{busiest(best) / 1e3:.0f} kB",
        )
        found.holds(
            f"{ranks} ranks: that is less than the ring's",
            busiest(best) < busiest(got["Ring"]),
            f"{busiest(got['Ring']) / busiest(best):.2f} times",
        )
        found.shape(
            f"{ranks} ranks: BlueConnect is faster than two-level and ring",
            best["median_ms"] < min(got[name]["median_ms"] for name in ("Ring", "two-level (Gloo's)")),
            ", ".join(f"{name} {row['median_ms']:.1f} ms" for name, row in got.items()),
        )
    found.table(
        f"ms of an all-reduce of {4 * rows / 1e6:.1f} MB, {per_host} ranks a host, {racks} racks, links and uplinks of {rate}",
        ["ranks", "system", "ms", "ms that the busiest link needs", "kB of the busiest host"],
        table,
    )
    found.plot("overhead", "ranks", "ms", curves, "x")
