"""Real data that Debian packages ship, as arrays of row numbers; what a package lacks is said with the command that installs it.

Every rank reads the same files and numbers words alike: a vocabulary's order is by count, then by the word itself.
"""

from __future__ import annotations

import glob
import gzip
import html
import lzma
import os
import re
from collections import Counter
from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

WORDNET = "/usr/share/wordnet"  # wordnet-base
GCIDE = "/usr/share/dictd/gcide.dict.dz"  # dict-gcide
HELP = "/usr/share/libreoffice/help"  # libreoffice-help-de, libreoffice-help-en-us
FASHION = "/usr/share/datasets/fashion-mnist"  # dataset-fashion-mnist

_WORD = re.compile(r"[^\W\d_]+")


class Missing(Exception):
    """A file that a package would bring."""


def need(path: str, packages: str) -> str:
    if not os.path.exists(path):
        raise Missing(f"{path} is not here: apt-get install {packages}, or name a file of your own with --data")
    return path


def words(text: str) -> List[str]:
    return _WORD.findall(text.lower())


class Vocabulary:
    """Words by number; 0 is the end of a sentence, 1 what is not known, 2 the most frequent word."""

    END, UNKNOWN, FIRST = 0, 1, 2

    def __init__(self, sentences: Iterable[Sequence[str]], at_least: int = 1, at_most: int = 0) -> None:
        counts = Counter(word for sentence in sentences for word in sentence)
        kept = sorted((w for w, n in counts.items() if n >= at_least), key=lambda w: (-counts[w], w))
        self.words = ["</s>", "<unk>"] + (kept[:at_most] if at_most else kept)
        self.number = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentence: Sequence[str]) -> List[int]:
        return [self.number.get(word, self.UNKNOWN) for word in sentence] + [self.END]


def open_text(path: str) -> Iterator[str]:
    """Lines of a text, plain, .gz or .xz, without a mark of UTF-8 at its begin. ValueError: a line has a NUL."""
    opener = {".gz": gzip.open, ".dz": gzip.open, ".xz": lzma.open}.get(os.path.splitext(path)[1], open)
    with opener(path, "rt", encoding="utf-8-sig", errors="replace") as file:  # type: ignore[operator]
        for number, line in enumerate(file, 1):
            if "\0" in line:
                raise ValueError(f"{path}, line {number}, column {line.index(chr(0)) + 1}: a NUL; must be text (UTF-8) without any")
            yield line


ROW_MOST = (1 << 31) - 1  # A table's rows are embeddings: more of them fit in no memory.


def numbers(path: str, n: int = 0) -> Iterator[List[int]]:
    """For each line that is not blank its numbers, between spaces: all, or at least n and the first n; # begins a comment.
    ValueError, with the place: a word is no number from 0 to ROW_MOST, or there are fewer."""
    for number, line in enumerate(open_text(path), 1):
        row = line.split("#", 1)[0].split()[: n or None]
        for word in row:
            if not (word.isascii() and word.isdigit() and len(word) < 20 and int(word) <= ROW_MOST):
                raise ValueError(f"{path}, line {number}: {word[:40]!r} is no row: must be a number from 0 to {ROW_MOST}")
        if row and len(row) < n:
            raise ValueError(f"{path}, line {number}: must have {n} numbers, and has {len(row)}")
        if row:
            yield [int(word) for word in row]


def glosses() -> List[List[str]]:
    """WordNet's definitions and examples, a sentence each: 0.9 M words."""
    need(f"{WORDNET}/data.noun", "wordnet-base")
    return [
        words(line.split("|", 1)[1])
        for part in ("noun", "verb", "adj", "adv")
        for line in open_text(f"{WORDNET}/data.{part}")
        if not line.startswith("  ")
    ]


def dictionary() -> List[List[str]]:
    """GCIDE's paragraphs: 5 M words."""
    need(GCIDE, "dict-gcide")
    paragraphs: List[List[str]] = [[]]
    for line in open_text(GCIDE):
        paragraphs[-1].extend(words(line))
        if not line.strip() and paragraphs[-1]:
            paragraphs.append([])
    return [p for p in paragraphs if p]


