#!/usr/bin/env bash
# Long paths: every file may be as deep as the system allows, and what cannot be is refused with its length and the limit.
. "$(dirname "$0")/../support/tap.sh"

deep=$scratch
while [ ${#deep} -lt 900 ]; do deep=$deep/$(printf 'd%.0s' {1..90}); done
name=$(printf 'n%.0s' {1..255}) # as long as a name may be
mkdir -p "$deep"

ok "zenpsrun with a long TMPDIR" env TMPDIR="$deep" zenpsrun -n 2 --prefix=no -- sh -c 'case $ZENPS_TOKEN_FILE in "$TMPDIR"/*) exec "$@" ;; esac; exit 9' sh \
  zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
is "which it leaves empty" "$(ls -A "$deep")" ""
# Around the 107 bytes that a Unix socket's path may have; a comma would end an address; a relative one.
answers='cd / && zenpsctl status && case $ZENPS_TOKEN_FILE in "$WANTED"/zenpsrun.*) exec "$@" ;; esac; exit 9'
runs_in() { # TMPDIR [WANTED]
  mkdir -p "$1"
  WANTED=${2:-$1} TMPDIR=$1 zenpsrun -n 2 --prefix=no -- sh -c "$answers" sh zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
}
room=$((107 - ${#scratch} - 1 - 28)) # 28: /zenpsrun.XXXXXX/coordinator
for length in $((room - 1)) $room $((room + 1)) $((room + 12)) 200; do
  ok "a folder's name of $length bytes" runs_in "$scratch/$(printf 'f%.0s' $(seq "$length"))"
done
ok "a TMPDIR with a comma" runs_in "$scratch/one,two"
cd "$scratch" || exit 1
ok "a relative TMPDIR" runs_in "rel" "$scratch/rel"
cd "$OLDPWD" || exit 1
port=$((20000 + RANDOM % 12000))
ok "a long TMPDIR in front of a rank" env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 TMPDIR="$deep" \
  zenpsrun --port "$port" --prefix=no -- zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
is "which it leaves empty, too" "$(ls -A "$deep")" ""
far=$deep
while [ ${#far} -lt 4080 ]; do far=$far/$(printf 'd%.0s' {1..90}); done
TMPDIR=$far zenpsrun -n 1 -- true >"$scratch/out" 2>&1
is "a TMPDIR that is too long: status" $? 2
said "with its length and the limit" "TMPDIR is a path of ${#far} bytes: must have at most [0-9]+$"

printf '[log]\nlevel = info\n' >"$deep/zenpsd.ini"
zenpsctl certs init "$deep/certs" --runs=x >"$scratch/out" 2>&1 || true
zenpsd --config="$deep/zenpsd.ini" --coordinator-state-dir="$deep/state" --control-listen=127.0.0.1:0 --control-address-file="$deep/$name" \
  --control-ready-file="$deep/r${name#n}" --tls-ca="$deep/certs/ca.pem" --tls-cert="$deep/certs/run-x.pem" --tls-key="$deep/certs/run-x.key" 2>"$scratch/log" &
daemon=$!
until_true test -s "$deep/r${name#n}" || cat "$scratch/log"
address=$(cat "$deep/$name")
ok "a daemon whose files all have long paths serves a job" env ZENPS_TLS_CA="$deep/certs/ca.pem" ZENPS_TLS_CERT="$deep/certs/run-x.pem" ZENPS_TLS_KEY="$deep/certs/run-x.key" \
  zenpsrun -n 2 --coordinator "$address" --prefix=no -- zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
kill -TERM "$daemon"
wait "$daemon"
is "and ends with status 0" $? 0
ok "its state can be looked at" zenpsctl state check "$deep/state"

refused() { # NAME STATUS PATTERN COMMAND...
  "${@:4}" >"$scratch/out" 2>&1
  is "$1: status" $? "$2"
  said "$1: why" "$3"
}
socket=$deep/socket
refused "a Unix socket" 2 "--control-socket is a path of ${#socket} bytes: a Unix socket's must have at most 107$" zenpsd --control-listen=127.0.0.1:0 --control-socket="$socket"
refused "a Unix socket to listen at" 2 "the path of the Unix socket has ${#socket} bytes: must have at most 107$" zenpsd --control-listen="unix:$socket"
refused "a Unix socket to connect to" 2 "the path of the Unix socket has ${#socket} bytes: must have at most 107$" zenpsctl -e "unix:$socket" status
refused "a name that is too long" 1 "--control-address-file: the path has [0-9]+ bytes: must have at most [0-9]+, and each name in it 255: " \
  zenpsd --roles=coordinator --control-listen=127.0.0.1:0 --control-address-file="$deep/x$name"
refused "a folder for the state that cannot be made" 1 "cannot make the folder for the state: No such file or directory$" \
  zenpsd --roles=coordinator --control-listen=127.0.0.1:0 --coordinator-state-dir="$deep/none/state"
refused "a folder for the state that is too deep" 1 "the path of the folder for the state has [0-9]+ bytes: must have at most [0-9]+$" \
  zenpsd --roles=coordinator --control-listen=127.0.0.1:0 --coordinator-state-dir="$far/$deep"
refused "a configuration that is not there" 2 "No such file or directory$" zenpsd --config="$deep/none.ini"
refused "a certificate that is not there" 2 "No such file or directory" zenpsd --check --tls-ca="$deep/none.pem" --tls-cert="$deep/none.pem" --tls-key="$deep/none.key"
done_testing
