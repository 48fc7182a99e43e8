"""A peer of internet.sh: internet.py FOLDER NAME OPTION... Trains lm.py's model by outer steps, in an elastic job.

Peers train until they have summed as many samples as FOLDER/last says; FOLDER/most holds them back before. A peer writes
its state to FOLDER/NAME after each local step. At the end it prints the loss of held-out text, and a digest of the
parameters. OPTIONs are lm.py's.
"""

import hashlib
import math
import pathlib
import sys
import time
import zlib

top = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(top / "worker" / "python"), str(top / "worker" / "examples" / "python")]
import common  # noqa: E402
import lm  # noqa: E402
import torch  # noqa: E402

import zenps.torch as zt  # noqa: E402


def number(file: pathlib.Path) -> int:
    return int(file.read_text())


def main() -> None:
    folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    arguments = lm.arguments().parse_args(sys.argv[3:])
    last = number(folder / "last")
    arguments.how = "outer"
    task = common.made(lm.LanguageModel, arguments)
    draws = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    optimizer = task.optimiser(arguments.lr)
    job = zt.init(min_world=2, max_world=4)
    outer = zt.OuterSync(task.model, job, every=arguments.every, select=None, values="qsgd8", outer=torch.optim.SGD(task.model.parameters(), lr=1.0))
    state = zt.State(outer=outer, model=task.model, optimizer=optimizer, trained=0)
    own = 0  # samples since the last outer step

    def note() -> None:
        part = folder / f"{name}.part"
        part.write_text(f"step {state.step} outer {outer.stats.steps} trained {state.trained} world {job.world} generation {job.generation.number}\n")
        part.rename(folder / name)

    def train(state: zt.State) -> None:
        nonlocal own
        while state.trained < last:
            note()
            while state.trained >= number(folder / "most") and not job.changed:
                time.sleep(0.02)
            optimizer.zero_grad(set_to_none=True)
            batch = torch.randint(task.n_samples, (arguments.batch,), generator=draws).tolist()
            task.model(*task.batch(batch, state.step)).backward()
            optimizer.step()
            own += arguments.batch
            if outer.step():
                state.trained += int(job.sum(own)[0])
                own = 0
            state.commit()

    zt.elastic(train, state)
    with torch.no_grad():
        for label, parameter in task.model.named_parameters():
            parameter.copy_(outer.start[label])
    digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in outer.start.values())).hexdigest()[:16]
    moved = (outer.stats.bytes_out + outer.stats.bytes_in) / 1e6
    print(f"peer {name}: loss {math.log(task.evaluate()):.4f} digest {digest} trained {state.trained} outer {outer.stats.steps} moved {moved:.2f} MB", flush=True)
    job.close()


main()
