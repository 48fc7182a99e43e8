#!/usr/bin/env bash
# Quotas with real processes: a job that asks for more than it may have is told so, with both numbers, while the rounds
# of another one beside it go on, every sum verified.
. "$(dirname "$0")/../support/tap.sh"

server() { # OPTION...: its address goes to $address
  rm -f "$scratch/address"
  zenpsd --fabric-provider=net --fabric-interface=lo --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" "$@" 2>>"$scratch/log" &
  daemon=$!
  until_true test -s "$scratch/address" && address=$(cat "$scratch/address")
}
ends() { kill -TERM "$daemon" && wait "$daemon"; }
server --job-max-memory=12M
perf() { # JOB ARGUMENT...: two ranks, or $ranks
  local job=$1
  shift
  timeout 1800 zenpsrun -n "${ranks:-2}" --coordinator "$address" --provider=net --interface=lo --job="$job" --prefix=no -- zenps-perf --warmup 0 "$@"
}
modest() { perf modest --rows 100000 --density 0.05 --steps "$1" --verify --json; }
refused() { # NAME PATTERN JOB ARGUMENT...
  local name=$1 pattern=$2 status
  shift 2
  perf "$@" >"$scratch/out" 2>&1
  status=$?
  if [ "$status" -ne 0 ] && [ "$status" -ne 124 ]; then tap_result 0 "$name"; else tap_result 1 "$name"; fi
  said "$name: with both numbers" "$pattern"
}
greedy=(--rows 4000000 --density 0.5 --steps 50 --json)
no_room='ERR_QUOTA.*|no room for [0-9]+ bytes of partition [0-9]+: the round takes [0-9]+ bytes or more, and the job has [0-9]+ of the 12582912 bytes of this server.s memory that it may have \(--job-max-memory\)'
refused "a job whose rounds take more than it may have is refused" "$no_room" greedy "${greedy[@]}"
ranks=24 refused "links to too many ranks are, before anything is opened" 'links to 24 ranks take [0-9]+ bytes of this server.s memory, and 0 of the 12582912 that a job may have are taken \(--job-max-memory\)' \
  crowd --rows 100 --density 0.1 --steps 1

# Side by side: the greedy job comes again and again.
modest 400 >"$scratch/alone.json"
is "a modest job by itself, verified" $? 0
(while [ ! -e "$scratch/stop" ]; do perf "greedy-$RANDOM" "${greedy[@]}" >>"$scratch/greedy" 2>&1; done) &
again=$!
until_true grep -q -- '--job-max-memory' "$scratch/greedy"
modest 400 >"$scratch/beside.json"
is "and beside a greedy one that comes again and again" $? 0
touch "$scratch/stop"
wait "$again"
ok "which was refused each time" sh -c "! grep -q median_ms '$scratch/greedy'"
median() { sed -n 's/.*"median_[a-z]*": *\([0-9.]*\).*/\1/p' "$1" | head -1; }
echo "# median step of the modest job: alone $(median "$scratch/alone.json"), beside the greedy one $(median "$scratch/beside.json")"
ends
is "SIGTERM ends the server with status 0" $? 0

# Weights: of two jobs with more to do than one thread can, each has its turns. The server counts the bytes of its work
# that were done while the other's waited; nothing is timed.
weights_refused() { # LIST PATTERN
  zenpsd --check --job-weights="$1" >"$scratch/out" 2>&1
  is "--job-weights=$1 is refused" $? 2
  said "and why" "$2"
}
weights_refused 'a:0' "--job-weights: the weight in 'a:0' is no number from 1 to 1000"
weights_refused 'a:-2' "--job-weights: the weight in 'a:-2' is no number from 1 to 1000"
weights_refused 'a:1001' "--job-weights: the weight in 'a:1001' is no number from 1 to 1000"
weights_refused 'a:2,b:many' "--job-weights: the weight in 'b:many' is no number from 1 to 1000"
weights_refused 'a' "--job-weights: 'a' is no PATTERN:WEIGHT, such as 'train\*:4'"
server --server-reduce-threads=1 --fabric-checksums=yes --log-level=info --job-weights='heavy*:4,*:1'
dense() { perf "$1" --rows 2000000 --density 0.9 --steps 40 --verify --json; }
dense light >"$scratch/light.json" 2>&1 &
light=$!
dense heavy >"$scratch/heavy.json" 2>&1 &
heavy=$!
both_run() { [ "$(zenpsctl --timeout=300s -e "$address" jobs | tee "$scratch/jobs" | grep -cE '^(light|heavy) .* running ')" -eq 2 ]; }
ok "two jobs run side by side" until_true both_run
zenpsctl --timeout=300s -e "$address" jobs -o json | tr -d ' \n' >"$scratch/jobs"
ok "zenpsctl shows their weights" grep -qE '"job":"heavy"[^}]*"weight":4' "$scratch/jobs"
shares() { # both have had some of the pool's work
  zenpsctl --timeout=300s -e "$address" stats -o json | tr -d ' \n' >"$scratch/stats"
  grep -qE '"shares":\[.*"weight":4,"pool_bytes":[1-9]' "$scratch/stats" && grep -qE '"shares":\[.*"weight":1,"pool_bytes":[1-9]' "$scratch/stats"
}
ok "zenpsctl stats shows what each has had of the server's threads" until_true shares
ok "1 where none is said" grep -qE '"job":"light"[^}]*"weight":1[,}]' "$scratch/jobs"
wait "$light"
is "the light one ends, every sum verified" $? 0
wait "$heavy"
is "and so does the heavy one" $? 0
share() { # JOB FIELD: 1 its weight, 2 bytes done, 3 of them while others waited, 4 others' while its waited
  sed -nE "s/.*job $1: weight ([0-9]+): the pool has done ([0-9]+) bytes of its work, ([0-9]+) of them while other jobs. waited, and ([0-9]+) of others. .*/\\$2/p" "$scratch/log" | tail -1
}
until_true grep -q 'job light: weight' "$scratch/log"
until_true grep -q 'job heavy: weight' "$scratch/log"
is "the server was told the weight" "$(share heavy 1)" 4
is "of both" "$(share light 1)" 1
close_to() { [ "$1" -lt $(($2 + $2 / 50)) ] && [ "$2" -lt $(($1 + $1 / 50)) ]; }
ok "both have done the same work, but for what rows take" close_to "$(share heavy 2)" "$(share light 2)"
echo "# of $(share heavy 2) bytes of work, while others waited: heavy $(share heavy 3), light $(share light 3); waited for: heavy $(share heavy 4), light $(share light 4)"
ok "they have waited for each other" [ "$(($(share heavy 3) + $(share light 3)))" -gt 0 ]
ok "and the heavy one less" [ "$(share heavy 4)" -lt "$(share light 4)" ]
ends

server --job-max-tensors=2
refused "tensors beyond those that a job may have are refused" "job 'many' has 2 tensors, and a job may have 2 \(--job-max-tensors\)" \
  many --rows 1000 --density 0.1 --steps 3 --verify
ends
done_testing
