"""Zen: Empowering Distributed Training with Sparsity-driven Data Synchronization."""
import collections
import itertools
import json
import lzma
import statistics
import tempfile

from labbench.zenps import as_elements

from . import work
from .figure import figure
from .systems import Links, ZEN, busiest, rival_rows

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


@figure("zen-2", "overlap ratios, and densification over the number of ranks",
        ["2a: each model's overlap ratios are about normally distributed, in a wide range (section 2.1, C1)",
         "2b: gamma_n grows with n and is smaller than n (C2); BERT's density grows from 1.06% to 40.8% at 128 (section 3.3)"],
        "generated traces and a perceptron in place of six models; --data DIR: traces of real text, ratings and a graph")
def characteristics(run, found):
    overlaps, densities, pdf, curves = [], [], {}, {}
    for trace in all_traces(run):
        ranks = ranks_of(trace)
        ratios = [len(a & b) / min(len(a), len(b)) for step in range(2 if run.quick else 10)
                  for a, b in itertools.combinations(trace.step(step, min(8, ranks[-1])), 2)]
        bins = collections.Counter(min(int(20 * ratio), 19) for ratio in ratios)
        pdf[trace.name] = [((b + 0.5) / 20, 20 * bins[b] / len(ratios)) for b in sorted(bins)]
        overlaps.append([trace.name, trace.what, len(ratios)] + [f"{f(ratios):.3f}" for f in (min, statistics.mean, max, statistics.pstdev)])
        steps = range(1 if run.quick else 3)
        one = statistics.mean(len(rows) for step in steps for rows in trace.step(step, 2)) / trace.rows
        gamma = {n: statistics.mean(len(set().union(*trace.step(step, n))) for step in steps) / trace.rows / one for n in ranks}
        curves[trace.name] = list(gamma.items())
        densities.append([trace.name, f"{100 * one:.2f}%"] + [f"{gamma[n]:.2f}" if n in gamma else "" for n in POINTS])
        values = list(gamma.values())
        found.holds(f"{trace.name}: densification grows with the ranks, and is less than their number",
                    all(gamma[n] < n for n in ranks) and values == sorted(values))
        if trace.name != "dgc":  # whose lines are of ranks that go together
            far = max(abs(p / g - 1) for p, g in zip(profile(run, trace)["gamma"], values))
            found.holds(f"{trace.name}: zenpsctl plan --trace measures the same densification to 15%", far < 0.15, f"{100 * far:.1f}% apart")
    means = [float(row[4]) for row in overlaps]
    found.shape("overlap ratios differ from model to model", max(means) - min(means) > 0.1, f"means from {min(means):.2f} to {max(means):.2f}")
    found.table("2a: overlap ratio of two ranks' sets, the common rows over the smaller set", ["trace", "what", "pairs", "least", "mean", "most", "deviation"], overlaps)
    found.table("2b: densification over ranks", ["trace", "density of one", *POINTS], densities)
    found.plot("overlap", "overlap ratio", "probability density", pdf)
    found.plot("densification", "ranks", "gamma", curves, "xy")


