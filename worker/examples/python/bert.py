#!/usr/bin/env python3
"""Masked language model (Ok-Topk's BERT; DGC): an encoder whose dense gradients are sparsified with --compress.

    zenpsrun -n 4 -- worker/examples/python/bert.py --compress oktopk --density 0.01

Text: WordNet's glosses (Debian's wordnet-base), or --data FILE. --layers 12 --width 768 --heads 12 --words 30522 is BERT-base.
"""

from __future__ import annotations

import math
from typing import Any, List, Tuple

import numpy as np
import torch
from torch import nn

import common
import data

MASK = data.Vocabulary.UNKNOWN  # rare words are left out of what is to be guessed


class Model(nn.Module):
    def __init__(self, n_words: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        nn.init.normal_(self.words.weight, std=0.05)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.guess = nn.Linear(width, n_words)
        self.guess.weight = self.words.weight
        nn.init.zeros_(self.guess.bias)

    def forward(self, masked: torch.Tensor, places: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """masked [n, t]; the words [m] that were at places [m] of its n * t."""
        hidden = self.encoder(self.words(masked) + self.places).flatten(0, 1)[places]
        return nn.functional.cross_entropy(self.guess(hidden), words)


class MaskedWords(common.Task):
    name, metric = "bert", "perplexity"

    def __init__(self, arguments: Any) -> None:
        sentences = data.text(arguments.data, arguments.gcide)
        np.random.default_rng(arguments.seed).shuffle(sentences)
        vocabulary = data.Vocabulary(sentences, at_most=arguments.words)
        tokens = np.array([i for sentence in sentences for i in vocabulary.encode(sentence)])
        windows = torch.from_numpy(tokens[: len(tokens) // arguments.length * arguments.length].reshape(-1, arguments.length))
        self.n_samples, self.seed = len(windows) - 200, arguments.seed
        self.windows = windows
        self.model = Model(len(vocabulary), arguments.width, arguments.heads, arguments.layers, arguments.length)

    def optimiser(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=lr)

    def masked(self, samples: List[int], seed: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A seventh of each window, so that every rank's mean is of as many."""
        window = self.windows[samples].clone()
        length = window.shape[1]
        draws = [torch.randperm(length, generator=torch.Generator().manual_seed(seed * 1000003 + i))[: length // 7] for i in samples]
        places = (torch.stack(draws) + torch.arange(len(samples))[:, None] * length).flatten()
        words = window.flatten()[places]
        window.view(-1)[places] = MASK
        return window, places, words

    def batch(self, samples: List[int], step: int) -> Any:
        return self.masked(samples, self.seed * 7919 + step)

    @torch.no_grad()
    def evaluate(self) -> float:
        parts = [list(range(at, min(at + 50, len(self.windows)))) for at in range(self.n_samples, len(self.windows), 50)]
        losses = [self.model(*self.masked(part, 1)).item() for part in parts]
        return math.exp(sum(losses) / len(losses))


def arguments() -> Any:
    """The parser of this example's arguments."""
    options = common.parser(__doc__.split("\n")[0], batch=16, lr=0.001)
    options.add_argument("--width", type=int, default=128)
    options.add_argument("--heads", type=int, default=4)
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--length", type=int, default=28, help="words of a window; a seventh of them is masked")
    options.add_argument("--words", type=int, default=8000)
    options.add_argument("--gcide", action="store_true", help="GCIDE's paragraphs, too")
    return options


if __name__ == "__main__":
    common.run(MaskedWords, arguments().parse_args())
