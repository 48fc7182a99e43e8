"""A trainer in Python: its signals' actions in the kernel are the same before and after libzenps is loaded, opened, closed."""
import ctypes
import faulthandler
import os
import signal
import sys
import time

libc = ctypes.CDLL(None)
before = {}


def actions():
    found = {}
    for number in range(1, 65):
        buffer = ctypes.create_string_buffer(256)  # struct sigaction, and more
        if libc.sigaction(number, None, buffer) == 0:
            flags = int.from_bytes(buffer.raw[136:140], sys.byteorder) & ~0x04000000  # SA_RESTORER is libc's affair
            found[number] = buffer.raw[:16], flags  # handler and mask of 64 signals
    return found


def caught():
    """As the kernel has it, without the two signals that libc uses for threads."""
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("SigCgt")).split()[1], 16) & ~(3 << 31)


def compare(what):
    now = actions(), caught()
    changed = [number for number in before[0] if now[0][number] != before[0][number]]
    print(f"changed {what}: {changed}, {before[1]:x} -> {now[1]:x}" if now != before else f"ok {what}", flush=True)


faulthandler.enable()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
before = actions(), caught()
zenps = ctypes.CDLL(sys.argv[1])
compare("loaded")
if sys.argv[2] == "wait":
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        print("ok interrupted", flush=True)
    time.sleep(60)
zenps.zenps_last_error.restype = ctypes.c_char_p
job = ctypes.c_void_p()
if zenps.zenps_open(None, ctypes.byref(job)) != 0:
    sys.exit(f"zenps_open: {zenps.zenps_last_error().decode()}")
compare("open")
zenps.zenps_close(job)
compare("closed")
