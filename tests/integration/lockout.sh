#!/usr/bin/env bash
# Crowds of one address that stay, and come again when they are sent away, keep nobody out of a coordinator: an administrator
# is answered, and a job joins. ZPS_ATTACKS: which, and how many connections each has. ZPS_ATTACK_TLS: the coordinator speaks
# TLS, and a crowd that says hello has a worker's certificate (lockout_tls.sh).
. "$(dirname "$0")/../support/tap.sh"
command -v python3 >/dev/null || { skip "crowds" "no python3"; done_testing; exit; }
tls=${ZPS_ATTACK_TLS:-}
. "$top/tests/support/attacked.sh"
if [ -n "$tls" ]; then
  export ZPS_ATTACK_CERTS=$certs
  token_for '*' any
  zenpsctl certs init "$certs" --workers=honest >/dev/null
  wanted=${ZPS_ATTACKS:-silent:300 half:300}
else
  wanted=${ZPS_ATTACKS:-silent:300 ctls:2300 workers:8300}
fi
cluster_starts
attack() { exec python3 "$top/tests/integration/attack.py" "$@"; } # in a process of its own
answered() { # how many of five calls
  local n=0 i
  for i in 1 2 3 4 5; do ctl --timeout="${ZPS_LOCKOUT_PATIENCE:-300s}" status >/dev/null 2>>"$scratch/answered.err" && n=$((n + 1)); done
  echo "$n"
}
job_joins() {
  files_of worker-honest any
  env "${files[@]}" timeout 1800 zenpsrun -n 2 --coordinator="$address" --prefix=no -- \
    zenps-perf --rows 4096 --density 0.01 --steps 5 --warmup 1 --verify --json && grep -q '"verified": *true' "$scratch/out"
}
for one in $wanted; do
  way=${one%:*} n=${one#*:}
  if [ "$(ulimit -Hn)" -lt $((2 * n)) ]; then
    skip "$way $n" "this process may have $(ulimit -Hn) descriptors"
    continue
  fi
  rm -f "$scratch/begun"
  attack "$address" "$way" "$n" >"$scratch/begun" 2>"$scratch/begun.err" &
  attacker=$!
  ok "$way: all $n are there" until_true [ -s "$scratch/begun" ]
  began=$SECONDS
  is "$way: an administrator is answered" "$(answered)" 5
  echo "# $way: five answers took $((SECONDS - began)) s"
  began=$SECONDS
  ok "$way: a job joins" job_joins
  echo "# $way: the job took $((SECONDS - began)) s"
  is "$way: the crowd stands all the while" "$(cat "$scratch/begun.err")$(kill -0 $attacker 2>&1)" ""
  kill "$attacker"
  wait "$attacker" 2>/dev/null
done
ok "both servers are still in" servers_are 2
grep -E "server .* is lost|rank .* is lost" "$scratch/c.log" >"$scratch/out"
is "and nobody was taken for lost" "$(cat "$scratch/out")" ""

done_testing
