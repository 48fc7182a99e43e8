#!/usr/bin/env bash
# The network of tests/cluster/wan itself: delay, loss, rate, cut links, NAT, and the things that it leaves behind.
. "$(dirname "$0")/../support/tap.sh"
wan=$top/tests/cluster/wan
export WAN_NAME=w$(($$ % 1000000)) ZPS_TOP_BUILDDIR=$build
trap '"$wan" down; tap_end' EXIT
if ! why=$("$wan" allowed); then
  skip "hosts that the internet joins" "$why"
  done_testing
  exit
fi
cat >"$scratch/peer.py" <<'END'
"""peer.py echo | send ADDRESS N | trip ADDRESS N | dial ADDRESS SECONDS: datagrams and connections at port 9."""
import socket
import sys
import time

what, *rest = sys.argv[1:]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if what == "echo":
    udp.bind(("", 9))
    tcp = socket.create_server(("", 9))
    print("up", flush=True)
    while True:
        data, peer = udp.recvfrom(2000)
        udp.sendto(peer[0].encode() + b" " + data, peer)
elif what == "send":
    for i in range(int(rest[1])):
        udp.sendto(bytes(100), (rest[0], 9))
elif what == "trip":  # milliseconds of the shortest round trip, and the address that the other end has seen
    udp.settimeout(300)
    times = []
    for i in range(int(rest[1])):
        began = time.monotonic()
        udp.sendto(b"%d" % i, (rest[0], 9))
        seen, number = udp.recv(2000).split()
        assert int(number) == i
        times.append(1000 * (time.monotonic() - began))
    print(f"{min(times):.3f} {seen.decode()}")
elif what == "dial":
    socket.create_connection((rest[0], 9), timeout=float(rest[1])).close()
END
on() { # HOST WHAT...
  local host=$1
  shift
  "$wan" exec "$host" python3 "$scratch/peer.py" "$@"
}
count() { # HOST out|in COLUMN: 1 packets, 2 bytes, 3 lost, 4 dropped
  "$wan" stat | sed -nE "s/^$WAN_NAME-$1 .*\b$2 packets ([0-9]+) bytes ([0-9]+) lost ([0-9]+) dropped ([0-9]+).*/\\$3/p"
}
arrived() { # HOST: packets, as its kernel counts them
  nsenter --net="/run/netns/$WAN_NAME-$1" awk '$1 == "tun0:" { print $3 }' /proc/self/net/dev
}
echo_on() { # HOST
  "$wan" exec "$1" python3 "$scratch/peer.py" echo >"$scratch/echo.$1" 2>&1 &
  disown
  until_true grep -q up "$scratch/echo.$1"
}
at_least() { awk -v got="$1" -v least="$2" 'BEGIN { exit !(got >= least) }'; }
refused() { ! "$@"; }
network() { # SEED: s is near, a and b are far away, b behind NAT
  "$wan" up "$1" && "$wan" host s && "$wan" host a delay=20 && "$wan" host b nat=yes delay=30
}

