#!/usr/bin/env python3
"""LSTM language model with a sampled softmax (Zen's LSTM): two large tables, of which a step touches a few rows.

    zenpsrun -n 4 -- worker/examples/python/lm.py --epochs 2
    torchrun --nproc_per_node 4 worker/examples/python/lm.py --how gloo-sparse

Text: WordNet's glosses (Debian's wordnet-base), with --gcide GCIDE's too, or --data FILE, a sentence a line. --synthetic has no text, but
tokens by Zipf's law; with --words 793471 --width 512 that is the paper's model, whose tables take 1.6 GB each.
"""

from __future__ import annotations

import math
from typing import Any, List

import numpy as np
import torch
from torch import nn

import common
import data
from softmax import SampledSoftmax


class Model(nn.Module):
    def __init__(self, n_words: int, width: int, hidden: int, negatives: int, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, width, sparse=sparse)
        nn.init.normal_(self.words.weight, std=0.1)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.down = nn.Linear(hidden, width)
        self.softmax = SampledSoftmax(n_words, width, negatives, sparse)

    def hidden(self, window: torch.Tensor) -> torch.Tensor:
        """window [n, t + 1] of words; [n * t, width], from each word to the next."""
        return self.down(self.lstm(self.words(window[:, :-1]))[0]).flatten(0, 1)

    def forward(self, window: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
        return self.softmax(self.hidden(window), window[:, 1:].flatten(), negatives)


class LanguageModel(common.Task):
    name, metric = "lm", "perplexity"

    def __init__(self, arguments: Any) -> None:
        if arguments.synthetic:
            n_words = arguments.words or 100000
            tokens = data.zipf(np.random.default_rng(arguments.seed), arguments.synthetic, n_words, 1.0)
        else:
            sentences = data.text(arguments.data, arguments.gcide)
            # WordNet comes in the order of the alphabet: held-out sentences are to be like the others.
            np.random.default_rng(arguments.seed).shuffle(sentences)
            vocabulary = data.Vocabulary(sentences, at_most=arguments.words)
            n_words = len(vocabulary)
            tokens = np.array([i for sentence in sentences for i in vocabulary.encode(sentence)])
        length = arguments.length
        windows = torch.from_numpy(np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length].copy())
        held_out = min(len(windows) // 20, 4000 // length)
        self.train, self.held_out = windows[:-held_out], windows[-held_out:]
        self.n_samples, self.seed = len(self.train), arguments.seed
        self.model = Model(n_words, arguments.width, arguments.hidden, arguments.negatives, common.sparse(arguments))

    def batch(self, samples: List[int], step: int) -> Any:
        return self.train[samples], self.model.softmax.draw(self.seed * 7919 + step)

    @torch.no_grad()
    def evaluate(self) -> float:
        total = 0.0
        for window in self.held_out.split(32):
            logits = self.model.softmax.logits(self.model.hidden(window))
            total += nn.functional.cross_entropy(logits, window[:, 1:].flatten(), reduction="sum").item()
        return math.exp(min(50.0, total / self.held_out[:, 1:].numel()))


def arguments() -> Any:
    """The parser of this example's arguments."""
    options = common.parser(__doc__.split("\n")[0], batch=64, lr=0.1)
    options.add_argument("--width", type=int, default=64, help="of both tables")
    options.add_argument("--hidden", type=int, default=128)
    options.add_argument("--length", type=int, default=20, help="words of a window")
    options.add_argument("--negatives", type=int, default=512)
    options.add_argument("--words", type=int, default=0, help="at most so many words; 0: all that occur")
    options.add_argument("--gcide", action="store_true", help="GCIDE's paragraphs, too: 5 M words more")
    options.add_argument("--synthetic", type=int, default=0, metavar="TOKENS", help="so many generated tokens in place of text")
    return options


if __name__ == "__main__":
    common.run(LanguageModel, arguments().parse_args())
