"""A stranger's ways with a coordinator: attack.py HOST:PORT WAY COUNT.

Each does COUNT of its kind, and ends; what is refused or closed is as good as done. Prints one line when all have begun,
and another at the end, with how many were let in, turned away, or answered.
"""
import json
import os
import select
import selectors
import socket
import sys
import time

HELLO = {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {"protocol": 7, "version": "test", "role": "worker"}}
AT_ONCE = 8  # the coordinator has room for 16 of an address that have not said hello
host, port = sys.argv[1].rsplit(":", 1)
count = int(sys.argv[3])


def say(**counts):
    print(*(f"{key}={value}" for key, value in counts.items()), flush=True)


def connect():
    return socket.create_connection((host, int(port)), timeout=20)


def send(peer, data):
    """Whether the peer took it."""
    try:
        peer.sendall(data)
    except OSError:
        return False
    return True


def is_closed(peer):
    """Whether the peer has ended the connection; what it has said meanwhile is dropped."""
    try:
        while peer.recv(1 << 16, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def introduced(role="worker"):
    peer = connect()
    peer.sendall(json.dumps({**HELLO, "params": {**HELLO["params"], "role": role}}).encode() + b"\n")
    peer.makefile("rb").readline()
    return peer


def end_of(peer):
    """The last line that the peer sends before it closes the connection."""
    last = b""
    try:
        for line in peer.makefile("rb"):
            last = line
    except OSError:
        pass
    return last


def many(speak, seconds=8):
    """So many connections at once, on which speak(peer) is called again and again, until all are closed."""
    peers = []
    for _ in range(count):
        try:
            peers.append(connect())
        except OSError:
            break
    say(begun=len(peers))
    until = time.monotonic() + seconds
    left = peers
    while left and time.monotonic() < until:
        left = [peer for peer in left if not is_closed(peer) and speak(peer)]
        time.sleep(0.05)
    say(tried=count, closed=len(peers) - len(left))


def idle():
    many(lambda peer: True)


def drip():
    many(lambda peer: send(peer, b"{"))


def scan():
    say(begun=count)
    for _ in range(count):
        connect().close()
    say(tried=count)


def junk():
    """AT_ONCE at a time: an empty line is none, and is waited for."""
    say(begun=count)
    peers, begun, refused = selectors.DefaultSelector(), 0, 0
    while begun < count or peers.get_map():
        while begun < count and len(peers.get_map()) < AT_ONCE:
            peer = connect()
            send(peer, os.urandom(begun % 5000) + b"\n")
            peers.register(peer, selectors.EVENT_READ, [b""])
            begun += 1
        for key, _ in peers.select(20):
            try:
                said = key.fileobj.recv(1 << 16)
            except OSError:
                said = b""
            key.data[0] = (key.data[0] + said)[-4096:]
            if not said:
                refused += b'"error"' in key.data[0]
                peers.unregister(key.fileobj)
                key.fileobj.close()
    say(tried=begun, refused=refused)


def lines(line):
    """Lines that are not what they should be, of peers that have said hello."""
    say(begun=count)
    refused = 0
    for _ in range(count):
        with introduced() as peer:
            send(peer, line + b"\n")
            refused += b'"error"' in end_of(peer)
    say(tried=count, refused=refused)


def deep():
    lines(b'{"jsonrpc":"2.0","id":2,"method":"job.join","params":' + b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"}")


def wide():
    lines(b'{"jsonrpc":"2.0","id":2,"method":"job.join","params":{"a":[' + b"[]," * 1000000 + b"[]]}}")


def long():
    lines(b'{"jsonrpc":"2.0","id":2,"method":"' + b"x" * (5 << 20))


def stats():
    peer = introduced("ctl")
    say(begun=1)
    answers, sent = 0, 0
    while answers < count:
        _, writable, _ = select.select([peer], [peer] if sent < answers + 300 and sent < count else [], [])
        if writable:
            peer.sendall(b'{"jsonrpc":"2.0","id":3,"method":"stats","params":{}}\n')
            sent += 1
            continue
        answers += peer.recv(1 << 20).count(b"\n")
    say(tried=count, answers=answers)


{"idle": idle, "drip": drip, "scan": scan, "junk": junk, "deep": deep, "wide": wide, "long": long, "stats": stats}[sys.argv[2]]()
