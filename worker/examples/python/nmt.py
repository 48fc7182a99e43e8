#!/usr/bin/env python3
"""Translation from German to English by LSTMs with attention (Zen's NMT; SparCML's Hansards): three tables of words.

    zenpsrun -n 4 -- worker/examples/python/nmt.py --epochs 4

Pairs: LibreOffice's help in both languages (Debian's libreoffice-help-de and -en-us), paragraph by paragraph; or --data FILE with a pair a
line, German, a tab, English.
"""

from __future__ import annotations

import math
from typing import Any, List, Sequence, Tuple

import numpy as np
import torch
from torch import nn

import common
import data
from metrics import bleu
from softmax import SampledSoftmax


class Model(nn.Module):
    """`mean_words`: of a target. The loss is divided by as many a sentence, so that a batch's share does not depend on the
    lengths of the others."""

    def __init__(
        self, n_source: int, n_target: int, width: int, hidden: int, negatives: int, sparse: bool, mean_words: float
    ) -> None:
        super().__init__()
        self.mean_words = mean_words
        self.source = nn.Embedding(n_source, width, sparse=sparse)
        self.target = nn.Embedding(n_target, width, sparse=sparse)
        for table in (self.source, self.target):
            nn.init.normal_(table.weight, std=0.1)
        self.encoder = nn.LSTM(width, hidden // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(width, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.down = nn.Linear(2 * hidden, width)
        self.softmax = SampledSoftmax(n_target, width, negatives, sparse)

    def attend(self, state: torch.Tensor, memory: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """state [n, t, h], memory [n, s, h], padding [n, s]; [n, t, width]."""
        scores = (self.query(state) @ memory.transpose(1, 2)).masked_fill(padding[:, None, :], -1e9)
        context = scores.softmax(2) @ memory
        return torch.tanh(self.down(torch.cat([state, context], 2)))

    def encode(self, source: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.source(source.clamp(min=0)))[0]

    def hidden(self, source: torch.Tensor, target: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """source [n, s] and target [n, t], filled up with -1; each target begins with the end of a sentence. Returns a
        state [words, width] for each word of the targets, and the words."""
        state = self.decoder(self.target(target[:, :-1].clamp(min=0)))[0]
        hidden = self.attend(state, self.encode(source), source < 0).flatten(0, 1)
        following = target[:, 1:].flatten()
        return hidden[following >= 0], following[following >= 0]

    def forward(self, source: torch.Tensor, target: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
        hidden, following = self.hidden(source, target)
        share = len(following) / (len(target) * self.mean_words)
        return share * self.softmax(hidden, following, negatives)

    @torch.no_grad()
    def translate(self, source: torch.Tensor, most: int) -> List[List[int]]:
        """The likeliest word after word."""
        memory, padding = self.encode(source), source < 0
        word = torch.zeros(len(source), 1, dtype=torch.long)
        state, words = None, []
        for _ in range(most):
            out, state = self.decoder(self.target(word), state)
            word = self.softmax.logits(self.attend(out, memory, padding)[:, 0]).argmax(1, keepdim=True)
            words.append(word)
        return [row[: row.index(0)] if 0 in row else row for row in torch.cat(words, 1).tolist()]


def _padded(sentences: Sequence[List[int]]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sentences], batch_first=True, padding_value=-1)


def _pairs(path: str, at_most: int) -> Tuple[List[List[str]], List[List[str]]]:
    if not path:
        return data.parallel(at_most=at_most)
    pairs = [line.rstrip("\n").split("\t")[:2] for line in data.open_text(path)][: at_most or None]
    return [data.words(p[0]) for p in pairs], [data.words(p[-1]) for p in pairs]


class Translation(common.Task):
    name = "nmt"

    def __init__(self, arguments: Any) -> None:
        self.metric, self.lower_is_better = arguments.metric, arguments.metric == "perplexity"
        sources, targets = _pairs(arguments.data, arguments.pairs)
        source_words = data.Vocabulary(sources, at_most=arguments.words)
        target_words = data.Vocabulary(targets, at_most=arguments.words)
        order = np.random.default_rng(arguments.seed).permutation(len(sources))
        self.sources = [source_words.encode(sources[i]) for i in order]
        self.targets = [[0] + target_words.encode(targets[i]) for i in order]
        self.n_held_out = min(arguments.held_out, len(sources) // 10)
        if self.n_held_out < 1:
            raise SystemExit(f"nmt: no pair is held out of {len(sources)}, for the metric: at least 10 pairs, and --held-out 1, are needed")
        self.n_samples, self.seed = len(sources) - self.n_held_out, arguments.seed
        self.model = Model(
            len(source_words), len(target_words), arguments.width, arguments.hidden, arguments.negatives, common.sparse(arguments),
            sum(len(t) - 1 for t in self.targets) / len(self.targets),
        )  # fmt: skip

    def batch(self, samples: List[int], step: int) -> Any:
        return (
            _padded([self.sources[i] for i in samples]),
            _padded([self.targets[i] for i in samples]),
            self.model.softmax.draw(self.seed * 7919 + step),
        )

    def evaluate(self) -> float:
        held_out = [slice(at, at + 64) for at in range(self.n_samples, len(self.sources), 64)]
        if self.metric == "perplexity":
            return self._perplexity(held_out)
        translations = [words for part in held_out for words in self.model.translate(_padded(self.sources[part]), 30)]
        return bleu(translations, [t[1:-1] for t in self.targets[self.n_samples :]])

    @torch.no_grad()
    def _perplexity(self, held_out: List[slice]) -> float:
        total, n = 0.0, 0
        for part in held_out:
            hidden, following = self.model.hidden(_padded(self.sources[part]), _padded(self.targets[part]))
            total += nn.functional.cross_entropy(self.model.softmax.logits(hidden), following, reduction="sum").item()
            n += len(following)
        return math.exp(min(50.0, total / n))


if __name__ == "__main__":
    options = common.parser(__doc__.split("\n")[0], batch=32, lr=0.1)
    options.add_argument("--width", type=int, default=64, help="of the tables")
    options.add_argument("--hidden", type=int, default=128)
    options.add_argument("--negatives", type=int, default=512)
    options.add_argument("--words", type=int, default=0, help="at most so many of each language; 0: all that occur")
    options.add_argument("--pairs", type=int, default=0, help="at most so many; 0: all")
    options.add_argument("--held-out", type=int, default=500, help="pairs that the metric is of")
    options.add_argument("--metric", choices=("BLEU", "perplexity"), default="BLEU", help="perplexity: of a short training, too")
    common.run(Translation, options.parse_args())
