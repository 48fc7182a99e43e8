#!/usr/bin/env bash
# The firewall rules for data ports (deploy/nftables/zenps.nft) in two network namespaces: who may connect, and a job under them.
. "$(dirname "$0")/../support/tap.sh"
near=zps-ports-near-$$ far=zps-ports-far-$$
why=
PATH=$PATH:/usr/sbin:/sbin # Debian has nft there.
command -v nft >/dev/null || why="nft is not installed"
[ "$(id -u)" -eq 0 ] || why="needs root"
[ -n "$why" ] || { ip netns add "$near" && ip netns add "$far"; } 2>/dev/null || why="no network namespaces"
[ -n "$why" ] || ip netns exec "$near" nft add table inet probe 2>/dev/null || why="the kernel has no nftables"
[ -z "$why" ] || { ip netns del "$near" 2>/dev/null; ip netns del "$far" 2>/dev/null; echo "1..0 # SKIP $why"; exit 0; }
end_all() {
  local space
  for space in "$near" "$far"; do
    ip netns pids "$space" | xargs -r kill 2>/dev/null
    ip netns del "$space"
  done
  tap_end
}
trap end_all EXIT
ip -n "$near" link add zps type veth peer name zps netns "$far"
for space in "$near" "$far"; do ip -n "$space" link set lo up; done
ip -n "$near" addr add 10.0.0.1/16 dev zps
ip -n "$far" addr add 10.0.0.2/16 dev zps # of the cluster
ip -n "$far" addr add 10.0.9.2/16 dev zps # of no host of it
for space in "$near" "$far"; do ip -n "$space" link set zps up; done
# The kernel tells of a carrier up to a second later; libfabric leaves an interface without one out.
for space in "$near" "$far"; do until_true eval 'ip -n "$space" link show zps | grep -q "state UP"'; done
at() { ip netns exec "$1" env "PATH=$PATH" "${@:2}"; }
ok "the rules are taken as they are" at "$near" nft -f "$top/deploy/nftables/zenps.nft"
ok "and taken away" at "$near" nft delete table inet zenps
user=1234
sed "s/^define users = .*/define users = { root, $user }/" "$top/deploy/nftables/zenps.nft" >"$scratch/rules"
cat >"$scratch/serve" <<'P'
import socket, sys
listeners = [socket.create_server(("0.0.0.0", int(port)), backlog=64) for port in sys.argv[2:]]
open(sys.argv[1], "w").close()
while True:
    listeners[0].accept()[0].close()
P
at "$near" /usr/bin/python3 "$scratch/serve" "$scratch/up" 20007 19999 &
ok "somebody listens" until_true test -e "$scratch/up"
connects() { # NAMESPACE UID SOURCE DESTINATION PORT
  at "$1" setpriv --reuid="$2" --clear-groups /usr/bin/python3 -c 'import socket, sys
socket.create_connection((sys.argv[2], int(sys.argv[3])), 2, (sys.argv[1], 0))' "${@:3}"
}
connects_not() { ! connects "$@"; }
nobody=65534
ok "without rules any user connects" connects "$near" $nobody 127.0.0.1 127.0.0.1 20007
ok "and any host" connects "$far" 0 10.0.9.2 10.0.0.1 20007
for space in "$near" "$far"; do ok "a host has the rules" at "$space" nft -f "$scratch/rules"; done
ok "a user of the cluster connects on its host" connects "$near" $user 127.0.0.1 127.0.0.1 20007
ok "another one does not" connects_not "$near" $nobody 127.0.0.1 127.0.0.1 20007
said "but is refused" 'ConnectionRefusedError'
ok "nor by the host's own address" connects_not "$near" $nobody 10.0.0.1 10.0.0.1 20007
ok "a user of the cluster connects from another host" connects "$far" $user 10.0.0.2 10.0.0.1 20007
ok "another one of that host does not" connects_not "$far" $nobody 10.0.0.2 10.0.0.1 20007
said "but is refused there" 'ConnectionRefusedError'
ok "nor does a host that is not of the cluster" connects_not "$far" 0 10.0.9.2 10.0.0.1 20007
said "which hears nothing" 'timed out|TimeoutError'
ok "other ports are open to all" connects "$far" $nobody 10.0.9.2 10.0.0.1 19999

# ---- a job ----
ranges=(FI_NET_PORT_LOW_RANGE=20100 FI_NET_PORT_HIGH_RANGE=20199 FI_TCP_PORT_LOW_RANGE=20100 FI_TCP_PORT_HIGH_RANGE=20199)
at "$near" zenpsd --control-listen=10.0.0.1:0 --control-insecure=yes --control-address-file="$scratch/address" --fabric-provider=net \
  --fabric-port-low=20010 --fabric-port-high=20019 --fabric-subnet=10.0.0.0/24 2>"$scratch/log" &
until_true test -s "$scratch/address"
address=$(cat "$scratch/address")
rank() { # NAMESPACE RANK
  at "$1" env "${ranges[@]}" ZENPS_COORDINATOR="$address" ZENPS_RANK="$2" ZENPS_WORLD_SIZE=2 ZENPS_PROVIDER=net ZENPS_SUBNET=10.0.0.0/24 \
    timeout 1800 zenps-perf --rows 2000 --density 0.05 --steps 5 --warmup 0 --verify
}
rank "$far" 1 >"$scratch/second" 2>&1 &
second=$!
ok "ranks on two hosts train under the rules" rank "$near" 0
wait "$second"
is "the other one, too" $? 0
at "$near" zenpsctl --timeout=300s -e "$address" -o json members >"$scratch/out"
said "the server's data port is in its range" 'fi_sockaddr_in://10\.0\.0\.1:2001[0-9]"'
done_testing
