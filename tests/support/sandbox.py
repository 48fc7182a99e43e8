"""What the kernel offers to confine a process, as far as the C library has it and Python does not: namespaces, mounts,
capabilities. tests/support/confined runs systemd's unit with it, tests/support/pod a pod."""
import ctypes
import os
import stat

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x20000, 0x4000000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
SYS_MOUNT_SETATTR, AT_RECURSIVE, AT_FDCWD, MOUNT_ATTR_RDONLY = 442, 0x8000, -100, 1

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as last_file:  # the own /proc of a process may lack it
    CAP_LAST = int(last_file.read())


def check(result, what):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags):
    check(libc.unshare(flags), "unshare")


def prctl(option, arg=0):
    return libc.prctl(option, *(ctypes.c_ulong(value) for value in (arg, 0, 0, 0)))


def mount(source, target, kind, flags=0, options=None):
    text = [value.encode() if value is not None else None for value in (source, target, kind)]
    check(libc.mount(*text, ctypes.c_ulong(flags), options.encode() if options else None), f"mount {kind} on {target}")


def tmpfs(target, mode, flags=0):
    """An empty file system in place of a folder; a folder that is not there needs none."""
    if os.path.isdir(target):
        mount("tmpfs", target, "tmpfs", flags | MS_NOSUID | MS_NODEV, f"mode={mode}")


def bind(source, target):
    mount(source, target, None, MS_BIND | MS_REC)


def set_readonly(target, readonly):
    """Of a mount and all below it."""
    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]
    wanted = Attributes(*((MOUNT_ATTR_RDONLY, 0) if readonly else (0, MOUNT_ATTR_RDONLY)), 0, 0)
    check(libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, ctypes.byref(wanted),
                       ctypes.c_size_t(ctypes.sizeof(wanted))), f"mount_setattr {target}")


def own_mounts(flags=0):
    """What is mounted from here on, nobody else sees."""
    unshare(CLONE_NEWNS | flags)
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def few_devices():
    """/dev with what every program may expect, and no hardware."""
    nodes = {name: os.stat(f"/dev/{name}").st_rdev for name in ("null", "zero", "full", "random", "urandom", "tty")}
    shm = os.open("/dev/shm", os.O_PATH)
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755")
    for name, device in nodes.items():
        os.mknod(f"/dev/{name}", 0o666 | stat.S_IFCHR, device)
        os.chmod(f"/dev/{name}", 0o666)
    os.mkdir("/dev/shm")
    bind(f"/proc/self/fd/{shm}", "/dev/shm")
    os.close(shm)


def expose(source, target):
    """`source` at `target`, which is made: in a file system of our own."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    bind(source, target)


def own_users(uid, gid):
    """A user namespace that knows root and one user. Another process writes the maps: we have lost the right to."""
    ours, theirs = os.pipe(), os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.read(ours[0], 1)
        for name, number in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{parent}/{name}", "w", encoding="ascii") as file:
                file.write(f"0 0 1\n{number} {number} 1\n")
        os.write(theirs[1], b"x")
        os._exit(0)
    unshare(CLONE_NEWUSER)
    os.write(ours[1], b"x")
    os.waitpid(child, 0)
    for end in (*ours, *theirs):
        os.close(end)


def drop_capabilities():
    for capability in range(CAP_LAST + 1):
        check(prctl(PR_CAPBSET_DROP, capability), f"dropping capability {capability}")
    check(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL), "clearing ambient capabilities")


def become(uid, gid, groups=()):
    """`groups` None: those that there are."""
    if groups is not None:
        os.setgroups(list(groups))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def no_new_privileges():
    check(prctl(PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")


def open_program(path):
    """A program that can be executed (os.execve) though its path is hidden; libtool's wrapper is looked through."""
    with open(path, "rb") as file:
        if file.read(2) == b"#!":
            path = os.path.join(os.path.dirname(path), ".libs", os.path.basename(path))
    return os.open(path, os.O_RDONLY)
