"""Cuts TCP connections of running processes: cut.py PID[,PID...] SPARED_PORT [TIMES [SECONDS]].

All connections of the processes are cut, TIMES times, SECONDS apart, but those from or to SPARED_PORT (the coordinator's).
What was under way on them is lost. Every second one ends with a reset, where the kernel allows that (INET_DIAG_DESTROY) and
`ss` is there; the others end as if both ends had closed them. The last line has the number of cuts. Needs root.
"""
import ctypes
import errno
import os
import random
import shutil
import socket
import subprocess
import sys
import time

PIDFD_GETFD = 438  # one number on all processors
SYSCALL = ctypes.CDLL(None, use_errno=True).syscall


def duplicate(pidfd: int, fd: int) -> int:
    """A descriptor of ours for theirs."""
    ours = int(SYSCALL(PIDFD_GETFD, pidfd, fd, 0))
    if ours < 0:
        raise OSError(ctypes.get_errno(), f"descriptor {fd} of another process")
    return ours


def is_data(connection: socket.socket, spared: int) -> bool:
    """An established TCP connection that has nothing to do with the spared port."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    try:
        return spared not in (connection.getpeername()[1], connection.getsockname()[1])
    except OSError:
        return False


def reset(pid: int, connection: socket.socket) -> None:
    here, there = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in
                   (connection.getsockname()[:2], connection.getpeername()[:2]))
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "ss", "-K", "-tn", f"src = {here} and dst = {there}"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def cut(pid: int, spared: int) -> int:
    """Cuts all that the process has. Returns their number; 0 where it has ended."""
    n = 0
    try:
        pidfd = os.pidfd_open(pid)
        fds = [int(name) for name in os.listdir(f"/proc/{pid}/fd")]
    except (ProcessLookupError, FileNotFoundError):
        return 0
    may_reset = shutil.which("ss") is not None and shutil.which("nsenter") is not None
    for fd in fds:
        try:
            if not os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:"):
                continue
            with socket.socket(fileno=duplicate(pidfd, fd)) as connection:
                if not is_data(connection, spared):
                    continue
                if may_reset and random.random() < 0.5:
                    reset(pid, connection)
                n += 1
                connection.shutdown(socket.SHUT_RDWR)
        except OSError as error:  # it has been closed meanwhile, or is reset
            if error.errno not in (errno.ENOENT, errno.EBADF, errno.ESRCH, errno.ENOTCONN):
                raise
    os.close(pidfd)
    return n


def main() -> None:
    pids = [int(pid) for pid in sys.argv[1].split(",")]
    spared, times = int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1
    n = 0
    for turn in range(times):
        n += sum(cut(pid, spared) for pid in pids)
        if turn < times - 1:
            time.sleep(float(sys.argv[4]) if len(sys.argv) > 4 else 1)
    print(f"cuts={n}")


if __name__ == "__main__":
    main()
