"""Ok-Topk: Near-Optimal Sparse Allreduce for Distributed Deep Learning: rounds, thresholds and balance."""

import math
import random

from .figure import figure
from .systems import OKTOPK, Links, arguments, busiest, trained


def formula(name, n, k, ranks):
    """Table 1's bandwidth terms, in words: least and most."""
    share, stages = (ranks - 1) / ranks, math.log2(ranks)
    return {
        "Dense": (2 * n * share,) * 2,
        "TopkA": (2 * k * (ranks - 1),) * 2,
        "TopkDSA": (4 * k * share, (2 * k + n) * share),
        "gTopk": (4 * k * stages,) * 2,
        "Gaussiank": (2 * k * (ranks - 1),) * 2,
        "Ok-Topk": (2 * k * share, 6 * k * share),
    }[name]


@figure(
    "oktopk-table-1",
    "words that a rank gets, against the model",
    [
        "Dense 2n(P-1)/P; TopkA and Gaussiank 2k(P-1); TopkDSA 4k(P-1)/P to (2k+n)(P-1)/P; gTopk 4k log P; Ok-Topk 2k(P-1)/P to"
        " 6k(P-1)/P (table 1)"
    ],
    "random values of n = 262144 at 1%, indices of 4 bytes (codec coo); rounds between two exact thresholds; gTopk's model is of"
    " its root, ours the mean of the ranks",
)
def table_1(run, found):
    n, k = 1 << 18, 2621
    rows, curves = [], {name: [] for name in OKTOPK}
    for ranks in (4, 8) if run.quick else (4, 8, 16, 32):
        cases = [
            (
                ["--rows", n, "--density", k / n, "--steps", 4, "--warmup", 1, *arguments(f"{scheme}:k={k}", codec)]
                if name != "Dense"
                else ["--rows", n, "--density", 1, "--steps", 1, "--warmup", 0, *arguments(scheme, codec)]
            )
            for name, (scheme, codec) in OKTOPK.items()
        ]
        for name, got in zip(OKTOPK, run.perf(ranks, cases, servers=1)):
            words, (least, most) = got["payload_in"] / 4, formula(name, n, k, ranks)
            rows.append([ranks, name, f"{words:.0f}", f"{least:.0f}", f"{most:.0f}", f"{words / k:.2f}"])
            curves[name].append((ranks, words / k))
            if name == "gTopk":
                mean = 4 * k * (ranks - 1) / ranks  # k of 2 words up and down each edge of a tree
                found.holds(
                    f"{ranks} ranks: gTopk's mean is a tree's, to 2%",
                    abs(words / mean - 1) < 0.02,
                    f"{words:.0f}, a tree's {mean:.0f}; its root has {most:.0f}",
                )
            else:
                slack = 6 * ranks if name == "Ok-Topk" else 0  # counts of regions and chunks
                found.holds(
                    f"{ranks} ranks: {name} is within the model, to 2%",
                    0.98 * least <= words <= 1.02 * most + slack,
                    f"{words:.0f}, model {least:.0f} to {most:.0f}",
                )
    grown = {name: points[-1][1] / points[0][1] for name, points in curves.items()}
    found.holds(
        "Ok-Topk's words grow by (P - 1) / P and a few counts, TopkA's with the ranks",
        grown["Ok-Topk"] < 1.5 and grown["TopkA"] > 0.9 * (curves["TopkA"][-1][0] - 1) / 3,
        f"{grown['Ok-Topk']:.2f}, {grown['TopkA']:.2f} times from {curves['TopkA'][0][0]} to {curves['TopkA'][-1][0]} ranks",
    )
    found.holds(
        "Ok-Topk carries least",
        curves["Ok-Topk"][-1][1] == min(points[-1][1] for name, points in curves.items() if name != "gTopk"),
    )
    found.table("words of a round and rank", ["ranks", "system", "measured", "model, least", "most", "over k"], rows)
    found.plot("words", "ranks", "words over k", curves, "xy")


def probed(run, density):
    n, steps, every = (4, 96, 32) if run.quick else (8, 640, 40)
    return trained(run, density, steps, every, "--scheme", "oktopk", "--select", "reused", "--probe", n=n)


