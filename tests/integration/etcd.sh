#!/usr/bin/env bash
# Several coordinators over etcd: one is killed, stopped past its lease, cut off by another's key, or without etcd, while
# jobs run. No round fails, and one that leads no longer writes nothing.
. "$(dirname "$0")/../support/tap.sh"

why=""
command -v etcd >/dev/null && command -v etcdctl >/dev/null || why="etcd is not installed (Debian's etcd-server and etcd-client)"
[ -n "$why" ] || ! zenpsd --roles=coordinator --coordinator-store=etcd --coordinator-etcd=http://127.0.0.1:1 --check 2>&1 |
  grep -q 'built without libcurl' || why="this build has no libcurl"
if [ -n "$why" ]; then
  skip "coordinators over etcd" "$why"
  done_testing
  exit
fi

free_ports() { # N: ports that nobody listens at now
  python3 -c 'import socket, sys
made = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*[each.getsockname()[1] for each in made])' "$1"
}
read -r client peer port_a port_b <<<"$(free_ports 4)"
members=http://127.0.0.1:$client
etcd --data-dir "$scratch/etcd" --listen-client-urls "$members" --advertise-client-urls "$members" \
  --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
  --initial-cluster "default=http://127.0.0.1:$peer" >"$scratch/etcd.log" 2>&1 &
etcd=$!
export ETCDCTL_API=3
keys() { etcdctl --endpoints "$members" "$@"; }
ok "etcd comes up" until_true keys endpoint health

