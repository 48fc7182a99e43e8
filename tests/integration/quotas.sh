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
  timeout 100 zenpsrun -n "${ranks:-2}" --coordinator "$address" --provider=net --interface=lo --job="$job" --prefix=no -- zenps-perf --warmup 0 "$@"
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
no_room='ERR_QUOTA.*|no room for [0-9]+ bytes of partition [0-9]+: the round takes [0-9]+ bytes or more, and the job has [0-9]+ of the 12582912 bytes of this server.s memory that it may have \(job.max_memory\)'
refused "a job whose rounds take more than it may have is refused" "$no_room" greedy "${greedy[@]}"
ranks=24 refused "links to too many ranks are, before anything is opened" 'links to 24 ranks take [0-9]+ bytes of this server.s memory, and 0 of the 12582912 that a job may have are taken \(job.max_memory\)' \
  crowd --rows 100 --density 0.1 --steps 1

# Side by side: the greedy job comes again and again.
modest 400 >"$scratch/alone.json"
is "a modest job by itself, verified" $? 0
(while [ ! -e "$scratch/stop" ]; do perf "greedy-$RANDOM" "${greedy[@]}" >>"$scratch/greedy" 2>&1; done) &
again=$!
until_true grep -q 'job.max_memory' "$scratch/greedy"
modest 400 >"$scratch/beside.json"
is "and beside a greedy one that comes again and again" $? 0
touch "$scratch/stop"
wait "$again"
ok "which was refused each time" sh -c "! grep -q median_ms '$scratch/greedy'"
median() { sed -n 's/.*"median_[a-z]*": *\([0-9.]*\).*/\1/p' "$1" | head -1; }
echo "# median step of the modest job: alone $(median "$scratch/alone.json"), beside the greedy one $(median "$scratch/beside.json")"
ends
is "SIGTERM ends the server with status 0" $? 0

server --job-max-tensors=2
refused "tensors beyond those that a job may have are refused" "job 'many' has 2 tensors, and a job may have 2 \(job.max_tensors\)" \
  many --rows 1000 --density 0.1 --steps 3 --verify
ends
done_testing
