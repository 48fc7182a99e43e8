#!/usr/bin/env bash
# Elastic training: ranks are killed in the middle, with and without others in their place, and it comes to the same end.
. "$(dirname "$0")/../support/tap.sh"

# Two overlapping topics, 40 words a document out of 3000; sentences of ten words, each on one of thirty topics.
perl -e 'srand 3; for (1 .. 3000) { my $y = rand() < 0.5 ? 1 : -1; my %s;
  for (1 .. 40) { my $f = 1 + int(3000 * rand() ** 2.5); $f = 1 + ($f * ($y > 0 ? 7 : 11)) % 3000 if rand() < 0.3; $s{$f} = 1 }
  print join(" ", $y, map { "$_:0.2" } sort { $a <=> $b } keys %s), "\n" }' >"$scratch/docs.libsvm"
perl -e 'srand 5; for (1 .. 2000) { my $t = int(rand() ** 1.5 * 30);
  print join(" ", map { chr(97 + $t % 26) . "topic" . chr(97 + $t / 26) . chr(97 + int(rand(20))) } 1 .. 10), "\n" }' >"$scratch/text"
# Long enough for most kills on a busy machine.
linear=(zenps-linear --batch 16 --epochs 60 "$scratch/docs.libsvm")
embed=(zenps-embed --batch 128 --epochs 4 --min-count 1 --dim 16 "$scratch/text")

# A rank. Each RANK:LINE kills the first process with that rank when the output has the line.
cat >"$scratch/rank.sh" <<'END'
folder=$1
shift
while [ "$1" != run ]; do
  if [ "$RANK" = "${1%%:*}" ] && mkdir "$folder/killed-$RANK" 2>/dev/null; then
    (until grep -q -- "${1#*:}" "$folder/out"; do kill -0 $$ || exit; sleep 0.02; done; kill -KILL $$) 2>/dev/null &
  fi
  shift