def text(path: str = "", gcide: bool = False) -> List[List[str]]:
    """Sentences of words: of `path` a line each, else WordNet's glosses, and with `gcide` GCIDE's paragraphs too."""
    if path:
        return [w for w in (words(line) for line in open_text(path)) if w]
    return glosses() + (dictionary() if gcide else [])


def ids(path: str) -> List[List[int]]:
    """Samples of a trace: a line each, row numbers between spaces."""
    return list(numbers(path))


_PARAGRAPH = re.compile(r'<(?:p|h[1-6]) id="((?:par|hd)_id[^"]*)"[^>]*>(.*?)</(?:p|h[1-6])>', re.S)


def _paragraphs(path: str) -> Dict[str, List[str]]:
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8", errors="replace") as file:
        return {mark: words(html.unescape(re.sub(r"<[^>]*>", " ", inner))) for mark, inner in _PARAGRAPH.findall(file.read())}


def parallel(most_words: int = 24, at_most: int = 0) -> Tuple[List[List[str]], List[List[str]]]:
    """German and English paragraphs of LibreOffice's help that translate each other: same file, same mark. Pairs that are
    alike, empty or longer than `most_words` are left out; of pairs that occur more than once one stays. The first `at_most`
    pairs, or all."""
    german = need(f"{HELP}/de/text", "libreoffice-help-de")
    english = need(f"{HELP}/en-US/text", "libreoffice-help-en-us")
    pairs: Dict[Tuple[Tuple[str, ...], Tuple[str, ...]], None] = {}
    for path in sorted(glob.glob(f"{german}/**/*.html", recursive=True)):
        targets = _paragraphs(os.path.join(english, os.path.relpath(path, german)))
        for mark, source in _paragraphs(path).items():
            target = targets.get(mark)
            if source and target and source != target and max(len(source), len(target)) <= most_words:
                pairs.setdefault((tuple(source), tuple(target)))
        if at_most and len(pairs) >= at_most:
            break
    chosen = list(pairs)[: at_most or None]
    return [list(s) for s, _ in chosen], [list(t) for _, t in chosen]


def graph() -> Tuple[int, np.ndarray]:
    """WordNet's synsets and the pointers between them: number of nodes, and edges [n, 2], each once, a < b."""
    need(f"{WORDNET}/data.noun", "wordnet-base")
    number: dict = {}
    pointers = []
    for part, letter in (("noun", "n"), ("verb", "v"), ("adj", "a"), ("adv", "r")):
        for line in open_text(f"{WORDNET}/data.{part}"):
            if line.startswith("  "):
                continue
            fields = line.split("|", 1)[0].split()
            at = 4 + 2 * int(fields[3], 16)
            key = (letter, fields[0])
            number.setdefault(key, len(number))
            for i in range(int(fields[at])):
                _, offset, kind, _ = fields[at + 1 + 4 * i : at + 5 + 4 * i]
                pointers.append((key, ("a" if kind == "s" else kind, offset)))
    edges = {tuple(sorted((number[a], number[b]))) for a, b in pointers if b in number and a != b}
    return len(number), np.array(sorted(edges), dtype=np.int64)


def edges(path: str) -> Tuple[int, np.ndarray]:
    """A graph of a file with an edge a line."""
    table = np.array(list(numbers(path, 2)), dtype=np.int64)
    table = np.unique(np.sort(table, axis=1), axis=0)
    table = table[table[:, 0] != table[:, 1]]
    return int(table.max()) + 1, table