@figure(
    "oktopk-4",
    "distribution of the accumulated gradient, and the thresholds of top-k",
    [
        "Ok-Topk's threshold of more than 25 iterations ago is close to the exact one; the normal distribution's is larger and"
        " underestimates k (section 3.1.3)"
    ],
    "a perceptron in place of VGG-16, LSTM and BERT; the probe reads the same residual plus gradient that the training selects"
    " from",
)
def thresholds(run, found):
    lines = probed(run, 0.01)
    rows = []
    for line in lines:
        exact = line["exact_threshold"]
        rows.append(
            [
                line["step"],
                f"{exact:.3e}",
                f"{line['reused_threshold'] / exact:.3f}",
                f"{line['gaussian_threshold'] / exact:.3f}",
                f"{line['greatest'] / exact:.2f}",
            ]
        )
    last = lines[-1]
    off = abs(last["reused_threshold"] / last["exact_threshold"] - 1)
    found.shape(
        "the reused threshold is closer to the exact one than the normal distribution's",
        off < abs(last["gaussian_threshold"] / last["exact_threshold"] - 1),
        f"{100 * off:.1f}% off, {100 * abs(last['gaussian_threshold'] / last['exact_threshold'] - 1):.1f}% off at the end",
    )
    found.shape("the normal distribution's is the larger", last["gaussian_threshold"] > last["exact_threshold"])
    found.table(
        "thresholds over the training, 1% of the values",
        ["step", "exact", "reused, over it", "normal, over it", "greatest value, over it"],
        rows,
    )
    bins = [(last["greatest"] * 2 ** (-(len(last["histogram"]) - 1 - i) / 2), share) for i, share in enumerate(last["histogram"])]
    found.table(
        "share of the values by magnitude (bins of half a power of two), at the end",
        ["up to", "share"],
        [[f"{x:.3e}", f"{share:.5f}"] for x, share in bins[-12:]],
    )
    found.plot("distribution", "magnitude", "share of the values", {"values": [(x, y) for x, y in bins if y > 0]}, "xy")


@figure(
    "oktopk-5",
    "xi of assumption 1 over the training",
    [
        "xi rises in the first epochs and becomes stable (VGG-16, BERT), grows slowly (LSTM); smaller for higher densities; below P"
        " for all three (section 5.1)"
    ],
    "a perceptron in place of the three models, of rising xi as its gradient vanishes: it fits its clouds",
)
def xi(run, found):
    shares = (0.01, 0.02)
    lines = {share: probed(run, share) for share in shares}
    rows = [
        [line["step"]] + [f"{other['xi']:.2f}" for other in at] + [f"{line['loss']:.3f}"]
        for line, at in zip(lines[0.01], zip(*lines.values()))
    ]
    mean = {share: sum(line["xi"] for line in of) / len(of) for share, of in lines.items()}
    found.shape("xi is smaller for the higher density", mean[0.02] < mean[0.01], f"means {mean[0.02]:.2f}, {mean[0.01]:.2f}")
    found.shape(
        "xi stays below P",
        max(line["xi"] for of in lines.values() for line in of) < lines[0.01][0]["n"],
        f"at most {max(line['xi'] for of in lines.values() for line in of):.2f}, P = {lines[0.01][0]['n']}",
    )
    found.holds("xi is finite, and not zero", all(0 < line["xi"] < math.inf for of in lines.values() for line in of))
    found.table("xi", ["step", "1%", "2%", "loss"], rows)
    found.plot(
        "xi", "step", "xi", {f"{100 * share:g}%": [(line["step"], line["xi"]) for line in of] for share, of in lines.items()}
    )


@figure(
    "oktopk-6",
    "how many values are selected locally, and are in the sum, over the training",
    [
        (
            "local and global counts are within 11% of k on average; Gaussiank overestimates first, then selects an order of"
            " magnitude too few (section 5.2)"
        ),
        "TopkDSA's output fills in to 13.2% (VGG-16, 1%, 16 GPUs) and 34.5% (LSTM, 2%, 32 GPUs)",
    ],
    "a perceptron in place of the three models; Gaussiank trains with its threshold at its word; thresholds follow their counts, as"
    " zenps has them",
)
def counts(run, found):
    n, steps, every = (4, 96, 32) if run.quick else (8, 640, 40)
    mine = probed(run, 0.01)
    normal = trained(run, 0.01, steps, every, "--scheme", "topka", "--select", "gaussian", "--unrefined", n=n)
    filled = trained(run, 0.01, steps, every, "--scheme", "topkdsa", "--select", "topk", n=n)
    rows = [
        [
            a["step"],
            f"{a['selected'] / a['k']:.3f}",
            f"{a['kept'] / a['k']:.3f}",
            f"{a['reused_selected'] / a['k']:.3f}",
            f"{b['selected'] / b['k']:.3f}",
            f"{100 * c['kept'] / c['values']:.2f}%",
        ]
        for a, b, c in zip(mine, normal, filled)
    ]
    local = sum(line["selected"] / line["k"] for line in mine) / len(mine)
    kept = sum(line["kept"] / line["k"] for line in mine) / len(mine)
    found.shape("the local count is within 11% of k on average", abs(local - 1) < 0.11, f"{local:.3f} k")
    found.shape("the global count is within 11% of k on average", abs(kept - 1) < 0.11, f"{kept:.3f} k")
    found.shape(
        "Gaussiank selects far too few in the end",
        normal[-1]["selected"] < 0.5 * normal[-1]["k"],
        f"{normal[-1]['selected'] / normal[-1]['k']:.3f} k",
    )
    found.holds(
        "TopkDSA's sum fills in",
        filled[-1]["kept"] > 1.5 * filled[-1]["k"],
        f"{100 * filled[-1]['kept'] / filled[-1]['values']:.2f}% of 1% a rank",
    )
    found.table(
        "over k, mean of the steps since the line before",
        [
            "step",
            "Ok-Topk, local",
            "Ok-Topk, in the sum",
            "a threshold that stays, local",
            "Gaussiank, local",
            "TopkDSA's sum, density",
        ],
        rows,
    )
    found.plot(
        "counts",
        "step",
        "values over k",
        {
            "local": [(a["step"], a["selected"] / a["k"]) for a in mine],
            "global": [(a["step"], a["kept"] / a["k"]) for a in mine],
            "Gaussiank": [(b["step"], b["selected"] / b["k"]) for b in normal],
        },
    )


