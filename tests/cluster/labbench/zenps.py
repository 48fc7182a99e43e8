"""Runs zenps-perf over daemons in a lab: one worker (or several) and one server to a host, or servers on hosts of their own."""
import json
import lzma
import os
import subprocess
import tempfile
import time

from .lab import CORES, Failure, Lab, Watch, peak_rss_mb
from .links import table

PORT = 7077


def program(build, name):
    """A program of a build tree: past libtool's wrapper, whose library path `environment` gives."""
    real = os.path.join(build, ".libs", name)
    return real if os.access(real, os.X_OK) else os.path.join(build, name)


def environment(build):
    libs = os.path.join(build, ".libs")
    return {"LD_LIBRARY_PATH": libs + (":" + os.environ["LD_LIBRARY_PATH"] if "LD_LIBRARY_PATH" in os.environ else "")}


def input_args(spec):
    """What zenps-perf and the rivals' programs alike take to make the same gradients."""
    args = ["--rows", spec["rows"]] if spec.get("rows") else []
    args += ["--width", spec["width"], "--steps", spec["steps"], "--warmup", spec["warmup"], "--seed", spec.get("seed", 1)]
    if spec.get("trace"):
        return args + ["--trace", spec["trace"], "--batch", spec["batch"]]
    return args + ["--density", spec["density"]]


