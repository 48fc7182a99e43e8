"""A coordinator and servers on this host, that run for the whole soak."""
import os
import shutil
import subprocess
import tempfile
import time
import types

from chaoslib.cluster import Failure, ask, environment, program

UP_S = 300


class Service:
    """`with Service(build, n_servers) as service:` has what chaoslib.leftovers asks of a cluster: coordinator, servers, ask."""

    def __init__(self, build, n_servers):
        self.build, self.n_servers = build, n_servers
        self.env = {**os.environ, **environment(build)}
        self.servers, self.coordinator = {}, None

    def __enter__(self):
        self.scratch = tempfile.mkdtemp(prefix="zenps-soak.")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for member in self.members():
            member.process.terminate()
        for member in self.members():
            try:
                member.process.wait(10)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def members(self):
        return [member for member in [self.coordinator, *self.servers.values()] if member]

    def start(self):
        listening = os.path.join(self.scratch, "address")
        self.coordinator = self.daemon("the coordinator", "--roles=coordinator", "--control-listen=127.0.0.1:0", f"--control-address-file={listening}",
                                       f"--control-socket={self.scratch}/socket", f"--coordinator-min-servers={self.n_servers}")
        self.must_come("the coordinator", lambda: os.path.exists(listening) and os.path.getsize(listening) > 0)
        with open(listening) as file:
            self.address = file.read().strip()
        for i in range(self.n_servers):
            self.servers[i] = self.daemon(f"s{i}", "--roles=server", f"--control-coordinator={self.address}", f"--server-name=s{i}")
        self.must_come("the servers", lambda: len((self.ask("stats") or {"servers": []})["servers"]) == self.n_servers)

    def daemon(self, name, *options):
        with open(os.path.join(self.scratch, name.split()[-1] + ".log"), "w") as log:
            process = subprocess.Popen([program(self.build, "zenpsd"), *options, "--log-level=error"], env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=log)
        return types.SimpleNamespace(name=name, process=process)

    def must_come(self, what, is_here):
        deadline = time.monotonic() + UP_S
        while not is_here():
            self.must_run()
            if time.monotonic() > deadline:
                raise Failure(f"{what} did not come up in {UP_S} s")
            time.sleep(0.02)

    def must_run(self):
        for member in self.members():
            if member.process.poll() is not None:
                raise Failure(f"{member.name} ended with {member.process.returncode}: {self.said(member.name.split()[-1])}")

    def said(self, name):
        """The last lines of a process's log."""
        with open(os.path.join(self.scratch, name + ".log")) as log:
            return " | ".join(log.read().strip().splitlines()[-4:])

    def ask(self, what):
        """What zenpsctl says, as JSON; None when the coordinator does not answer."""
        return ask(self.build, self.env, f"unix:{self.scratch}/socket", what)
