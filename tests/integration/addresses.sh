#!/usr/bin/env bash
# Which addresses are listened at and named to others: names that mean loopback on their own host, hosts with two networks.
. "$(dirname "$0")/../support/tap.sh"

# with_hosts FILE COMMAND...: with that /etc/hosts. node1 is 127.0.1.1 on its own host, as Debian writes it there, and
# another address of this host, which stands for one of the network, elsewhere.
printf '127.0.0.1 localhost\n127.0.1.1 node1\n' >"$scratch/own"
printf '127.0.0.1 localhost\n127.0.0.2 node1\n' >"$scratch/other"
with_hosts() { unshare -m sh -c 'mount --bind "$0" /etc/hosts && exec "$@"' "$scratch/$1" "${@:2}"; }
free_port() { "/usr/bin/python3" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
rank() { # RANK HOSTS MASTER: one of two, each on a host of its own
  with_hosts "$2" env RANK="$1" WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR="$3" ZENPS_CONTROL_INSECURE=yes timeout 1800 \
    zenpsrun --port "$port" --provider=net --interface=lo --prefix=no -- zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
}
both() { # MASTER
  rank 1 other "$1" >"$scratch/second" 2>&1 &
  local second=$!
  rank 0 own "$1" && wait "$second"
}
refused() { # NAME PATTERN COMMAND...
  "${@:3}" >"$scratch/out" 2>&1
  is "$1: status" $? 2
  said "$1: why" "$2"
}
if with_hosts own grep -q node1 /etc/hosts 2>/dev/null; then
  port=$(free_port)
  ok "ranks elsewhere reach the host whose own name is loopback there" both node1
  for master in localhost 127.0.0.1 ::1; do
    for number in 0 1; do
      refused "MASTER_ADDR=$master where ranks are elsewhere, rank $number" "MASTER_ADDR=$master is a loopback address, .*set it to the name or address by which they reach the host of rank 0" rank $number own $master
    done
  done
  refused "a master that nobody knows" 'MASTER_ADDR=node9 cannot be looked up here: ' rank 0 own node9
  with_hosts own timeout 1800 zenpsd --control-listen=node1:0 --control-insecure=yes >"$scratch/out" 2>&1
  is "a daemon that would listen there: status" $? 1
  said "and what would be right" 'cannot listen on node1:0: that is 127.0.1.1:0 here \(/etc/hosts\), which no other host reaches: give an address of a network, or 0.0.0.0:0 for all'
else
  skip "names that mean loopback on their own host" "no mount namespaces"
fi

# Connections for gradients, which libfabric owns, have keepalive: seen while their ranks are stopped, since busy ones
# show other timers. A connection whose other end is gone keeps its rank out until keepalive finds it, so it has to be soon:
# a rank gives a server up after 5 s.
if command -v ss >/dev/null; then
  zenpsd --control-listen=127.0.0.1:0 --control-address-file="$scratch/kept" --fabric-provider=net 2>"$scratch/log" &
  daemon=$!
  until_true test -s "$scratch/kept"
  gradients=$(grep -oE 'fi_sockaddr_in6?://[^ ,]*' "$scratch/log" | head -1 | sed 's/.*://')
  timers() { ss -tnoH state established "( sport = :$gradients )"; }
  zenpsrun -n 2 --coordinator "$(cat "$scratch/kept")" --provider=net -- zenps-perf --rows 2000 --density 0.05 --steps 1000000 >"$scratch/out" 2>&1 &
  run=$!
  kept() { [ "$(timers | grep -c 'timer:(keepalive')" -ge 2 ] && ! timers | grep -vq 'timer:(keepalive'; }
  until_true eval '[ "$(timers | wc -l)" -ge 2 ]'
  until_true eval 'timers | grep -q "timer:(keepalive"'
  pkill -STOP -P "$run"
  ok "idle connections for gradients are kept alive" until_true kept
  timers >"$scratch/out"
  ok "and asked for life within 5 s" eval '! timers | grep -E "timer:\(keepalive,([0-9.]+min|[0-9][0-9]+sec|[5-9][0-9.]*sec)"'
  pkill -KILL -P "$run"
  wait "$run"
  kill "$daemon"
  wait "$daemon"
else
  skip "idle connections for gradients are kept alive" "no ss"
fi

# Two hosts. Each has networks of its own, before and behind the one that joins them: whatever order libfabric lists them
# in, one of the wrong ones comes first.
near=zps-near-$$ far=zps-far-$$
own_network() { # NUMBER: on both
  for space in "$near" "$far"; do
    ip -n "$space" link add "zps$1" type veth peer name "zps$1peer"
    ip -n "$space" addr add "10.213.$1.1/24" dev "zps$1"
    ip -n "$space" link set "zps$1" up
    ip -n "$space" link set "zps$1peer" up
  done
}
if [ "$(id -u)" -eq 0 ] && ip netns add "$near" 2>/dev/null && ip netns add "$far"; then
  own_network 8
  ip -n "$near" link add zps9 type veth peer name zps9 netns "$far"
  ip -n "$near" addr add 10.213.9.1/24 dev zps9
  ip -n "$far" addr add 10.213.9.2/24 dev zps9
  ip -n "$near" addr add fd00:9::1/64 dev zps9 nodad
  ip -n "$far" addr add fd00:9::2/64 dev zps9 nodad
  for space in "$near" "$far"; do ip -n "$space" link set lo up && ip -n "$space" link set zps9 up; done
  own_network 10
  # The kernel tells of a carrier up to a second later; libfabric leaves an interface without one out.
  for space in "$near" "$far"; do until_true eval 'ip -n "$space" link show zps9 | grep -q "state UP"'; done
  at() { ip netns exec "$1" env "PATH=$PATH" "${@:2}"; }
  for listen in 10.213.9.1 '[fd00:9::1]' 0.0.0.0; do
    rm -f "$scratch/address"
    # A host that others reach at every address of it has a default route.
    [ $listen != 0.0.0.0 ] || ip -n "$near" route add default via 10.213.9.2
    at "$near" zenpsd --control-listen="$listen:0" --control-insecure=yes --control-address-file="$scratch/address" --fabric-provider=net 2>"$scratch/log" &
    daemon=$!
    until_true test -s "$scratch/address"
    address=$(sed 's/0\.0\.0\.0/10.213.9.1/' "$scratch/address")
    at "$far" zenpsd --roles=server --server-name=far --control-coordinator="$address" --fabric-provider=net 2>"$scratch/far" &
    other=$!
    until_true grep -q registered "$scratch/far" || until_true eval '[ "$(at "$near" zenpsctl --timeout=300s -e "$address" members | grep -c server)" -ge 2 ]'
    ok "gradients take the way to the coordinator at $listen" at "$far" env ZENPS_COORDINATOR="$address" ZENPS_RANK=0 ZENPS_WORLD_SIZE=1 \
      ZENPS_PROVIDER=net timeout 1800 zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
    ok "also from the coordinator's host" at "$near" env ZENPS_COORDINATOR="$address" ZENPS_RANK=0 ZENPS_WORLD_SIZE=1 \
      ZENPS_PROVIDER=net timeout 1800 zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
    at "$near" zenpsctl --timeout=300s -e "$address" -o json members >"$scratch/out"
    is "where both servers are" "$(grep -o '"address": ".*//10\.213\.[0-9.]*' "$scratch/out" | grep -o '10\..*' | sort)" "10.213.9.1
10.213.9.2"
    # Debian's libfabric 1.17 has the provider under its old name.
    ok "a server warns of a libfabric that loses memory" grep -q "warn .*older than 1.18 .*data port (fi_sockaddr_in://10.213.9.2:[0-9]*): use libfabric 1.18 or later, or let no" "$scratch/far"
    at "$near" zenpsctl --timeout=300s -e "$address" security >"$scratch/out"
    said "and so does security" "^connections +open +libfabric before 1.18 .* at 2 servers: .* use libfabric 1.18 or later"
    is "no server was lost on the way" "$(grep -c 'cannot reach it' "$scratch/log")" 0
    kill "$other" "$daemon"
    wait "$other" "$daemon"
  done
  for space in "$far" "$near"; do
    ip netns pids "$space" | xargs -r kill
    until_true eval '[ -z "$(ip netns pids "$space")" ]'
    ip netns del "$space"
  done
else
  skip "hosts with two networks" "no network namespaces"
fi
done_testing
