"""Short jobs by seed: most sum and check a few tensors of different schemes and close, some lose a rank to kill -9."""
import os
import random
import signal
import subprocess
import time

from chaoslib.cluster import Failure, program

WAIT_S = 600  # the longest that a job may take
SCHEMES = ("balanced", "sparse-ps", "dense-ps", "omnireduce", "ring", "split-allgather", "recursive-doubling", "agsparse", "topka:density=0.05",
           "oktopk:density=0.05", "hierarchical", "balanced --values qsgd8", "balanced --layout rows --out rows")
TENSORS, STEPS = 3, 3


def cases(rng):
    """Lines for zenps-perf --cases: each is a tensor of the job."""
    return [f"--scheme {scheme} --rows {rng.choice((1000, 5000, 20000))} --width {rng.choice((1, 4))} --density {rng.choice((0.01, 0.2))}"
            for scheme in rng.sample(SCHEMES, TENSORS)]


class Jobs:
    def __init__(self, service, ranks, seed, kill_every):
        self.service, self.ranks, self.kill_every = service, ranks, kill_every
        self.rng, self.n, self.n_killed = random.Random(seed), 0, 0

    def run(self):
        """The next job, to its end. Failure: what went wrong."""
        self.n += 1
        self.name = f"soak{self.n}"
        if self.kill_every and self.n % self.kill_every == 0:
            self.run_killed()
        else:
            self.run_whole()

    def start(self, command, stdout, **env):
        """One of these for each rank."""
        started = []
        for rank in range(self.ranks):
            with open(os.path.join(self.service.scratch, f"rank{rank}.log"), "w") as log:
                started.append(subprocess.Popen([str(word) for word in command(rank)], env={**self.service.env, "ZENPS_RANK": str(rank), **env},
                                                stdin=subprocess.DEVNULL, stdout=stdout if stdout else log, stderr=log, text=True))
        return started

    def end(self, processes):
        """Exit statuses; a rank that is not through by its deadline is a failure."""
        deadline = time.monotonic() + WAIT_S
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name}: a rank is not through after {WAIT_S} s") from None
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                if process.stdout:
                    process.stdout.close()

    def run_whole(self):
        file = os.path.join(self.service.scratch, "cases")
        lines = cases(self.rng)
        with open(file, "w") as out:
            out.write("\n".join(lines) + "\n")
        command = [program(self.service.build, "zenps-perf"), "--steps", STEPS, "--warmup", 0, "--verify", "--seed", self.n, "--cases", file]
        statuses = self.end(self.start(lambda _: command, None, ZENPS_COORDINATOR=self.service.address, ZENPS_JOB=self.name,
                                       ZENPS_WORLD_SIZE=str(self.ranks)))
        if any(statuses):
            rank = next(rank for rank, status in enumerate(statuses) if status)
            raise Failure(f"{self.name}: rank {rank} ended with {statuses[rank]}, of {lines}: {self.service.said(f'rank{rank}')}")

    def run_killed(self):
        """Ranks that sum without pause; when all are in, one is killed, and the others say that they lost it."""
        victim, pause_s = self.rng.randrange(self.ranks), self.rng.random() * 0.1
        program_of = program(os.path.join(self.service.build, "tests", "chaos"), "chaos-rank")
        never = os.path.join(self.service.scratch, "never")
        started = self.start(lambda rank: [program_of, self.service.address, self.name, rank, self.ranks, self.n, 2, WAIT_S * 1000 // 2, never],
                             subprocess.PIPE)
        first = [process.stdout.readline() for process in started]
        time.sleep(pause_s)
        started[victim].send_signal(signal.SIGKILL)
        rests = [process.stdout.read() for process in started]  # until each has ended: its own waits have ends
        statuses = self.end(started)
        for rank, line in enumerate(first):
            if not line.startswith("in "):
                raise Failure(f"{self.name}: rank {rank} did not come in: {(line + rests[rank])[-300:]}")
        if statuses[victim] != -signal.SIGKILL:
            raise Failure(f"{self.name}: rank {victim} ended with {statuses[victim]} ahead of its kill: {rests[victim][-300:]}")
        for rank, (status, rest) in enumerate(zip(statuses, rests)):
            says = {line.partition(" ")[0] for line in rest.splitlines()}
            if rank != victim and (status != 3 or "error" not in says or "wrong" in says):
                raise Failure(f"{self.name}: rank {rank} ended with {status} after rank {victim} was killed: {rest[-300:]}")
        self.n_killed += 1
