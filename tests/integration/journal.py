"""The daemon's log where stderr is systemd's journal: run as root of a mount namespace, with an empty folder at /run.

Plays the journal: a datagram socket for entries, and a stream for stderr, whose device and inode are in JOURNAL_STREAM.
Says one line per expectation, "ok ..." or "not met ...".
"""
import json
import os
import signal
import socket
import subprocess
import sys

sys.stdout.reconfigure(line_buffering=True)
os.makedirs("/run/systemd/journal")


def run(journal, *flags, named=True):
    """A daemon that comes up and is told to stop. Returns its entries and its lines on stderr."""
    entries = None
    if journal:
        entries = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        entries.bind("/run/systemd/journal/socket")
    ours, theirs = socket.socketpair()
    about = os.fstat(theirs.fileno())
    environment = dict(os.environ)
    environment["JOURNAL_STREAM"] = f"{about.st_dev}:{about.st_ino + (not named)}"
    daemon = subprocess.Popen(["zenpsd", "--control-listen=127.0.0.1:0", "--fabric-interface=lo", *flags], stderr=theirs, env=environment)
    theirs.close()
    taken, lines = [], b""
    ours.settimeout(60)
    is_up = False
    if journal:
        entries.settimeout(60)
        while not is_up and "--log-format=json" not in flags:
            taken.append(fields(entries.recv(65536)))
            is_up = "registered" in taken[-1]["MESSAGE"]
    while not is_up:
        lines += ours.recv(65536)
        is_up = b"registered" in lines
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(60)
    while part := ours.recv(65536):
        lines += part
    if journal:
        entries.setblocking(False)
        try:
            while True:
                taken.append(fields(entries.recv(65536)))
        except BlockingIOError:
            pass
        entries.close()
        os.unlink("/run/systemd/journal/socket")
    return taken, lines.decode().splitlines()


def fields(entry):
    return dict(line.split("=", 1) for line in entry.decode().splitlines())


def expect(what, is_met, shown):
    print(f"ok {what}" if is_met else f"not met: {what}: {shown}")


taken, lines = run(True)
expect("text comes as entries, none on stderr", taken and not lines, lines)
wanted = {"PRIORITY", "MESSAGE", "ZENPS_COMPONENT", "SYSLOG_IDENTIFIER"}
subjects = {"ZENPS_SERVER", "ZENPS_PEER", "ZENPS_CODE"}
expect("with these fields", all(wanted <= set(entry) <= wanted | subjects for entry in taken), taken)
server = [entry for entry in taken if "is in:" in entry["MESSAGE"]]
expect("and the subject's", [entry["ZENPS_SERVER"] for entry in server] == [socket.gethostname()] and "ZENPS_PEER" in server[0], taken)
expect("of zenpsd", all(entry["SYSLOG_IDENTIFIER"] == "zenpsd" for entry in taken), taken)
drain = [entry for entry in taken if "draining" in entry["MESSAGE"]]
expect("with component and priority", [(entry["ZENPS_COMPONENT"], entry["PRIORITY"]) for entry in drain] == [("zenpsd", "6")], taken)
expect("and the component in the text", [entry["MESSAGE"] for entry in drain] == ["zenpsd: signal 15: draining"], drain)

taken, lines = run(True, "--log-format=json")
expect("JSON comes on stderr, with priorities", not taken and all(line.startswith("<6>{") for line in lines), (taken, lines))
expect("and can be read", {"time", "level", "component", "text"} == set(json.loads(lines[0][3:])), lines[0])

taken, lines = run(False)
expect("without the journal's socket text is on stderr", lines and all(line.startswith("<6>") for line in lines), lines)

taken, lines = run(True, "--log-format=json", named=False)
expect("a log that was redirected has no priorities", all(line.startswith("{") for line in lines), lines)
