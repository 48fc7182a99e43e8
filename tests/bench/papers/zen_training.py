"""Zen: Empowering Distributed Training with Sparsity-driven Data Synchronization: training."""

from . import work
from .figure import figure
from .systems import ZEN, Links, busiest


def throughput(run, found, trainer, per_s, bytes_of, points):
    """Samples a second of a trainer under each scheme, and the bytes that a host's link carries in a step."""
    rows, curves = [], {name: [] for name in ZEN}
    for n, rate in points:
        with Links(run, n, rate) as links:
            got = {name: trainer(links, n, scheme, codec) for name, (scheme, codec) in ZEN.items()}
        dense, best = got["AllReduce"], max(per_s(got[name]) for name in ZEN if name not in ("Zen", "zenps"))
        for name, one in got.items():
            rows.append(
                [
                    n,
                    rate,
                    name,
                    f"{per_s(one):.0f}",
                    f"{per_s(one) / per_s(dense):.2f}",
                    f"{bytes_of(one) / 1e3:.1f}",
                    f"{bytes_of(one) / bytes_of(dense):.3f}",
                ]
            )
            curves[name].append((n, per_s(one)))
        found.shape(
            f"{n} hosts, {rate}: Zen trains faster than every other of the paper's systems",
            per_s(got["Zen"]) > best,
            f"{per_s(got['Zen']) / best:.2f} times the best of them, {per_s(got['Zen']) / per_s(dense):.2f} times AllReduce; "
            f"zenps's own codecs: {per_s(got['zenps']) / best:.2f} times",
        )
        found.holds(
            f"{n} hosts: zenps's busiest link carries least", bytes_of(got["zenps"]) <= 1.02 * min(map(bytes_of, got.values()))
        )
    found.table(
        "throughput",
        ["hosts", "links", "system", "samples/s", "over AllReduce", "kB of the busiest link and step", "over AllReduce"],
        rows,
    )
    found.plot("throughput", "hosts", "samples a second", curves, "x")


@figure(
    "zen-11",
    "training throughput, natural sparsity",
    [
        "16 machines: LSTM 1.67 times SparCML, 2.48 times OmniReduce, 3.1 times AllReduce; DeepFM 1.44, NMT 1.51 times OmniReduce"
        " (section 4.2)"
    ],
    "word vectors (zenps-embed, 64 values a row) in place of LSTM, DeepFM and NMT; namespaces of one machine, whose processors"
    " compute for all hosts",
)
def natural_throughput(run, found):
    text, steps = work.text(run), 3 if run.quick else 30

    def train(links, _, scheme, codec):
        args = [text, "--json", "--epochs", 1, "--max-steps", steps, "--batch", 512, "--dim", 64, "--scheme", scheme]
        (line,), traffic = links.train("zenps-embed", args, steps, codec=codec)
        return line, traffic

    throughput(
        run,
        found,
        train,
        lambda got: got[0]["words_per_s"],
        lambda got: busiest(got[1]),
        [(4, "200mbit")] if run.quick else [(4, "100mbit"), (8, "100mbit"), (16, "100mbit")],
    )


@figure(
    "zen-12",
    "training throughput, the top 5% of a dense model's gradients (DGC)",
    [
        "16 machines of 8 GPUs: Llama3.2-3B 1.68 times OmniReduce, 2.19 times SparCML, 2.02 times AllReduce; OPT2.7B 2.10,"
        " Gemma2-2B 2.04 times AllReduce, 1.66 and 1.61 times OmniReduce (section 4.2)"
    ],
    "a perceptron of 67210 values in place of three LLMs, no tensor parallelism; AllReduce sends the whole gradient there, too",
)
def sparsified_throughput(run, found):
    steps = 20 if run.quick else 60

    def train(links, n, scheme, codec):
        args = ["--steps", steps, "--every", steps, "--scheme", scheme]
        if scheme != "ring":
            args += ["--select", "sampled", "--density", 0.05]
        (line,), traffic = links.train("tests/bench/perceptron-rank", args, steps, codec=codec)
        line["samples_per_s"] = 1000 * 16 * n / (line["compute_ms"] + line["select_ms"] + line["sync_ms"])
        return line, traffic

    throughput(
        run,
        found,
        train,
        lambda got: got[0]["samples_per_s"],
        lambda got: busiest(got[1]),
        [(4, "50mbit")] if run.quick else [(4, "20mbit"), (8, "20mbit"), (16, "20mbit")],
    )