def parts_of(rows, n_rows, n_parts):
    """How many rows of a set are in each of n_parts even parts."""
    counts = collections.Counter(row * n_parts // n_rows for row in rows)
    return [counts[part] for part in range(n_parts)]


@figure("zen-3", "where the values that are not zero lie",
        ["3a: with eight parts, over 60% are in the first part, in all six models (section 2.1, C3)",
         "3b: skewness ratio of LSTM's embedding over 70 with 128 parts; significant in all six models"],
        "generated traces by Zipf's law, ids of each field sorted by frequency, and a perceptron, in place of six models; --data DIR: real traces")
def skew(run, found):
    heat, ratios, curves = [], [], {}
    for trace in all_traces(run):
        sets = [rows for step in range(2) for rows in trace.step(step, 4)]
        shares = [statistics.mean(part) for part in zip(*([count / len(rows) for count in parts_of(rows, trace.rows, 8)] for rows in sets))]
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
    command = [run.program("zenpsctl"), "plan", "--json", "--codec", "paper", "--compute", "no", "--latency", 0, "--batch", trace.batch,
               "--trace", elements_of(run, trace)["trace"]]
    got = json.loads(run.call(command))
    return got, {n: {one["scheme"]: one["time_ms"][i] for one in got["schemes"]} for i, n in enumerate(got["n"])}


@figure("zen-8", "time of each scheme over the ranks, NMT with a batch of 64, over AllReduce's",
        ["at 128 GPUs no other scheme beats AllReduce; Balanced Parallelism is 36% lower (section 2.4)",
         "AGsparse is worse than AllReduce beyond 40 GPUs; OmniReduce gains little beyond 64; SparCML is worse with many",
         "without indices Balanced Parallelism takes half (COO doubles it)"],
        "a trace in place of NMT; up to 16 hosts the measured bytes of the busiest link, beyond that zenpsctl plan, of the same trace")
def schemes_over_ranks(run, found):
    trace = work.trace(run, "nmt")
    plan, times = planned(run, trace)
    profile_ = plan["profile"]
    rows, curves = [], {name: [] for name in ("AGsparse", "SparCML", "OmniReduce", "Sparse PS", "Zen", "without index")}
    for i, n in enumerate(plan["n"]):
        if n > ranks_of(trace)[-1]:  # whose samples would meet twice
            break
        ring = times[n]["ring"]
        over = {name: times[n][ZEN[name][0]] / ring for name in curves if name in ZEN}
        d, gamma = profile_["density"], profile_["gamma"][i]
        over["Zen COO"] = (n - 1) / n * (gamma + 1) * 2 * d / (2 * (n - 1) / n)  # equation 1, over the ring's bytes
        over["without index"] = over["Zen COO"] / 2
        for name in curves:
            curves[name].append((n, over[name]))
        rows.append([n, f"{100 * d:.2f}%", f"{gamma:.2f}", f"{profile_['skew'][i]:.1f}"] + [f"{over[name]:.3f}" for name in (*curves, "Zen COO")])
    last = {name: points[-1][1] for name, points in curves.items()}
    found.table("predicted from the trace with the paper's codecs, over AllReduce", ["ranks", "density", "gamma", "skew", *curves, "Zen, COO both ways"], rows)
    measured = []
    for n in (8,) if run.quick else (4, 8, 16):
        got = moved(run, trace, n, "1gbit" if run.quick else "100mbit")
        dense = busiest(got["AllReduce"])
        measured.append([n] + [f"{busiest(got[name]) / dense:.3f}" for name in ZEN if name != "AllReduce"])
        for name in ("AGsparse", "SparCML", "OmniReduce", "Zen"):
            mine, theirs = busiest(got[name]) / dense, times[n][ZEN[name][0]] / times[n]["ring"]
            found.holds(f"{n} hosts: {name}'s busiest link carries what is predicted, to 25%", abs(mine / theirs - 1) < 0.25, f"{mine:.3f}, predicted {theirs:.3f}")
        found.holds(f"{n} hosts: the busiest link carries least with Zen, of the paper's systems",
                    busiest(got["Zen"]) <= min(busiest(got[name]) for name in ZEN if name != "zenps"))
    found.table("measured bytes of the busiest host, over the ring's", ["hosts", *(name for name in ZEN if name != "AllReduce")], measured)
    found.holds("Balanced Parallelism takes least at the most ranks", last["Zen"] == min(v for k, v in last.items() if k != "without index"))
    found.holds("AGsparse's time over AllReduce's grows with the ranks", curves["AGsparse"][-1][1] > 4 * curves["AGsparse"][1][1])
    found.shape("at the most ranks no other scheme beats AllReduce", min(last[name] for name in ("AGsparse", "SparCML", "OmniReduce", "Sparse PS")) >= 1,
                ", ".join(f"{name} {last[name]:.2f}" for name in ("AGsparse", "SparCML", "OmniReduce", "Sparse PS")))
    found.shape("there Balanced Parallelism takes a third less than AllReduce", 0.5 < last["Zen"] < 0.8, f"{100 * (1 - last['Zen']):.0f}% less")
    found.plot("schemes", "ranks", "time over AllReduce's", {**curves, "AllReduce": [(n, 1) for n in plan["n"]]}, "xy")


def throughput(run, found, trainer, per_s, bytes_of, points):
    """Samples a second of a trainer under each scheme, and the bytes that a host's link carries in a step."""
    rows, curves = [], {name: [] for name in ZEN}
    for n, rate in points:
        with Links(run, n, rate) as links:
            got = {name: trainer(links, n, scheme, codec) for name, (scheme, codec) in ZEN.items()}
        dense, best = got["AllReduce"], max(per_s(got[name]) for name in ZEN if name not in ("Zen", "zenps"))
        for name, one in got.items():
            rows.append([n, rate, name, f"{per_s(one):.0f}", f"{per_s(one) / per_s(dense):.2f}", f"{bytes_of(one) / 1e3:.1f}", f"{bytes_of(one) / bytes_of(dense):.3f}"])
            curves[name].append((n, per_s(one)))
        found.shape(f"{n} hosts, {rate}: Zen trains faster than every other of the paper's systems", per_s(got["Zen"]) > best,
                    f"{per_s(got['Zen']) / best:.2f} times the best of them, {per_s(got['Zen']) / per_s(dense):.2f} times AllReduce; "
                    f"zenps's own codecs: {per_s(got['zenps']) / best:.2f} times")
        found.holds(f"{n} hosts: zenps's busiest link carries least", bytes_of(got["zenps"]) <= 1.02 * min(map(bytes_of, got.values())))
    found.table("throughput", ["hosts", "links", "system", "samples/s", "over AllReduce", "kB of the busiest link and step", "over AllReduce"], rows)
    found.plot("throughput", "hosts", "samples a second", curves, "x")


@figure("zen-11", "training throughput, natural sparsity",
        ["16 machines: LSTM 1.67 times SparCML, 2.48 times OmniReduce, 3.1 times AllReduce; DeepFM 1.44, NMT 1.51 times OmniReduce (section 4.2)"],
        "word vectors (zenps-embed, 64 values a row) in place of LSTM, DeepFM and NMT; namespaces of one machine, whose processors compute for all hosts")
def natural_throughput(run, found):
    text, steps = work.text(run), 3 if run.quick else 30

    def train(links, _, scheme, codec):
        args = [text, "--json", "--epochs", 1, "--max-steps", steps, "--batch", 512, "--dim", 64, "--scheme", scheme]
        (line,), traffic = links.train("zenps-embed", args, steps, codec=codec)
        return line, traffic
    throughput(run, found, train, lambda got: got[0]["words_per_s"], lambda got: busiest(got[1]),
               [(4, "200mbit")] if run.quick else [(4, "100mbit"), (8, "100mbit"), (16, "100mbit")])


@figure("zen-12", "training throughput, the top 5% of a dense model's gradients (DGC)",
        ["16 machines of 8 GPUs: Llama3.2-3B 1.68 times OmniReduce, 2.19 times SparCML, 2.02 times AllReduce; OPT2.7B 2.10, Gemma2-2B 2.04 times "
         "AllReduce, 1.66 and 1.61 times OmniReduce (section 4.2)"],
        "a perceptron of 67210 values in place of three LLMs, no tensor parallelism; AllReduce sends the whole gradient there, too")
def sparsified_throughput(run, found):
    steps = 20 if run.quick else 60

    def train(links, n, scheme, codec):
        args = ["--steps", steps, "--every", steps, "--scheme", scheme]
        if scheme != "ring":
            args += ["--select", "sampled", "--density", 0.05]
        (line,), traffic = links.train("tests/bench/perceptron-rank", args, steps, codec=codec)
        line["samples_per_s"] = 1000 * 16 * n / (line["compute_ms"] + line["select_ms"] + line["sync_ms"])
        return line, traffic
    throughput(run, found, train, lambda got: got[0]["samples_per_s"], lambda got: busiest(got[1]),
               [(4, "50mbit")] if run.quick else [(4, "20mbit"), (8, "20mbit"), (16, "20mbit")])


@figure("zen-13", "communication speed-up over AllReduce",
        ["16 machines: Zen 6.77 (LSTM), 2.10 (DeepFM), 3.44 (OPT2.7B), 3.51 (Gemma2-2B); up to 2.82 over SparCML, 5.16 over OmniReduce; OmniReduce up to "
         "1.58 over AllReduce; AGsparse, Sparse PS and SparCML can be worse than AllReduce (section 4.2)"],
        "traces and a perceptron's top 5% in place of six models, hosts are namespaces on shaped links")
def communication(run, found):
    n, rate = (8, "1gbit") if run.quick else (16, "25mbit")
    rows = []
    traces = [work.trace(run, "nmt"), work.selected(run, 0.05, 8, 20 if run.quick else 200)] if run.quick else all_traces(run)
    for trace in traces:
        hosts = min(n, 8) if trace.name == "dgc" else n
        got = moved(run, trace, hosts, rate)
        if not run.quick:
            made = elements_of(run, trace)
            got = {**got, **dict(rival_rows(run, hosts, rate, found, trace=made["trace"], trace_file=made["trace"], rows=made["rows"], width=1,
                                            batch=trace.batch, steps=2, warmup=1))}
        dense = got["AllReduce"]
        for name, row in got.items():
            rows.append([trace.name, hosts, rate, name, f"{row['median_ms']:.1f}", f"{dense['median_ms'] / row['median_ms']:.2f}",
                         f"{busiest(row) / 1e3:.1f}", f"{busiest(dense) / busiest(row):.2f}"])
        allowed = {name: busiest(dense) / busiest(row) for name, row in got.items()}
        found.holds(f"{trace.name}: of the paper's systems, bytes allow Zen the greatest speed-up",
                    allowed["Zen"] == max(allowed[name] for name in ZEN if name != "zenps"),
                    f"{allowed['Zen']:.2f}; SparCML {allowed['SparCML']:.2f}, OmniReduce {allowed['OmniReduce']:.2f}, AGsparse {allowed['AGsparse']:.2f}")
        found.holds(f"{trace.name}: zenps's own codecs allow a greater one", allowed["zenps"] > allowed["Zen"], f"{allowed['zenps']:.2f}")
        found.shape(f"{trace.name}: Zen is the fastest of the paper's systems",
                    got["Zen"]["median_ms"] == min(got[name]["median_ms"] for name in ZEN if name != "zenps"))
    found.table("speed-up over AllReduce (the ring), by time and by what bytes allow",
                ["trace", "hosts", "links", "system", "ms", "faster", "kB of the busiest link", "bytes allow"], rows)


@figure("zen-14", "cost of Algorithm 1 over its memory and its rehashes",
        ["214M values, r2 = r1 / 10: r1 from |G|d to 2|G|d costs notably less, to 4|G|d more again (k = 3); k from 1 to 3 costs less, 3 and 4 are alike (section 4.3)"],
        "one thread of a processor in place of a V100, a tensor of 21M values; gpu/bench/gpu-bench times the kernels where there is a GPU")
def algorithm_1(run, found):
    densities = (0.05,) if run.quick else (0.01, 0.05, 0.1)
    sweep = [run.program("tests/bench/hashing-bench"), "--json", "--parameters", 2000000 if run.quick else 21400000, "--runs", 3,
             "--density", ",".join(map(str, densities)), "--memory", "1,2,3,4", "--functions", "1,2,3,4"]
    got = {(line["density"], line["memory"], line["k"]): line for line in map(json.loads, run.call(sweep).splitlines())}
    memory = {d: [got[d, m, 3] for m in (1, 2, 3, 4)] for d in densities}
    functions = {d: [got[d, 2, k] for k in (1, 2, 3, 4)] for d in densities}

    def rows(points):
        return [[f"{100 * d:g}%"] + [f"{line['ms']:.1f}" for line in lines] + [f"{100 * line['serial_share']:.2f}%" for line in lines]
                for d, lines in points.items()]
    for d in densities:
        serial = {"r1": [line["serial_share"] for line in memory[d]], "k": [line["serial_share"] for line in functions[d]]}
        for name, shares in serial.items():
            found.holds(f"{100 * d:g}%: fewer indices are written serially as {name} grows", shares == sorted(shares, reverse=True),
                        ", ".join(f"{100 * share:.2f}%" for share in shares))
        times = [line["ms"] for line in memory[d]]
        found.shape(f"{100 * d:g}%: r1 = 2|G|d costs less than |G|d", times[1] < times[0], f"{times[0]:.1f} ms, {times[1]:.1f} ms")
        found.shape(f"{100 * d:g}%: r1 = 4|G|d costs more than 2|G|d", times[3] > times[1], f"{times[1]:.1f} ms, {times[3]:.1f} ms")
        k = [line["ms"] for line in functions[d]]
        found.shape(f"{100 * d:g}%: k = 3 costs less than k = 1, and about what k = 4 costs", k[2] < k[0] and abs(k[3] / k[2] - 1) < 0.15,
                    ", ".join(f"{ms:.1f} ms" for ms in k))
    found.table("14a: k = 3, over r1 / |G|d: ms, and share that is written serially", ["density", *(f"{m}: ms" for m in (1, 2, 3, 4)), *(f"{m}: serial" for m in (1, 2, 3, 4))],
                rows(memory))
    found.table("14b: r1 = 2|G|d, over k: the same", ["density", *(f"{k}: ms" for k in (1, 2, 3, 4)), *(f"{k}: serial" for k in (1, 2, 3, 4))], rows(functions))
    found.plot("memory", "r1 / |G|d", "ms", {f"{100 * d:g}%": [(line["memory"], line["ms"]) for line in lines] for d, lines in memory.items()})
    found.plot("functions", "k", "ms", {f"{100 * d:g}%": [(line["k"], line["ms"]) for line in lines] for d, lines in functions.items()})


@figure("zen-15a", "size of the sum over its density, by format, 16 servers",
        ["the hash bitmap is smaller than COO and bitmap at every density, and still pays at 95%, where COO and bitmap have lost since 50% (section 4.3)",
         "tensor blocks vary with where values lie; some are larger than COO"],
        "random values, of which no block of 256 is zero from 2% on; the conventional bitmap, |G| bits from each server, by formula: nothing sends it")
def format_sizes(run, found):
    densities = (0.01, 0.1, 0.5, 0.95) if run.quick else (0.001, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
    rows, servers = 1 << 18, 16
    formats = {"COO": ("balanced", "coo"), "hash bitmap": ("balanced", "paper"), "tensor blocks": ("omnireduce", "auto"), "zenps": ("balanced", "auto")}
    cases = [["--rows", rows, "--steps", 1, "--warmup", 0, "--overlap", "same", "--density", density, "--scheme", scheme, "--codec", codec]
             for density in densities for scheme, codec in formats.values()]
    got = iter(run.perf(1, cases, servers=servers))
    table, curves = [], {name: [] for name in (*formats, "bitmap")}
    for density in densities:
        size = {name: next(got)["payload_in"] / (4 * rows) for name in formats}
        size["bitmap"] = density + servers / 32
        table.append([f"{100 * density:g}%"] + [f"{size[name]:.4f}" for name in curves])
        for name, points in curves.items():
            points.append((density, size[name]))
        found.holds(f"{100 * density:g}%: the hash bitmap takes the values and |G| / 32 words", abs(size["hash bitmap"] - density - 1 / 32) < 0.002,
                    f"{size['hash bitmap']:.4f}")
        if density > 1 / 32:  # below, an index for each value is less than a bit for each that there could be
            found.holds(f"{100 * density:g}%: it is smaller than COO and bitmap", size["hash bitmap"] < min(size["COO"], size["bitmap"]))
        found.holds(f"{100 * density:g}%: zenps's own is no larger", size["zenps"] <= size["hash bitmap"] * 1.001, f"{size['zenps']:.4f}")
    found.holds("95%: the hash bitmap still pays, COO does not", curves["hash bitmap"][-1][1] < 1 < curves["COO"][-1][1])
    found.note("below 1/32 of density COO is smaller than the hash bitmap, which the paper's figure does not show (it begins higher); zenps takes Rice codes there")
    found.table("bytes that a rank pulls, over the dense tensor's", ["density", *curves], table)
    found.plot("sizes", "density", "size over dense", curves)


@figure("zen-15b", "what each part of Zen gains over AllReduce",
        ["throughput over AllReduce with COO after Algorithm 1: LSTM 2.74, Llama3.2-3B 1.53; the hash bitmap adds 13% and 34% (section 4.3)"],
        "communication alone, no model computes; a trace and a perceptron's top 5% in place of LSTM and Llama3.2-3B")
def breakdown(run, found):
    n, rate = (8, "1gbit") if run.quick else (8, "100mbit")
    rows = []
    for trace in (work.trace(run, "lstm"), work.selected(run, 0.05, 8, 20 if run.quick else 200)):
        made = elements_of(run, trace)
        job = {"rows": made["rows"], "width": 1, "trace": made["trace"], "batch": trace.batch, "steps": 2 if run.quick else 5, "warmup": 1}
        parts = {"AllReduce": ("ring", None), "even ranges, COO": ("sparse-ps", "coo"), "Algorithm 1's balance, COO": ("balanced", "coo"),
                 "+ hash bitmap": ("balanced", "paper"), "+ zenps's codecs": ("balanced", "auto")}
        with Links(run, n, rate) as links:
            got = {name: links.perf(scheme, codec, **job) for name, (scheme, codec) in parts.items()}
            if trace.name != "dgc":
                whole = {**job, "trace": trace.path, "rows": trace.rows, "width": WIDTH}
                got["+ rows"] = links.perf("balanced", "auto", **whole)
        dense = got["AllReduce"]
        names = list(got)
        rows += [[trace.name, name, f"{row['median_ms']:.1f}", f"{dense['median_ms'] / row['median_ms']:.2f}", f"{busiest(row) / 1e3:.1f}",
                  f"{busiest(dense) / busiest(row):.2f}"] for name, row in got.items()]
        sizes = [busiest(got[name]) for name in names[2:]]
        found.holds(f"{trace.name}: each part takes bytes away", sizes == sorted(sizes, reverse=True), ", ".join(f"{size / 1e3:.0f} kB" for size in sizes))
        found.holds(f"{trace.name}: balance is what gains most", sizes[0] < busiest(got["even ranges, COO"]),
                    f"{busiest(got['even ranges, COO']) / sizes[0]:.2f} times less than even ranges; the bitmap {100 * (sizes[0] / sizes[1] - 1):.0f}% more")
    found.table(f"{n} hosts, {rate}", ["trace", "system", "ms", "faster than AllReduce", "kB of the busiest link", "bytes allow"], rows)
