"""Ok-Topk: Near-Optimal Sparse Allreduce for Distributed Deep Learning: rounds, thresholds and balance."""

import math

from .figure import Missing, figure
from .systems import OKTOPK, Links, arguments, trained


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
                ["--rows", n, "--density", k / n, "--topk", k, "--steps", 4, "--warmup", 1, *arguments(scheme, codec)]
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
                found.holds(f"{ranks} ranks: gTopk's mean is at most the model's root", words <= most)
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


@figure(
    "oktopk-7",
    "what balancing gains",
    [
        "7a: balanced against naive reduce 1.13 to 1.75 times, 16 to 64 GPUs; 7b: balanced against direct allgatherv 1.12 to 1.43"
        " times (section 5.3)"
    ],
    "values by a power law over rows in place of BERT's gradients; the busiest rank's bytes, and time on shaped links, of the whole"
    " round",
)
def balancing(run, found):
    if not run.has_option("zenps-perf", "--without"):
        raise Missing("zenps-perf has no --without, which leaves repartition or balancing out")
    n, rate = (8, "200mbit") if run.quick else (16, "50mbit")
    rows, k = 1 << 18, 2621
    job = {"rows": rows, "width": 1, "density": k / rows, "steps": 8, "warmup": 1}
    ways = {
        "as it is": [],
        "7a: even regions": ["--without", "repartition"],
        "7b: no balancing": ["--without", "balancing"],
        "neither": ["--without", "repartition,balancing"],
    }
    with Links(run, n, rate) as links:
        got = {name: links.perf("oktopk", "coo", args=["--topk", k, "--skew", 0.9, *args], **job) for name, args in ways.items()}
    size = {name: max(row["bytes_in"], row["bytes_out"]) for name, row in got.items()}
    base = got["as it is"]
    found.holds(
        "even regions make the busiest rank's link carry more",
        size["7a: even regions"] > 1.1 * size["as it is"],
        f"{size['7a: even regions'] / size['as it is']:.2f} times",
    )
    found.holds(
        "without balancing it carries no less",
        size["7b: no balancing"] >= 0.98 * size["as it is"],
        f"{size['7b: no balancing'] / size['as it is']:.2f} times",
    )
    found.shape(
        "balancing lightens the busiest link where regions are even, and few ranks have the greatest values",
        size["neither"] > size["7a: even regions"],
        f"{size['neither'] / size['7a: even regions']:.2f} times without",
    )
    found.shape(
        "even regions take longer",
        got["7a: even regions"]["median_ms"] > base["median_ms"],
        f"{got['7a: even regions']['median_ms'] / base['median_ms']:.2f} times",
    )
    found.table(
        f"{n} hosts, {rate}, {rows} values by a power law of 0.9, 1%",
        ["Ok-Topk", "ms", "over as it is", "kB of the busiest link", "over as it is"],
        [
            [
                name,
                f"{row['median_ms']:.1f}",
                f"{row['median_ms'] / base['median_ms']:.2f}",
                f"{size[name] / 1e3:.1f}",
                f"{size[name] / size['as it is']:.2f}",
            ]
            for name, row in got.items()
        ],
    )
