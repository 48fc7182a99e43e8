"""Runs what users would run instead, on the same gradients in the same lab: Open MPI, Gloo; and the fabric by itself."""
import functools
import json
import os
import shutil
import subprocess
import sys
import time

from .lab import CORES, Failure, HERE, Lab, Watch
from .zenps import environment, input_args, program

TOP = os.path.dirname(os.path.dirname(HERE))
MPI = {"dense-ring": ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "4"],
       "dense-inplace": ["--mca", "btl_tcp_flags", "send,inplace"],
       "dense-default": [],
       "allgather": []}
# Large arrays in pages of 2 MiB, as zenps-perf and mpi-rival have them: PyTorch's own switch is of 2.0 and later.
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@functools.lru_cache(None)
def missing(system):
    """Why a system cannot be measured here; None if it can."""
    if system == "mpi" and not (shutil.which("mpirun") and compiles_mpi()):
        return "Open MPI is not installed (apt-get install openmpi-bin libopenmpi-dev)"
    if system == "gloo" and not torch_python():
        return "PyTorch is not installed (apt-get install python3-torch python3-numpy)"
    return None


def compiles_mpi():
    """mpicc may be there without the headers that it names."""
    probe = ["mpicc", "-E", "-include", "mpi.h", "-x", "c", "/dev/null"]
    return shutil.which("mpicc") and subprocess.run(probe, capture_output=True).returncode == 0


@functools.lru_cache(None)
def torch_python():
    """A Python that has PyTorch: this one, or the system's."""
    for python in (sys.executable, "/usr/bin/python3"):
        probe = "import numpy, torch.distributed as d, sys; sys.exit(not d.is_gloo_available())"
        if os.access(python, os.X_OK) and subprocess.run([python, "-c", probe], capture_output=True).returncode == 0:
            return python
    return None


@functools.lru_cache(None)
def mpi_program(build):
    made = subprocess.run(["make", "-s", "-C", build, "tests/cluster/rivals/mpi-rival"], capture_output=True, text=True)
    if made.returncode != 0:
        raise Failure(f"cannot build mpi-rival: {made.stderr.strip()[-300:]}")
    return os.path.join(build, "tests/cluster/rivals/mpi-rival")


def start_mpi(lab, spec, build):
    n, launcher = spec["n"], spec["n"]
    command = ["mpirun", "--allow-run-as-root", "-n", n, "--host", ",".join(f"{lab.address(i)}:1" for i in range(n)),
               "--mca", "plm_rsh_agent", f"{lab.script} ssh", "--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "pml", "ob1",
               "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0",
               "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none", "--mca", "orte_keep_fqdn_hostnames", "1",
               *MPI[spec["scheme"]], mpi_program(build), "--how",
               "allgather" if spec["scheme"] == "allgather" else "dense", *input_args(spec), "--verify"]
    return [lab.spawn(launcher, command, "mpirun", {"TMPDIR": lab.scratch}, capture=True)]


def start_gloo(lab, spec, _):
    command = [torch_python(), os.path.join(HERE, "rivals", "gloo_rival.py"), "--how", spec["scheme"], *input_args(spec), "--verify"]
    return [lab.spawn(i, command, f"rank{i}",
                      {"RANK": str(i), "WORLD_SIZE": str(spec["n"]), "MASTER_ADDR": lab.address(0), "MASTER_PORT": "29500",
                       "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", **HUGE_PAGES}, capture=True) for i in range(spec["n"])]


def run(spec, build):
    """One row of Open MPI or Gloo."""
    why = missing(spec["system"])
    if why:
        raise Failure(why)
    start = {"mpi": start_mpi, "gloo": start_gloo}[spec["system"]]
    with Lab(spec["n"] + 1, spec["rate"], spec.get("racks", 1), spec.get("uplink", "none")) as lab:
        before = lab.counters()
        watch = Watch()
        watch.start()
        ended = lab.await_end(start(lab, spec, build), spec["timeout_s"])
        watch.done.set()
        traffic = lab.traffic(before, spec["warmup"] + spec["steps"], spec["n"])
    got = json.loads(ended[0][0].strip().splitlines()[-1])
    cpu_ms = got["cpu_ms"] * spec["n"]
    rss = max(usage.ru_maxrss for _, usage in ended) / 1024 if spec["system"] == "gloo" else None
    return {"rows": got["rows"], "density": got["density"], "median_ms": got["median_ms"], **traffic,
            "cpu_util": cpu_ms / (got["median_ms"] * CORES), "machine_util": watch.utilisation(got["timeline"]),
            "cpu_ms": cpu_ms, "verified": got["verified"], "timeline": got["timeline"], "rss_worker_mb": rss,
            "dense_bytes": got["rows"] * spec["width"] * 4}


def run_fabric(spec, build):
    """The fabric by itself, between two hosts: round trips of small messages, and reads of 1 MiB."""
    with Lab(2, spec["rate"]) as lab:
        address = os.path.join(lab.scratch, "address")
        echo = [program(build, "tests/cluster/fabric-echo"), "--interface", "eth0", "--address-file", address]
        server = lab.spawn(0, [*echo, "--serve"], "echo", environment(build))
        deadline = time.monotonic() + 20
        while not os.path.exists(address):
            if server.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"the echo did not come up: {lab.said(server)}")
            time.sleep(0.01)
        asking = lab.spawn(1, [*echo, "--size", spec["size"], "--count", spec["count"], "--read-mb", spec["read_mb"]], "ask",
                           environment(build), capture=True)
        (output, _), = lab.await_end([asking], spec["timeout_s"])
    return json.loads(output)
