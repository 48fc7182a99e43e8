"""Zen: Empowering Distributed Training with Sparsity-driven Data Synchronization: sparsity, and schemes over it."""

import collections
import itertools
import json
import lzma
import statistics
import tempfile

from labbench.zenps import as_elements

from . import work
from .figure import figure
from .systems import Links, ZEN, busiest

WIDTH = 8  # values of a row of an embedding, each with an index of its own: the paper's sparse tensors are of values
POINTS = (2, 4, 8, 16, 32, 64, 128)


def all_traces(run):
    return work.traces(run) + [work.selected(run, 0.05, 8, 20 if run.quick else 200)]


def ranks_of(trace):
    """Numbers of ranks whose batches are all of different samples."""
    return [n for n in POINTS if n * trace.batch <= len(trace.samples) and (trace.name != "dgc" or n <= 8)]


def profile(run, trace):
    """What zenpsctl plan measures of a trace."""

    def make():
        command = [run.program("zenpsctl"), "plan", "--json", "--batch", trace.batch, "--trace"]
        if not trace.path.endswith(".xz"):
            return json.loads(run.call([*command, trace.path]))
        with tempfile.TemporaryFile("w+") as plain:
            plain.write(lzma.open(trace.path, "rt").read())
            plain.seek(0)
            return json.loads(run.call([*command, "-"], stdin=plain))

    return run.once(("profile", trace.name), make)["profile"]


@figure(
    "zen-2",
    "overlap ratios, and densification over the number of ranks",
    [
        "2a: each model's overlap ratios are about normally distributed, in a wide range (section 2.1, C1)",
        "2b: gamma_n grows with n and is smaller than n (C2); BERT's density grows from 1.06% to 40.8% at 128 (section 3.3)",
    ],
    "generated traces and a perceptron in place of six models; --data DIR: traces of real text, ratings and a graph",
)
def characteristics(run, found):
    overlaps, densities, pdf, curves = [], [], {}, {}
    for trace in all_traces(run):
        ranks = ranks_of(trace)
        ratios = [
            len(a & b) / min(len(a), len(b))
            for step in range(2 if run.quick else 10)
            for a, b in itertools.combinations(trace.step(step, min(8, ranks[-1])), 2)
        ]
        bins = collections.Counter(min(int(20 * ratio), 19) for ratio in ratios)
        pdf[trace.name] = [((b + 0.5) / 20, 20 * bins[b] / len(ratios)) for b in sorted(bins)]
        overlaps.append(
            [trace.name, trace.what, len(ratios)] + [f"{f(ratios):.3f}" for f in (min, statistics.mean, max, statistics.pstdev)]
        )
        steps = range(1 if run.quick else 3)
        one = statistics.mean(len(rows) for step in steps for rows in trace.step(step, 2)) / trace.rows
        gamma = {n: statistics.mean(len(set().union(*trace.step(step, n))) for step in steps) / trace.rows / one for n in ranks}
        curves[trace.name] = list(gamma.items())
        densities.append([trace.name, f"{100 * one:.2f}%"] + [f"{gamma[n]:.2f}" if n in gamma else "" for n in POINTS])
        values = list(gamma.values())
        found.holds(
            f"{trace.name}: densification grows with the ranks, and is less than their number",
            all(gamma[n] < n for n in ranks) and values == sorted(values),
        )
        if trace.name != "dgc":  # lines of dgc are of ranks that go together
            far = max(abs(p / g - 1) for p, g in zip(profile(run, trace)["gamma"], values))
            # Samples of a real trace that follow each other are alike: plan draws a step's at random, ranks here take them in turn.
            check = found.shape if run.data else found.holds
            check(
                f"{trace.name}: zenpsctl plan --trace measures the same densification to 15%", far < 0.15, f"{100 * far:.1f}% apart"
            )
    means = [float(row[4]) for row in overlaps]
    found.shape(
        "overlap ratios differ from model to model",
        max(means) - min(means) > 0.1,
        f"means from {min(means):.2f} to {max(means):.2f}",
    )
    found.table(
        "2a: overlap ratio of two ranks' sets, the common rows over the smaller set",
        ["trace", "what", "pairs", "least", "mean", "most", "deviation"],
        overlaps,
    )
    found.table("2b: densification over ranks", ["trace", "density of one", *POINTS], densities)
    found.plot("overlap", "overlap ratio", "probability density", pdf)
    found.plot("densification", "ranks", "gamma", curves, "xy")


