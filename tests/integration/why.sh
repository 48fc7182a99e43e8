#!/usr/bin/env bash
# zenpsctl why: with this command alone an operator reads what is wrong, and the remedy that it names works. The
# daemons log in JSON, and each line has its subject as fields.
. "$(dirname "$0")/../support/tap.sh"

start() { # NAME ARGUMENTS...: a daemon, whose log is $scratch/NAME.log; its pid in $pid
  local name=$1
  shift
  zenpsd --fabric-interface=lo --log-level=info --log-format=json --control-heartbeat=0.2s --control-dead=60s "$@" >>"$scratch/$name.log" 2>&1 &
  pid=$!
}
ctl() { zenpsctl -e "$address" --timeout=300s "$@"; }
row() { ctl -o json members | python3 -c '
import json, sys
print(*(row["pid"] for row in json.load(sys.stdin)["ranks"] if row["rank"] == int(sys.argv[1])))' "$1"; }
rounds() { local n; n=$(cat "$scratch/$1/rounds" 2>/dev/null); echo $((10#${n:-0})); } # FOLDER
# Asks; the first line is the wanted one, with the wanted status.
says() { # STATUS PATTERN
  asked_before=$asked asked=$EPOCHREALTIME
  ctl why "$about" >"$scratch/why"
  [ $? = "$1" ] && head -n 1 "$scratch/why" | grep -qE -- "$2"
}
asked=$EPOCHREALTIME about=j
names() { head -n 1 "$scratch/why" | grep -qE -- "$1"; }
# A rank that a busy machine kept silent for 2 s looks like one that is stopped: the next answer counts.
remedy_names() { names "$1" || { says 2 '^critical' && names "$1"; }; }
# The step had waited less than so long when the answer before this one was asked for, which did not tell of it.
noticed_within() { # SECONDS
  sed -nE '1s/.* has waited ([0-9.]+) s .*/\1/p' "$scratch/why" |
    awk -v now="$EPOCHREALTIME" -v before="$asked_before" -v most="$1" '{ told = $1 - (now - before) <= most } END { exit !told }'
}

# A line of a daemon's log whose sentence fits has these fields, and these besides with any value.
has_fields() { # NAME PATTERN FIELDS [FIELD]...
  python3 -c '
import json, re, sys
name, pattern, wanted, *some = sys.argv[1:]
for line in map(json.loads, open(name, encoding="utf-8")):
    if re.search(pattern, line["text"]) and json.loads(wanted).items() <= line.items() and set(some) <= line.keys():
        sys.exit(0)
sys.exit(1)' "$scratch/$1.log" "${@:2}"
}
# All sentences that begin with such a subject have it as a field: at least one does.
subjects() { # FIELD PATTERN
  python3 -c '
import json, re, sys
field, pattern, *names = sys.argv[1:]
n = 0
for line in (json.loads(line) for name in names for line in open(name, encoding="utf-8")):
    found = re.match("(?:ERR_[A-Z_]+: )?" + pattern, line["text"])
    if found and not found[1].startswith("0x"):
        assert str(line.get(field)) == found[1], line
        n += 1
assert n > 0, field' "$@" "$scratch/c.log" "$scratch/s0.log" "$scratch/s1.log"
}
# Between two answers of stats, these ranks of job j were late.
stats_late() { # [RANK]
  ctl -o json --watch=2s stats | head -n 2 | tail -n 1 | python3 -c '
import json, sys
rows = json.load(sys.stdin)["ranks"]
late = [str(row["rank"]) for row in rows if row["job"] == "j" and row["late"] == "late"]
sys.exit(late != sys.argv[1:] or len(rows) != 3)' "$@"
}
late='{"job":"night","tensor":"first","rank":1,"code":"ERR_MISSING"}'
coordinator() { # ADDRESS
  start c --roles=coordinator --control-listen="$1" --control-address-file="$scratch/address" --coordinator-state-dir="$scratch/state"
  c=$pid
}
coordinator 127.0.0.1:0
until_true test -s "$scratch/address"
address=$(cat "$scratch/address")
ctl why >"$scratch/why"
is "no server: critical" $? 2
ok "it says so" names '^critical: no server is registered\. Remedy: start one: zenpsd --roles=server --control-coordinator='
for i in 0 1; do start "s$i" --roles=server --control-coordinator="$address" --server-name="s$i"; done
s1=$pid
mkdir -p "$scratch/run"
until_true eval '[ "$(ctl -o json members | grep -c "\"state\": *\"in\"")" = 2 ]'
ZENPS_SCHEME=balanced zenpsrun -n 3 --coordinator "$address" --job j --interface lo --prefix=no -- "$build/tests/integration/restart_trainer" "$scratch/run" >"$scratch/run.out" 2>&1 &
job=$!
until_true eval '[ "$(rounds run)" -gt 20 ]'
ok "a job runs: nothing is wrong" until_true says 0 '^ok: nothing is wrong$'

# The night of a rank that lives, and does not call.
touch "$scratch/run/hang-1"
ok "a rank that does not call: critical" until_true says 2 '^critical: job j: step [0-9]+ of tensor first has waited [0-9.]+ s for the push of rank 1 \(host .*, pid [0-9]+\); its deadline comes in [0-9.]+ s'
ok "within 10 s" noticed_within 8 # an answer takes 2 s more
ok "the remedy names its process" until_true remedy_names "its process lives, and does not call: print its stack there \\(py-spy dump -p $(row 1),"
is "health has the status" "$(ctl health j >"$scratch/health"; echo $?)" 2
is "and one line" "$(wc -l <"$scratch/health")" 1
ctl rounds j >"$scratch/rounds"
ok "rounds shows the round" grep -qE '^j +first +[0-9]+ +[0-9]+ +s[01] +push +1 +\[1\] +[0-9]+$' "$scratch/rounds"
ctl -o json rounds other >"$scratch/rounds"
is "another job has none" "$(tr -d ' \n' <"$scratch/rounds")" '{"rounds":[]}'
ok "the whole cluster's answer says so, too" eval 'ctl why | head -n 1 | grep -q "for the push of rank 1"'
rm "$scratch/run/hang-1"
ok "when it calls again nothing is wrong" until_true says 0 '^ok'

# A server is refused: another process has its name.
start twin --roles=server --control-coordinator="$address" --server-name=s0
twin=$pid
ok "a refused server is logged with its fields" until_true has_fields c "server name 's0' is held" '{"server":"s0","code":"ERR_BUSY"}' peer
ok "by itself, too" until_true has_fields twin "registration with the coordinator" '{"server":"s0","code":"ERR_BUSY"}' peer
kill "$twin"
wait "$twin"

# The night of a starved rank: it is stopped.
stopped=$(row 2)
kill -STOP "$stopped"
ok "a stopped rank: critical" until_true says 2 'for the push of rank 2 .*Remedy: it has been silent for [0-9.]+ s: its process is stopped or starved'
ok "the remedy is a command" names "kill -CONT $stopped"
kill -CONT "$stopped"
ok "which helps" until_true says 0 '^ok'

# The night of a late rank: it waits for its input.
touch "$scratch/run/late-2"
ok "a late rank: warning" until_true says 1 '^warning: job j: rank 2 \(host .*\) is late: it keeps the others waiting [0-9]+% of the time, most at tensor first(; its main thread [a-z ]+)?\. Remedy: '
ok "and idle" until_true says 1 'rank 2 .*; its main thread is idle meanwhile\. Remedy: it waits for input or for its link'
ok "stats finds it, too" until_true stats_late 2
ok "by the rule that its help states" eval 'zenpsctl stats -h | tr -s "\n " " " | grep -q "largest share is late, if that is 20% or more, and 2 times the median"'
rm "$scratch/run/late-2"
ok "when it keeps up nothing is wrong" until_true says 0 '^ok'

# A rank computes longer than the others. Where others take its processor, it waits for one.
touch "$scratch/run/busy-2"
ok "a rank that computes longer: warning" until_true says 1 'rank 2 .*; its main thread (computes|waits for a processor)\. Remedy: '
ok "stats finds it" until_true stats_late 2
rm "$scratch/run/busy-2"
ok "when it computes no longer nothing is wrong" until_true says 0 '^ok'

# A rank is stopped four fifths of the time, as on a host without enough processors.
stopped=$(row 1)
while :; do
  kill -STOP "$stopped"
  sleep 0.2
  kill -CONT "$stopped"
  sleep 0.05
done &
stops=$!
ok "a rank that is stopped again and again: stats finds it" until_true stats_late 1
ok "so does why" until_true says 1 '^warning: job j: rank 1 \(host .*\) is late: it keeps the others waiting [0-9]+% of the time'
kill "$stops"
wait "$stops" 2>/dev/null
kill -CONT "$stopped"
ok "then nothing is wrong" until_true says 0 '^ok'
ok "stats finds nobody late" until_true stats_late

# The night of a killed server: another one comes in its place.
kill -KILL "$s1"
ok "a lost server: warning" until_true says 1 '^warning: job j runs on 1 of 2 servers; lost: s1\. Remedy: start a server, or mend the link of a lost one: the job takes it in'
start s1 --roles=server --control-coordinator="$address" --server-name=s1
ok "which helps" until_true says 0 '^ok'

# A job fails: the cause can be read afterwards.
kill -KILL "$(row 1)"
wait "$job" 2>/dev/null
ok "a lost rank is logged with its fields" until_true has_fields c "job 'j': rank 1 .* was lost" '{"job":"j","rank":1,"code":"ERR_PEER_LOST"}' peer
ok "a lost server was" has_fields c "server [0-9]+ 's1' .* is lost" '{"server":"s1"}' peer
ok "its other ranks tell of their last rounds" grep -qE 'last rounds, the newest first: .+ step [0-9]+ [0-9.]+ ms' "$scratch/run.out"
ok "a failed job: critical to who asks for it" until_true says 2 "^critical: job j failed [0-9]+ min ago: ERR_PEER_LOST: job 'j': rank 1 .* was lost"
ctl why >"$scratch/why"
is "a warning to others" $? 1
ctl -o json why | python3 -c '
import json, sys
why = json.load(sys.stdin)
assert why["state"] == "warning" and why["findings"][0].keys() == {"grade", "evidence", "remedy"}, why'
ok "JSON has the same" [ $? = 0 ]

# The nights of a scheme between ranks: no server knows its rounds.
mkdir "$scratch/ring"
about=ring
ZENPS_SCHEME=ring zenpsrun -n 3 --coordinator "$address" --job ring --interface lo --prefix=no -- "$build/tests/integration/restart_trainer" "$scratch/ring" >"$scratch/ring.out" 2>&1 &
job=$!
until_true eval '[ "$(rounds ring)" -gt 20 ]'
ok "a job between ranks runs: nothing is wrong" until_true says 0 '^ok: nothing is wrong$'
touch "$scratch/ring/hang-1"
ok "a rank that does not call: critical" until_true says 2 '^critical: job ring: step [0-9]+ of tensor first has waited [0-9.]+ s for messages of rank 1 \(host .*, pid [0-9]+\); its deadline comes in [0-9.]+ s'
ok "within 10 s" noticed_within 8
ok "the remedy names its process" until_true remedy_names "its process lives, and does not call, or does not get on: print its stack there \\(py-spy dump -p $(row 1),"
ctl rounds ring >"$scratch/rounds"
ok "rounds shows the round, and the rank" grep -qE '^ring +first +[0-9]+ +[0-9]+ +- +message +1 +\[1\] +[0-9]+$' "$scratch/rounds"
rm "$scratch/ring/hang-1"
ok "when it calls again nothing is wrong" until_true says 0 '^ok'
stopped=$(row 2)
kill -STOP "$stopped"
ok "a stopped rank: critical" until_true says 2 'for messages of rank 2 .*Remedy: it has been silent for [0-9.]+ s: its process is stopped or starved'
kill -CONT "$stopped"
ok "when it goes on nothing is wrong" until_true says 0 '^ok'
touch "$scratch/ring/stop"
ok "the job ends well" wait "$job"
about=j

# The night of a wrong clock. This rank waits for another one, and is 90 s ahead.
cat >"$scratch/ahead.py" <<'END'
import json, socket, sys, time
host, port = sys.argv[1].rsplit(":", 1)
lines = socket.create_connection((host, int(port))).makefile("rw")
def send(method, params, **more):
    lines.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}) + "\n")
    lines.flush()
send("hello", {"protocol": int(sys.argv[2]), "version": "0", "role": "worker"}, id=1)
fabric = {"provider": "net", "protocol": "FI_PROTO", "addr_format": "FI_SOCKADDR_IN", "domain": "lo", "address": "02", "printable": "127.0.0.1:9"}
send("job.join", {"job": "clock", "host": "ahead", "world": 2, "rank": 0, "pid": 9, "timeout_ms": 300000, "fabric": fabric}, id=2)
for message in map(json.loads, lines):
    if message.get("method") == "heartbeat":
        send("heartbeat", {"clock_us": int((time.time() + 90) * 1e6), "echo_us": message["params"]["sent_us"], "held_us": 1})
    elif "error" in message:
        sys.exit(str(message))
END
about=clock
python3 "$scratch/ahead.py" "$address" "$(ctl -o json version | sed -n 's/.*"coordinator_protocol": *\([0-9]*\).*/\1/p')" >"$scratch/out" 2>&1 &
ahead=$!
ok "a clock that is 90 s ahead: warning" until_true says 1 "^warning: the clock of host ahead \\(rank 0 of job clock\\) is (89\\.[5-9]|90\\.[0-5]) s ahead of the coordinator's\\. Remedy: set it there"
clocks() { ctl -o json members | python3 -c '
import json, sys
rows = json.load(sys.stdin)
rank = next(row for row in rows["ranks"] if row["job"] == "clock")
assert abs(rank["clock_ms"] - 90000) <= rank["clock_error_ms"] + 1, rank
assert all(abs(row["clock_ms"]) <= row["clock_error_ms"] + 1 for row in rows["servers"]), rows'; }
ok "members has the offset, and its error; those of servers on this host are none" until_true clocks
kill "$ahead"
wait "$ahead" 2>/dev/null
about=j

# The night of which only history tells: a rank never calls, and is killed long after the others have failed by that. The
# first error is the cause. A new coordinator knows it.
mkdir "$scratch/night"
touch "$scratch/night/hang-1"
ZENPS_ROUND_TIMEOUT=8s ZENPS_SCHEME=balanced zenpsrun -n 2 --coordinator "$address" --job night --interface lo --prefix=no -- "$build/tests/integration/restart_trainer" "$scratch/night" >"$scratch/night.out" 2>&1 &
wait $!
missing="job 'night': rank 0 \\(host .*, pid [0-9]+\\) failed: ERR_MISSING: .*without the push of rank 1"
ok "the first error of a rank is logged" until_true grep -qE "\"level\":\"warn\",.*$missing" "$scratch/c.log"
ended() { ctl jobs --all | grep -E "^night +0x[0-9a-f]+ +failed +2 .* ERR_MISSING .*without the push of rank 1" >"$scratch/ended"; }
ok "it is the job's cause" until_true ended
cp "$scratch/ended" "$scratch/before"
kill -KILL "$c"
wait "$c" 2>/dev/null
coordinator "$address"
ok "which a coordinator knows that starts again" until_true ended
ok "and all the rest of it" cmp "$scratch/before" "$scratch/ended"
ctl why night >"$scratch/why"
is "why of a job that has ended: critical" $? 2
ok "with its cause" names '^critical: job night failed [0-9]+ min ago: ERR_MISSING: .*without the push of rank 1'
ok "and the remedy for its code" names 'Remedy: read the logs of the ranks that the sentence names'
ok "a late round is logged with its fields" eval 'has_fields s0 "ERR_MISSING: .*without the push of rank 1" "$late" || has_fields s1 "ERR_MISSING: .*without the push of rank 1" "$late"'
ok "so is all else: jobs" subjects job "job '?([^',: ]+)'?[,:]"
ok "ranks" subjects rank "job '?[^',: ]+'?: rank ([0-9]+) "
ok "servers" subjects server "(?:job '[^']+': )?server [0-9]* ?'([^']+)'"
ok "and tensors" subjects tensor "job '?[^',: ]+'?[,:] tensor (?:[0-9]+ ')?([^',: ]+)"
kill "$c"
wait "$c"
zenpsctl -e "$address" --timeout=1s why 2>"$scratch/why"
is "without a coordinator: status 3, for Nagios unknown" $? 3
done_testing
