#!/usr/bin/env bash
# Another user of the host, who has no file and no token: against zenpsrun with its defaults, alone and under torchrun, and
# against a coordinator on loopback without TLS. Each attempt is refused, and jobs end with the right sums.
. "$(dirname "$0")/../support/tap.sh"
nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
[ "$(id -u)" -eq 0 ] && command -v python3 >/dev/null && nobody test -x "$build/zenpsd" ||
  { skip "another user of the host" "needs root, to become one, python3, and a build that everybody can read"; done_testing; exit; }
chmod 0711 "$scratch"
mkdir -m 0777 "$scratch/his"
unset TMPDIR XDG_RUNTIME_DIR ZENPS_COORDINATOR ZENPS_TOKEN_FILE
export PYTHONPATH=$top/worker/python ZENPS_LIBRARY=$build/.libs/libzenps.so.0

# ---- a job whose gradients can be told from all other bytes ----
cat >"$scratch/trainer.py" <<'PY'
import array, os, sys
import zenps
steps, end = sys.argv[1:3]
with zenps.init() as job:
    if job.rank == 0:
        with open(f"{steps}.address", "w") as file:
            file.write(os.environ["ZENPS_COORDINATOR"])
    table = job.tensor("table", rows=200000, width=8, op="sum", values="raw", scheme="balanced")
    step = over = 0
    while not over:
        rows = array.array("q", range(job.rank, 200000, 50))
        values = array.array("f", [123456.789] * 8 * len(rows))
        result = table.allreduce(values, rows).wait()
        assert all(row == [values[0]] * 8 for row in result.values.tolist()), "a wrong sum"
        assert len(result.row_ids) == job.world * len(rows)
        step += 1
        over = job.sum(float(os.path.exists(end)))[0]
        with open(f"{steps}.{job.rank}.new", "w") as file:
            file.write(str(step))
        os.rename(file.name, f"{steps}.{job.rank}")
print("right sums")
PY
cat >"$scratch/finds.py" <<'PY'
"""finds.py PID: how often eight values of a gradient in a row are in the memory of the process."""
import struct, sys
words, n = struct.pack("8f", *[123456.789] * 8), 0
with open(f"/proc/{sys.argv[1]}/maps") as maps, open(f"/proc/{sys.argv[1]}/mem", "rb") as memory:
    for line in maps:
        span, access = line.split()[:2]
        first, end = (int(part, 16) for part in span.split("-"))
        if access.startswith("r") and not line.rstrip().endswith(("[vvar]", "[vsyscall]")):
            try:
                memory.seek(first)
                n += memory.read(end - first).count(words)
            except (OSError, ValueError):
                pass
print(n)
PY
cat >"$scratch/listens.py" <<'PY'
"""listens.py PID: the TCP ports at which the process listens."""
import os, sys
owned = set()
for fd in os.listdir(f"/proc/{sys.argv[1]}/fd"):
    try:
        owned.add(os.readlink(f"/proc/{sys.argv[1]}/fd/{fd}"))
    except OSError:
        pass
for table in ("tcp", "tcp6"):
    with open(f"/proc/{sys.argv[1]}/net/{table}") as lines:
        for row in (line.split() for line in list(lines)[1:]):
            if row[3] == "0A" and f"socket:[{row[9]}]" in owned:
                print(int(row[1].rsplit(":", 1)[1], 16))
