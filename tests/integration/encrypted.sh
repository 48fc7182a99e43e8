#!/usr/bin/env bash
# The encrypted fabric under real daemons: right sums, the death of a server, clear refusals without certificates, and a
# reader of the network that finds no gradient.
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/verified.sh"
marked=$build/tests/integration/marked

# ---- refusals ----
refused() { # NAME PATTERN COMMAND...
  local name=$1 pattern=$2
  shift 2
  timeout 300 "$@" >"$scratch/out" 2>&1
  is "$name: status 2" $? 2
  said "$name: why" "$pattern"
}
server=(zenpsd --check --roles=server --control-coordinator=127.0.0.1:1)
refused "a server without certificates" 'encrypted gradients need certificates: set tls.ca, tls.cert and tls.key' "${server[@]}" --fabric-provider=tls
refused "the same by fabric.encrypt" 'encrypted gradients need certificates: set tls.ca' "${server[@]}" --fabric-encrypt
refused "the same by a profile" 'fabric.encrypt \(profile internet\) yes: encrypted gradients need certificates' "${server[@]}" --profile=internet
ok "an explicit setting wins over the profile" env ZENPS_PROFILE=internet zenpsd --check --fabric-encrypt=no --control-dead=1m
said "and all its settings are shown" '^profile internet: control.heartbeat = 5s, control.dead as --control-dead says, .*fabric.encrypt as --fabric-encrypt says, fabric.bbr = yes, fabric.keepalive = 10s$'
refused "a provider that does not encrypt, under a profile" 'fabric.encrypt \(profile internet\) is set, and provider "net" does not encrypt' "${server[@]}" --profile=internet --fabric-provider=net
refused "an unknown profile" "ZENPS_PROFILE is 'wan': must be one of none, internet" env ZENPS_PROFILE=wan "${server[@]}"
ok "without encryption there is nothing to refuse" "${server[@]}"
refused "several zenpsruns without certificates" 'set ZENPS_TLS_CA, ZENPS_TLS_CERT and ZENPS_TLS_KEY for all ranks to the files of a run' \
  env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 zenpsrun --provider=tls -- true
ok "--list-providers has it" sh -c 'zenpsd --list-providers | grep "^tls lo 127.0.0.1"'
ZENPS_PROVIDER=tls "$marked" 1 >"$scratch/out" 2>&1
is "a rank without certificates: status" $? 1
said "a rank without certificates: why" 'provider "tls" encrypts gradients, and needs certificates'
ZENPS_PROVIDER=net ZENPS_FABRIC_ENCRYPT=yes "$marked" 1 >"$scratch/out" 2>&1
is "a provider that does not encrypt: status" $? 1
said "a provider that does not encrypt: why" 'ZENPS_FABRIC_ENCRYPT is set, and provider "net" does not encrypt'

ZENPS_FABRIC_CONNECTIONS=33 "$marked" 1 >"$scratch/out" 2>&1
is "more connections than there can be: status" $? 1
said "more connections than there can be: why" "ZENPS_FABRIC_CONNECTIONS is '33': must be .*1 to 32"

# ---- verified runs ----
export ZENPS_INTERFACE=lo
run() { timeout 300 zenpsrun --prefix=no "$@"; } # certificates of its own
perf=(zenps-perf --rows 300000 --density 0.03 --width 4 --steps 4 --warmup 1 --verify --json)
ok "two ranks and two servers, --provider tls" run -n 2 --servers 2 --provider tls -- "${perf[@]}"
said "right" '"verified": *true'
said "over it" '"provider": *"tls"'
ok "three and one, fabric.encrypt" env ZENPS_FABRIC_ENCRYPT=yes zenpsrun --prefix=no -n 3 --servers 1 -- "${perf[@]}"
said "auto takes it" '"provider": *"tls"'
ok "two and one, by a profile" env ZENPS_LOG_LEVEL=info zenpsrun --prefix=no -n 2 --servers 1 --profile=internet -- "${perf[@]}"
said "auto takes it" '"provider": *"tls"'
said "a rank logs its settings" 'profile internet: fabric.keepalive = 10s, fabric.encrypt = yes, fabric.bbr = yes, fabric.connections = 8, join-timeout as ZENPS_JOIN_TIMEOUT says'
ok "two and one, by a profile that may not encrypt" env ZENPS_LOG_LEVEL=info zenpsrun --prefix=no -n 2 --servers 1 --provider=net --profile=internet --encrypt=no -- "${perf[@]}"
said "in the open" '"provider": *"net"'
said "as asked" 'profile internet: fabric.keepalive = 10s, fabric.encrypt as ZENPS_FABRIC_ENCRYPT says'
ok "what nobody said is left to programs" env -u ZENPS_PROFILE -u ZENPS_FABRIC_ENCRYPT zenpsrun --prefix=no -n 1 --servers 1 -- \
  sh -c 'test -z "$ZENPS_PROFILE$ZENPS_FABRIC_ENCRYPT"'
