# Sourced by test scripts, after tap.sh: two hosts with two links, as network namespaces. Needs root (tests/cluster/lab allowed).
#   links_up RATE0 RATE1     hosts a and b, with eth0 (10.78.0.1, .2) and eth1 (10.78.1.1, .2); a rate as 200mbit, or none
#   on HOST COMMAND...       runs a command there, under the host's name
#   bytes_in HOST            what came by eth0 and by eth1 so far
#   links_down
links=l$$

links_up() {
  local i
  ip netns add "$links-a" && ip netns add "$links-b" || return 1
  for i in 0 1; do
    ip -n "$links-a" link add eth$i type veth peer name eth$i netns "$links-b" || return 1
  done
  link_up a 1 "$@" && link_up b 2 "$@" && until_true carry
}
carry() { # Both links of both hosts: libfabric does not list others.
  [ "$({ ip -n "$links-a" -br link && ip -n "$links-b" -br link; } | grep -c '^eth.* UP ')" = 4 ]
}
link_up() { # HOST NUMBER RATE...
  local i host=$links-$1 number=$2
  shift 2
  ip -n "$host" link set lo up
  # A peer may answer over the other link.
  ip netns exec "$host" sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
  for i in 0 1; do
    ip -n "$host" addr add "10.78.$i.$number/24" dev eth$i && ip -n "$host" link set eth$i up || return 1
    [ "$1" = none ] || tc -n "$host" qdisc replace dev eth$i root tbf rate "$1" burst 32kb limit 1mb || return 1
    shift
  done
}
on() {
  local host=$links-$1
  shift
  # shellcheck disable=SC2016
  nsenter --net="/run/netns/$host" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$host" "$@"
}
bytes_in() { ip -n "$links-$1" -s link show | awk '/^[0-9]+: eth/ { name = $2 } /RX:/ { getline; if (name ~ /^eth/) bytes[name] = $1; name = "" } END { for (i = 0; i < 2; i++) for (n in bytes) if (n ~ "^eth" i) print bytes[n] }'; }
links_down() {
  local host
  for host in a b; do
    ip netns pids "$links-$host" 2>/dev/null | xargs -r kill -9 2>/dev/null
    ip netns del "$links-$host" 2>/dev/null
  done
}
