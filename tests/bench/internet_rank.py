"""A peer of tests/bench/internet: takes outer steps of a module of random parameters, and writes a line of JSON for each.

    internet_rank.py FOLDER NAME OPTION...

A local step adds fixed random numbers to the parameters, and sleeps. No model is trained. FOLDER/NAME gets the lines. The peers of an
elastic job (--peers) go on to --steps outer steps together. With --apart all ranks begin an outer step at the same time.
"""

import argparse
import hashlib
import json
import pathlib
import sys
import time
import zlib

import torch

import zenps
import zenps.torch as zt


def parsed() -> argparse.Namespace:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("name")
    options.add_argument("--values", type=int, default=1 << 22)
    options.add_argument("--travel", choices=("chunks", "dense"), default="chunks", help="64 of each 4096 values as 2 bits; all as 8 bits")
    options.add_argument("--steps", type=int, default=10, help="outer steps")
    options.add_argument("--every", type=int, default=1)
    options.add_argument("--sleep", type=float, default=0, help="seconds of a local step")
    options.add_argument("--quorum", type=int)
    options.add_argument("--grace", type=float)
    options.add_argument("--apart", action="store_true")
    options.add_argument("--peers", type=int, nargs=2, metavar=("MIN", "MAX"))
    return options.parse_args()


class Peer:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        torch.set_num_threads(1)
        draws = torch.Generator().manual_seed(zlib.crc32(arguments.name.encode()))
        self.module = torch.nn.ParameterList(torch.zeros(arguments.values // 4) for _ in range(4))
        self.moves = [torch.randn(each.shape, generator=draws) / 1000 for each in self.module]
        least, most = arguments.peers or (None, None)
        self.job = zt.init(min_world=least, max_world=most) if least else zt.init()
        travel = {"values": "qsgd2"} if arguments.travel == "chunks" else {"select": None, "values": "qsgd8"}
        rate = torch.optim.SGD(self.module.parameters(), lr=1.0)
        self.outer = zt.OuterSync(self.module, self.job, every=arguments.every, outer=rate, quorum=arguments.quorum,
                                  grace=arguments.grace, **travel)  # fmt: skip
        self.lines = open(arguments.folder / arguments.name, "w", buffering=1, encoding="ascii")

    def say(self, **line: object) -> None:
        print(json.dumps(line), file=self.lines)

    def step(self) -> None:
        """A local step, and the outer step that is due after it."""
        if self.arguments.sleep:
            time.sleep(self.arguments.sleep)
        with torch.no_grad():
            for parameter, move in zip(self.module, self.moves):
                parameter.add_(move)
        if self.arguments.apart:
            self.job.barrier()
        before, began = self.outer.stats, time.monotonic()
        try:
            is_applied = self.outer.step()
        except zenps.ZenpsError as error:
            self.say(interrupted=before.steps + 1, error=type(error).__name__)
            raise
        if not is_applied:
            return
        ended, after = time.monotonic(), self.outer.stats
        digest = hashlib.blake2b(b"".join(each.numpy().tobytes() for each in self.outer.start.values()), digest_size=8)
        self.say(step=after.steps, at=ended, seconds=ended - began, digest=digest.hexdigest(), world=self.job.world, late=after.late,
                 bytes_out=after.bytes_out - before.bytes_out, bytes_in=after.bytes_in - before.bytes_in)  # fmt: skip

    def train(self, state: object = None) -> None:
        while self.outer.stats.steps < self.arguments.steps:
            self.step()
            if state is not None:
                state.commit()


def main() -> None:
    peer = Peer(parsed())
    if peer.arguments.peers:
        zt.elastic(peer.train, zt.State(outer=peer.outer, module=peer.module))
    else:
        peer.train()
        peer.job.barrier()
    peer.say(provider=getattr(peer.job, "provider", None), ended=True)
    peer.job.close()


if __name__ == "__main__":
    sys.exit(main())
