#!/usr/bin/env python3
"""Outer steps (DiLoCo, SparseLoCo) beside DDP: a model is trained twice, with the same samples, and both losses and bytes are printed.

    zenpsrun -n 4 -- worker/examples/python/outer.py lm --steps 300 --every 15
    zenpsrun -n 4 -- worker/examples/python/outer.py bert --steps 300 --outer-dense --outer-values bf16

The first argument is the model: lm or bert. All others are those of lm.py or bert.py. First the ranks take steps of their own, and a common
one after each --every. Then DDP over Gloo sums the gradients of every step.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from typing import Any, Dict, Tuple

import bert
import common
import lm

MODELS = {"lm": (lm.LanguageModel, lm.arguments), "bert": (bert.MaskedWords, bert.arguments)}


def trained(make: Any, arguments: argparse.Namespace, how: str) -> Tuple[Dict[str, Any], int, int]:
    """The result, the rank, and the bytes of a rank: sent and received. Those of DDP are what a ring moves."""
    own = copy.copy(arguments)
    own.how = how
    task = common.made(make, own)
    sync = common.Sync(task, own)
    result = common.train(task, sync, own)
    if sync.outer is not None:
        moved = sync.outer.stats.bytes_out + sync.outer.stats.bytes_in
    else:
        ring = sum(each.numel() * each.element_size() for each in task.model.parameters()) * 2 * (sync.world - 1) // sync.world
        moved = 2 * ring * result["steps"]
    sync.close()
    return result, sync.rank, moved


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in MODELS:
        raise SystemExit(f"{sys.argv[0]}: the first argument is the model: {' or '.join(MODELS)}")
    make, parser = MODELS[sys.argv.pop(1)]
    arguments = parser().parse_args()
    outer, rank, moved = trained(make, arguments, "outer")
    ddp, _, ring = trained(make, arguments, "gloo-dense")
    if rank:
        return
    loss, right = (math.log(each["metrics"][-1]) for each in (outer, ddp))  # of held-out samples
    print(f"{outer['example']}: {outer['world']} ranks, {outer['steps']} steps of {outer['batch']} samples each, {outer['parameters'] / 1e6:.2f} M parameters")
    print(f"  DDP:         held-out loss {right:.4f}, {ring / 1e6:.2f} MB of a rank")
    print(f"  outer steps: held-out loss {loss:.4f}, {moved / 1e6:.2f} MB of a rank")
    print(f"  loss {100 * (loss / right - 1):+.2f}%, {ring / max(moved, 1):.0f} times fewer bytes", flush=True)
    if arguments.json:
        print(json.dumps({"example": "outer", "outer": outer, "ddp": ddp, "loss": loss, "ddp_loss": right, "bytes": moved, "ddp_bytes": ring}), flush=True)


if __name__ == "__main__":
    main()
