#!/usr/bin/env bash
# Two ranks in two homes, each behind a NAT that lets connections out and none in, both with the same private address; one
# server with a public address. Encrypted, they train to right sums. Over another fabric each gets an error that says how.
. "$(dirname "$0")/../support/tap.sh"
homes=n$(($$ % 1000000)) public=198.51.100
namespaces=(s net r0 r1 h0 h1)
homes_down() { for ns in "${namespaces[@]}"; do ip netns del "$homes-$ns" 2>/dev/null; done; }

# A NAT in network namespaces needs root, iproute2 and nftables.
rules='table ip nat {
  chain out {
    type nat hook postrouting priority srcnat
    oifname "eth0" masquerade
  }
}
table ip guard {
  chain through {
    type filter hook forward priority filter
    policy drop
    ct state established,related accept
    iifname "in" accept
  }
}'
link() { # NAMESPACE ADDRESS: onto the public network
  ip -n "$homes-$1" link add eth0 type veth peer name "p$1" netns "$homes-net" &&
    ip -n "$homes-net" link set "p$1" master br0 up && ip -n "$homes-$1" addr add "$2/24" dev eth0 && ip -n "$homes-$1" link set eth0 up
}
homes_up() {
  local ns i
  for ns in "${namespaces[@]}"; do ip netns add "$homes-$ns" && ip -n "$homes-$ns" link set lo up || return 1; done
  ip -n "$homes-net" link add br0 type bridge && ip -n "$homes-net" link set br0 up && link s $public.1 || return 1
  for i in 0 1; do
    link "r$i" "$public.1$i" && ip -n "$homes-h$i" link add eth0 type veth peer name in netns "$homes-r$i" &&
      ip -n "$homes-h$i" addr add 10.0.0.2/24 dev eth0 && ip -n "$homes-h$i" link set eth0 up &&
      ip -n "$homes-r$i" addr add 10.0.0.1/24 dev in && ip -n "$homes-r$i" link set in up &&
      ip -n "$homes-h$i" route add default via 10.0.0.1 &&
      nsenter --net="/run/netns/$homes-r$i" sysctl -qw net.ipv4.ip_forward=1 &&
      nsenter --net="/run/netns/$homes-r$i" nft -f - <<<"$rules" || return 1
  done
}
trap 'homes_down; tap_end' EXIT
if ! { [ "$(id -u)" = 0 ] && command -v ip nft nsenter sysctl; } >/dev/null || ! homes_up >"$scratch/why" 2>&1; then
  skip "ranks behind NAT" "root, ip, nft and namespaces with NAT are needed: $(tail -n 1 "$scratch/why" 2>/dev/null)"
  done_testing
  exit
fi

unset ZENPS_INTERFACE
ok "certificates" zenpsctl certs init "$scratch/certs" --coordinators=c --workers=w
as() { # NAME NAMESPACE COMMAND...: with this certificate, in the place of this shell
  local who=$1 where=$2
  shift 2
  exec env ZENPS_TLS_CA="$scratch/certs/ca.pem" ZENPS_TLS_CERT="$scratch/certs/$who.pem" ZENPS_TLS_KEY="$scratch/certs/$who.key" \
    nsenter --net="/run/netns/$homes-$where" "$@"
}
server=
start() { # OPTION...
  rm -f "$scratch/address"
  as coordinator-c s zenpsd --control-listen=$public.1:7077 --control-address-file="$scratch/address" --control-dead=10s "$@" 2>"$scratch/server.log" &
  server=$!
  until_true [ -s "$scratch/address" ] || { cat "$scratch/server.log" && return 1; }
}
stop() { kill "$server" && wait "$server"; }
ranks() { # VARIABLE...: both ranks; statuses in $status, what they say in $scratch/rank.0 and rank.1
  local i pids=()
  for i in 0 1; do
    as worker-w "h$i" env ZENPS_COORDINATOR=$public.1:7077 ZENPS_RANK=$i ZENPS_WORLD_SIZE=2 "$@" timeout 300 "$build/tests/integration/marked" 50 >"$scratch/rank.$i" 2>&1 &
    pids+=($!)
  done
  status=
  for i in 0 1; do
    wait "${pids[i]}"
    status+="$? "
  done
  cat "$scratch"/rank.? >"$scratch/out"
}

ok "a server that encrypts" start --fabric-encrypt
ranks ZENPS_FABRIC_ENCRYPT=yes
is "two ranks behind NAT train" "$status" "0 0 "
is "to right sums" "$(grep -c 'provider tls, 50 right sums' "$scratch/out")" 2
stop

ok "a server that does not, and knows who may be where" start --fabric-provider=net
ranks ZENPS_PROVIDER=net
is "ranks are refused" "$status" "1 1 "
said "why, and how they would not be" 'is not that of the connection.* For ranks behind NAT set (--)?fabric.encrypt = yes'
stop

ok "a server that takes any address" start --fabric-provider=net --coordinator-addresses=any
began=$SECONDS
ranks ZENPS_PROVIDER=net
is "ranks fail" "$status" "1 1 "
ok "long before the deadline of their round" [ $((SECONDS - began)) -lt 200 ]
cat "$scratch"/rank.? >"$scratch/out"
said "why, and how they would not" 'none before: behind NAT or a firewall, set fabric.encrypt = yes for servers and ranks'
stop
done_testing
