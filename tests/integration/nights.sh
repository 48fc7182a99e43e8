#!/usr/bin/env bash
# The nights of an operator that take a network, a disk or a clock, in a lab of namespaces (tests/cluster/lab): with zenpsctl
# why alone the right line comes first within 10 s and names the remedy; the remedy is carried out and works. The output tells the
# seconds. The nights of processes are in why.sh.
#
# The 10 s begin when the coordinator can know of the fault. Progress shows that: rounds have ended since, the job has left the
# server, the daemons have read the certificate. How long that takes is up to the links and to control.dead, not to why. An answer
# covers 2 s, and may take 3.3 s: so three answers fit into 10 s. On a busy machine answers take longer. Those do not count, because
# then the machine kept the processes waiting, or the fault had no rounds to show. So the right line must come first with the third
# answer that counts at the latest, whatever the machine.
. "$(dirname "$0")/../support/tap.sh"
lab=$top/tests/cluster/lab
why=$("$lab" allowed) || true
command -v python3 >/dev/null || why="no python3"
[ -z "$why" ] || { echo "1..0 # SKIP $why"; exit 0; }
export LAB_NAME=n$(($$ % 1000000)) LAB_OWNER=$$
trap '"$lab" down; [ ! -e "$scratch/disk" ] || umount --lazy "$scratch/disk"; tap_end' EXIT
coordinator=10.77.0.1:7077 certs=$scratch/certs
on() { exec "$lab" exec "$@"; } # HOST COMMAND..., in the background: its process is then the command
ctl() {
  timeout 60 nsenter --net="/run/netns/$LAB_NAME-0" zenpsctl -e "$coordinator" --timeout=20s --tls-ca="$certs/ca.pem" --tls-cert="$certs/admin-admin.pem" \
    --tls-key="$certs/admin-admin.key" "$@"
}
# Asks; the first line is the wanted one, with the wanted status. A look takes 2 s more than the answer covers.
says() { # STATUS PATTERN
  ctl why >"$scratch/why" 2>&1
  [ $? = "$1" ] && head -n 1 "$scratch/why" | grep -qE -- "$2"
}
# The right line comes with the third answer that counts, or earlier. 30 answers that do not count are too many, too.
within_10_s() { # STATUS PATTERN
  local n_counted=0 n asked
  for n in {1..30}; do
    asked=$EPOCHREALTIME
    if says "$1" "$2"; then return 0; fi
    n_counted=$((n_counted + $(awk -v from="$asked" -v to="$EPOCHREALTIME" 'BEGIN { print to - from <= 3.3 }')))
    echo "$n: $(awk -v from="$asked" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }') s: $(head -n 1 "$scratch/why")"
    [ "$n_counted" -lt 3 ] || return 1
  done
  return 1
}
night() { # NAME STATUS PATTERN KNOWN [ARGUMENT...]: shows the answer, and the seconds since the fault and since it could be known
  local name=$1 status=$2 pattern=$3 began=$SECONDS known
  shift 3
  until_true "$@" || echo "# never known: $*"
  known=$SECONDS
  ok "$name" within_10_s "$status" "$pattern"
  echo "# $((SECONDS - began)) s, $((SECONDS - known)) s since it could be known: $(head -n 1 "$scratch/why")"
}
quiet() {
  local began=$SECONDS
  ok "$1" until_true says 0 '^ok: nothing is wrong$'
  echo "# $((SECONDS - began)) s: $(head -n 1 "$scratch/why")"
}
# What the coordinator knows. Rounds are those that the servers have counted: they know of them ahead of the ranks' reports.
rounds() { ctl -o json stats --internal | python3 -c 'import json, sys; print(max((row["rounds"] for row in json.load(sys.stdin)["shards"]), default=0))'; }
has_more_rounds() { [ "$(rounds)" -ge "$1" ]; } # ROUNDS
servers_are_in() { ctl -o json jobs | grep -qE "\"servers_in\": *$1\b"; } # NUMBER
rate() { # HOST RATE: of its link, out and in
  tc -n "$LAB_NAME-$1" qdisc change dev eth0 root handle 1: tbf rate "$2" burst 64kb limit 1mb &&
    tc -n "$LAB_NAME-sw" qdisc change dev "p$1" root handle 1: tbf rate "$2" burst 64kb limit 1mb
}

ok "six hosts" "$lab" up 6 100mbit
mkdir "$scratch/disk" && mount -t tmpfs -o size=2m tmpfs "$scratch/disk"
zenpsctl certs init "$certs" --servers=s1,s2,s3 >"$scratch/out"
install_as() { cp "$certs/$1.pem" "$scratch/$1.pem" && cp "$certs/$1.key" "$scratch/$1.key"; }
for name in coordinator-coordinator server-s1 server-s2 server-s3; do install_as $name; done
tls() { printf -- '--tls-ca=%s\n--tls-cert=%s\n--tls-key=%s\n' "$certs/ca.pem" "$scratch/$1.pem" "$scratch/$1.key"; }
start_coordinator() {
  # shellcheck disable=SC2046
  on 0 zenpsd --roles=coordinator --control-listen="$coordinator" --coordinator-min-servers=3 --coordinator-state-dir="$scratch/disk" \
    --control-dead=5s $(tls coordinator-coordinator) 2>>"$scratch/c.log" &
  c=$!
}
start_coordinator
for host in 1 2 3; do
  # shellcheck disable=SC2046
  on $host zenpsd --roles=server --control-coordinator="$coordinator" --server-name="s$host" --fabric-provider=net --fabric-interface=eth0 \
    $(tls server-s$host) 2>"$scratch/s$host.log" &
  servers[host]=$!
