"""A peer of internet.sh: internet.py FOLDER NAME OPTION... Trains by worker/examples/python/outer.py, as a peer.

FOLDER/most holds it back at so many samples. It writes its state to FOLDER/NAME before each step. OPTIONs are outer.py's.
"""

import pathlib
import sys
import time

top = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(top / "worker" / "python"), str(top / "worker" / "examples" / "python")]
import outer as example  # noqa: E402


def main() -> None:
    folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]

    def hold(state, outer, job) -> None:
        part = folder / f"{name}.part"
        part.write_text(f"step {state.step} outer {outer.stats.steps} trained {state.trained} world {job.world} generation {job.generation.number}\n")
        part.rename(folder / name)
        while state.trained >= int((folder / "most").read_text()) and not job.changed:
            time.sleep(0.02)

    example.train_as_peer(*example.parsed("lm", [*sys.argv[3:], "--name", name]), before_step=hold)


main()
