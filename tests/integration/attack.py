"""A stranger's ways with a coordinator: attack.py HOST:PORT WAY COUNT [SECONDS].

Each does COUNT of its kind, and ends; what is refused or closed is as good as done. The crowds alone (silent, half, ctls,
workers) end when they are killed: whichever of their connections is closed comes again. Prints one line when all have begun,
and another at the end, with how many were let in, turned away, or answered. SECONDS: the longest that connections are held.
ZPS_ATTACK_CERTS: a folder of `zenpsctl certs init`, where the coordinator speaks TLS; who says hello has a worker's then.
"""
import contextlib
import functools
import json
import os
import random
import resource
import selectors
import socket
import ssl
import sys
import time

HELLO = {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {"protocol": 12, "version": "test", "role": "worker"}}
AT_ONCE = 8  # few enough that the coordinator sends none of them away for another
host, port = sys.argv[1].rsplit(":", 1)
count = int(sys.argv[3])
hold_s = float(sys.argv[4]) if len(sys.argv) > 4 else 8
certs = os.environ.get("ZPS_ATTACK_CERTS")
PLAIN = [byte for byte in range(256) if byte not in (0x15, 0x16)]  # no first byte of TLS


def say(**counts):
    print(*(f"{key}={value}" for key, value in counts.items()), flush=True)


def connect():
    peer = socket.create_connection((host, int(port)), timeout=20)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


@functools.cache
def identity(name):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False  # who has a coordinator's certificate is one
    made.load_verify_locations(f"{certs}/ca.pem")
    made.load_cert_chain(f"{certs}/{name}.pem", f"{certs}/{name}.key")
    return made


def guarded(name="worker-worker"):
    """A connection after its handshake, as the owner of that certificate; a plain one where none are spoken of."""
    return identity(name).wrap_socket(connect()) if certs else connect()


def greeting():
    """The first bytes of a handshake."""
    outgoing = ssl.MemoryBIO()
    try:
        identity("worker-worker").wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def send(peer, data):
    """Whether the peer took it."""
    try:
        peer.sendall(data)
    except OSError:
        return False
    return True


def is_closed(peer):
    """Whether the peer has ended the connection; what it has said meanwhile is dropped."""
    peer.setblocking(False)
    try:
        while peer.recv(1 << 16):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        peer.settimeout(20)
        return False
    except OSError:
        pass
    return True


def introduced(role="worker", name="worker-worker"):
    peer = guarded(name)
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


def many(speak, begin=lambda number: connect()):
    """So many connections at once, on which speak(peer) is called again and again, until all are closed."""
    peers, begun = [], 0
    for number in range(count):
        try:
            peers.append(begin(number))
            begun += 1
        except ssl.SSLError:  # it was closed while hands were shaken
            begun += 1
        except ConnectionError:
            begun += 1
        except OSError:
            break
    say(begun=begun)
    until = time.monotonic() + hold_s
    left = peers
    while left and time.monotonic() < until:
        left = [peer for peer in left if not is_closed(peer) and speak(peer)]
        time.sleep(0.05)
    say(tried=count, closed=begun - len(left))


def idle():
    many(lambda peer: True)


def drip():
    many(lambda peer: send(peer, b"{"))


