"""What examples are judged by."""

from __future__ import annotations

import math
from collections import Counter
from typing import List, Sequence

import numpy as np


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Share of pairs of a click and no click that the scores order rightly; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    clicks = labels > 0.5
    n, others = int(clicks.sum()), int((~clicks).sum())
    return float((middle[inverse][clicks].sum() - n * (n + 1) / 2) / (n * others))


def bleu(translations: Sequence[List[int]], references: Sequence[List[int]]) -> float:
    """BLEU of word numbers, 0 to 100: of 1 to 4 words in a row, with the penalty for short ones."""
    matched, made = [0] * 4, [0] * 4
    for ours, theirs in zip(translations, references):
        for n in range(1, 5):
            have = Counter(tuple(ours[i : i + n]) for i in range(len(ours) - n + 1))
            want = Counter(tuple(theirs[i : i + n]) for i in range(len(theirs) - n + 1))
            matched[n - 1] += sum((have & want).values())
            made[n - 1] += sum(have.values())
    if 0 in matched:
        return 0.0
    length, wanted = sum(map(len, translations)), sum(map(len, references))
    mean = sum(math.log(m / n) for m, n in zip(matched, made)) / 4
    return 100 * math.exp(mean + min(0.0, 1 - wanted / length))