def parts_of(rows, n_rows, n_parts):
    """How many rows of a set are in each of n_parts even parts."""
    counts = collections.Counter(row * n_parts // n_rows for row in rows)
    return [counts[part] for part in range(n_parts)]


@figure(
    "zen-3",
    "where the values that are not zero lie",
    [
        "3a: with eight parts, over 60% are in the first part, in all six models (section 2.1, C3)",
        "3b: skewness ratio of LSTM's embedding over 70 with 128 parts; significant in all six models",
    ],
    "generated traces by Zipf's law, ids of each field sorted by frequency, and a perceptron, in place of six models; --data DIR:"
    " real traces",
)
def skew(run, found):
    heat, ratios, curves = [], [], {}
    for trace in all_traces(run):
        sets = [rows for step in range(2) for rows in trace.step(step, 4)]
        shares = [
            statistics.mean(part)
            for part in zip(*([count / len(rows) for count in parts_of(rows, trace.rows, 8)] for rows in sets))
        ]
        heat.append([trace.name, trace.what] + [f"{100 * share:.1f}%" for share in shares])
        skews = {n: statistics.mean(n * max(parts_of(rows, trace.rows, n)) / len(rows) for rows in sets) for n in POINTS}
        ratios.append([trace.name] + [f"{skews[n]:.1f}" for n in POINTS])
        curves[trace.name] = list(skews.items())
        found.holds(f"{trace.name}: skew grows with the parts", list(skews.values()) == sorted(skews.values()))
        found.shape(f"{trace.name}: over 60% of eight parts' rows are in the first", shares[0] > 0.6, f"{100 * shares[0]:.0f}%")
    found.table("3a: share of a rank's rows in each of eight even parts", ["trace", "what", *range(1, 9)], heat)
    found.table("3b: skewness ratio, the densest part over the mean", ["trace", *POINTS], ratios)
    found.plot("skew", "parts", "skewness ratio", curves, "xy")


def elements_of(run, trace):
    """The trace value by value, long enough for 128 ranks where its samples suffice."""

    def make():
        n = ranks_of(trace)[-1]
        width = 1 if trace.name == "dgc" else WIDTH
        return as_elements({"trace": trace.path, "width": width, "n": n, "batch": trace.batch, "steps": 1, "warmup": 0})

    return run.once(("elements", trace.name), make)


def moved(run, trace, n, rate, steps=2):
    """Rows of all of Zen's systems on n hosts, by name."""

    def make():
        made = elements_of(run, trace)
        job = {"trace": made["trace"], "rows": made["rows"], "width": 1, "batch": trace.batch, "steps": steps, "warmup": 1}
        with Links(run, n, rate) as links:
            return {name: links.perf(scheme, codec, **job) for name, (scheme, codec) in ZEN.items()}

    return run.once(("moved", trace.name, n, rate), make)


def planned(run, trace):
    """zenpsctl plan of the same trace with the paper's codecs, as bytes alone cost: by n, then by scheme."""
    command = [
        run.program("zenpsctl"),
        "plan",
        "--json",
        "--codec",
        "paper",
        "--compute",
        "no",
        "--latency",
        0,
        "--batch",
        trace.batch,
        "--trace",
        elements_of(run, trace)["trace"],
    ]
    got = json.loads(run.call(command))
    return got, {n: {one["scheme"]: one["time_ms"][i] for one in got["schemes"]} for i, n in enumerate(got["n"])}


@figure(
    "zen-8",
    "time of each scheme over the ranks, NMT with a batch of 64, over AllReduce's",
    [
        "at 128 GPUs no other scheme beats AllReduce; Balanced Parallelism is 36% lower (section 2.4)",
        "AGsparse is worse than AllReduce beyond 40 GPUs; OmniReduce gains little beyond 64; SparCML is worse with many",
        "without indices Balanced Parallelism takes half (COO doubles it)",
    ],
    "a trace in place of NMT, of 7% density where NMT has 2.5%; up to 16 hosts the measured bytes of the busiest link, beyond that"
    " zenpsctl plan, of the same trace",
)
def schemes_over_ranks(run, found):
    trace = work.trace(run, "nmt")
    plan, times = planned(run, trace)
    profile_ = plan["profile"]
    rows, curves = [], {name: [] for name in ("AGsparse", "SparCML", "OmniReduce", "Sparse PS", "Zen", "without index")}
    for i, n in enumerate(plan["n"]):
        if n > ranks_of(trace)[-1]:  # samples would meet twice
            break
        ring = times[n]["ring"]
        over = {name: times[n][ZEN[name][0]] / ring for name in curves if name in ZEN}
        d, gamma = profile_["density"], profile_["gamma"][i]
        over["Zen COO"] = (n - 1) / n * (gamma + 1) * 2 * d / (2 * (n - 1) / n)  # equation 1, over the ring's bytes
        over["without index"] = over["Zen COO"] / 2
        for name in curves:
            curves[name].append((n, over[name]))
        rows.append(
            [n, f"{100 * d:.2f}%", f"{gamma:.2f}", f"{profile_['skew'][i]:.1f}"]
            + [f"{over[name]:.3f}" for name in (*curves, "Zen COO")]
        )
    last = {name: points[-1][1] for name, points in curves.items()}
    found.table(
        "predicted from the trace with the paper's codecs, over AllReduce",
        ["ranks", "density", "gamma", "skew", *curves, "Zen, COO both ways"],
        rows,
    )
    measured = []
    for n in (8,) if run.quick else (4, 8, 16):
        got = moved(run, trace, n, "1gbit" if run.quick else "100mbit")
        dense = busiest(got["AllReduce"])
        measured.append([n] + [f"{busiest(got[name]) / dense:.3f}" for name in ZEN if name != "AllReduce"])
        for name in ("AGsparse", "SparCML", "OmniReduce", "Zen"):
            mine, theirs = busiest(got[name]) / dense, times[n][ZEN[name][0]] / times[n]["ring"]
            found.holds(
                f"{n} hosts: {name}'s busiest link carries what is predicted, to 25%",
                abs(mine / theirs - 1) < 0.25,
                f"{mine:.3f}, predicted {theirs:.3f}",
            )
        found.holds(
            f"{n} hosts: the busiest link carries least with Zen, of the paper's systems",
            busiest(got["Zen"]) <= min(busiest(got[name]) for name in ZEN if name != "zenps"),
        )
    found.table(
        "measured bytes of the busiest host, over the ring's", ["hosts", *(name for name in ZEN if name != "AllReduce")], measured
    )
    found.holds(
        "Balanced Parallelism takes least at the most ranks", last["Zen"] == min(v for k, v in last.items() if k != "without index")
    )
    found.holds("AGsparse's time over AllReduce's grows with the ranks", curves["AGsparse"][-1][1] > 4 * curves["AGsparse"][1][1])
    found.shape(
        "at the most ranks no other scheme beats AllReduce, to 1%",
        min(last[name] for name in ("AGsparse", "SparCML", "OmniReduce", "Sparse PS"))
        >= 0.99,  # OmniReduce sends nearly all blocks
        ", ".join(f"{name} {last[name]:.2f}" for name in ("AGsparse", "SparCML", "OmniReduce", "Sparse PS")),
    )
    found.shape(
        "there Balanced Parallelism takes a third less than AllReduce",
        0.5 < last["Zen"] < 0.8,
        f"{100 * (1 - last['Zen']):.0f}% less",
    )
    found.plot("schemes", "ranks", "time over AllReduce's", {**curves, "AllReduce": [(n, 1) for n in plan["n"]]}, "xy")
