"""Cases in which ranks die, do not come, or are interrupted. Each ends its job, so each is a launch of its own."""

import os
import signal
import subprocess
import sys
import threading
import time

import zenps

ROUND_TIMEOUT = 240
PROMPT = 120  # seconds: long for a loaded machine, short for a wait that lasts ROUND_TIMEOUT


def interrupted(call):
    """Ctrl-C while call() waits; returns when it has been, promptly."""
    begun = []

    def press():
        begun.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a launcher may have left it ignored
    timer = threading.Timer(0.5, press)
    timer.start()
    try:
        call()
    except KeyboardInterrupt:
        assert time.monotonic() - begun[0] < PROMPT
    else:
        raise AssertionError("no KeyboardInterrupt")
    finally:
        timer.join()


def case_killed(job):
    tensor = job.tensor("killed", 1000, 4, op="sum")
    tensor.allreduce([1.0] * 4, [job.rank]).wait()
    # The others have their sums, too, before rank 2 dies.
    folder = sys.argv[2]
    with open(os.path.join(folder, f"{job.rank}.there"), "w", encoding="utf-8"):
        pass
    if job.rank == 2:
        while not all(os.path.exists(os.path.join(folder, f"{rank}.there")) for rank in range(job.world)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    request = tensor.allreduce([1.0] * 4, [job.rank])
    error = request.exception()
    assert isinstance(error, zenps.PeerLost) and error.missing_ranks == (2,), repr(error)
    assert (error.tensor, error.step, error.status) == ("killed", 1, zenps.Status.ERR_PEER_LOST)
    assert "killed" in str(error) and error.job == job.name


def case_killed_server(job):
    """One of the job's servers dies: sums are what they would have been."""
    tensor = job.tensor("survives", 999, op="sum")
    rows = list(range(job.rank, 999, job.world)) + [0]
    for step in range(40):
        if step == 10 and job.rank == 0:
            find = ["pgrep", "-P", str(os.getppid()), "-f", "--", "--server-name=server1( |$)"]
            os.kill(int(subprocess.run(find, stdout=subprocess.PIPE, check=True).stdout), signal.SIGKILL)
        sums = tensor.allreduce([step + 1.0] * len(rows), rows).wait()
        assert sums.row_ids.tolist() == list(range(999)), step
        times = [job.world + 1.0] + [1.0] * 998
        assert sums.values.tolist() == [[(step + 1.0) * n] for n in times], step
    time.sleep(5)  # zenpsrun asks what has become of the job, on a busy machine some time after
    job.barrier()


def case_interrupted_wait(job):
    tensor = job.tensor("interrupted", 1000, op="sum")
    if job.rank == 0:
        request = tensor.allreduce([1.0], [1])
        interrupted(request.wait)
        assert isinstance(request.exception(), zenps.Canceled)
    else:
        error = tensor.allreduce([1.0], [1]).exception() if job.rank == 1 else None
        assert job.rank != 1 or isinstance(error, zenps.Canceled), repr(error)
    job.barrier()  # the job goes on


def case_interrupted_barrier(job):
    """Rank 0 leaves a barrier behind; it ends when the others have come, which wait for that."""
    left = os.path.join(sys.argv[2], "left")
    if job.rank == 0:
        interrupted(job.barrier)
        with open(left, "w", encoding="utf-8"):
            pass
    else:
        while not os.path.exists(left):
            time.sleep(0.01)
        job.barrier()
    tensor = job.tensor("afterwards", 10, op="sum")
    assert tensor.allreduce([1.0], [1]).wait().nnz == 1