class Service:
    """A lab with a coordinator, servers and room for ranks: `with Service(spec, build) as service:`, then one job after another.
    The members n, rate, ranks_per_host, servers, racks, uplink, env and secure of the row count. secure: TLS, with certificates."""

    def __init__(self, spec, build):
        self.spec, self.build, self.n_jobs = spec, build, 0
        self.n, self.per_host = spec["n"], spec.get("ranks_per_host", 1)
        self.n_servers, self.shared = spec.get("servers") or self.n, not spec.get("servers")
        self.hosts = self.n if self.shared else self.n + self.n_servers
        self.world = self.n * self.per_host
        self.env = {**environment(build), **spec.get("env", {})}
        self.lab = Lab(self.hosts + 1, spec["rate"], spec.get("racks", 1), spec.get("uplink", "none"), self.n)
        self.address = f"{self.lab.address(self.hosts)}:{PORT}"

    def __enter__(self):
        self.lab.__enter__()
        try:
            self.start()
        except BaseException:
            self.lab.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.lab.__exit__()

    def make_certificates(self):
        """Of a run: coordinator, servers and ranks show the same one."""
        folder = os.path.join(self.lab.scratch, "certs")
        done = subprocess.run([program(self.build, "zenpsctl"), "certs", "init", folder, "--runs=bench"], env={**os.environ, **self.env},
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(f"no certificates: {done.stderr.strip()}")
        self.env.update({"ZENPS_TLS_CA": f"{folder}/ca.pem", "ZENPS_TLS_CERT": f"{folder}/run-bench.pem", "ZENPS_TLS_KEY": f"{folder}/run-bench.key"})
        return [f"--tls-{what}={self.env[f'ZENPS_TLS_{what.upper()}']}" for what in ("ca", "cert", "key")]

    def start(self):
        daemon = program(self.build, "zenpsd")
        way = self.make_certificates() if self.spec.get("secure") else ["--control-insecure"]
        listening = os.path.join(self.lab.scratch, "address")
        coordinator = self.lab.spawn(self.hosts, [daemon, "--roles=coordinator", f"--control-listen={self.address}", *way, "--log-level=warn",
                                                  "--control-dead=60s",  # 128 processes, two cores
                                                  f"--control-address-file={listening}", f"--coordinator-min-servers={self.n_servers}"],
                                     "coordinator", self.env)
        deadline = time.monotonic() + 20
        while not os.path.exists(listening):
            if coordinator.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"the coordinator did not come up: {self.lab.said(coordinator)}")
            time.sleep(0.01)
        self.servers = [self.lab.spawn(i if self.shared else self.n + i,
                                       [daemon, "--roles=server", f"--control-coordinator={self.address}", f"--server-name=server{i}",
                                        "--fabric-interface=eth0", "--log-level=warn", *(way if self.spec.get("secure") else [])],
                                       f"server{i}", self.env)
                        for i in range(self.n_servers)]

    def job(self, command, env=None):
        """Starts the ranks of a new job, each with its output captured."""
        self.n_jobs += 1
        job = {"ZENPS_COORDINATOR": self.address, "ZENPS_JOB": f"bench{self.n_jobs}", "ZENPS_WORLD_SIZE": str(self.world),
               "ZENPS_INTERFACE": "eth0", "ZENPS_ROUND_TIMEOUT": "600s", "ZENPS_JOIN_TIMEOUT": "300s",
               "WORLD_SIZE": str(self.world)}  # this and RANK: torch.distributed's names
        return [self.lab.spawn(i // self.per_host, command, f"rank{i}",
                               {**self.env, **job, **self.rack(i // self.per_host), "ZENPS_RANK": str(i), "RANK": str(i), **(env or {})},
                               capture=True)
                for i in range(self.world)]

    def rack(self, host):
        """The environment that tells a rank its rack."""
        rack = self.lab.rack_of(host)
        return {} if rack is None else {"ZENPS_RACK": f"rack{rack}"}

    def measure(self, spec):
        """What is measured of one row. With `watch_links`, `links` tells how full they were in the course of a step."""
        uneven = spec.get("trace") and spec["rate"] != "none" and self.shared and spec.get("racks", 1) == 1  # steps carry more or less
        before = self.lab.counters()
        watch = Watch([p.pid for p in self.servers], interfaces=spec.get("watch_links", False) or uneven)
        watch.start()
        command = [program(self.build, "zenps-perf"), "--json", *input_args(spec), *spec.get("args", [])]
        if spec.get("verify", True):
            command += ["--verify", "--verify-by", "turns"]
        ended = self.lab.await_end(self.job(command), spec["timeout_s"])
        watch.done.set()
        server_rss = [peak_rss_mb(p.pid) for p in self.servers]
        got = json.loads(ended[0][0])
        traffic = self.lab.traffic(before, got["warmup"] + spec["steps"], self.hosts)
        server_cpu_ms = watch.cpu_per_step_ms(got["timeline"])
        cpu_ms = got["cpu_ms"] * self.world + server_cpu_ms
        if traffic["bytes_in"] is None:  # unshaped: what the ranks themselves counted
            traffic["bytes_in"], traffic["bytes_out"] = got["bytes_in"], got["bytes_out"]
        if uneven:
            traffic["limit_ms"] = watch.limit_ms(got["timeline"], spec["rate"])
        links = table(watch, got["timeline"], spec["rate"]) if spec.get("watch_links") else None
        return {"links": links, "rows": got["rows"], "density": got["density"], "union_density": got["union_density"], "scheme": got["scheme"],
                "ran": got["ran"], "settled_after": got["warmup"], "median_ms": got["median_ms"], **traffic, "cpu_util": cpu_ms / (got["median_ms"] * CORES),
                "machine_util": watch.utilisation(got["timeline"]), "cpu_ms": cpu_ms, "server_cpu_ms": server_cpu_ms,
                "verified": got["verified"], "codec": got["codec"], "provider": got["provider"], "partitions": got["partitions"],
                "payload_in": got["payload_in"], "payload_out": got["payload_out"], "bytes_over_bound": got["bytes_over_bound"],
                "imbalance_push": got["imbalance_push"], "imbalance_pull": got["imbalance_pull"], "phases": got["phases"],
                "timeline": got["timeline"], "rss_worker_mb": max(usage.ru_maxrss for _, usage in ended) / 1024,
                "rss_server_mb": max(server_rss), "dense_bytes": got["dense_bytes"]}


def run(spec, build):
    """One row in a lab of its own."""
    with Service(spec, build) as service:
        return service.measure(spec)


def as_elements(spec):
    """The same gradients element by element: a trace in which every row id is `width` ids, of a tensor of width 1."""
    width, wanted = spec["width"], spec["n"] * spec["batch"] * (spec["steps"] + spec["warmup"])
    opener = lzma.open if spec["trace"].endswith(".xz") else open
    largest, written = 0, 0
    out = tempfile.NamedTemporaryFile("w", prefix="zenps-elements.", suffix=".ids")  # gone when the row is
    with opener(spec["trace"], "rt") as lines:
        for line in lines:
            ids = [int(word) for word in line.split()]
            largest = max([largest, *ids])
            if ids and written < wanted:
                written += 1
                out.write(" ".join(str(i * width + c) for i in dict.fromkeys(ids) for c in range(width)) + "\n")
    out.flush()
    return dict(spec, trace=out.name, rows=(largest + 1) * width, width=1, keep=out)