PY
finds() { python3 "$scratch/finds.py" "$1"; }
steps() { cat "$scratch/steps.$1" 2>/dev/null || echo 0; }
goes_on() { # two ranks have taken steps since
  local before0 before1
  before0=$(steps 0) before1=$(steps 1)
  until_true eval '! kill -0 "$run" || { [ "$(steps 0)" -gt '$((before0 + 3))' ] && [ "$(steps 1)" -gt '$((before1 + 3))' ]; }'
  kill -0 "$run"
}
job_starts() { # COMMAND...: in the background, with the trainer behind it
  rm -f "$scratch/over" "$scratch"/steps.*
  "$@" /usr/bin/python3 "$scratch/trainer.py" "$scratch/steps" "$scratch/over" >"$scratch/run" 2>&1 &
  run=$!
  ok "$who: a job runs" goes_on || { cat "$scratch"/run*; done_testing; exit; }
  address=$(cat "$scratch/steps.address")
}
job_ends() {
  touch "$scratch/over"
  wait "$run"
  is "$who: the job ends well" $? 0
  cp "$scratch/run" "$scratch/out"
  is "$who: and all sums of both ranks were right" "$(cat "$scratch/run" "$scratch"/run.* 2>/dev/null | grep -c 'right sums$')" 2
}
# Whoever has the certificate of nobody can neither change nor be anything at $address.
ctl() { zenpsctl --timeout=300s -e "$address" "$@"; }
his_patience=1s # he asks in vain for so long
his_ctl() { (cd / && nobody "$build/zenpsctl" -t "$his_patience" -e "$address" "$@"); }
refused() { # NAME STATUS COMMAND...
  "${@:3}" >"$scratch/out" 2>&1
  is "$who: $1" $? "$2"
}
servers() { ctl -o json members | python3 -c 'import json, sys; print(" ".join(sorted(s["name"] for s in json.load(sys.stdin)["servers"])))'; }
rogue_starts() {
  : >"$scratch/rogue.log"
  (cd / && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$build/zenpsd" --roles=server --control-coordinator="$address" --server-name=evil \
    --fabric-provider=net --fabric-interface=lo) 2>"$scratch/rogue.log" &
  rogue=$!
  ok "$who: his server has tried to come in" until_true grep -qE 'registered with|registration .* failed|cannot connect' "$scratch/rogue.log"
}
attack() { # STATUS SERVER: of the methods that change something, and a server of the job
  rogue_starts
  refused "drain" "$1" his_ctl drain "$2"
  refused "undrain" "$1" his_ctl undrain "$2"
  refused "rebalance" "$1" his_ctl rebalance
  refused "kick" "$1" his_ctl kick train 1
  cp "$scratch/out" "$scratch/kicked"
  ok "$who: the job goes on" goes_on
  is "$who: his server has seen none of the gradients" "$(finds "$rogue")" 0
}
rogue_ends() {
  kill "$rogue"
  wait "$rogue" 2>/dev/null
}

# ---- zenpsrun with its defaults ----
who=zenpsrun
job_starts zenpsrun -n 2 --servers 2 --job=train -i lo --prefix=no --
coordinator=$(pgrep -P "$run" -f -- --roles=coordinator)
is "$who: its coordinator has no port" "$(python3 "$scratch/listens.py" "$coordinator")" ""
server=$(pgrep -P "$run" -f -- --server-name=server0)
ok "$who: gradients are found where they are" [ "$(finds "$server")" -gt 0 ]
attack 3 server0
refused "reading the status" 3 his_ctl status
refused "reading the jobs" 3 his_ctl jobs
(cd / && nobody env ZENPS_COORDINATOR="$address" ZENPS_JOB=train ZENPS_RANK=0 ZENPS_WORLD_SIZE=2 ZENPS_JOIN_TIMEOUT=1s "$build/zenps-perf" --rows 100 --density 0.5 --steps 1) >"$scratch/out" 2>&1
is "$who: joining" $? 3
is "$who: no other server has come in" "$(servers)" "server0 server1"
folder=$(dirname "$(tr '\0' '\n' <"/proc/$coordinator/cmdline" | sed -n 's/^--control-address-file=//p')")
is "$who: its folder is its user's alone" "$(stat -c '%a %u' "$folder")" "700 0"
# What the owner may, he may.
ok "$who: its user drains a server" ctl drain server0
ok "$who: and takes it back" ctl undrain server0
ok "$who: and is answered" ctl status
rogue_ends
job_ends

# ---- zenpsrun under torchrun ----
who=torchrun
port=$((20000 + RANDOM % 12000))
rank() { RANK=$1 WORLD_SIZE=2 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 zenpsrun --port "$port" --servers 1 --job=train -i lo --prefix=no -- "${@:2}"; }
both() { # COMMAND...
  rank 1 "$@" >"$scratch/run.1" 2>&1 &
  local other=$! status
  rank 0 "$@"
  status=$?
  wait "$other" && return "$status"
}
mkdir -m 1777 "$scratch/tmp"
chmod 1777 "$scratch/tmp"
ok "$who: he takes the name of its user's folder beforehand" nobody mkdir -m 0777 "$scratch/tmp/zenps-0"
export TMPDIR=$scratch/tmp
job_starts both
ok "$who: its socket is in another folder, of its user alone" eval 'case $address in "unix:$TMPDIR/zenps-0."??????/*) [ "$(stat -c "%a %u" "$(dirname "${address#unix:}")")" = "700 0" ] ;; *) false ;; esac'
ok "$who: its user finds the socket by the address" zenpsctl --timeout=300s -e "127.0.0.1:$port" status
attack 3 server0
refused "reading the jobs" 3 his_ctl jobs
is "$who: no other server has come in" "$(servers)" server0
rogue_ends
job_ends
cp "$scratch/run" "$scratch/out"
said "$who: zenpsrun says why" "zenps-0 is of user 65534 and mode 0777: .* is in .*/zenps-0\\.[A-Za-z0-9]{6} instead"
rm -f "$scratch/run.1"
unset TMPDIR

# ---- a coordinator on loopback, without TLS ----
who=zenpsd
start() { zenpsd --fabric-provider=net --fabric-interface=lo "$@" & }
start --roles=coordinator --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" --coordinator-min-servers=2 2>"$scratch/c.log"
coordinator=$!
until_true [ -s "$scratch/address" ]
at=$(cat "$scratch/address")
for name in a b; do start --roles=server --control-coordinator="$at" --server-name=$name 2>"$scratch/$name.log"; done
job_starts zenpsrun -n 2 --coordinator="$at" --job=train -i lo --prefix=no --
his_patience=300s # he is answered
attack 4 a
cp "$scratch/kicked" "$scratch/out"
said "$who: why" "'kick' is for the user of the coordinator.*unix:"
cp "$scratch/rogue.log" "$scratch/out"
said "$who: as his server is told" "registration .* failed: 'server.register' is for the user of the coordinator"
refused "what may be read is read" 0 his_ctl status
is "$who: no other server has come in" "$(servers)" "a b"
rogue_ends
ok "$who: its user drains a server" ctl drain a
ok "$who: and takes it back" ctl undrain a
ok "$who: and places jobs anew" ctl rebalance
job_ends
ctl security >"$scratch/out"
said "$who: security says who may be a server" '^servers +guarded +processes of user 0 and root alone'
kill "$coordinator"

done_testing
