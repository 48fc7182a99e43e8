"""Elastic jobs: ranks that go from one generation to the next; ranks are threads of one process, each with a Job of its own."""

import asyncio
import threading
import time

import pytest
import zenps
from zenps import _lib


def ranks(world, body):
    """body(rank) on a thread for each; raises what the first of them raised."""
    failures = []

    def guarded(rank):
        try:
            body(rank)
        except BaseException as error:  # pylint: disable=broad-except
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def summed(job, step=None):
    """Sum of 1 at each rank's row."""
    tensor = job.tensor("t", 10, op="sum")
    return tensor.allreduce([1.0], [job.rank], step=step).wait().row_ids.tolist()


def wait_for_change(job, tensor):
    """Steps go on until newcomers are seen."""
    while not job.changed:
        tensor.allreduce([1.0], [job.rank]).wait()


def test_the_same_job_goes_on(coordinator):
    """A newcomer is let in; what was opened before is closed, and says so."""
    running = threading.Event()

    def old(rank):
        job = zenps.init(coordinator, "grows", rank, 2, min_world=2, max_world=3, join_wait=1)
        assert job.generation == zenps.Generation(1, rank, 2, 0, 0) and not job.changed
        assert summed(job) == [0, 1] and job.sum(1.0) == [2.0]
        group = job.group("g", [0, 1])
        tensor, own = job.tensor("t", 10, op="sum"), group.tensor("t", 5, op="sum")
        rows = tensor.allreduce([1.0], [rank]).wait()
        running.set()
        try:
            wait_for_change(job, tensor)
            pending = tensor.push([1.0], [1], step=1 << 40)
        except zenps.ZenpsError as error:  # the other one has moved on
            assert error.recoverable, repr(error)
            pending = None
        generation = job.next(5 + rank)
        assert generation == job.generation == zenps.Generation(2, job.rank, 3, 1, 6) and job.world == 3
        assert job.rank == rank and zenps.init(coordinator, "grows", rank, 2, min_world=2, max_world=3, join_wait=1) is job
        assert rows.row_ids.tolist() == [0, 1]
        for name, call in (
            ("tensor t", lambda: tensor.allreduce([1.0], [1])),
            ("tensor t", lambda: tensor.owner(0)),
            ("tensor t", lambda: own.allreduce([1.0], [1])),
            ("group g", group.barrier),
            ("group g", lambda: group.tensor("u", 5)),
            ("group g", lambda: group.broadcast(bytearray(3))),
        ):
            with pytest.raises(zenps.Closed, match=f"{name} is closed: it was of generation 1 of job grows, which is in"):
                call()
        if pending is not None:
            with pytest.raises(zenps.ZenpsError) as raised:
                pending.wait()
            assert raised.value.recoverable
        tensor.close(), group.close()
        del pending  # its handle may be another request's by now
        ends(job)

    def ends(job):
        assert job.tensor("t", 10, op="sum").next_step == 0
        assert summed(job) == [0, 1, 2] and job.sum(2.0) == [6.0] and job.gather(b"%d" % job.rank) == [b"0", b"1", b"2"]
        job.barrier()
        job.close()

    def body(rank):
        if rank < 2:
            return old(rank)
        running.wait()
        job = zenps.init(coordinator, "grows", 0, 1, min_world=2, max_world=3, join_wait=1)
        assert job.generation == zenps.Generation(2, 2, 3, 1, 6)
        return ends(job)

    ranks(3, body)


def test_calls_of_other_threads_end(coordinator):
    """A barrier that nobody else comes to, and requests that asyncio and threads wait for."""
    job = zenps.init(coordinator, "threads", 0, 1, min_world=1, max_world=1)
    tensor = job.tensor("t", 10, op="sum")
    seen = []

    async def awaits():
        return await asyncio.gather(*(tensor.pull(step=5 + i) for i in range(2)), return_exceptions=True)

    def waits():
        try:
            tensor.pull(step=9).wait()
        except zenps.ZenpsError as error:
            seen.append(error)

    threads = [threading.Thread(target=waits), threading.Thread(target=lambda: seen.extend(asyncio.run(awaits())))]
    for thread in threads:
        thread.start()
    while len(job._requests) < 3 or len(job._watched) < 2:
        time.sleep(0.001)
    assert job.next(1).number == 2
    for thread in threads:
        thread.join()
    assert len(seen) == 3 and all(isinstance(each, zenps.ZenpsError) and each.recoverable for each in seen), seen
    again = job.tensor("t", 10, op="sum")

    async def works():
        return await again.allreduce([1.0], [3])

    assert asyncio.run(works()).row_ids.tolist() == [3]
    job.close()
    with pytest.raises(zenps.Closed):
        job.next(2)


def test_too_few(coordinator):
    """The rank that is left cannot go on: the error says how many there must be, and the job is closed."""

    def body(rank):
        job = zenps.init(coordinator, "few", rank, 2, min_world=2, max_world=2, join_wait=0.1, join_timeout=15)
        job.barrier()
        if rank == 1:
            return job.close()
        with pytest.raises(zenps.ZenpsError) as raised:
            job.barrier()
        assert raised.value.recoverable
        with pytest.raises(zenps.MissingRanks, match="1 ranks were there of the 2 that it needs at least"):
            job.next(7)
        assert job.closed
        with pytest.raises(zenps.Closed):
            job.barrier()
        return job.close()

    ranks(2, body)


def test_refusals(coordinator):
    with zenps.init(coordinator, "plain", 0, 1) as job:
        assert job.generation == zenps.Generation(0, 0, 1, 0, 0) and not job.changed
        with pytest.raises(zenps.Invalid, match="is not elastic"):
            job.next(0)
        assert summed(job) == [0]
    for arguments, words in (
        (dict(min_world=3, max_world=2), "at least 3 and at most 2 ranks"),
        (dict(min_world=0), "min_world 0; must be 1 or more"),
        (dict(max_world=2, join_wait=-1), "join_wait of -1 s"),
    ):
        with pytest.raises(zenps.Invalid, match=words):
            zenps.init(coordinator, "wrong", 0, 1, **arguments)
    with zenps.init(coordinator, "step", 0, 1, max_world=1) as job:
        with pytest.raises(zenps.Invalid, match="step -1"):
            job.next(-1)
        assert summed(job) == [0]


def test_room_for_servers(coordinator):
    """Of a job that is not elastic: the other one's generations begin on all servers."""
    with zenps.init(coordinator, "roomy", 0, 1, server_places=3) as job:
        assert job.servers == 3
        assert summed(job) == [0]
    with zenps.init(coordinator, "grows", 0, 1, max_world=1, server_places=3) as job:
        assert job.servers == 1
    for places, words in ((0, "server_places 0; must be 1 or more"), (1025, "server_places is 1025; it must be 1 to 1024")):
        with pytest.raises(zenps.Invalid, match=words):
            zenps.init(coordinator, "wrong", 0, 1, server_places=places)


@pytest.mark.parametrize("status", sorted(zenps.errors.BY_STATUS))
def test_what_is_recoverable(status):
    assert zenps.errors.BY_STATUS[status]("text").recoverable == _lib.load().zenps_status_recoverable(status)