def rmat(scale: int, per_node: int = 8, seed: int = 1) -> Tuple[int, np.ndarray]:
    """A generated graph of 2^scale nodes (R-MAT, 0.57 0.19 0.19 0.05)."""
    rng = np.random.default_rng(seed)
    n = per_node << scale
    ends = np.zeros((n, 2), dtype=np.int64)
    for _ in range(scale):
        draw = rng.random(n)
        ends[:, 0] = 2 * ends[:, 0] + (draw >= 0.76)
        ends[:, 1] = 2 * ends[:, 1] + (((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95))
    ends = np.unique(np.sort(ends, axis=1), axis=0)
    return 1 << scale, ends[ends[:, 0] != ends[:, 1]]


def images(train: bool) -> Tuple[np.ndarray, np.ndarray]:
    """Fashion-MNIST: float32 [n, 1, 28, 28] of mean 0 and deviation 1, and int64 labels [n]."""
    name = "train" if train else "t10k"
    need(f"{FASHION}/{name}-images-idx3-ubyte.gz", "dataset-fashion-mnist")
    with gzip.open(f"{FASHION}/{name}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(f"{FASHION}/{name}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
    return (pixels.astype(np.float32) / 255 - 0.286) / 0.353, labels


class Clicks(NamedTuple):
    sizes: List[int]  # rows of each field
    fields: np.ndarray  # int64 [n, number of fields]: row of its field's table
    labels: np.ndarray  # float32 [n], 0 or 1


# Distinct values of the 26 categorical fields of Criteo's Kaggle data set, as published with DLRM: 33.8 M rows.
CRITEO = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652, 2173, 4,
          7046547, 18, 15, 286181, 105, 142572]  # fmt: skip


def clicks(n: int, most_rows: int, seed: int = 1) -> Clicks:
    """Generated like Criteo's: its 26 fields, hashed to `most_rows` each, values by Zipf's law, labels drawn from a factorisation
    machine that the model does not see. So there is a best AUC, below 1."""
    rng = np.random.default_rng(seed)
    sizes = [min(size, most_rows) for size in CRITEO]
    fields = np.empty((n, len(sizes)), dtype=np.int64)
    score = np.full(n, -1.0)
    total = np.zeros((n, 4))
    squares = np.zeros((n, 4))
    for f, size in enumerate(sizes):
        fields[:, f] = zipf(rng, n, size, 1.05)
        score += rng.normal(0, 0.35, size)[fields[:, f]]
        factors = rng.normal(0, 0.22, (size, 4))[fields[:, f]]
        total += factors
        squares += factors * factors
    score += 0.5 * (total * total - squares).sum(1)
    return Clicks(sizes, fields, (rng.random(n) < 1 / (1 + np.exp(-score))).astype(np.float32))


def ratings(path: str, seed: int = 1) -> Clicks:
    """MovieLens ratings.csv: user, film, hour of the day, weekday; the label is a rating of 4 or more. Shuffled."""
    rows = []
    for number, line in enumerate(open_text(path), 1):
        try:
            user, film, stars, at = line.strip().split(",")
            if number > 1:  # behind the names of the columns
                rows.append((int(user), int(film), float(stars), int(at)))
        except ValueError:
            raise ValueError(f"{path}, line {number}: {line[:40]!r} is no rating: must be user,film,stars,seconds") from None
    users = np.unique([r[0] for r in rows], return_inverse=True)[1]
    films = np.unique([r[1] for r in rows], return_inverse=True)[1]
    when = np.array([r[3] for r in rows])
    fields = np.stack([users, films, when // 3600 % 24, when // 86400 % 7], axis=1).astype(np.int64)
    labels = np.array([r[2] >= 4 for r in rows], dtype=np.float32)
    order = np.random.default_rng(seed).permutation(len(rows))
    return Clicks([int(c) + 1 for c in fields.max(0)], fields[order], labels[order])


def zipf(rng: np.random.Generator, n: int, size: int, exponent: float) -> np.ndarray:
    """n draws of 0 .. size-1, number i with probability in proportion to (i + 1)^-exponent."""
    cumulated = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -exponent)
    return np.searchsorted(cumulated, rng.random(n) * cumulated[-1]).astype(np.int64)
