#!/usr/bin/env bash
# The nights of an operator that take a network, a disk or a clock, in a lab of namespaces (tests/cluster/lab): with zenpsctl
# why alone the right line comes first and names the remedy; the remedy is carried out and works. The output tells the seconds. The
# nights of processes are in why.sh.
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
night() { # NAME STATUS PATTERN: shows the answer, and the seconds since the fault
  local began=$SECONDS
  ok "$1" until_true says "$2" "$3"
  echo "# $((SECONDS - began)) s: $(head -n 1 "$scratch/why")"
}
quiet() { night "$1" 0 '^ok: nothing is wrong$'; }
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
night "the night of a rank behind a slow link: why says it" 1 '^warning: job j: rank 0 \(host n[0-9]+-4, pid [0-9]+\) is late: it keeps the others waiting [0-9]+% of the time.*Remedy: .*ip -s link'
ok "the remedy, a mended link" rate 4 100mbit
quiet "works"

# ---- the night of a server behind a slow link ----
ok "a server's link has a tenth of the others'" rate 2 8mbit
night "the night of a server behind a slow link: why says it" 1 '^warning: server s2 \(host n[0-9]+-2\) serves sums at [0-9.]+ MB/s, the others at [0-9.]+\. Remedy: .*ip -s link.*zenpsctl drain s2 takes it out'
ok "the remedy, zenpsctl drain s2" ctl drain s2 --wait
night "works: why says what is left to do" 1 '^warning: job j runs on 2 of 3 servers; draining: s2\. Remedy: zenpsctl undrain s2 when'
ok "with a mended link" rate 2 100mbit
ok "that is done" ctl undrain s2
quiet "and nothing is wrong then"

# ---- the night of the cable ----
ok "a server's cable is out" ip -n "$LAB_NAME-sw" link set p3 down
night "the night of the cable: why says it" 1 '^warning: job j (runs on 2 of 3 servers; lost: s3\. Remedy: start a server, or mend the link of a lost one|has barred server s3 .*Remedy: mend the link)'
ok "the remedy, the cable" ip -n "$LAB_NAME-sw" link set p3 up
quiet "works: the job has the server again"

# ---- the night of the full disk ----
ok "the state directory is nearly full" fallocate -l 2000K "$scratch/disk/other"
night "the night of the full disk: why says it" 1 "^warning: the coordinator's state directory $scratch/disk has [0-9]+ MiB free, [0-9.]+%\. Remedy: free space there"
ok "the remedy, to free space" rm "$scratch/disk/other"
quiet "works"

# ---- the night of the certificate ----
zenpsctl certs init "$certs" --coordinators=coordinator --servers=s1 --days=3 >"$scratch/out"
for name in coordinator-coordinator server-s1; do install_as $name; done
kill -HUP "$c" "${servers[1]}"
night "the night of the certificate: why says it" 2 '^critical: the certificate of (server s1|the coordinator at [0-9.:]+) ends in (3\.0|2\.9) days\. Remedy: make a new one \(zenpsctl certs init\), put it in place, and reload'
ok "the remedy, a new one" zenpsctl certs init "$certs" --coordinators=coordinator --servers=s1
for name in coordinator-coordinator server-s1; do install_as $name; done
kill -HUP "$c" "${servers[1]}"
quiet "works"

kill "${ranks[@]}"
wait "${ranks[@]}" 2>/dev/null
done_testing
