"""Run in place of a confined daemon: tries what its unit forbids, and prints a line for each thing that is possible all the
same. The caller sets SystemCallErrorNumber=EXFULL, which no system call fails with by itself. With the argument `root`, also
what only root can put into force."""
import ctypes
import errno
import mmap
import os
import socket
import sys


def fails(number, function, *args):
    try:
        function(*args)
    except OSError as error:
        return error.errno == number
    return False


def libc(name, *args):
    if ctypes.CDLL(None, use_errno=True)[name](*args) < 0:
        raise OSError(ctypes.get_errno(), name)


def status(key):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(line.split()[1] for line in file if line.startswith(key + ":"))


def unreadable(path):
    return not os.path.exists(path) or fails(errno.EACCES, os.listdir, path)


def everywhere():
    mine = f"/tmp/zenps-held-{os.getpid()}"
    yield "NoNewPrivileges", status("NoNewPrivs") == "1"
    yield "SystemCallFilter", status("Seccomp") == "2"
    yield "SystemCallFilter: mount", fails(errno.EXFULL, libc, "mount", b"x", b"/", b"tmpfs", 0, None)
    yield "SystemCallFilter: chroot", fails(errno.EXFULL, os.chroot, "/")
    yield "SystemCallFilter: chown", fails(errno.EXFULL, os.chown, "/", -1, -1)
    yield "RestrictAddressFamilies", fails(errno.EAFNOSUPPORT, socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
    yield "RestrictNamespaces", fails(errno.EPERM, libc, "unshare", 0x10000000)
    yield "LockPersonality", fails(errno.EPERM, libc, "personality", 0x0040000)
    yield "MemoryDenyWriteExecute", fails(errno.EPERM, mmap.mmap, -1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                                          mmap.PROT_WRITE | mmap.PROT_EXEC)
    yield "UMask", os.umask(0o022) == 0o077
    yield "allowed: processors", os.sched_setaffinity(0, os.sched_getaffinity(0)) is None
    with open(mine, "w", encoding="ascii"):
        yield "RestrictSUIDSGID", fails(errno.EPERM, os.chmod, mine, 0o4700)
    os.unlink(mine)


def as_root():
    yield "DynamicUser", os.getuid() == os.geteuid() >= 61184 and os.getgroups() in ([], [os.getgid()])
    yield "CapabilityBoundingSet", int(status("CapBnd"), 16) == int(status("CapPrm"), 16) == int(status("CapAmb"), 16) == 0
    yield "ProtectSystem", all(fails(errno.EROFS, os.open, path + "/x", os.O_CREAT) for path in ("/usr", "/etc", "/var/lib"))
    yield "ProtectControlGroups", not os.access("/sys/fs/cgroup", os.W_OK)
    yield "ProtectHome", unreadable("/root") and unreadable("/home")
    yield "ProtectKernelModules", unreadable("/usr/lib/modules")
    yield "PrivateTmp", os.listdir("/tmp") == [] and os.listdir("/var/tmp") == []
    yield "PrivateDevices", not any(name.startswith(("sd", "vd", "mem", "kmsg", "loop")) for name in os.listdir("/dev"))
    yield "ProcSubset", not os.path.exists("/proc/meminfo")
    yield "ProtectProc", not os.path.exists("/proc/1")
    with open("/proc/self/uid_map", encoding="ascii") as file:
        yield "PrivateUsers", len(file.read().splitlines()) == 2


for name, held in [*everywhere(), *(as_root() if "root" in sys.argv else [])]:
    if not held:
        print(f"not in force: {name}")
print("looked")
