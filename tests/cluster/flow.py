"""Measures what the links of a lab carry: plain TCP streams between hosts. Run by `lab check`, and by itself on hosts."""
import socket
import subprocess
import sys
import threading
import time

PORT = 5201
GOODPUT = 1448 / 1514  # of a link's rate: headers of Ethernet, IP and TCP with timestamps


def receive(seconds):
    """Takes streams until all have ended; prints bits per second of the first `seconds`: what drains from queues afterwards
    would count for more than the link can carry."""
    server = socket.create_server(("", PORT), backlog=256)
    server.settimeout(seconds + 20)
    print("listening", flush=True)
    n_streams = int(sys.stdin.readline())
    totals, first, last = [0] * n_streams, [None] * n_streams, [0.0] * n_streams

    def take(i, stream):
        buffer = bytearray(1 << 18)
        while n := stream.recv_into(buffer):
            now = time.monotonic()
            first[i] = first[i] or now
            if now <= min(t for t in first if t) + seconds:
                last[i] = now
                totals[i] += n

    threads = []
    for i in range(n_streams):
        stream, _ = server.accept()
        threads.append(threading.Thread(target=take, args=(i, stream)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    elapsed = max(last) - min(t for t in first if t)
    print(sum(totals) * 8 / elapsed if elapsed > 0 else 0, flush=True)


def send(address, seconds):
    with socket.create_connection((address, PORT), timeout=20) as stream:
        block, end = bytes(1 << 16), time.monotonic() + seconds
        while time.monotonic() < end:
            stream.sendall(block)


def bits(rate):
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    return None if rate == "none" else float(rate[:-4]) * units[rate[-4:]]


def measure(lab, flows, seconds):
    """Bits per second that each receiver of `flows`, a list of (from, to), takes while all send."""
    receivers = {}
    for to in sorted({to for _, to in flows}):
        receivers[to] = subprocess.Popen([lab, "exec", str(to), sys.executable, __file__, "receive", str(seconds)],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for to, receiver in receivers.items():
        receiver.stdout.readline()
        receiver.stdin.write(f"{sum(1 for _, t in flows if t == to)}\n")
        receiver.stdin.flush()
    senders = [subprocess.Popen([lab, "exec", str(source), sys.executable, __file__, "send", f"10.77.0.{to + 1}",
                                 str(seconds)]) for source, to in flows]
    for sender in senders:
        if sender.wait() != 0:
            sys.exit("lab check: a sender failed")
    return [float(receiver.communicate()[0].split()[-1]) for receiver in receivers.values()]


def check(lab, n, rate, racks, uplink, racked, seconds):
    link, leaks, slow = bits(rate), False, False

    def verdict(what, got, limit):
        nonlocal leaks, slow
        if limit is None:
            print(f"{what}: {got / 1e6:.1f} Mbit/s of payload, unshaped")
            return
        ratio = got / (limit * GOODPUT)
        leaks |= ratio > 1.1  # several receivers do not begin at quite the same time
        slow |= ratio < 0.9
        print(f"{what}: {got / 1e6:.1f} Mbit/s of payload, {ratio:.3f} of what the link can carry")

    if n < 2:
        sys.exit("lab check: one host has nobody to talk to; use `lab up 2 RATE` or more")
    last = n - 1
    if racks == 1 or uplink == "none":
        verdict("one stream", measure(lab, [(0, last)], seconds)[0], link)
        many = min(n - 1, 7)
        verdict(f"{many} hosts to one", measure(lab, [(i + 1, 0) for i in range(many)], seconds)[0], link)
        verdict("both directions at once", min(measure(lab, [(0, last), (last, 0)], seconds)), link)
    else:
        here = range(racked // racks)
        there = range(racked - racked // racks, racked)
        if len(here) > 1:
            verdict("inside a rack", measure(lab, [(here[0], here[1])], seconds)[0], link)
        pairs = list(zip(here, there))
        most = bits(uplink) if link is None else min(bits(uplink), link * len(pairs))
        verdict(f"{len(pairs)} hosts of a rack to another", sum(measure(lab, pairs, seconds)), most)
    if link is None:
        print("nothing is shaped")
    elif leaks:
        sys.exit("lab check: more got through than the shaping allows")
    else:
        print("the shaping is real" + (", but this machine is too busy to fill the links: measure later" if slow else ""))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(float(sys.argv[2]))
    elif sys.argv[1] == "send":
        send(sys.argv[2], float(sys.argv[3]))
    else:
        check(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), sys.argv[6], int(sys.argv[7]), float(sys.argv[8]))
