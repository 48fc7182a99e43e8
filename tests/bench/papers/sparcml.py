"""SparCML: High-Performance Sparse Communication for Machine Learning."""

from . import work
from .figure import figure
from .systems import Links, SPARCML, arguments, rival_rows

SHARE = 0.00781  # of figure 3, left


@figure(
    "sparcml-1",
    "density of the reduced gradient over nodes and the density of each",
    ["ResNet20 on CIFAR-10: with 5 to 10% a node, the reduced vector becomes dense over many nodes (section 2, figure 1)"],
    "a perceptron of 67210 values in place of ResNet20; top-k with a residual, as there",
)
def fill_in(run, found):
    steps = 10 if run.quick else 60
    nodes = (2, 4, 8) if run.quick else (2, 4, 8, 16)
    shares = (0.01, 0.1) if run.quick else (0.001, 0.01, 0.05, 0.1)
    rows, curves = [], {}
    for share in shares:
        points = []
        for n in nodes:
            *_, last = run.near(
                n,
                [
                    run.program("tests/bench/perceptron-rank"),
                    "--select",
                    "topk",
                    "--density",
                    share,
                    "--steps",
                    steps,
                    "--every",
                    steps,
                ],
                servers=2,
            )
            points.append((n, last["kept"] / last["values"]))
        curves[f"{100 * share:g}%"] = points
        rows.append([f"{100 * share:g}%"] + [f"{100 * density:.2f}%" for _, density in points])
        values = [density for _, density in points]
        found.holds(
            f"{100 * share:g}% a node: the sum grows denser with the nodes, by less than their number",
            values == sorted(values) and all(density <= n * share * 1.01 for n, density in points),
        )
    found.holds("more values a node fill the sum in more", all(a[1] < b[1] for a, b in zip(curves["1%"], curves["10%"])))
    found.table("density of the sum, mean over the steps", ["of a node", *(f"{n} nodes" for n in nodes)], rows)
    found.plot("density", "nodes", "density of the sum", curves, "xy")


def volumes(run, n, rows, shares):
    """Bytes that a rank gets in a round, by density, then by system."""
    cases = [
        ["--rows", rows, "--steps", 1, "--warmup", 1, "--density", share, *arguments(scheme, codec)]
        for share in shares
        for scheme, codec in SPARCML.values()
    ]
    got = iter(run.perf(n, cases, servers=1, timeout_s=300))
    return {share: {name: next(got)["payload_in"] for name in SPARCML} for share in shares}


@figure(
    "sparcml-3",
    "time of each reduction over nodes, and over density",
    [
        "left: N = 16M, d = 0.781%, nodes to 64 on Aries; right: P = 8 over densities on Gigabit Ethernet (section 8.1, figure 3)",
        "SSAR_Recursive_double is best for little data; SSAR_Split_allgather gains on it as nodes grow",
        (
            "DSAR_Split_allgather gains over dense, by a constant factor; the dense ring gains nothing at many nodes even at low"
            " density"
        ),
    ],
    "N = 1M and fewer nodes, on namespaces with shaped links; bytes of each rank for all points, times where the table has them",
)
def reductions(run, found):
    rows = 1 << 18 if run.quick else 1 << 20
    nodes = (2, 4, 8) if run.quick else (2, 4, 8, 16, 32)
    over_nodes = {n: volumes(run, n, rows, [SHARE])[SHARE] for n in nodes}
    shares = (0.001, 0.01, 0.3) if run.quick else (0.0001, 0.001, 0.01, 0.03, 0.1, 0.3)
    over_density = volumes(run, 8, rows, shares)
    found.table(
        f"kB that a rank gets in a round, N = {rows}, d = {100 * SHARE}%, over nodes",
        ["nodes", *SPARCML],
        [[n] + [f"{got[name] / 1e3:.1f}" for name in SPARCML] for n, got in over_nodes.items()],
    )
    found.table(
        f"kB that a rank gets in a round, N = {rows}, 8 nodes, over density",
        ["density", *SPARCML],
        [[f"{100 * share:g}%"] + [f"{got[name] / 1e3:.1f}" for name in SPARCML] for share, got in over_density.items()],
    )
    ratio = [got["SSAR_Recursive_double"] / got["SSAR_Split_allgather"] for got in over_nodes.values()]
    found.holds(
        "split-allgather gains on recursive doubling as nodes grow", ratio == sorted(ratio), ", ".join(f"{r:.2f}" for r in ratio)
    )
    gain = over_density[shares[0]]["dense Rabenseifner"] / over_density[shares[0]]["DSAR_Split_allgather"]
    found.holds("DSAR gains over dense by a constant factor, at most 2", 1 < gain <= 2.001, f"{gain:.2f} at {100 * shares[0]:g}%")
    thick = over_density[shares[-1]]
    found.holds(
        "at the greatest density the sparse allgather carries more than a dense reduction",
        thick["sparse allgather"] > thick["dense ring"],
    )
    found.holds(
        "streams switch to dense: no other reduction carries more than recursive doubling's dense stages",
        thick["SSAR_Recursive_double"] <= 4 * rows * 3 * 1.01,
    )
    times(run, found, rows, (8,) if run.quick else (2, 4, 8, 16), (0.001,) if run.quick else (0.0001, 0.001, 0.01, 0.1))