ok "four connections to each server" env ZENPS_FABRIC_CONNECTIONS=4 zenpsrun --prefix=no -n 2 --servers 2 --encrypt -- "${perf[@]}"
said "right" '"verified": *true'
ok "ranks with different numbers of them" run -n 2 --servers 1 --encrypt -- \
  sh -c 'ZENPS_FABRIC_CONNECTIONS=$((1 + 4 * ZENPS_RANK)) exec "$0" "$@"' "${perf[@]}"
said "right, too" '"verified": *true'
ok "a scheme between ranks" run -n 2 --servers 1 --encrypt -- "${perf[@]}" --scheme recursive-doubling
said "right, too" '"verified": *true'

# ---- the death of a server ----
zenpsrun --prefix=no -n 2 --servers 2 --provider tls -- "$marked" 3000 >"$scratch/steps" 2>"$scratch/log" &
job=$!
ok "a job runs" until_true grep -q '^step 100$' "$scratch/steps"
ok "a server is killed" pkill -KILL -P "$job" -f -- '--server-name=server1'
wait "$job"
is "its job goes on" $? 0
cp "$scratch/steps" "$scratch/out"
is "all sums are right" "$(grep -c 'provider tls, 3000 right sums' "$scratch/out")" 2
cp "$scratch/log" "$scratch/out"
said "with another server" 'started server 1-2 \(pid [0-9]+\) in its place'

# ---- a stranger who reads the network ----
overhear() { # PROVIDER: what a reader of the loopback interface finds
  rm -f "$scratch/ready" "$scratch/over"
  python3 "$top/tests/support/overhear.py" lo GRADIENT "$scratch/ready" "$scratch/over" >"$scratch/heard" 2>&1 &
  local reader=$!
  until_true [ -e "$scratch/ready" ] || { cat "$scratch/heard" && return 1; }
  run -n 2 --servers 1 --provider "$1" -- "$marked" 20 || return 1
  touch "$scratch/over"
  wait "$reader" && cat "$scratch/heard"
}
if python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)' 2>/dev/null; then
  ok "a run without encryption, overheard" overhear net
  said "shows its gradients" '^packets=[0-9]+ marked=[1-9]'
  ok "an encrypted run, overheard" overhear tls
  said "shows packets, and no gradient" '^packets=[1-9][0-9]+ marked=0$'
else
  skip "a stranger who reads the network" "no python3, or no right to read an interface"
fi

# ---- what zenpsctl says ----
ok "certificates" zenpsctl certs init "$scratch/certs" --runs=all --admins=me
export ZENPS_TLS_CA=$scratch/certs/ca.pem ZENPS_TLS_CERT=$scratch/certs/run-all.pem ZENPS_TLS_KEY=$scratch/certs/run-all.key
zenpsd --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" --fabric-encrypt 2>"$scratch/log" &
until_true [ -s "$scratch/address" ]
export ZENPS_TLS_CERT=$scratch/certs/admin-me.pem ZENPS_TLS_KEY=$scratch/certs/admin-me.key
ok "zenpsctl security knows the server" until_true sh -c "zenpsctl -e $(cat "$scratch/address") members | grep -q tls"
zenpsctl -e "$(cat "$scratch/address")" security >"$scratch/out"
said "zenpsctl security: gradients are encrypted" '^gradients +guarded +encrypted, TLS 1.3'
said "and reads have their checksum, too" '^reads +guarded +a checksum under a key of the job'
done_testing
