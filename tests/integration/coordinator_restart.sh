#!/usr/bin/env bash
# A coordinator that is killed while jobs run, and starts again from its state: no round fails, and everybody is back.
. "$(dirname "$0")/../support/tap.sh"

state=$scratch/state
long=300s short=10s # Where a silence is to be noticed it is short; else no process that stalls is to be taken for dead.
dead=$long
start() { # NAME ARGUMENTS...: a daemon, whose log is $scratch/NAME.log; its pid in $pid
  local name=$1
  shift
  zenpsd --log-level=info --control-heartbeat=0.2s --control-dead=$dead "$@" >>"$scratch/$name.log" 2>&1 &
  pid=$!
}
logged() { grep -qE -- "$2" "$scratch/$1.log"; }
more_than() { [ "$("${@:2}")" -gt "$1" ]; } # N COMMAND...: which prints a number
ctl() { zenpsctl -e "$address" --timeout=300s "$@"; }
table() { ctl members | grep -cE "$1"; }
both() { [ "$(table '^ *[0-9]+ +s[01] +in ')" -eq 2 ]; }
coordinator() { # ADDRESS ARGUMENTS...
  local at=$1
  shift
  start c --roles=coordinator --control-listen="$at" --control-address-file="$scratch/address" \
    --coordinator-state-dir="$state" --coordinator-min-servers=2 "$@"
  c=$pid
}
kill_coordinator() {
  kill -KILL "$c"
  wait "$c" 2>/dev/null
}
again() { coordinator "$address" "$@"; }
declare -A jobs
train() { # NAME: a job of three ranks in the background
  local name=$1
  mkdir -p "$scratch/$name"
  zenpsrun -n 3 --coordinator "$address" --job="$name" --prefix=no -- "$build/tests/integration/restart_trainer" \
    "$scratch/$name" >"$scratch/$name.out" 2>&1 &
  jobs[$name]=$!
}
rounds() { local n; n=$(cat "$scratch/$1/rounds" 2>/dev/null); echo $((10#${n:-0})); }
runs_on() { until_true more_than $(($(rounds "$1") + 20)) rounds "$1"; } # NAME: twenty rounds more
all_in() { [ "$(table "^$1 +[0-2] +in ")" -eq 3 ]; } # NAME
ends_well() { # NAME: is told to stop, opens a further tensor, and leaves
  touch "$scratch/$1/stop"
  wait "${jobs[$1]}" && grep -q '^[0-9]* rounds, and 8 of a further tensor$' "$scratch/$1.out"
}

coordinator 127.0.0.1:0
until_true test -s "$scratch/address"
address=$(cat "$scratch/address")
for i in 0 1; do
  start "s$i" --roles=server --control-coordinator="$address" --server-name="s$i"
  eval "s$i=$pid"
done
ok "two servers are in" until_true both
ok "a second coordinator cannot have the same state" eval \
  '! zenpsd --roles=coordinator --control-listen=127.0.0.1:0 --coordinator-state-dir="$state" >"$scratch/second" 2>&1'
ok "and says why" grep -q 'another process keeps its state there' "$scratch/second"

# Rounds go on while it is away, and when it is back; nobody is lost.
train long
ok "a job of three ranks runs" runs_on long
began() { ctl -o json jobs | python3 -c 'import json, sys
for job in json.load(sys.stdin)["jobs"]: print(job["started_at"], int(job["age_s"] * 1000))'; }
read -r started_before age_before < <(began)
kill_coordinator
ok "a server sees the coordinator go" until_true logged s0 'connection to the coordinator .* is lost'
ok "rounds go on without it" runs_on long
again
ok "both servers are back" until_true both
ok "and all ranks" until_true all_in long
ok "zenpsctl shows the job" eval 'ctl jobs | grep -qE "^long +0x[0-9a-f]{16} +running +3 +3 +0 +0 +2 "'
read -r started_after age_after < <(began)
is "with its start" "$started_after" "$started_before"
ok "and its age ($age_before ms, then $age_after)" [ "$age_after" -gt "$age_before" ]
ok "and its tensor" eval 'ctl tensors | grep -qE "^long .*first"'
ok "the servers kept its rounds" eval '! logged s0 "is closed: " && ! logged s1 "is closed: "'
ok "rounds go on" runs_on long
train beside
ok "a new job runs beside it" runs_on beside
ok "and ends" ends_well beside
for n in second third; do
  kill_coordinator
  again
  ok "killed a $n time, it is back" until_true both
done
ok "the first job has lost no round, opens a further tensor, and leaves" ends_well long
no_jobs() { ctl jobs >"$scratch/jobs" && ! grep -q 0x "$scratch/jobs"; }
ok "and is gone" until_true no_jobs
ok "on the servers, too" until_true eval '[ "$(table "^ *[0-9]+ +s[01] .* 0 +[0-9]+ +[^ ]+ +[^ ]+ +[^ ]+$")" -eq 2 ]'
ok "nobody was lost" eval '! logged c "(is|was) lost"'

# What is asked while it is away waits for it: a join, a tensor.
kill_coordinator
train waits
ok "a job that starts without a coordinator waits" kill -0 "${jobs[waits]}"
again
ok "until there is one" runs_on waits
kill_coordinator
touch "$scratch/waits/stop"
dead=$short # Ranks that join now keep it, and give a silent coordinator up.
again
ok "a tensor that is asked for while there is none is opened later" ends_well waits
# Schemes that are chosen: without a coordinator what runs goes on, beyond the steps that it had a say in.
far() { until_true more_than $(($(rounds "$1") + 80)) rounds "$1"; } # NAME: several runs more
choices() { grep -c "job 'auto': tensor 'first': .* from step" "$scratch/c.log"; }
ZENPS_SCHEME=auto train auto
ok "a job whose schemes are chosen" runs_on auto
kill_coordinator
dead=$long
ok "goes on without the coordinator" far auto
chosen=$(choices)
again
ok "and when it is back" far auto
ok "which chooses again" until_true more_than "$chosen" choices
for n in first second third; do
  kill_coordinator
  again
  ok "killed a $n time at once, it does no harm" runs_on auto
done
ok "all ranks are back" until_true all_in auto
kill -STOP "$c" # questions about the next steps' schemes are sent, and nobody reads them
ok "when it is stopped, ranks give it up" until_true grep -q 'the coordinator is out of reach (closed here' "$scratch/auto.out"
ok "and go on" far auto
kill_coordinator
kill -KILL "$s1" # of which nobody can rid the job
wait "$s1"
again
start s1 --roles=server --control-coordinator="$address" --server-name=s1
s1=$pid
ok "a server that dies meanwhile is replaced" until_true both
ok "and steps go on" far auto
ok "and ends well" ends_well auto

# A rank that is killed while the coordinator is away is lost when its time is up; so is its job, by name.
train orphan
ok "another job runs" runs_on orphan
ok "and is known" until_true all_in orphan
victim=$(ctl members | awk '$1 == "orphan" && $2 == 1 { print $5 }')
kill_coordinator
kill -KILL "$victim"
again --coordinator-restart-grace=5s # on a busy machine the others need a second
wait "${jobs[orphan]}"
ok "whose rank dies meanwhile fails" [ $? -ne 0 ]
ok "and the coordinator knows it" until_true logged c 'rank 1 .* was lost: it did not come back in time'
ok "no job stays" until_true no_jobs

# A server that dies meanwhile is lost likewise; its successor takes its name at once.
kill_coordinator
kill -KILL "$s1"
wait "$s1" 2>/dev/null
again
start s1 --roles=server --control-coordinator="$address" --server-name=s1
s1=$pid
ok "a new server of an old one's name is in" until_true both
ok "in place of the old one" logged c "server [0-9]+ 's1' .* is lost: another process has its name"

# Told to go, it goes at once, and leaves the job to the next one.
train handed
ok "a job runs again" runs_on handed
kill -TERM "$c"
wait "$c"
is "SIGTERM: the coordinator ends without waiting for the job" $? 0
ok "it says that ranks are away" logged c "job 'handed': rank 0 .* is away: the coordinator is closing"
ok "and calls nothing lost that goes on" eval "! logged c \"(job 'handed'|server [0-9]+).* is lost.*closing|job 'handed'.*(was lost|is closed|> closing)\""
dead=$short
again
ok "which ends well under the next one" ends_well handed

# Stopped for longer than it takes to be dead: everybody connects anew.
train stopped
ok "and another one" runs_on stopped
kill -STOP "$c"
ok "a server gives the connection up" until_true logged s0 'the coordinator was silent for'
kill -CONT "$c"
ok "and is back" until_true both
ok "the job does not notice" ends_well stopped

# What must not be taken over.
kill_coordinator
dead=$long
refused() { # NAME PATTERN ARGUMENTS...
  local name=$1 pattern=$2
  shift 2
  zenpsd --roles=coordinator --control-listen=127.0.0.1:0 --coordinator-state-dir="$state" "$@" >"$scratch/out" 2>&1
  is "$name: refused" $? 1
  said "by name" "$pattern"
}
refused "another cluster's state" "of cluster 'zenps', and this coordinator of cluster 'other'" --coordinator-cluster=other
cp "$state/journal" "$scratch/journal"
printf 'X' | dd of="$state/journal" bs=1 seek=30 conv=notrunc 2>/dev/null
refused "a damaged record" 'the record at byte 0 \(number 0\) is damaged'
zenpsctl state check "$state" >"$scratch/out" 2>&1
is "zenpsctl state check says so: status 1" $? 1
said "with the byte" 'zenpsctl state: the record at byte 0 \(number 0\) is damaged, and [1-9][0-9]* whole ones follow from byte [1-9]'
cp "$scratch/journal" "$state/journal"
ok "of a whole one it says what is in it" zenpsctl state check "$state"
said "by kind" "journal: whole, $(stat -c %s "$state/journal") bytes, [0-9]+ records: .*[1-9] server"
ok "as JSON, too" eval 'zenpsctl state check "$state" --json | grep -q "\"state\": \"whole\""'
# Records that are there twice, are missing, or stand in another order: zenpsctl says what zenpsd does with them.
mkdir "$scratch/spoilt"
spoilt=$scratch/spoilt/journal
starts() { # zenpsd takes the spoilt journal over. It is ready in a moment, or ends.
  cp "$spoilt" "$scratch/as-it-was"
  rm -f "$scratch/spoilt.address"
  zenpsd --roles=coordinator --control-listen=127.0.0.1:0 --control-address-file="$scratch/spoilt.address" \
    --coordinator-state-dir="$scratch/spoilt" >"$scratch/out" 2>&1 &
  local started=$!
  until_true eval '[ -s "$scratch/spoilt.address" ] || ! kill -0 '$started' 2>/dev/null'
  kill -KILL "$started" 2>/dev/null
  wait "$started" 2>/dev/null
  cp "$scratch/as-it-was" "$spoilt"
  [ -s "$scratch/spoilt.address" ]
}
# The first two records of each kind: others are like them.
of_each_kind() { grep -oE '"what": *"[^"]*"' "$state/journal" | awk 'seen[$0]++ < 2 { print NR }'; }
n_agree=0 n_refused=0 differ=
for i in $(of_each_kind); do
  for how in "${i}p" "${i}d" "${i}{h;d};$((i + 1)){G}"; do # doubled, dropped, swapped with the next one
    sed "$how" "$state/journal" >"$spoilt"
    cmp -s "$spoilt" "$state/journal" && continue
    zenpsctl state check "$scratch/spoilt" >"$scratch/checked" 2>&1
    checked=$?
    if starts; then daemon=0; else daemon=1; fi
    if [ $((checked != 0)) -eq $daemon ]; then n_agree=$((n_agree + 1)); else differ="$differ $how:$checked:$daemon"; fi
    n_refused=$((n_refused + daemon))
  done
done
is "zenpsctl state check and zenpsd agree about $n_agree spoilt journals" "$differ" ""
ok "of which they refuse some ($n_refused)" test "$n_refused" -gt 0
sed -n '1p;1p' "$state/journal" >"$spoilt"
zenpsctl state check "$scratch/spoilt" >"$scratch/out" 2>&1
is "one whose header is there twice: status 1" $? 1
said "with the record" "the state cannot be taken over: record 1: there is no record of 'zenps.*': no coordinator starts from this journal"
said "as unfit" 'journal: unfit, '
zenpsctl state check "$scratch/none" >"$scratch/out" 2>&1
is "where there is none: status 1" $? 1
said "by name" 'none/journal: cannot open it: No such file'
zenpsctl state repair "$state" >"$scratch/out" 2>&1
is "nothing mends one: status 2" $? 2
said "and what there is" "there is no 'repair': zenpsctl state check FOLDER"
refused "a folder that cannot be made" 'cannot make the folder for the state' --coordinator-state-dir=/proc/none/state
if unshare -m true 2>/dev/null; then
  read_only() { # ARGUMENT...: where the folder is on a disk that takes no writes
    unshare -m sh -c 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"' "$state" zenpsd "$@"
  }
  read_only --roles=coordinator --control-listen=127.0.0.1:0 --coordinator-state-dir="$state" >"$scratch/out" 2>&1
  is "a folder that cannot be written to: refused" $? 1
  said "by name" 'state/journal: cannot open it: Read-only file system'
else
  skip "a folder that cannot be written to" "this user cannot mount"
fi
printf '0123456789abcdef 12 {"what' >>"$state/journal"
ok "a torn tail can be started from" zenpsctl state check "$state"
said "and is cut off then" 'a torn tail of 26 bytes, from byte [0-9]+ on, is cut off at the next start'
again
ok "a torn tail is cut off" until_true logged c 'a torn tail of 26 bytes is cut off'
ok "and everybody is back" until_true both

# An elastic job knows which generation it is, and goes on to the next one.
for i in 1 2 3 4; do echo "1 $i:1"; echo "-1 $((i + 4)):1"; done >"$scratch/rows.libsvm"
elastic() { # NAME: three processes; $run is zenpsrun's
  zenpsrun -n 3 --coordinator "$address" --job="$1" --elastic 2:3 --join-wait 0.5s --prefix=no -- \
    zenps-linear --batch 1 --epochs 100000 "$scratch/rows.libsvm" >"$scratch/elastic.out" 2>&1 &
  run=$!
}
elastic elastic
printed() { grep -qE -- "$1" "$scratch/elastic.out"; }
epochs() { grep -c '^epoch' "$scratch/elastic.out"; }
trains_on() { until_true more_than $(($(epochs) + 20)) epochs; }
# On a busy machine the last of three ranks may be too late for the first generation: $generation is the one of all three.
has_three() { # NAME
  generation=$(ctl jobs --output=json | python3 -c 'import json, sys
print(*(job["generation"] for job in json.load(sys.stdin)["jobs"] if job["job"] == sys.argv[1] and job["joined"] == 3))' "$1")
  [ -n "$generation" ]
}
all_train() { # NAME
  until_true has_three "$1" && trains_on
  next=$((generation + 1))
}
pid_of() { ctl members | awk -v job="$1" -v rank="$2" '$1 == job && $2 == rank { print $5 }'; } # NAME RANK
ok "an elastic job of three ranks trains" all_train elastic
kill_coordinator
again
ok "the coordinator is killed, and back with everybody" until_true both
ok "ranks too" until_true all_in elastic
kill -KILL "$(pid_of elastic 1)"
ok "a rank dies: the others go on" until_true printed "^generation $next: 2 ranks \(rank 1 is gone\), from step [0-9]+\$"
ok "and train" trains_on
ok "zenpsctl shows the generation" eval 'ctl jobs --output=json | tr -d "\n" | grep -qE "\"job\": *\"elastic\".*\"generation\": *$next"'
kill -TERM "$run"
wait "$run" 2>/dev/null

# One that has left its generation, and waits for the next one, has its seat when the coordinator is back. Another one is
# stopped meanwhile, so that the first one waits.
elastic moves
ok "another elastic job trains" all_train moves
stopped=$(pid_of moves 2)
killed=$(pid_of moves 1)
kill -STOP "$stopped"
kill -KILL "$killed"
ok "a rank dies, another one is stopped, and the third one leaves" \
  until_true grep -qE "\"name\":\"moves\",\"generation\":$generation,.*\"moving\":\[0\]" "$state/journal"
kill_coordinator
again
kill -CONT "$stopped"
ok "both have their seats when the coordinator is back" until_true \
  logged c "job 'moves': generation $next has 2 ranks, 2 of 3 from the last one and 0 new"
ok "and go on" until_true printed "^generation $next: 2 ranks \(rank 1 is gone\), from step [0-9]+\$"
ok "and train on" trains_on
kill -TERM "$run"
wait "$run" 2>/dev/null

# Whom an administrator has expelled, while it was stopped, is refused by the coordinator that starts again: it is known.
elastic expels
both_in() { [ "$(table '^expels +[01] +in ')" -eq 2 ]; }
ok "a third elastic job trains" all_train expels
expelled=$(pid_of expels 1)
kill -STOP "$expelled"
ok "a rank that is stopped is expelled" ctl kick expels 1 --reason 'its GPU is broken'
ok "the others go on without it" until_true printed "^generation $next: 2 ranks \(rank 1 is gone\), from step [0-9]+\$"
kill_coordinator
again
ok "the coordinator is killed, and back with the others" until_true both_in
kill -CONT "$expelled"
ok "the one that was expelled is refused, by name" until_true logged c \
  'job\.(resume|next)( by=- role=worker)? is refused: this process was rank 1 of job 0x[0-9a-f]{16}, and is in it no longer: an administrator expelled it: its GPU is broken$'
ok "and the others train on" trains_on
kill -TERM "$run"
wait "$run" 2>/dev/null

# A disk that is full: nothing that could be forgotten is told, and the process ends. Here the limit is a file's size.
small() (
  trap '' XFSZ
  ulimit -f 1
  exec zenpsd --roles=coordinator --control-listen=127.0.0.1:0 --control-address-file="$scratch/small.address" \
    --coordinator-state-dir="$scratch/small" --log-level=error
)
small 2>&1 | cat >"$scratch/out" &
small=$!
until_true test -s "$scratch/small.address"
full=()
for i in 0 1 2 3; do
  zenpsd --roles=server --control-coordinator="$(cat "$scratch/small.address")" --server-name="full$i" --log-level=error \
    >/dev/null 2>&1 &
  full+=($!)
done
wait "$small"
said "a full disk ends it, by name" 'small/journal: cannot write: File too large'
kill "${full[@]}"
kill -TERM "$c" "$s0" "$s1"
wait "$c"
done_testing
