#!/usr/bin/env bash
# Strangers at the control plane of a coordinator whose job is running: its rounds go on, its memory does not grow, its log
# stays short.
# ZPS_ATTACKS: which, and how many of each ("junk:1000000" by hand); ZPS_ATTACK_S: seconds that one may take. ZPS_ATTACK_TLS: the
# coordinator speaks TLS, and attackers who say hello have a certificate (attacks_tls.sh).
. "$(dirname "$0")/../support/tap.sh"
command -v python3 >/dev/null || { skip "strangers" "no python3"; done_testing; exit; }
tls=${ZPS_ATTACK_TLS:-}
. "$top/tests/support/attacked.sh"
if [ -n "$tls" ]; then
  export ZPS_ATTACK_CERTS=$certs
  token_for '*' any
  wanted=${ZPS_ATTACKS:-hands:60 junk:100 broken:100 admin:20 named:20 role:20 stats:500}
else
  wanted=${ZPS_ATTACKS:-idle:200 drip:200 scan:500 junk:200 deep:20 wide:5 long:5 stats:3000}
fi
cluster_starts

# perf: a job whose results are checked bit by bit.
perf() {
  files_of worker-worker any
  env "${files[@]}" timeout 1800 zenpsrun -n 2 --coordinator="$address" --prefix=no -- \
    zenps-perf --rows 65536 --density 0.01 --steps 40 --warmup 1 --verify --json && grep -q '"verified": *true' "$scratch/out"
}
# At least one job, and others until the attacker has ended.
jobs_run() {
  jobs=0
  while perf; do
    jobs=$((jobs + 1))
    kill -0 "$attacker" 2>/dev/null || return 0
  done
  return 1
}
attack() { timeout "${ZPS_ATTACK_S:-120}" python3 "$top/tests/integration/attack.py" "$address" "$@"; }
resident_kib() { awk '/^VmRSS/ { print $2 }' "/proc/$coordinator/status"; }
lines_of_strangers() { grep -cE ' (rpc|coordinator): (127\.|\(|no desc)' "$scratch/c.log"; }

# A first one of each warms up: pools, caches, the heap's top.
if [ -n "$tls" ]; then
  attack hands 60 1 >/dev/null 2>&1
  for way in scan junk broken deep wide long admin named role; do attack $way 10 >/dev/null 2>&1; done
else
  for way in idle drip; do attack $way 200 1 >/dev/null 2>&1; done
  for way in scan junk deep wide long; do attack $way 20 >/dev/null 2>&1; done
fi
attack stats 300 >/dev/null 2>&1
perf >"$scratch/out" 2>&1

for one in $wanted; do
  way=${one%:*} n=${one#*:}
  before_kib=$(resident_kib) before=$(lines_of_strangers) began=$SECONDS
  attack "$way" "$n" >"$scratch/attack" 2>"$scratch/attack.err" &
  attacker=$!
  until_true [ -s "$scratch/attack" ]
  ok "$way: jobs run through it" jobs_run
  ok "$way: an administrator is answered" ctl status
  wait "$attacker"
  is "$way: all of it was tried" "$? $(tail -n 1 "$scratch/attack" | cut -d' ' -f1)" "0 tried=$n"
  case $way in junk | deep | wide | long | admin | named | role) said_of=$(tail -n 1 "$scratch/attack" | cut -d' ' -f2) ;; *) said_of= ;; esac
  [ "$way" != junk ] || [ -n "$tls" ] || n=$((n - (n + 4999) / 5000)) # an empty line is none
  [ -z "$said_of" ] || is "$way: each is refused, with a reason" "$said_of" "refused=$n"
  grown=$(($(resident_kib) - before_kib)) written=$(($(lines_of_strangers) - before)) seconds=$((SECONDS - began + 1))
  echo "# $way: $(tail -n 1 "$scratch/attack"), memory grew by $grown KiB, $written lines in $seconds s, $jobs jobs"
  ok "$way: memory grows by less than 1 MiB" [ "$grown" -lt 1024 ]
  ok "$way: a line a second at most" [ "$written" -le "$seconds" ]
done
ok "both servers are still in" servers_are 2
grep -E "server .* is lost|closing its connection" "$scratch/c.log" >"$scratch/out"
is "and none was ever taken for lost" "$(cat "$scratch/out")" ""

# What an administrator changes is on record.
ctl drain s1 --reason "a new disk" >/dev/null 2>&1
ctl undrain s1 >/dev/null 2>&1
ctl rebalance >/dev/null 2>&1
grep 'audit:' "$scratch/c.log" >"$scratch/out"
said "who drained a server is in the log" '(127\.0\.0\.1:[0-9]+|unix \(user [0-9]+, pid [0-9]+\)): audit: method=drain by=(-|zenps://admin/[a-z]+) name=s1 role=[a-z]+ reason=a new disk$'
said "and who placed jobs anew" '(127\.0\.0\.1:[0-9]+|unix \(user [0-9]+, pid [0-9]+\)): audit: method=rebalance by=(-|zenps://admin/[a-z]+) name= role=[a-z]+ reason=-$'
said "and who took that back" '(127\.0\.0\.1:[0-9]+|unix \(user [0-9]+, pid [0-9]+\)): audit: method=undrain by=(-|zenps://admin/[a-z]+) name=s1 role=[a-z]+ reason=-$'
done_testing