start() { # NAME ARGUMENTS...: a daemon, whose log is $scratch/NAME.log; its pid in $pid
  local name=$1
  shift
  zenpsd --log-level=info --control-heartbeat=0.2s --control-dead=5s "$@" >>"$scratch/$name.log" 2>&1 &
  pid=$!
}
at_a=127.0.0.1:$port_a at_b=127.0.0.1:$port_b
both=$at_a,$at_b
candidate() { # a|b ARGUMENTS...: its pid in $a or $b
  local name=$1 at=at_$1
  shift
  : >"$scratch/$name.log"
  start "$name" --roles=coordinator --control-listen="${!at}" --control-ready-file="$scratch/$name.ready" \
    --coordinator-store=etcd --coordinator-etcd="$members" --coordinator-min-servers=2 "$@"
  printf -v "$name" '%s' "$pid"
}
logged() { grep -qE -- "$2" "$scratch/$1.log"; }
leads() { logged "$1" 'this coordinator leads$'; }
follows() { logged "$1" 'leads: following it'; }
ctl() { zenpsctl -e "$both" --timeout=2s "$@"; }
# Asks the second coordinator alone: it refuses, and says why.
refused_by_b() { # PATTERN
  zenpsctl -e "$at_b" --timeout=1s status >"$scratch/out" 2>&1
  [ $? = 3 ] && grep -qE -- "$1" "$scratch/out"
}
more_than() { [ "$("${@:2}")" -gt "$1" ]; } # N COMMAND...: which prints a number
table() { ctl members | grep -cE "$1"; }
servers_in() { [ "$(table '^ *[0-9]+ +s[01] +in ')" -eq 2 ]; }
all_in() { [ "$(table "^$1 +[0-2] +in ")" -eq 3 ]; } # NAME of a job
killed() { # PID
  kill -KILL "$1"
  wait "$1" 2>/dev/null
}
declare -A jobs
train() { # NAME [COORDINATORS]: a job of three ranks in the background, which checks every sum
  mkdir -p "$scratch/$1"
  zenpsrun -n 3 --coordinator "${2:-$both}" --job="$1" --prefix=no -- "$build/tests/integration/restart_trainer" \
    "$scratch/$1" >"$scratch/$1.out" 2>&1 &
  jobs[$1]=$!
}
rounds() { local n; n=$(cat "$scratch/$1/rounds" 2>/dev/null); echo $((10#${n:-0})); }
runs_on() { until_true more_than $(($(rounds "$1") + 20)) rounds "$1"; } # NAME: twenty rounds more
ends_well() { # NAME: is told to stop, opens a further tensor, and leaves
  touch "$scratch/$1/stop"
  wait "${jobs[$1]}" && grep -q '^[0-9]* rounds, and 8 of a further tensor$' "$scratch/$1.out"
}
journal() { keys get --prefix /zenps/journal -w json | grep -o '"kvs":.*'; }
ms() { echo $(($(date +%s%N) / 1000000)); }

candidate a
ok "the first coordinator leads" until_true leads a
candidate b
ok "the second one follows" until_true follows b
ok "the first one is ready" test -e "$scratch/a.ready"
ok "the second one is not" test ! -e "$scratch/b.ready"
until_true refused_by_b "$at_b: this coordinator does not lead: the one at $at_a does"
is "a client of the second one alone is refused, and told where to go" $? 0
ok "a client of both finds the first one" until_true eval 'zenpsctl -e "$at_b,$at_a" status | grep -q "^$at_a "'
for i in 0 1; do
  start "s$i" --roles=server --control-coordinator="$at_b,$at_a" --server-name="s$i"
  eval "s$i=$pid"
done
ok "two servers are in" until_true servers_in

# Killed: the other one takes over when the lease is over, and nobody notices.
train long
ok "a job of three ranks runs" runs_on long
begun=$(ms)
killed "$a"
ok "the first one is killed: the second one leads" until_true leads b
took=$(($(ms) - begun))
ok "soon ($took ms)" [ "$took" -lt 60000 ] # its lease has 5 s
ok "rounds go on" runs_on long
ok "both servers are back" until_true servers_in
ok "and all ranks" until_true all_in long
ok "the servers kept the job" eval '! logged s0 "is closed: " && ! logged s1 "is closed: "'
train beside
ok "a new job runs beside it" runs_on beside
ok "and ends" ends_well beside

# Stopped past its lease, and continued: it ends, and has written nothing.
candidate a
ok "the first one is back, and follows" until_true follows a
kill -STOP "$b"
ok "the second one is stopped: the first one leads" until_true leads a
ok "and has the servers" until_true servers_in
ok "and ranks" until_true all_in long
before=$(journal)
kill -CONT "$b"
wait "$b"
is "the second one, continued, ends with an error" $? 1
ok "that says why" logged b 'error .*this coordinator leads no longer: '
is "and has written nothing" "$(journal)" "$before"
ok "rounds go on" runs_on long

# Its lease holds, and it believes that it leads, but the key is another's: etcd refuses what it writes.
candidate b --control-dead=60s # its lease will be as long
ok "the second one is back, and follows" until_true follows b
keys del /zenps/leader >/dev/null
ok "the leader's key is deleted: the second one leads" until_true leads b
ok "the first one does not know" kill -0 "$a"
before=$(journal)
train split "$at_a"
wait "$a"
is "it ends when it has something to write" $? 1
ok "which etcd has refused" logged a "error .*this process leads no longer: the coordinator at $at_b does"
kill -TERM "${jobs[split]}"
wait "${jobs[split]}" 2>/dev/null
is "nothing of it is there" "$(journal | grep -o '"key"' | wc -l)" "$(grep -o '"key"' <<<"$before" | wc -l)"
ok "the servers go to the second one" until_true servers_in
ok "and the ranks" until_true all_in long
ok "rounds go on" runs_on long

# Told to go, it gives the lead back at once.
candidate a
ok "the first one follows again" until_true follows a
begun=$(ms)
kill -TERM "$b"
wait "$b"
is "SIGTERM: the second one ends without waiting for the job" $? 0
ok "and the first one leads" until_true leads a
took=$(($(ms) - begun))
ok "at once ($took ms)" [ "$took" -lt 30000 ] # its lease had most of a minute to go
ok "with everybody" until_true servers_in
candidate b
ok "and is followed" until_true follows b

# Without etcd the leader says so, and ends when its lease is over; training goes on.
kill -STOP "$etcd"
ok "etcd stops answering, and the leader says so" until_true logged a 'warn .*etcd does not answer: this coordinator loses its lead in [0-9.]+ s, if'
wait "$a"
is "it ends when its lease is over" $? 1
ok "and says why" logged a 'error .*this coordinator leads no longer: etcd at '
ok "the other one knows nothing of a leader" until_true logged b 'warn .*etcd does not answer, retrying: '
until_true refused_by_b 'does not lead, and etcd, which knows who does, does not answer'
is "and tells clients why" $? 0
ok "rounds go on" runs_on long
kill -CONT "$etcd"
ok "etcd is back: the other one leads" until_true leads b
ok "both servers are back" until_true servers_in
ok "and all ranks" until_true all_in long
ok "the job has lost no round, opens a further tensor, and leaves" ends_well long
grep -hE "(is|was) lost" "$scratch"/[ab].log | grep -v 'the coordinator is closing' >"$scratch/lost" # with one that ends
is "nobody was lost" "$(cat "$scratch/lost")" ""

# What must not be taken over.
kill -TERM "$b"
wait "$b"
refused() { # NAME PATTERN ARGUMENTS...
  local name=$1 pattern=$2
  shift 2
  timeout 1800 zenpsd --roles=coordinator --control-listen=127.0.0.1:0 --coordinator-store=etcd --coordinator-etcd="$members" \
    "$@" >"$scratch/out" 2>&1
  is "$name: refused" $? 1
  said "by name" "$pattern"
}
refused "another cluster's state" "of cluster 'zenps', and this coordinator of cluster 'other'" --coordinator-cluster=other
first=$(keys get --prefix /zenps/journal --keys-only | head -n 1)
value=$(keys get "$first" --print-value-only)
keys put "$first" "${value/counters/kounters}" >/dev/null
refused "a damaged value" "key $first is damaged"
keys del "$first" >/dev/null
refused "a missing one" "key $first is missing"
keys put /zenps/generation none >/dev/null
refused "a damaged generation" 'key /zenps/generation is damaged: it is no number of 8 hexadecimal digits'
kill -TERM "$s0" "$s1"
wait "$s0" "$s1"

# Over TLS, with a certificate on both sides.
certificate() { # NAME: signed by the first one, which signs itself
  local by=(-CA "$scratch/ca.crt" -CAkey "$scratch/ca.key" -CAcreateserial)
  [ "$1" != ca ] || by=(-signkey "$scratch/ca.key")
  printf 'basicConstraints=CA:%s\nsubjectAltName=IP:127.0.0.1\n' "$([ "$1" = ca ] && echo TRUE || echo FALSE)" >"$scratch/extensions"
  openssl req -new -newkey rsa:2048 -nodes -subj "/CN=$1" -keyout "$scratch/$1.key" -out "$scratch/$1.csr" &&
    openssl x509 -req -in "$scratch/$1.csr" "${by[@]}" -days 2 -extfile "$scratch/extensions" -out "$scratch/$1.crt"
}
if command -v openssl >/dev/null; then
  ok "certificates are made" eval 'certificate ca && certificate etcd && certificate client'
  read -r client peer <<<"$(free_ports 2)"
  secured=https://127.0.0.1:$client
  etcd --data-dir "$scratch/secured" --listen-client-urls "$secured" --advertise-client-urls "$secured" \
    --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "default=http://127.0.0.1:$peer" --cert-file "$scratch/etcd.crt" --key-file "$scratch/etcd.key" \
    --client-cert-auth --trusted-ca-file "$scratch/ca.crt" >"$scratch/secured.log" 2>&1 &
  candidate a --coordinator-etcd="http://127.0.0.1:1,$secured" --coordinator-etcd-ca="$scratch/ca.crt" \
    --coordinator-etcd-cert="$scratch/client.crt" --coordinator-etcd-key="$scratch/client.key"
  ok "a coordinator leads, over the member that answers" until_true leads a
  candidate b --coordinator-etcd="$secured" --coordinator-etcd-ca="$scratch/ca.crt"
  ok "one without a certificate does not reach etcd" until_true logged b 'etcd does not answer, retrying: etcd at https://'
  kill -TERM "$a" "$b"
  wait "$a" "$b"
else
  skip "etcd over TLS" "openssl is not installed"
fi
done_testing
