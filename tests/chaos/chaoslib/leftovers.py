"""What idle daemons hold: memory, descriptors, jobs, registered bytes; and whether that is more than it was."""
import os
import time

IDLE_S = 120  # the longest that daemons may take to let go of a job
# What may come to it: pools are kept for the next job, and a job after losses has larger ones.
RESIDENT_MORE_KIB, REGISTERED_MORE, DESCRIPTORS_MORE = 16 << 10, 16 << 20, 4
COUNTERS = ("jobs", "tensors", "rounds_in_flight", "memory_in_use_bytes", "quarantined")


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def process(pid):
    return {"resident_kib": resident_kib(pid), "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}


def measure(cluster):
    """Of anything with `coordinator`, `servers` and `ask` of a Cluster: {"coordinator": {...}, "servers": {name: {...}}}"""
    stats = cluster.ask("stats") or {"servers": []}
    of = {row["server"]: row for row in stats["servers"]}
    servers = {}
    for server in cluster.servers.values():
        row = of.get(server.name, {})
        servers[server.name] = {**process(server.process.pid), "registered_bytes": row.get("memory_registered_bytes", -1),
                                **{name: row.get(name, -1) for name in COUNTERS}}
    jobs = cluster.ask("jobs")
    return {"coordinator": {**process(cluster.coordinator.process.pid), "jobs": len(jobs["jobs"]) if jobs else -1}, "servers": servers}


def settle(cluster):
    """Until nothing is held of a job that is over, or as long as it may take."""
    deadline = time.monotonic() + IDLE_S
    while True:
        held = measure(cluster)
        busy = held["coordinator"]["jobs"] or any(row[name] for row in held["servers"].values() for name in COUNTERS)
        if not busy or time.monotonic() > deadline:
            time.sleep(0.5)  # connections that are being closed
            return measure(cluster)
        time.sleep(0.1)


def compare(base, end):
    """Sentences: what is held at the end, and was not at first."""
    found = []
    if end["coordinator"]["jobs"]:
        found.append(f"the coordinator still has {end['coordinator']['jobs']} jobs")
    most = {name: max(row[name] for row in base["servers"].values()) for name in ("resident_kib", "descriptors", "registered_bytes")}
    for name, row in [("the coordinator", end["coordinator"]), *end["servers"].items()]:
        was = base["coordinator"] if name == "the coordinator" else most
        found += [f"{name} has {row[counter]} {counter}" for counter in COUNTERS if name != "the coordinator" and row[counter]]
        for what, more in (("resident_kib", RESIDENT_MORE_KIB), ("descriptors", DESCRIPTORS_MORE), ("registered_bytes", REGISTERED_MORE)):
            if what in row and row[what] > was[what] + more:
                found.append(f"{name} has {row[what]} {what}, and had {was[what]} before the faults")
    return found