def hands():
    """Handshakes: half of one, one a byte at a time, and a whole one after which nothing is said."""
    rest = {}

    def begin(number):
        if number % 3 == 2:
            return guarded()
        peer, said = connect(), greeting()
        if number % 3 == 1:
            rest[peer] = iter(said)
        else:
            peer.sendall(said[: len(said) // 2])
        return peer

    def speak(peer):
        byte = next(rest[peer], None) if peer in rest else None
        return byte is None or send(peer, bytes([byte]))

    many(speak, begin)


def crowd(begin):
    """So many connections, each of which comes again when it is closed."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    peers, missing, n_ended, is_told = selectors.DefaultSelector(), count, 0, False
    while True:
        while missing:
            try:
                peer = begin()
            except OSError:  # nobody listens at the moment, or it was closed during its handshake
                n_ended += 1
                break
            peer.setblocking(False)
            peers.register(peer, selectors.EVENT_READ)
            missing -= 1
        if not is_told and n_ended + len(peers.get_map()) >= count:
            say(begun=count)
            is_told = True
        for key, _ in peers.select(0.01 if missing else 1):
            peer = key.fileobj
            try:
                if peer.recv(1 << 16):
                    continue
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            except OSError:
                pass
            peers.unregister(peer)
            peer.close()
            missing += 1
            n_ended += 1


def silent():
    crowd(connect)


def half():
    """The first bytes of a greeting, with which no handshake comes to its end."""
    said = greeting()[:11]

    def begin():
        peer = connect()
        peer.sendall(said)
        return peer

    crowd(begin)


def stays(role):
    """Says hello, and nothing more."""
    hello = json.dumps({**HELLO, "params": {**HELLO["params"], "role": role}}).encode() + b"\n"

    def begin():
        peer = guarded()
        peer.sendall(hello)
        return peer

    crowd(begin)


def ctls():
    stays("ctl")


def workers():
    stays("worker")


def scan():
    say(begun=count)
    for _ in range(count):
        connect().close()
    say(tried=count)


def each(data_of, is_counted, word, ends=False):
    """AT_ONCE at a time: connections that say data_of(number), and nothing more if `ends`, until the peer closes them;
    `word` counts those whose answer is_counted."""
    say(begun=count)
    peers, begun, n = selectors.DefaultSelector(), 0, 0
    while begun < count or peers.get_map():
        while begun < count and len(peers.get_map()) < AT_ONCE:
            peer = connect()
            if send(peer, data_of(begun)) and ends:
                with contextlib.suppress(OSError):  # the peer has ended it already
                    peer.shutdown(socket.SHUT_WR)
            peers.register(peer, selectors.EVENT_READ, [b""])
            begun += 1
        for key, _ in peers.select(20):
            try:
                said = key.fileobj.recv(1 << 16)
            except OSError:
                said = b""
            key.data[0] = (key.data[0] + said)[-4096:]
            if not said:
                n += is_counted(key.data[0])
                peers.unregister(key.fileobj)
                key.fileobj.close()
    say(tried=begun, **{word: n})


def junk():
    """An empty line is none, and is waited for, but where TLS is spoken."""
    first = (lambda: bytes([random.choice(PLAIN)])) if certs else (lambda: b"")
    each(lambda number: first() + os.urandom(number % 5000) + b"\n", lambda answer: b'"error"' in answer, "refused")


def broken():
    """Beginnings of handshakes with some other bytes in them, and junk behind."""

    def data_of(number):
        data = bytearray(greeting())
        for _ in range(random.randrange(8)):
            data[random.randrange(len(data))] = random.randrange(256)
        return bytes(data[: random.randrange(1, len(data))] if number % 2 else data) + os.urandom(number % 2000)

    each(data_of, lambda answer: True, "ended", ends=True)


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


def asked(role, name, method, params):
    """Calls that none with this certificate may make, each over a connection of its own."""
    say(begun=count)
    refused = 0
    line = json.dumps({"jsonrpc": "2.0", "id": 2, "method": method, "params": params}).encode() + b"\n"
    for _ in range(count):
        with introduced(role, name) as peer:
            send(peer, line)
            refused += b'"error"' in next((said for said in peer.makefile("rb") if b'"id":2' in said), b"")
    say(tried=count, refused=refused)


def admin():
    asked("ctl", "worker-worker", "drain", {"name": "s1"})


def named():
    fabric = {"provider": "net", "protocol": "p", "addr_format": "FI_SOCKADDR_IN", "domain": "d", "address": "00", "printable": "x"}
    asked("server", "server-s1", "server.register", {"name": "s2", "host": "h", "pid": 1, "fabric": fabric})


def role():
    """A worker that comes as a server."""
    say(begun=count)
    refused = 0
    for _ in range(count):
        with guarded() as peer:
            send(peer, json.dumps({**HELLO, "params": {**HELLO["params"], "role": "server"}}).encode() + b"\n")
            refused += b'"error"' in peer.makefile("rb").readline()
    say(tried=count, refused=refused)


def stats():
    peer = introduced("ctl")
    say(begun=1)
    answers, sent = 0, 0
    while answers < count:
        while sent < min(count, answers + 300):
            peer.sendall(b'{"jsonrpc":"2.0","id":3,"method":"stats","params":{}}\n')
            sent += 1
        answers += peer.recv(1 << 20).count(b"\n")
    say(tried=count, answers=answers)


ways = (idle, drip, hands, silent, half, ctls, workers, scan, junk, broken, deep, wide, long, admin, named, role, stats)
{way.__name__: way for way in ways}[sys.argv[2]]()