def times(run, found, rows, nodes, shares):
    """In a lab, at the paper's density over nodes, and at 8 nodes over densities."""
    rate = "200mbit" if run.quick else "100mbit"
    table, curves = [], {name: [] for name in SPARCML}
    for n in nodes:
        work_of = {"rows": rows, "width": 1, "steps": 3, "warmup": 1}
        points = [SHARE, *(shares if n == 8 else ())]
        with Links(run, n, rate) as links:
            got = {
                (share, name): links.perf(scheme, codec, density=share, **work_of)
                for share in points
                for name, (scheme, codec) in SPARCML.items()
            }
        rivals = [] if run.quick else rival_rows(run, n, rate, found, density=SHARE, **work_of)
        for share in points:
            one = {name: got[share, name]["median_ms"] for name in SPARCML}
            table.append(
                [n, f"{100 * share:g}%"]
                + [f"{one[name]:.1f}" for name in SPARCML]
                + [", ".join(f"{name} {row['median_ms']:.1f}" for name, row in rivals)]
            )
            sparse = {name: one[name] for name in ("SSAR_Recursive_double", "SSAR_Split_allgather", "DSAR_Split_allgather")}
            if share <= 0.001:
                found.shape(
                    f"{n} nodes, {100 * share:g}%: recursive doubling is the fastest",
                    min(sparse, key=sparse.get) == "SSAR_Recursive_double",
                    ", ".join(f"{name} {ms:.1f} ms" for name, ms in sparse.items()),
                )
            if share == SHARE:
                for name in SPARCML:
                    curves[name].append((n, one[name]))
    found.table(f"ms of a round on links of {rate}", ["nodes", "density", *SPARCML, "rivals"], table)
    found.plot("nodes", "nodes", "ms", curves, "xy")


@figure(
    "sparcml-table-2",
    "linear classifiers by SGD, sparse against dense reductions",
    [
        (
            "8 nodes, Gigabit Ethernet, SSAR_Split_allgather: Webspam LR 768.0 (759.5) s to 37.9 (29.5): 20.26 (25.75) times; URL"
            " LR 1045.0 (1004.6) to 80.26 (42.2): 12.65 (23.81) times; in brackets communication (table 2)"
        ),
        (
            "8 nodes, Piz Daint: 1.82 (2.40), 1.80 (2.35); 32 nodes, SSAR_Recursive_double: LR 3.53 (6.17), 3.52 (3.69), SVM 2.49"
            " (3.23), 3.54 (3.64) times"
        ),
    ],
    "generated data of URL's and Webspam's numbers of features (3,231,961 and 16,609,143), 16,000 samples of 115 and 200 draws by a"
    " power law (Webspam's have 3,730 features), links of 100 Mbit/s; --data DIR: url.libsvm, webspam.libsvm there; dense is the"
    " ring",
)
def classifiers(run, found):
    n, rate = (4, "100mbit") if run.quick else (8, "100mbit")
    sets = {"url": work.libsvm(run, "url", *((3000, 1000000, 115) if run.quick else (16000, 3231961, 115)), exponent=1.1)}
    if not run.quick:
        sets["webspam"] = work.libsvm(run, "webspam", 16000, 16609143, 200, exponent=1.1)
    rows = []
    with Links(run, n, rate) as links:
        for name, path in sets.items():
            for loss in ("logistic",) if run.quick or name == "webspam" else ("logistic", "hinge"):
                got = {label: classified(links, path, loss, label, 1000 * n if not run.quick else 1000) for label in REDUCTIONS}
                rows += compared(found, name, loss, got, PAPERS_TIMES[name])
    found.table(
        f"an epoch on {n} hosts, {rate}, s, communication in brackets",
        ["data", "model", "reduction", "s", "times faster than dense", "MB moved", "times less", "accuracy"],
        rows,
    )


REDUCTIONS = {
    "dense ring": "ring",
    "SSAR_Recursive_double": "recursive-doubling",
    "SSAR_Split_allgather": "split-allgather",
    "zenps": "balanced",
}
PAPERS_TIMES = {"url": 23.81, "webspam": 25.75}  # speed-up of communication on Gigabit Ethernet


