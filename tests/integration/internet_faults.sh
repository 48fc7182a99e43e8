#!/usr/bin/env bash
# What the internet does to peers: paths with small packets, NATs that forget idle connections, clocks that are wrong,
# certificates that end during a run, peers that hardly read. Ranks and a server, encrypted, in the network of tests/cluster/wan.
. "$(dirname "$0")/../support/tap.sh"
wan=$top/tests/cluster/wan
export WAN_NAME=f$(($$ % 1000000)) ZPS_TOP_BUILDDIR=$build
trap '"$wan" down; tap_end' EXIT
if ! why=$("$wan" allowed); then
  skip "peers over the internet" "$why"
  done_testing
  exit
fi
unset ZENPS_CONTROL_DEAD ZENPS_COORDINATOR_RESTART_GRACE ZENPS_JOIN_TIMEOUT ZENPS_ROUND_TIMEOUT ZENPS_INTERFACE
faketime=$(ls /usr/lib/*/faketime/libfaketime.so.1 2>/dev/null | head -n 1)
server=$("$wan" up 5 && "$wan" host s)
ok "a server" [ -n "$server" ]
for host in a b; do ok "host $host behind NAT" "$wan" host $host nat=yes delay=10; done
certs=$scratch/certs
ok "certificates" zenpsctl certs init "$certs" --coordinators=s --workers=team
export ZENPS_TLS_CA=$certs/ca.pem ZENPS_COORDINATOR=$server:7077 ZENPS_PROFILE=internet ZENPS_WORLD_SIZE=2
as() { export ZENPS_TLS_CERT=$certs/$1.pem ZENPS_TLS_KEY=$certs/$1.key; }
as coordinator-s
"$wan" exec s zenpsd --control-listen="$server:7077" 2>"$scratch/zenpsd" &
disown
until_true grep -q 'listening at' "$scratch/zenpsd"
as worker-team
start() { # HOST RANK COMMAND...: its output goes to $scratch/HOST
  local host=$1
  export ZENPS_RANK=$2
  shift 2
  "$wan" exec "$host" timeout 600 "$@" >"$scratch/$host" 2>&1 &
}
both() { # COMMAND...: of both ranks
  start a 0 "$@"
  local first=$!
  start b 1 "$@"
  wait $first && wait $! && cat "$scratch/a" "$scratch/b" >"$scratch/out" || { cat "$scratch/a" "$scratch/b" && return 1; }
}
marked=$build/tests/integration/marked
nat() { nsenter --net="/run/netns/$WAN_NAME-$1-nat" "${@:2}"; } # HOST COMMAND...

# A path of which one hop takes no packets over 1,280 bytes.
nat a ip link set tun0 mtu 1280
ok "rounds over a path of small packets" both zenps-perf --verify --steps 5 --rows 1000000 --density 0.05
ok "which the host has learned of" grep -q 'mtu 1280' <("$wan" exec a ip route get "$server")
nat a ip link set tun0 mtu 1500

# A NAT that forgets a connection after 25 s without packets, and takes none up again. Keepalives spare idle ones that.
nat a sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=25 net.netfilter.nf_conntrack_tcp_loose=0
ports() { "$wan" exec a ss -Htn state established dst "$server" dport != 7077 | awk '{ print $3 }' | sort | xargs; }
all_there() { [ "$(ports | wc -w)" -ge 8 ]; } # as profile internet has them
seen() { [ "$(grep -cs "^step $1\$" "$scratch/a")" = 1 ]; }
export ZENPS_JOB=idle
start a 0 "$marked" 3 45
first=$!
start b 1 "$marked" 3 45
ok "a round" until_true seen 1
ok "it has eight connections" until_true all_there
before=$(ports)
ok "another one, 45 s later" until_true seen 2
is "the same connections carry it" "$(ports)" "$before"
kill $first $!
wait $first $!
unset ZENPS_JOB
nat a sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=432000

# Clocks. A rank says what its own clock shows.
fails() { # NAME PATTERN HOST COMMAND...
  ok "$1" until_true false_of "${@:3}"
  cp "$scratch/$3" "$scratch/out"
  said "$1: why" "$2"
}
false_of() { start "$1" 0 "${@:2}" && ! wait $!; }
if [ -n "$faketime" ]; then
  clock() { env LD_PRELOAD="$faketime" FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME="$@"; }
  fails "a rank whose clock is 20 years ahead" "worker-team.pem .*: expired at 20[0-9: -]* UTC: this host's clock says 20[4-9]" a \
    env LD_PRELOAD="$faketime" FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME=+20y "$marked" 1
  ok "a certificate of somebody whose clock is" clock +20y zenpsctl certs init "$certs" --workers=early
  as worker-early
  fails "a rank with that one" "worker-early.pem .*: is not valid before 20[4-9][0-9: -]* UTC: this host's clock says 20" a "$marked" 1

  # A certificate that ends during a run. A busy machine gets longer ones, until its ranks train before the end.
  as worker-brief
  for life in 25 60 150; do
    export ZENPS_JOB=brief-$life
    clock -$((86400 - life))s zenpsctl certs init "$certs" --workers=brief --days=1 >"$scratch/out" 2>&1
    ends=$((SECONDS + life))
    start a 0 "$marked" 1000 1
    first=$!
    start b 1 "$marked" 1000 1
    second=$!
    until_true eval 'seen 2 || [ $SECONDS -gt $ends ]'
    seen 2 && break
    kill $first $second
    wait $first $second
  done
  ok "owners of a certificate for $life s train" seen 2
  until_true eval '[ $SECONDS -gt $((ends + 2)) ]'
  n=$(grep -c step "$scratch/a")
  ok "and go on after its end" until_true seen $((n + 2))
  if "$wan" exec a timeout 60 ss -K dst "$server" dport != 7077 >"$scratch/out" 2>&1 && grep -q ESTAB "$scratch/out"; then
    ok "their next connection is refused, and the server says why" until_true grep -q 'worker/brief, expired at' "$scratch/zenpsd"
    n=$(grep -c step "$scratch/a")
    ok "a new one in its place" zenpsctl certs init "$certs" --workers=brief
    ok "is all that it takes to go on" until_true seen $((n + 3))
  else
    skip "the next connection after its end" "ss -K is not allowed here"
  fi
  kill -0 $first && kill -0 $second
  is "no rank has ended" $? 0
  kill $first $second
  wait $first $second
else
  skip "wrong clocks, and certificates that end" "libfaketime is not installed"
fi

# A peer that reads some bytes a second. The others have a quorum.
as worker-team
ok "host c" "$wan" host c
mkdir "$scratch/rounds"
most() { echo "$1" >"$scratch/rounds/most.part" && mv "$scratch/rounds/most.part" "$scratch/rounds/most"; }
has() { [ "$(sed -E 's/steps ([0-9]+).*/\1/' "$scratch/rounds/rank-$1")" -ge "$2" ]; } # RANK STEPS
most 4
export ZENPS_JOB=slow ZENPS_WORLD_SIZE=3 ZENPS_LIBRARY=$build/.libs/libzenps.so.0 PYTHONDONTWRITEBYTECODE=1
rank=0 pids=()
for host in a b c; do
  start $host $rank python3 "$top/tests/integration/quorum.py" "$scratch/rounds" 100
  pids+=($!)
  rank=$((rank + 1))
done
for rank in 0 1 2; do ok "rank $rank does its first rounds" until_true has $rank 4; done
ok "rank 2 reads 125 bytes a second" "$wan" set c rate=0.001
most 10
for rank in 0 1; do ok "rank $rank goes on" until_true has $rank 10; done
ok "rank 2 does not" eval '! has 2 8'
ok "its link is mended" "$wan" set c rate=100
ok "it gets the sums that it has missed" until_true has 2 10
most 0
for pid in "${pids[@]}"; do
  wait "$pid"
  is "a rank ends well" $? 0
done
done_testing
