"""Workloads: generated, with parameters that stand here, or found in --data."""

import itertools
import lzma
import math
import os
import random
import statistics

from labbench.grid import find

# Traces: a line of row ids for each sample; ids fall in frequency, as vocabularies are sorted. Words and fields follow Zipf's
# law with the exponents that such data are known for (words: 1; clicks: 1.05 of each of 26 fields, as Criteo's categorical
# ones). `batch` is Zen's, section 4.1; vocabularies are a fraction of the models', so that steps take milliseconds.
TRACES = {
    "lstm": {"what": "LSTM on One Billion Word", "vocabulary": 40000, "exponent": 1.0, "ids": 24, "batch": 128, "fields": 1},
    "deepfm": {"what": "DeepFM on Criteo", "vocabulary": 65000, "exponent": 1.05, "ids": 1, "batch": 256, "fields": 26},
    "nmt": {"what": "NMT on IWSLT De-En", "vocabulary": 20000, "exponent": 1.0, "ids": 20, "batch": 64, "fields": 2},
}
REAL = {
    "lstm": "news20_lm",
    "deepfm": "ml_small",
    "nmt": "tatoeba_nmt",
    "text8": "text8_lm",
    "movies": "movie_lm",
    "wikitext": "wikitext2_lm",
    "graph": "gnn_pubmed",
}
BATCH_OF_OTHERS = 128


def zipf(vocabulary, exponent):
    """Cumulative weights."""
    return list(itertools.accumulate(1 / (k + 2.7) ** exponent for k in range(vocabulary)))  # Mandelbrot's offset


class Trace:
    """A file of samples, and the sets of rows that ranks' batches touch."""

    def __init__(self, name, what, path, batch):
        self.name, self.what, self.path, self.batch = name, what, path, batch
        opener = lzma.open if path.endswith(".xz") else open
        with opener(path, "rt") as lines:
            self.samples = [tuple({int(word.split(":")[0]) for word in line.split()}) for line in lines]
        self.samples = [sample for sample in self.samples if sample]
        self.rows = 1 + max(max(sample) for sample in self.samples)

    def step(self, number, n, batch=None):
        """The set of rows of each of n ranks, as zenps-perf deals samples."""
        batch, total = batch or self.batch, len(self.samples)
        return [
            set(itertools.chain.from_iterable(self.samples[((number * n + rank) * batch + i) % total] for i in range(batch)))
            for rank in range(n)
        ]


def generated(name, path, n_samples, seed=1):
    """Writes a trace of TRACES."""
    spec, rng = TRACES[name], random.Random(f"{name} {seed}")
    per_field = spec["vocabulary"] // spec["fields"]
    weights = zipf(per_field, spec["exponent"])
    offsets = range(0, per_field * spec["fields"], per_field)
    with open(path, "w") as out:
        for _ in range(n_samples):
            ids = (first + k for first in offsets for k in rng.choices(range(per_field), cum_weights=weights, k=spec["ids"]))
            out.write(" ".join(map(str, ids)) + "\n")


def trace(run, name):
    def make():
        real = find(run.data, REAL[name] + ".ids.xz", REAL[name] + ".ids")
        if real:
            return Trace(name, f"{REAL[name]} ({os.path.basename(real)})", real, TRACES.get(name, {}).get("batch", BATCH_OF_OTHERS))
        if name not in TRACES:
            return None
        spec, path = TRACES[name], run.path(f"{name}.ids")
        generated(name, path, (130 if name == "nmt" or not run.quick else 12) * spec["batch"])
        return Trace(
            name,
            f"generated like {spec['what']}: {spec['fields']} x {spec['ids']} ids of {spec['vocabulary']}, Zipf {spec['exponent']}",
            path,
            spec["batch"],
        )

    return run.once(("trace", name), make)


def traces(run):
    """All that there are: three that are generated, or the real ones."""
    names = list(TRACES) if not run.data else list(REAL)
    return [one for one in (trace(run, name) for name in names) if one]


def selected(run, density, n, steps):
    """The trace of values that DGC's threshold selects from a perceptron's gradients as it trains on n ranks: a line for each
    rank and step, as zenps-perf deals them with a batch of 1."""

    def make():
        path = run.path(f"dgc-{density}-{n}.ids")
        run.near(
            n,
            [
                run.program("tests/bench/perceptron-rank"),
                "--select",
                "sampled",
                "--density",
                density,
                "--steps",
                steps,
                "--every",
                steps,
                "--rows",
                path,
            ],
        )
        files = [f"{path}.{rank}" for rank in range(n)]
        with open(path, "w") as out:
            for lines in zip(*(open(name) for name in files)):
                out.writelines(lines)
        for name in files:
            os.unlink(name)
        return Trace("dgc", f"top {100 * density:g}% of a perceptron's gradients (67210 values), DGC's threshold", path, 1)

    return run.once(("selected", density, n, steps), make)


def power_law(rng, n, exponent):
    """One of n by the power law that zipf() has, through the inverse of its continuous distribution function: no table of n."""
    low, power = 2.7, 1 - exponent
    if power == 0:
        return min(int(low * ((n + low) / low) ** rng.random() - low), n - 1)
    first, last = low**power, (n + low) ** power
    return min(int((first + rng.random() * (last - first)) ** (1 / power) - low), n - 1)


DECISIVE = 2000  # features that have a say, the most frequent ones


def libsvm(run, name, n_samples, n_features, per_sample, exponent=1.0):
    """A two-class problem as text data have it: features by a power law, a hidden weight for each of the frequent ones, labels by
    whether the sum of a sample's is above the median."""

    def make():
        real = find(run.data, f"{name}.libsvm.xz", f"{name}.libsvm")
        if real:
            return real
        path, rng = run.path(f"{name}-{n_samples}-{n_features}.libsvm"), random.Random(name)
        hidden = [rng.gauss(0, 1) for _ in range(DECISIVE)]
        samples = [sorted({power_law(rng, n_features, exponent) for _ in range(per_sample)}) for _ in range(n_samples)]
        samples[-1].append(n_features - 1)  # the tensor is as large as the greatest number
        scores = [sum(hidden[i] for i in ids if i < DECISIVE) + rng.gauss(0, 1) for ids in samples]
        middle = statistics.median(scores)
        with open(path, "w") as out:
            for ids, score in zip(samples, scores):
                value = f"{1 / math.sqrt(len(ids)):.4f}"
                out.write(f"{1 if score > middle else -1} " + " ".join(f"{i + 1}:{value}" for i in ids) + "\n")
        return path

    return run.once(("libsvm", name, n_samples, n_features), make)


def word(number):
    """Letters alone: what zenps-embed takes for a word."""
    return (word(number // 26 - 1) if number >= 26 else "") + chr(97 + number % 26)


def text(run, n_words=120000):
    """A text of sentences that each keep to one of 60 topics, whose words follow Zipf's law."""

    def make():
        real = find(run.data, "text8.split.head.xz")
        if real:
            return real
        path, rng = run.path("topics.txt"), random.Random("topics")
        weights = zipf(150, 1.0)
        common = zipf(200, 1.0)
        with open(path, "w") as out:
            for _ in range(n_words // 12):
                topic = rng.randrange(60)
                words = [word(200 + 150 * topic + k) for k in rng.choices(range(150), cum_weights=weights, k=8)]
                words += [word(k) for k in rng.choices(range(200), cum_weights=common, k=4)]
                rng.shuffle(words)
                out.write(" ".join(words) + "\n")
        return path

    return run.once("text", make)