def classified(links, path, loss, label, batch):
    """The last line of a training of one epoch."""
    args = [path, "--json", "--epochs", 1, "--loss", loss, "--batch", batch, "--scheme", REDUCTIONS[label]]
    lines, _ = links.train("zenps-linear", args, 1, codec="paper" if label.startswith("SSAR") else None, timeout_s=600)
    return lines[-1]


def compared(found, name, loss, got, paper):
    """Rows of the table; and how each reduction compares with the dense one."""
    dense, rows = got["dense ring"], []
    for label, one in got.items():
        whole, base = one["compute_s"] + one["sync_s"], dense["compute_s"] + dense["sync_s"]
        faster, less = dense["sync_s"] / one["sync_s"], dense["bytes_moved"] / one["bytes_moved"]
        rows.append(
            [
                name,
                {"logistic": "LR", "hinge": "SVM"}[loss],
                label,
                f"{whole:.2f} ({one['sync_s']:.2f})",
                f"{base / whole:.2f} ({faster:.2f})",
                f"{one['bytes_moved'] / 1e6:.2f}",
                f"{less:.1f}",
                f"{100 * one['accuracy']:.1f}%",
            ]
        )
        if label == "dense ring":
            found.shape(f"{name} {loss}: two classes are told apart, {label}", one["accuracy"] > 0.6, f"{one['accuracy']:.3f}")
            continue
        found.holds(f"{name} {loss}: {label} moves a tenth of dense's bytes at most", less >= 10, f"{less:.1f} times less")
        found.shape(
            f"{name} {loss}: {label} communicates faster than dense by half of the paper's {paper} times",
            faster > paper / 2,
            f"{faster:.1f} times",
        )
        found.holds(
            f"{name} {loss}: {label} reaches dense's accuracy, less half a point at most, and its loss to 0.002%",
            one["accuracy"] >= dense["accuracy"] - 0.005 and abs(one["loss"] / dense["loss"] - 1) < 2e-5,
            f"{one['accuracy']:.3f}, dense {dense['accuracy']:.3f}; {one['loss']:.5f}, dense {dense['loss']:.5f}",
        )
    return rows


@figure(
    "sparcml-scd",
    "stochastic coordinate descent, sparse against dense allgather",
    [
        "URL, LR, 8 nodes, 100 coordinates a node: an epoch 49 s (24 s of communication) dense, 26 s (4.5 s) sparse: 1.8 (5.3)"
        " times (section 8.2)"
    ],
    "generated data of URL's kind, fewer samples and features; dense here sends the whole model by the ring, not each node's slice"
    " of it",
)
def coordinates(run, found):
    n, rate = (4, "100mbit") if run.quick else (8, "100mbit")
    path = work.libsvm(run, "url", 3000 if run.quick else 24000, 50000 if run.quick else 200000, 60)
    rows, got = [], {}
    with Links(run, n, rate) as links:
        for label, scheme in {"dense ring": "ring", "sparse allgather": "agsparse", "zenps": "balanced"}.items():
            lines, _ = links.train(
                "zenps-linear",
                [path, "--json", "--method", "scd", "--epochs", 1, "--coordinates", 400 if run.quick else 1000, "--scheme", scheme],
                1,
            )
            got[label] = lines[-1]
    dense = got["dense ring"]
    for label, one in got.items():
        whole, base = one["compute_s"] + one["sync_s"], dense["compute_s"] + dense["sync_s"]
        rows.append(
            [
                label,
                f"{whole:.2f} ({one['sync_s']:.2f})",
                f"{base / whole:.2f} ({dense['sync_s'] / one['sync_s']:.2f})",
                f"{one['bytes_moved'] / 1e6:.3f}",
                f"{dense['bytes_moved'] / one['bytes_moved']:.1f}",
                f"{one['loss']:.4f}",
            ]
        )
        found.holds(
            f"{label} reaches the dense one's loss",
            abs(one["loss"] / dense["loss"] - 1) < 0.001,
            f"{one['loss']:.5f}, dense {dense['loss']:.5f}",
        )
    found.holds("the sparse allgather moves less than dense", got["sparse allgather"]["bytes_moved"] < dense["bytes_moved"] / 2)
    found.shape("the sparse allgather communicates faster", got["sparse allgather"]["sync_s"] < dense["sync_s"])
    found.table(
        f"an epoch on {n} hosts, {rate}, s, communication in brackets",
        ["allgather", "s", "times faster", "MB moved", "times less", "loss"],
        rows,
    )
