#!/usr/bin/env python3
"""Outer steps (DiLoCo, SparseLoCo) beside DDP: a model is trained twice, with the same samples, and both losses and bytes are printed.

    zenpsrun -n 4 -- worker/examples/python/outer.py lm --steps 300 --every 15
    zenpsrun -n 4 -- worker/examples/python/outer.py bert --steps 300 --outer-dense --outer-values bf16
    ZENPS_COORDINATOR=HOST:PORT worker/examples/python/outer.py lm --peers 2:8 --samples 1000000 --every 15

The first argument is the model: lm or bert. The others are those below, and those of lm.py or bert.py. First the ranks take steps of their
own, and a common one after each --every. Then DDP over Gloo sums the gradients of every step.

With --peers MIN:MAX the process is a peer of an elastic job instead, and trains by outer steps alone. Peers may die, and others may come,
across the internet, too. They have the same options, but for --name and --batch: one with others ends the training of all. They end when
they have trained --samples together, and print the loss of held-out text.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import os
import sys
import zlib
from typing import Any, Callable, Dict, Tuple

import torch

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


def peers(text: str) -> Tuple[int, int]:
    least, _, most = text.partition(":")
    if not (least.isdigit() and most.isdigit() and 1 <= int(least) <= int(most)):
        raise argparse.ArgumentTypeError(f"'{text}' must be MIN:MAX, such as 2:8, MIN at least 1 and at most MAX")
    return int(least), int(most)


def train_as_peer(make: Any, arguments: argparse.Namespace, before_step: Callable[[Any, Any, Any], None] = lambda *_: None) -> None:
    """A peer of an elastic job, until arguments.samples. before_step(state, outer, job) is called before each step of its own."""
    import zenps
    import zenps.torch as zt

    arguments.how = "outer"
    task = common.made(make, arguments)
    if task.n_samples < arguments.batch:
        raise SystemExit(f"{task.name}: {task.n_samples} samples are fewer than --batch {arguments.batch}")
    # Peers come and go, so no order of samples is common to them: each draws its own.
    draws = torch.Generator().manual_seed(zlib.crc32(arguments.name.encode()))
    optimizer = task.optimiser(arguments.lr)
    least, most = arguments.peers
    sync = common.Sync(task, arguments, zt.init(min_world=least, max_world=most))
    job, outer = sync.job, sync.outer
    # Peers end together: newcomers take the number of samples from the others. counts: the last outer step's are to be counted.
    state = zt.State(outer=outer, model=task.model, optimizer=optimizer, trained=0, samples=arguments.samples, counts=False)
    own = 0  # samples since the last outer step

    def train(state: Any) -> None:
        nonlocal own
        while True:
            if state.counts:
                state.trained += int(job.sum(own)[0])
                own, state.counts = 0, False
                state.commit()
                if job.rank == 0:
                    print(f"{state.trained} of {state.samples} samples, {job.world} peers", file=sys.stderr, flush=True)
            if state.trained >= state.samples:
                return
            before_step(state, outer, job)
            optimizer.zero_grad(set_to_none=True)
            samples = torch.randint(task.n_samples, (arguments.batch,), generator=draws).tolist()
            task.model(*task.batch(samples, state.step)).backward()
            optimizer.step()
            own += arguments.batch
            state.counts = outer.step()
            state.commit()

    try:
        zt.elastic(train, state)
    except zenps.ZenpsError as error:
        raise SystemExit(f"peer {arguments.name}: {error}") from None
    with sync.common():
        metric = task.evaluate()
    digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in outer.start.values())).hexdigest()[:16]
    moved = (outer.stats.bytes_out + outer.stats.bytes_in) / 1e6
    print(f"peer {arguments.name}: loss {math.log(metric):.4f} digest {digest} trained {state.trained} outer {outer.stats.steps} moved {moved:.2f} MB", flush=True)
    sync.close()


OF_PEERS = ("samples", "name")
NOT_OF_PEERS = ("how", "epochs", "steps", "target", "json", "interface", "compress", "scheme")


def parsed(model: str, argv: Any) -> Tuple[Any, argparse.Namespace]:
    """What makes the model's task, and the arguments. Ends the program for those that cannot be, before others hear of it."""
    make, parser = MODELS[model]
    options = parser()
    options.add_argument("--peers", type=peers, metavar="MIN:MAX", help="be a peer of an elastic job of so many, and train by outer steps alone")
    options.add_argument("--samples", type=int, default=100000, help="of --peers: what all peers train together; the first ones decide")
    options.add_argument("--name", default=os.urandom(4).hex(), help="of --peers: decides the samples that it draws")
    arguments = options.parse_args(argv)
    for name in NOT_OF_PEERS if arguments.peers else OF_PEERS:
        if getattr(arguments, name) != options.get_default(name):
            options.error(f"--{name} has no effect {'with' if arguments.peers else 'without'} --peers")
    for name in ("every", "batch", "samples", "outer_k", "outer_lr"):
        if not getattr(arguments, name) > 0:
            options.error(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be over 0")
    return make, arguments


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in MODELS:
        raise SystemExit(f"{sys.argv[0]}: the first argument is the model: {' or '.join(MODELS)}")
    make, arguments = parsed(sys.argv[1], sys.argv[2:])
    if arguments.peers:
        train_as_peer(make, arguments)
        return
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