def moved_rows(run, n, rows, k, steps):
    """A trace of ranks whose rows move. In the first step they lie all over, and Ok-Topk agrees on its regions. Later they lie in
    one of n even parts: one rank's region. Ranks share no rows, so all that they send is kept."""
    path = run.path(f"moved-{n}-{rows}.ids")
    rng = random.Random("moved")
    with open(path, "w") as out:
        for step in range(steps):
            span = rows if step == 0 else rows // n
            owned = rng.sample(range(span // n), k)  # every rank's share of the span has as many rows
            for rank in range(n):
                out.write(" ".join(str(rank + n * i) for i in sorted(owned)) + "\n")
    return path


@figure(
    "oktopk-7",
    "what balancing gains",
    [
        "7a: balanced against naive reduce 1.13 to 1.75 times, 16 to 64 GPUs; 7b: balanced against direct allgatherv 1.12 to 1.43"
        " times (section 5.3)"
    ],
    "7a: rows by a power law in place of BERT's gradients; 7b: rows that have all moved into one rank's region since the last"
    " agreement, the most that balancing can be for. Times and the busiest rank's bytes are of the whole round",
)
def balancing(run, found):
    n, rate, rows = (8, "200mbit", 1 << 18) if run.quick else (16, "10mbit", 1 << 20)
    k, steps = rows // 100, 4 if run.quick else 8
    job = {"width": 1, "steps": steps, "warmup": 1}
    many = rows if run.quick else 4 * rows  # a rank has `few` of them in one n-th: enough to outweigh latency
    few = many // n // n * 3 // 4
    moved = {**job, "rows": many, "trace": moved_rows(run, n, many, few, steps + 1), "batch": 1}
    with Links(run, n, rate) as links:
        lawful = {
            name: links.perf(f"oktopk:k={k}{less}", "coo", args=["--skew", 0.9], density=k / rows, rows=rows, **job)
            for name, less in {"as it is": "", "7a: even regions": ",without=repartition"}.items()
        }
        shifted = {
            name: links.perf(f"oktopk:k={few}{less}", "coo", args=["--layout", "rows"], **moved)
            for name, less in {"as it is": "", "7b: no balancing": ",without=balancing"}.items()
        }
    times, sizes = gains(lawful)
    found.holds("7a: even regions make the busiest rank's link carry more", sizes > 1.1, f"{sizes:.2f} times")
    found.shape("7a: even regions take longer, by the paper's least", times > 1.13, f"{times:.2f} times")
    times, _ = gains(shifted)
    sent = shifted["7b: no balancing"]["bytes_out"] / shifted["as it is"]["bytes_out"]
    found.holds("7b: without balancing the busiest rank sends more", sent > 1.05, f"{sent:.2f} times")
    found.shape("7b: without balancing a round takes longer", times > 1.05, f"{times:.2f} times")
    for title, got in (
        (f"{n} hosts, {rate}, {rows} values by a power law of 0.9, k = {k}", lawful),
        (f"{n} hosts, {rate}, {many} values, k = {few}, all in one region", shifted),
    ):
        base = got["as it is"]
        found.table(
            title,
            ["Ok-Topk", "ms", "over as it is", "kB in, busiest link", "kB out, busiest link"],
            [
                [
                    name,
                    f"{row['median_ms']:.1f}",
                    f"{row['median_ms'] / base['median_ms']:.2f}",
                    f"{row['bytes_in'] / 1e3:.1f}",
                    f"{row['bytes_out'] / 1e3:.1f}",
                ]
                for name, row in got.items()
            ],
        )


def gains(got):
    """How many times longer the second of two ways takes, and how many times more its busiest link carries."""
    base, other = got.values()
    return other["median_ms"] / base["median_ms"], busiest(other) / busiest(base)
