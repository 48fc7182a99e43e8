#!/usr/bin/env bash
# Tenants of one cluster, each with a certificate and a token of its own: what one takes is not taken from the others, and none
# sees the others' jobs.
. "$(dirname "$0")/../support/tap.sh"
python=/usr/bin/python3
"$python" -c 'import numpy' 2>/dev/null || { skip "tenants" "no numpy for $python"; done_testing; exit; }
export PYTHONPATH=$top/worker/python ZENPS_LIBRARY=$build/.libs/libzenps.so.0 PYTHONDONTWRITEBYTECODE=1
export ZENPS_SERVER_MEMORY_LIMIT=32M ZENPS_JOB_MAX_WAITING=4
tls=yes
. "$top/tests/support/attacked.sh"
zenpsctl certs init "$certs" --workers=good,evil >"$scratch/out"
token_for 'evil*' evil
token_for 'good*' good
cluster_starts
as() { # TENANT COMMAND...
  files_of "worker-$1" "$1"
  env "${files[@]}" "${@:2}"
}

# ---- rows that pulls name: half of server.memory_limit for the lists of all jobs, and half of the rest for each ----
greedy() { as evil zenpsrun -n 2 --coordinator="$address" --provider=net --interface=lo --job=evil-rows --prefix=no -- "$python" "$top/tests/integration/tenants.py" greedy "$scratch"; }
modest() { as good timeout 1800 zenpsrun -n 1 --coordinator="$address" --provider=net --interface=lo --job=good-rows --prefix=no -- "$python" "$top/tests/integration/tenants.py" modest "$scratch"; }
greedy >"$scratch/greedy" 2>&1 &
greedy=$!
ok "one job pulls rows until servers keep no more of its lists" until_true [ -e "$scratch/holds" ]
cp "$scratch/greedy" "$scratch/out"
said "which it is told, with what it may have" 'job evil-rows: the rows that its ranks name take more than the [0-9]+ bytes that it may have: half of what other jobs leave of 16777216 \(half of ZENPS_SERVER_MEMORY_LIMIT\)'
ok "another job pulls rows beside it" modest
said "all of them" '^pulled 10000$'

# ---- who sees what ----
seen() { as "$1" zenpsctl --timeout=300s -e "$address" "${@:2}" >"$scratch/out" 2>&1; }
for table in jobs members tensors stats; do
  seen evil "$table" -o json
  is "$table: a tenant sees its own job" "$(grep -c '"evil-rows"' "$scratch/out" | sed 's/^[1-9][0-9]*$/yes/')" yes
  seen good "$table" -o json
  is "$table: and not another's" "$? $(grep -c 'evil' "$scratch/out")" "0 0"
  ctl "$table" -o json >"$scratch/out" 2>&1
  is "$table: an administrator sees it" "$(grep -c '"evil-rows"' "$scratch/out" | sed 's/^[1-9][0-9]*$/yes/')" yes
done
seen good status -o json
said "status counts a tenant's own jobs" '"jobs": *0'
seen evil status -o json
said "which the other has" '"jobs": *1'
seen good jobs --all -o json
said "what is over is seen by its own" '"job": *"good-rows"'
seen evil jobs --all -o json
is "and by no other" "$(grep -c good-rows "$scratch/out")" 0
touch "$scratch/over"
wait "$greedy"

# ---- jobs that wait for ranks ----
waits() { # TENANT NUMBER; $! is the rank
  files_of "worker-$1" "$1"
  env "${files[@]}" zenps-perf --rows 100 --density 0.1 --steps 1 >"$scratch/waits.$2" 2>&1 &
}
waiting=()
for n in 1 2 3 4; do
  ZENPS_COORDINATOR=$address ZENPS_PROVIDER=net ZENPS_INTERFACE=lo ZENPS_JOB=evil-$n ZENPS_RANK=0 ZENPS_WORLD_SIZE=2 waits evil "$n"
  waiting+=($!)
done
four_wait() { [ "$(ctl jobs | grep -c '^evil-[1-4] .*joining')" -eq 4 ]; }
ok "four jobs of a tenant wait" until_true four_wait
ZENPS_COORDINATOR=$address ZENPS_PROVIDER=net ZENPS_INTERFACE=lo ZENPS_JOB=evil-5 ZENPS_RANK=0 ZENPS_WORLD_SIZE=2 waits evil 5
wait $!
is "a fifth one does not" "$([ $? -ne 0 ] && echo refused)" refused
cp "$scratch/waits.5" "$scratch/out"
said "and is told how many may" "job 'evil-5': 4 jobs of its certificate, token or address wait for ranks or servers, and 4 may \(ZENPS_JOB_MAX_WAITING\)"
ok "another tenant's job begins" modest
kill "${waiting[@]}"
wait "${waiting[@]}" 2>/dev/null
ok "both servers are still in" until_true servers_are 2
done_testing