mkdir "$scratch/loud"
printf '#!/bin/sh\necho "nft: warning" >&2\nexec %s "$@"\n' "$(command -v nft)" >"$scratch/loud/nft"
chmod +x "$scratch/loud/nft"
ip netns add "$WAN_NAME-0"
ok "a warning, and a namespace of a killed process, are no obstacles" env PATH="$scratch/loud:$PATH" "$wan" allowed
is "and nothing is said" "$(cat "$scratch/out")" ""
ok "a network" network 7
said "its hosts have addresses" '^198.51.100.3$'
ok "an echo" echo_on s
read -r ms seen < <(on a trip 198.51.100.1 5)
ok "a round trip takes the delay twice at least ($ms ms)" at_least "$ms" 40
is "a host without NAT is seen as it is" "$seen" 198.51.100.2
read -r ms seen < <(on b trip 198.51.100.1 5)
ok "that of another host takes its own delay ($ms ms)" at_least "$ms" 60
is "one behind NAT is seen as its NAT" "$seen" 198.51.100.3
ok "another host behind NAT" "$wan" host c nat=yes delay=30
private() { "$wan" exec "$1" ip -o -4 addr show eth0 | awk '{ print $4 }'; }
is "has the same private address" "$(private b) $(private c)" "10.0.0.2/24 10.0.0.2/24"
read -r ms seen < <(on c trip 198.51.100.1 1)
is "and another public one" "$seen" 198.51.100.4
ok "an echo behind NAT" echo_on b
ok "lets nobody in" refused on s dial 198.51.100.3 2
neighbour() { # s gets a wire to the NAT of b, and a route to its private address
  ip -n "$WAN_NAME-s" link add wire type veth peer name wire netns "$WAN_NAME-b-nat" &&
    ip -n "$WAN_NAME-s" addr add 192.0.2.1/24 dev wire && ip -n "$WAN_NAME-b-nat" addr add 192.0.2.2/24 dev wire &&
    ip -n "$WAN_NAME-s" link set wire up && ip -n "$WAN_NAME-b-nat" link set wire up &&
    ip -n "$WAN_NAME-s" route add 10.0.0.2 via 192.0.2.2
}
ok "a neighbour with a route to the private address" neighbour
ok "is not let in" refused on s dial 10.0.0.2 2
ok "without its guard" nsenter --net="/run/netns/$WAN_NAME-b-nat" nft delete table ip guard
ok "it would be" on s dial 10.0.0.2 300
ip -n "$WAN_NAME-s" link del wire
ok "but dials out" on b dial 198.51.100.1 300

# A packet is delivered, or counted as lost. The same seed loses the same number.
lossy() { # SEED
  network "$1" && "$wan" set a loss=20 && on a send 198.51.100.1 2000 &&
    until_true eval '[ "$(count a out 1)" = 2000 ]' && lost=$(count a out 3) &&
    until_true eval '[ "$(arrived s)" = $((2000 - lost)) ]'
}
ok "a link that loses packets" lossy 11
ok "loses some of them ($lost of 2000)" [ "$lost" -gt 200 -a "$lost" -lt 800 ]
is "all others arrive" "$(count s in 1) $(arrived s)" "$((2000 - lost)) $((2000 - lost))"
first=$lost former=$(cat "/run/zenps-wan/$WAN_NAME/pid")
kill -STOP "$former"
ok "another network of the same seed, in the place of one whose hub hangs" lossy 11
is "loses as many" "$lost" "$first"
kill -CONT "$former" 2>/dev/null
ok "the former hub is gone" until_true eval '! grep -q wan-hub "/proc/$former/cmdline" 2>/dev/null'
ok "and the new one answers" "$wan" stat
"$wan" set a loss=100
on a send 198.51.100.1 50
ok "with 100% all are lost" until_true eval '[ "$(count a out 3)" = $((lost + 50)) ]'
"$wan" set a loss=0 up=no
on a send 198.51.100.1 50
ok "over a cut link all are dropped" until_true eval '[ "$(count a out 4)" = 50 ]'
"$wan" set a up=yes

# 500 packets of 128 bytes at 0.256 Mbit/s take two seconds.
"$wan" set a rate=0.256
before=$(count s in 1) began=$(date +%s%N)
on a send 198.51.100.1 500
ok "all pass a slow link" until_true eval '[ "$(count s in 1)" = $((before + 500)) ]'
ok "and no faster than it is" [ $((($(date +%s%N) - began) / 1000000)) -ge 1990 ]

ok "an echo on this network" echo_on s
ok "a link carries that was cut" on a trip 198.51.100.1 1

ok "an unknown key is refused" refused "$wan" set a speed=3
said "and says what would be right" 'must be delay=MS, loss=0..100, rate=BITS_PER_SECOND, up=yes or up=no'
ok "a host that is there is not made again" refused "$wan" host a
ok "a host is removed" "$wan" remove b
left() { ip netns list | awk '{ print $1 }' | grep -c "^$WAN_NAME-$1"; }
is "with its NAT" "$(left b)" 0
ok "the network is taken down" "$wan" down
is "nothing is left" "$(left '')" 0
done_testing