done
shift
exec "$@"
END
kills=()
# elastic [OPTION]... -- PROGRAM...: zenpsrun's, with the kills of $kills. Each makes a generation, which $generations
# says more of: patterns, one a line. A busy machine may begin without the last ranks, or kill too late. Where another
# process takes each free place, a long --join-wait is over when it comes.
elastic() {
  local options=() last=$((1 + ${#kills[@]}))
  while [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  shift
  [ "$last" -gt 1 ] && last="^generation $last:|\"generation\": $last," || last=
  in_time "${generations:-$last}" anew timeout 1800 zenpsrun --prefix=no "${options[@]}" -- sh "$scratch/rank.sh" "$scratch" "${kills[@]}" run "$@"
}
anew() { # COMMAND...: nothing has been killed
  rm -rf "$scratch"/killed-*
  "$@"
}
last() { # LINES: loss and metric of the last epoch
  sed -n 's/^epoch .* loss \([0-9.]*\) *held-out [a-z]* \([0-9.]*\) .*/\1 \2/p; s/^{"epoch.*"loss": \([^,]*\), "[a-z]*": \([^,]*\),.*/\1 \2/p' "$1" | tail -n 1
}
alike() { # A B TOLERANCE METRIC
  printf '%s %s\n' "$1" "$2" | awk -v tol="$3" -v most="$4" '{ d = ($1 - $3) / $1; m = $2 - $4 }
    END { exit !(NF == 4 && d < tol && d > -tol && m < most && m > -most) }'
}
epochs() { # the epochs that were reported
  sed -n 's/^epoch *\([0-9]*\)  loss.*/\1/p; s/^{"epoch": \([0-9]*\),.*/\1/p' "$scratch/out" | paste -sd ' '
}
fell() { # by how much the loss has fallen
  sed -n 's/^epoch .* loss \([0-9.]*\) .*/\1/p' "$scratch/out" | awk 'NR == 1 { first = $1 } { final = $1 } END { print (first > 0 && final < 0.9 * first ? "far" : first " to " final) }'
}
all_epochs=$(seq 60 | paste -sd ' ')

kills=()
elastic -n 1 -- "${linear[@]}"
is "linear, one rank in peace: status 0" $? 0
calm=$(last "$scratch/out")

kills=('0:epoch  2' '3:generation 2')
generations='^generation 2: 3 ranks \(rank 0 is gone\)
^generation 3: 2 ranks \(rank 2 is gone\)' elastic -n 4 --servers 3 --elastic 2:4 --join-wait 2s -- "${linear[@]}"
is "linear, rank 0 is killed, then another: status 0" $? 0
said "the three that are left go on" '^generation 2: 3 ranks \(rank 0 is gone\), from step [0-9]+$'
said "and the two" '^generation 3: 2 ranks \(rank 2 is gone\), from step [0-9]+$'
is "every epoch is reported, once" "$(epochs)" "$all_epochs"
ok "and the model is that of one rank in peace" alike "$calm" "$(last "$scratch/out")" 0.0005 0.01

kills=('2:"epoch": 2')
elastic -n 4 --servers 3 --elastic 2:4 --join-wait 60s --on-rank-loss=restart -- "${linear[@]}" --json
is "linear, a rank is killed and started again: status 0" $? 0
said "another takes its place" '^\{"generation": 2, "world": 4, "gone": \[2\], "new": 1, "step": [0-9]+\}$'
said "four train to the end" '^\{"epoch": 60, .*"world": 4\}$'
is "every epoch is reported, once" "$(epochs)" "$all_epochs"
ok "and the model is that of one rank in peace" alike "$calm" "$(last "$scratch/out")" 0.0005 0.01

# What is under way when a rank is lost, or waits in a residual, is another matter for each of these.
for how in "--delay 2 --threads 2" "--sparsify topk --density 0.05" "--method scd --coordinates 5"; do
  kills=('1:epoch  1')
  # shellcheck disable=SC2086
  elastic -n 2 --elastic 1:2 --join-wait 60s --on-rank-loss=restart -- "${linear[@]}" --batch 8 $how
  is "linear $how: status 0" $? 0
  said "another takes the place" '^generation 2: 2 ranks \(rank 1 is gone, 1 is new\), from step [0-9]+$'
  is "every epoch is reported, once" "$(epochs)" "$all_epochs"
  is "and it learns: the loss falls" "$(fell)" far
done

kills=()
elastic -n 1 -- "${embed[@]}"
is "embed, one rank in peace: status 0" $? 0
calm_embed=$(last "$scratch/out")
kills=('0:epoch  1' '2:generation 2')
elastic -n 4 --servers 3 --elastic 2:4 --join-wait 60s --on-rank-loss=restart -- "${embed[@]}"
is "embed, rank 0 is killed, then another, and both are started again: status 0" $? 0
said "a new rank 0 tells" '^generation 2: 4 ranks \(rank 0 is gone, 1 is new\), from step [0-9]+$'
said "also of the second" '^generation 3: 4 ranks \(rank 2 is gone, 1 is new\), from step [0-9]+$'
is "every epoch is reported, once" "$(epochs)" "1 2 3 4"
ok "and the model is that of one rank in peace" alike "$calm_embed" "$(last "$scratch/out")" 0.005 0.02

cat >"$scratch/grow.sh" <<'END'
folder=$1
shift
[ "$RANK" = 0 ] && (until grep -q 'epoch  2' "$folder/out"; do kill -0 $$ 2>/dev/null || exit; sleep 0.02; done; exec "$@" >"$folder/newcomer" 2>&1) &
exec "$@"
END
long=(zenps-linear --batch 16 --epochs 100 "$scratch/docs.libsvm") # the newcomer may be slow to start
kills=()
elastic -n 1 -- "${long[@]}"
calm=$(last "$scratch/out")
in_time '^generation 2: 3 ranks' timeout 1800 zenpsrun --prefix=no -n 2 --elastic 1:3 --join-wait 2s -- sh "$scratch/grow.sh" "$scratch" "${long[@]}"
is "a process that comes in the middle: status 0" $? 0
said "the job takes it in" '^generation 2: 3 ranks \(1 is new\), from step [0-9]+$'
is "every epoch is reported, once" "$(epochs)" "$(seq 100 | paste -sd ' ')"
is "and the model is that of one rank in peace" "$(alike "$calm" "$(last "$scratch/out")" 0.0005 0.01; echo $?)" 0
is "the newcomer has nothing to say of it" "$(cat "$scratch/newcomer")" ""

kills=('1:epoch  1')
# Both ranks join within the time in which the one that is left waits in vain. On a busy machine they may not, or its own
# time is over before the coordinator's answer is here: then once more, with more of it.
for wait in 5s 60s; do
  ZENPS_JOIN_TIMEOUT=$wait elastic -n 2 --linger=600s --elastic 2:2 -- "${linear[@]}"
  is_lost=$?
  grep -q '^epoch  1' "$scratch/out" && ! grep -q "no answer to 'job.next'" "$scratch/out" && break
done
(exit $is_lost)
is "fewer than the job needs: the code of the one that was lost" $? 137
# Where it hears of it between two steps, it has no step to say it of.
said "the other says so" '^zenps-linear: (.*rank 1 .*|the ranks of the job have changed); the job does not go on: .*1 ranks? were there of the 2'
said "as does zenpsrun" '^zenpsrun: rank 1 \(pid [0-9]+\) was killed by signal 9 \(Killed\); 1 rank is left, and --elastic asks for 2$'

# zenps-perf compares every sum with that of the generation's ranks. Its rounds are slow, so that few take long enough.
export ZENPS_FABRIC_FAULT=delay=1:3ms # of providers fault+NAME
perf() { echo "exec zenps-perf --rows 20000 --density 0.01 --steps \$((400 * TURN)) --verify $*"; } # in_time's turn
kills=('2:^generation 1: 4 ranks, ')
generations='^generation 1: 4 ranks
^generation 2: 3 ranks' elastic -n 4 --servers 2 --elastic 2:4 --join-wait 2s -p fault+auto -- sh -c "$(perf)"
is "perf, a rank is killed: status 0" $? 0
said "the others go on with what is left" '^generation 2: 3 ranks, [0-9]+ steps are left$'
said "and every sum is right" '^verified: every step equals the reference sum, bit for bit$'
left=$(sed -n 's/^generation 2: 3 ranks, \([0-9]*\) steps are left$/\1/p' "$scratch/out")
said "and the figures are of three" '^ranks 3, servers 2,'
said "and of these steps" "^step .* over $left steps after"
kills=('1:"generation": 1, "world": 3,')
elastic -n 3 --servers 2 --elastic 2:3 --join-wait 60s --on-rank-loss=restart -p fault+auto -- sh -c "$(perf --op mean --json)"
is "perf, a rank is killed and started again: status 0" $? 0
said "three go on" '^\{"generation": 2, "world": 3, "left": [0-9]+\}$'
said "and every sum is right" '"verified":true\}$'
unset ZENPS_FABRIC_FAULT

cat >"$scratch/server.sh" <<'END'
folder=$1 run=$PPID
shift
[ "$RANK" = 0 ] && (until grep -q 'epoch *2 ' "$folder/out"; do kill -0 $$ 2>/dev/null || exit; sleep 0.02; done; kill -KILL "$(pgrep -P "$run" -f -- '--server-name=server0( |$)')") &
exec "$@"
END
in_time '^generation 2:' timeout 1800 zenpsrun --prefix=no -n 2 --servers 1 --elastic 2:2 -- sh "$scratch/server.sh" "$scratch" "${linear[@]}"
is "the last server is killed: status 0" $? 0
said "zenpsrun starts another" '^zenpsrun: server 0 \(pid [0-9]+\) was killed by signal 9 \(Killed\): .*; started server 0-2 \(pid [0-9]+\) in its place'
said "and the ranks go on over it" '^generation 2: 2 ranks, from step [0-9]+$'
is "every epoch is reported, once" "$(epochs)" "$all_epochs"

timeout 1800 zenpsrun --prefix=no -n 2 --servers 2 --elastic 2:2 -- sh "$scratch/server.sh" "$scratch" \
  zenps-linear --batch 16 --epochs 100000 "$scratch/docs.libsvm" >"$scratch/out" 2>&1 &
run=$!
ok "one of two servers is killed: the ranks go on, and in a while over the new one, too" until_true \
  grep -qE '^generation 2: 2 ranks, from step [0-9]+$' "$scratch/out"
is "no step has failed" "$(grep -c fail "$scratch/out")" 0
kill -TERM "$run"
wait "$run" 2>/dev/null

kills=()
mkfifo "$scratch/pipe"
elastic -n 1 --elastic 1:1 -- zenps-linear "$scratch/pipe"
is "a pipe cannot be read anew: a usage error" $? 2
said "which says so" "pipe is no file: the ranks of an elastic job read theirs anew when they change"

# What measures this is run, too; how long it takes is not looked at.
measure=(timeout 1800 python3 "$top/tests/bench/elastic" --turns 1 --ranks 3 --servers 1 --join-wait 200)
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
  ok "tests/bench/elastic measures the loss of a rank" "${measure[@]}" "$build"
  said "and says both times" '^\| 1 \| [0-9]+ \| -?[0-9]+ \|$'
  "${measure[@]}" --patience 0 "$build" >"$scratch/out" 2>&1
  is "what does not come in time ends it" $? 1
  said "and is named" '^elastic: 0 s have passed, and there is no generation of 3 ranks; the last lines are:$'
else
  skip "tests/bench/elastic measures the loss of a rank" "no python3 of version 3.9 or later"
fi

done_testing
