"""A rank of a job that pulls named rows: tenants.py greedy|modest FOLDER.

greedy (rank 0 of two): pulls rows of steps that its other rank never pushes, until the servers keep no more of its lists;
then it writes FOLDER/holds, and waits for FOLDER/over, as its other rank does. modest (one rank): pushes, and pulls rows by
their numbers.
"""
import os
import sys
import time

import numpy as np
import zenps

way, folder = sys.argv[1:]
job = zenps.init(round_timeout=600)


def until_over():
    while not os.path.exists(f"{folder}/over"):
        time.sleep(0.05)


if way == "modest":
    tensor = job.tensor("own", rows=100000, width=1)
    rows = np.arange(0, 20000, 2)
    tensor.push(np.ones((len(rows), 1), "f4"), rows, step=1).wait()
    got = tensor.pull(rows, step=1, out="dense").wait()
    assert np.array_equal(np.asarray(got.values).reshape(-1), np.ones(len(rows), "f4"))
    print("pulled", len(rows), flush=True)
else:
    tensor = job.tensor("own", rows=2000000, width=1)
    if job.rank == 0:
        pulls = []
        for step in range(1, 40):
            pulls.append(tensor.pull(np.arange(0, 1000000, 2), step=step))
            try:
                pulls[-1].wait(timeout=0.5)
            except TimeoutError:
                continue  # it stands
            except zenps.ZenpsError as error:
                print("refused:", error, flush=True)
                break
        open(f"{folder}/holds", "w").write("yes")
    until_over()
    os._exit(0)  # what it pulls never comes