done
ok "three servers are in" until_true eval '[ "$(ctl -o json members | grep -c "\"silent_ms\"")" -eq 3 ]'
ranks=()
for rank in 0 1 2; do # rank 2 is on the coordinator's host
  on $(((rank + 4) % 6)) env ZENPS_COORDINATOR=$coordinator ZENPS_JOB=j ZENPS_RANK=$rank ZENPS_WORLD_SIZE=3 ZENPS_PROVIDER=net ZENPS_INTERFACE=eth0 ZENPS_TELEMETRY=1s \
    ZENPS_TLS_CA="$certs/ca.pem" ZENPS_TLS_CERT="$certs/worker-worker.pem" ZENPS_TLS_KEY="$certs/worker-worker.key" ZENPS_LOCAL_WORLD_SIZE=1 \
    zenps-perf --rows 300000 --density 0.2 --steps 1000000 --warmup 0 >"$scratch/rank.$rank.log" 2>&1 &
  ranks+=($!)
done
quiet "a job runs: nothing is wrong"

# ---- the night of a rank behind a slow link ----
ok "a rank's link has a tenth of the others'" rate 4 8mbit
slow_from=$(($(rounds) + 3))
night "the night of a rank behind a slow link: why says it within 10 s" 1 '^warning: job j: rank 0 \(host n[0-9]+-4, pid [0-9]+\) is late: it keeps the others waiting [0-9]+% of the time.*Remedy: .*ip -s link' \
  has_more_rounds "$slow_from"
ok "the remedy, a mended link" rate 4 100mbit
quiet "works"

# ---- the night of a server behind a slow link ----
ok "a server's link has a tenth of the others'" rate 2 8mbit
slow_from=$(($(rounds) + 3))
night "the night of a server behind a slow link: why says it within 10 s" 1 '^warning: server s2 \(host n[0-9]+-2\) serves sums at [0-9.]+ MB/s, the others at [0-9.]+\. Remedy: .*ip -s link.*zenpsctl drain s2 takes it out' \
  has_more_rounds "$slow_from"
ok "the remedy, zenpsctl drain s2" ctl drain s2 --wait
night "works: why says what is left to do" 1 '^warning: job j runs on 2 of 3 servers; draining: s2\. Remedy: zenpsctl undrain s2 when' servers_are_in 2
ok "with a mended link" rate 2 100mbit
ok "that is done" ctl undrain s2
quiet "and nothing is wrong then"

# ---- the night of the cable ----
ok "a server's cable is out" ip -n "$LAB_NAME-sw" link set p3 down
night "the night of the cable: why says it within 10 s" 1 '^warning: job j (runs on 2 of 3 servers; lost: s3\. Remedy: start a server, or mend the link of a lost one|has barred server s3 .*Remedy: mend the link)' \
  servers_are_in 2
ok "the remedy, the cable" ip -n "$LAB_NAME-sw" link set p3 up
quiet "works: the job has the server again"

# ---- the night of the full disk ----
ok "the state directory is nearly full" fallocate -l 2000K "$scratch/disk/other"
night "the night of the full disk: why says it within 10 s" 1 "^warning: the coordinator's state directory $scratch/disk has [0-9]+ MiB free, [0-9.]+%\. Remedy: free space there" true
ok "the remedy, to free space" rm "$scratch/disk/other"
quiet "works"

# ---- the night of the certificate ----
zenpsctl certs init "$certs" --coordinators=coordinator --servers=s1 --days=3 >"$scratch/out"
for name in coordinator-coordinator server-s1; do install_as $name; done
reloads=$(grep -c 'reload' "$scratch/c.log")
has_reloaded() { [ "$(grep -c 'reload' "$scratch/c.log")" -gt "$reloads" ]; }
kill -HUP "$c" "${servers[1]}"
night "the night of the certificate: why says it within 10 s" 2 '^critical: the certificate of (server s1|the coordinator at [0-9.:]+) ends in (3\.0|2\.9) days\. Remedy: make a new one \(zenpsctl certs init\), put it in place, and reload' \
  has_reloaded
ok "the remedy, a new one" zenpsctl certs init "$certs" --coordinators=coordinator --servers=s1
for name in coordinator-coordinator server-s1; do install_as $name; done
kill -HUP "$c" "${servers[1]}"
quiet "works"

kill "${ranks[@]}"
wait "${ranks[@]}" 2>/dev/null
done_testing
