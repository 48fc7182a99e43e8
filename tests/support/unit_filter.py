"""The seccomp filters that systemd makes of a unit's settings, after systemd's seccomp-util.c, one by one."""
import errno
import subprocess

import seccomp
from seccomp import ALLOW, EQ, ERRNO, GE, KILL_PROCESS, MASKED_EQ, NE, Arg

NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
FAMILY_END = 46  # AF_MAX
PROT_WRITE, PROT_EXEC, SHM_EXEC = 2, 4, 0o100000
O_CREAT, SET_ID_BITS = 0o100, (0o4000, 0o2000)
# System calls that settings deny beside their other effects.
DENIED = {"ProtectClock": ["@clock"], "ProtectHostname": ["sethostname", "setdomainname"], "ProtectKernelLogs": ["syslog"],
          "ProtectKernelModules": ["@module"], "ProtectKernelTunables": ["_sysctl"], "PrivateDevices": ["@raw-io"]}


def expand(name):
    """A group's system calls, as the systemd that is installed here lists them; a call is itself."""
    if not name.startswith("@"):
        return {name}
    text = subprocess.run(["systemd-analyze", "syscall-filter", name], check=True, capture_output=True, text=True).stdout
    calls = set()
    for line in text.splitlines():
        if line.startswith("    ") and not line.strip().startswith("#"):
            calls |= expand(line.strip())
    return calls


def allowed(lines):
    """SystemCallFilter= as a set: the first line decides that it lists what is allowed; later ones add, with ~ take away."""
    calls = None
    for line in lines:
        deny, names = line.startswith("~"), line.lstrip("~").split()
        if calls is None:
            if deny:
                raise ValueError(f"SystemCallFilter={line}: a list that starts with what is forbidden is not handled here")
            calls = expand("@default")
        for name in names:
            if name.startswith("~") or ":" in name:
                raise ValueError(f"SystemCallFilter={line}: '{name}' is not handled here")
            calls = calls - expand(name) if deny else calls | expand(name)
    return calls


def known(name):
    """Lists have names of all architectures."""
    return seccomp.resolve_syscall(seccomp.Arch(), name) >= 0


class Deny:
    """A filter that allows all but what is added to it."""

    def __init__(self):
        self.filter = seccomp.SyscallFilter(ALLOW)

    def add(self, call, *args, error=errno.EPERM):
        if known(call):
            self.filter.add_rule_exactly(ERRNO(error), call, *args)


def calls(names):
    deny = Deny()
    for name in set().union(*(expand(name) for name in names)):
        deny.add(name)
    return deny.filter


def write_execute():
    deny = Deny()
    both = PROT_WRITE | PROT_EXEC
    deny.add("mmap", Arg(2, MASKED_EQ, both, both))
    for call in ("mprotect", "pkey_mprotect"):
        deny.add(call, Arg(2, MASKED_EQ, PROT_EXEC, PROT_EXEC))
    deny.add("shmat", Arg(2, MASKED_EQ, SHM_EXEC, SHM_EXEC))
    return deny.filter


def families(names):
    deny = Deny()
    numbers = {FAMILIES[name] for name in names}
    for family in range(FAMILY_END):
        if family not in numbers:
            deny.add("socket", Arg(0, EQ, family), error=errno.EAFNOSUPPORT)
    deny.add("socket", Arg(0, GE, FAMILY_END), error=errno.EAFNOSUPPORT)
    return deny.filter


def namespaces():
    deny = Deny()
    deny.add("clone3", error=errno.ENOSYS)  # its flags are behind a pointer: the C library goes back to clone()
    deny.add("setns", Arg(1, EQ, 0))
    for flag in NAMESPACES:
        deny.add("clone", Arg(0, MASKED_EQ, flag, flag))
        deny.add("unshare", Arg(0, MASKED_EQ, flag, flag))
        deny.add("setns", Arg(1, MASKED_EQ, flag, flag))
    return deny.filter


def realtime():
    deny = Deny()
    for policy in (1, 2, 6):  # FIFO, RR, DEADLINE
        deny.add("sched_setscheduler", Arg(1, EQ, policy))
    deny.add("sched_setattr")
    return deny.filter


def set_id_bits():
    deny = Deny()
    for bit in SET_ID_BITS:
        for call, arg in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mkdir", 1), ("mkdirat", 2), ("mknod", 1), ("mknodat", 2),
                          ("creat", 1)):
            deny.add(call, Arg(arg, MASKED_EQ, bit, bit))
        for call, arg in (("open", 1), ("openat", 2)):
            deny.add(call, Arg(arg, MASKED_EQ, O_CREAT, O_CREAT), Arg(arg + 1, MASKED_EQ, bit, bit))
    deny.add("openat2", error=errno.ENOSYS)
    return deny.filter


def personality():
    deny = Deny()
    deny.add("personality", Arg(0, NE, 0))
    return deny.filter


def system_calls(lines, error):
    """`error`: of what is not in the list; None: it kills the process."""
    wanted = seccomp.SyscallFilter(KILL_PROCESS if error is None else ERRNO(error))
    for name in allowed(lines):
        if known(name):
            wanted.add_rule(ALLOW, name)
    return wanted


def filters(unit):
    """Those of a unit, in the order of loading: the list of system calls last, as it may forbid to load more."""
    made = []
    if unit.all("RestrictAddressFamilies"):
        made.append(families(" ".join(unit.all("RestrictAddressFamilies")).split()))
    for key, make in (("MemoryDenyWriteExecute", write_execute), ("RestrictRealtime", realtime), ("RestrictSUIDSGID", set_id_bits),
                      ("RestrictNamespaces", namespaces), ("LockPersonality", personality)):
        if unit.yes(key):
            made.append(make())
    denied = [name for key, names in DENIED.items() if unit.yes(key) for name in names]
    if denied:
        made.append(calls(denied))
    if unit.get("SystemCallArchitectures", "native") != "native":
        raise ValueError("SystemCallArchitectures= other than native is not handled here")
    if unit.all("SystemCallFilter"):
        number = unit.get("SystemCallErrorNumber", "kill")
        made.append(system_calls(unit.all("SystemCallFilter"), None if number in ("", "kill") else getattr(errno, number)))
    return made
