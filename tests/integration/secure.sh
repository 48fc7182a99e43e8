#!/usr/bin/env bash
# The control plane over TLS, with real processes: certificates are made, a job runs, who is refused and why, files that change
# while a job runs.
. "$(dirname "$0")/../support/tap.sh"
command -v openssl >/dev/null || { echo "1..0 # SKIP openssl is not installed"; exit 0; }

# ---- zenpsctl certs ----
certs=$scratch/certs
ok "certificates are made" zenpsctl certs init "$certs" --servers=a,b --days=30
said "of a new authority" "^$certs/ca.pem and .key: a new authority$"
said "for a server" "^$certs/server-b.pem and .key$"
is "keys are their owner's" "$(stat -c %a "$certs"/*.key | sort -u)" 600
ok "what a certificate says is shown" zenpsctl certs show "$certs/ca.pem" "$certs/server-a.pem"
said "its role" '^role: zenps://server/a$'
said "that of the authority" '^role: authority$'
said "its end" '^valid until: 20[0-9-]* [0-9:]* UTC$'
others() { (cd "$certs" && find . -type f ! -name 'server-s4.*' ! -name 'server-a.*' ! -name 'worker-w.*' -exec stat -c '%n %i %Y %s' {} + | sort); }
before=$(others)
ok "a server is added" zenpsctl certs init "$certs" --servers=s4
said "its certificate is made" "^$certs/server-s4.pem and .key$"
for file in admin-admin coordinator-coordinator server-a server-b worker-worker; do
  said "$file is left alone, it is said" "^$certs/$file.pem: left alone, valid until 20[0-9-]* [0-9:]* UTC$"
done
is "and no other file is touched or new" "$(others)" "$before"
ok "nothing is named" zenpsctl certs init "$certs"
said "so nothing is made, it is said" '^nothing was made: name a certificate to make, for example --servers=NAME$'
is "and no file is touched or new" "$(others)" "$before"
zenpsctl certs init "$scratch/none" --servers=good,a/b >"$scratch/out" 2>&1
is "one name of several is none: status 2" $? 2
is "and nothing is made" "$(ls -d "$scratch/none" 2>/dev/null)" ""
before=$(stat -c %i "$certs/server-a.pem")
ok "those that are named are renewed" zenpsctl certs init "$certs" --servers=a --workers=w --days=3
said "of the same authority" ': the authority$'
said "which is said" "^$certs/server-a.pem and .key: renewed, in place of one that is valid until 20"
ok "another one is there" test "$before" != "$(stat -c %i "$certs/server-a.pem")"
ok "and the authority's has made it" openssl verify -CAfile "$certs/ca.pem" "$certs/server-a.pem"
zenpsctl certs init "$certs" --servers=a/b >"$scratch/out" 2>&1
is "a name that is none: status 2" $? 2
said "with what would be one" "'a/b' is no name for a certificate: must be 1 to 64 letters"
ok "one for several servers, and one for any" zenpsctl certs init "$certs" --servers='pod-*,*'
said "whose file has no star" "^$certs/server-pod-\+.pem and .key$"
ok "is shown" zenpsctl certs show "$certs/server-pod-+.pem" "$certs/server-+.pem"
said "with it" '^role: zenps://server/pod-\*$'
said "of any" '^role: zenps://server/\*$'
zenpsctl certs init "$certs" --workers='w*' >"$scratch/out" 2>&1
is "ranks have none: status 2" $? 2
zenpsctl certs show "$certs/server-a.key" >"$scratch/out" 2>&1
is "a key is no certificate: status 2" $? 2
zenpsctl certs init "$scratch/other" >"$scratch/out"
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=old -keyout "$certs/worker-old.key" -out "$scratch/old.csr" 2>"$scratch/out"
printf 'subjectAltName=URI:zenps://worker/old\n' >"$scratch/extensions"
ok "one that has expired" openssl x509 -req -in "$scratch/old.csr" -CA "$certs/ca.pem" -CAkey "$certs/ca.key" -days -1 -extfile "$scratch/extensions" -out "$certs/worker-old.pem"
zenpsctl certs show -o json "$certs/worker-w.pem" "$certs/worker-old.pem" >"$scratch/out" 2>"$scratch/error"
is "one that has expired is shown: status 1" $? 1
is "JSON says which" "$(python3 -c '
import json, sys
print(*(row["role"] + " " + str(row["has_expired"]) for row in json.load(sys.stdin)["certificates"]))' <"$scratch/out")" \
  "zenps://worker/w False zenps://worker/old True"
ok "so does the error" grep -q "worker-old.pem has expired" "$scratch/error"

# ---- revocation ----
ok "a revocation list is made" zenpsctl certs revoke "$certs"
said "with nobody in it" "^$certs/crl.pem: 0 certificates are revoked, valid until 20[0-9-]* [0-9:]* UTC$"
ok "as others read it" openssl crl -in "$certs/crl.pem" -CAfile "$certs/ca.pem" -noout
zenpsctl certs revoke "$certs" worker-nobody >"$scratch/out" 2>&1
is "a certificate that is not there: status" $? 1
said "is named" "$certs/worker-nobody.pem: cannot be opened"
zenpsctl certs revoke "$certs" worker-w "$scratch/other/worker-worker.pem" >"$scratch/out" 2>&1
is "one of another authority: status 2" $? 2
said "is named, too" "$scratch/other/worker-worker.pem: was made by another authority"
is "and nobody is in the list" "$(openssl crl -in "$certs/crl.pem" -noout -text | grep -c 'Serial Number')" 0
zenpsctl certs revoke "$scratch/none" >"$scratch/out" 2>&1
is "a folder without an authority: status 2" $? 2
said "and what it lacks" 'has no authority \(ca.pem and ca.key\)'
is "none is made" "$(ls -d "$scratch/none" 2>/dev/null)" ""
ok "certificates for it" zenpsctl certs init "$certs" --workers=gone --admins=gone

# with FOLDER NAME COMMAND...: as the owner of that certificate. Functions are not called by it: export first.
as() {
  local folder=$1 name=$2
  shift 2
  ZENPS_TLS_CA=$folder/ca.pem ZENPS_TLS_CERT=$folder/$name.pem ZENPS_TLS_KEY=$folder/$name.key "$@"
}

# ---- the daemon's files ----
check() { zenpsd --control-listen=127.0.0.1:0 --check "$@"; }
refused_options() { # NAME PATTERN COMMAND...
  local name=$1 pattern=$2
  shift 2
  "$@" >"$scratch/out" 2>&1
  is "$name: status 2" $? 2
  said "$name: why" "$pattern"
}
ok "a coordinator's certificate is good for both roles" as "$certs" coordinator-coordinator check
refused_options "two of the three files" 'the file of the private key is not named' check --tls-ca="$certs/ca.pem" --tls-cert="$certs/server-a.pem"
refused_options "a server's certificate for a coordinator" 'is no coordinator.s: roles = server,coordinator needs one with zenps://coordinator/NAME' as "$certs" server-a check
refused_options "another server's" 'is for servers of the name a, and --server-name is .b. \(by default the host.s name\): coordinators refuse it' \
  as "$certs" server-a check --roles=server --control-coordinator=127.0.0.1:1 --server-name=b
ok "that of all that begin so" as "$certs" server-pod-+ zenpsd --check --roles=server --control-coordinator=127.0.0.1:1 --server-name=pod-7
refused_options "a worker's for a server" 'is no server.s: --roles = server needs' as "$certs" worker-w check --roles=server --control-coordinator=127.0.0.1:1
chmod 644 "$certs/server-b.key"
refused_options "a key that others can read" "private key $certs/server-b.key: its mode is 0644" as "$certs" server-b check --roles=server --control-coordinator=127.0.0.1:1
cp "$certs/server-a.key" "$certs/worker-worker.key"
refused_options "the key of another" "private key $certs/worker-worker.key: is none of certificate" as "$certs" worker-worker check

refused_options "an address that others reach, without TLS" '--control-listen \(0.0.0.0:0\) is reached by other hosts, and without TLS anybody' \
  zenpsd --control-listen=0.0.0.0:0 --check
ok "one that is meant so" zenpsd --control-listen=0.0.0.0:0 --control-insecure=yes --check
ok "or with TLS" as "$certs" coordinator-coordinator zenpsd --control-listen=0.0.0.0:0 --check

# ---- a job ----
mkdir "$scratch/run"
cp "$certs/ca.pem" "$certs/crl.pem" "$scratch/run/"
install_as() { cp "$certs/$1.pem" "$scratch/run/c.pem" && cp "$certs/$1.key" "$scratch/run/c.key"; }
install_as coordinator-coordinator
start() { # FOLDER NAME OPTION...: zenpsd with these files; $! is its process
  zenpsd --tls-ca="$1/ca.pem" --tls-cert="$1/$2.pem" --tls-key="$1/$2.key" --fabric-provider=net --fabric-interface=lo "${@:3}" &
}
start "$scratch/run" c --tls-crl="$scratch/run/crl.pem" --control-listen=0.0.0.0:0 --control-address-file="$scratch/address" --control-dead=5s --server-name=one 2>"$scratch/log"
daemon=$!
ok "a coordinator comes up" until_true test -s "$scratch/address"
ok "which logs when its certificate ends" grep -qE 'certificate: .*/c\.pem ends at 20[0-9T:-]+Z, in [0-9.]+ days; authority .*/ca\.pem' "$scratch/log"
address=127.0.0.1:$(sed 's/.*://' "$scratch/address")
start "$certs" server-a --roles=server --control-coordinator="$address" --server-name=a 2>"$scratch/log2"
server=$!
admin() { as "$certs" admin-admin zenpsctl --timeout=300s -e "$address" "$@"; }
two_servers() { [ "$(admin -o json status | grep -oE '"servers": *[0-9]+' | grep -oE '[0-9]+')" = 2 ]; }
ok "two servers are in" until_true two_servers
train() { # JOB STEPS
  timeout 1800 zenpsrun -n 2 --coordinator "$address" --provider=net --interface=lo --job="$1" --prefix=no -- \
    zenps-perf --rows 2000 --density 0.05 --steps "$2" --warmup 0 --verify
}
ok "a certificate near its end is in the log" grep -qE "warn  zenpsd: certificate .*/c.pem ends in 30.0 days" "$scratch/log"
ok "and in that server's" grep -qE "warn  zenpsd: certificate .*/server-a.pem ends in 3.0 days" "$scratch/log2"
admin why >"$scratch/out"
is "why says it: critical" $? 2
said "of the server whose certificate ends first" '^critical: the certificate of server a ends in 3.0 days. Remedy: make a new one'
said "of the coordinator" '^warning: the certificate of the coordinator at .* ends in 30.0 days'
ok "a job runs, with exact sums" as "$certs" worker-w train first 5

# ---- refused ----
refused() { # NAME PATTERN COMMAND...
  local name=$1 pattern=$2
  shift 2
  if "$@" >"$scratch/out" 2>&1; then tap_result 1 "$name"; else tap_result 0 "$name"; fi
  said "$name: why" "$pattern"
}
logged() { grep -qE -- "$1" "$scratch/log"; }
refused "ranks without TLS" 'TLS is spoken here: a client needs the files of an authority' train plain 1
ok "the coordinator says so" until_true logged 'refused: speaks without TLS where TLS is spoken'
refused "a rank of another authority, which takes the coordinator's" "this end's certificate was made by an authority that is unknown there" \
  env ZENPS_TLS_CA="$certs/ca.pem" ZENPS_TLS_CERT="$scratch/other/worker-worker.pem" ZENPS_TLS_KEY="$scratch/other/worker-worker.key" zenpsctl --timeout=300s -e "$address" status
sleep 1.1 # such lines come once a second
refused "one that does not" 'its certificate, of zenps://coordinator/coordinator, was made by an authority that is unknown here' as "$scratch/other" worker-worker train other 1
refused "a server's as a rank" 'the certificate of zenps://server/a lets nobody in as a worker' as "$certs" server-a train server 1
refused "one that has expired, at once" 'certificate .*/worker-old.pem \(zenps://worker/old\): expired at 20' as "$certs" worker-old train old 1
# A client that knows nothing of its own certificate. Its input ends when each line has an answer, or the client has ended.
raw() { # NAME LINES
  local client input lines
  rm -f "$scratch/raw.in"
  mkfifo "$scratch/raw.in"
  openssl s_client -quiet -no_ign_eof -connect "$address" -CAfile "$certs/ca.pem" -cert "$certs/$1.pem" -key "$certs/$1.key" \
    <"$scratch/raw.in" >"$scratch/raw.out" 2>&1 &
  client=$!
  exec {input}>"$scratch/raw.in"
  printf '%s\n' "$2" >&"$input"
  lines=$(wc -l <<<"$2")
  until_true eval '[ "$(grep -c "^{.*}" "$scratch/raw.out")" -ge '"$lines"' ] || ! kill -0 '"$client"
  exec {input}>&-
  wait "$client"
  local status=$?
  cat "$scratch/raw.out"
  return "$status"
}
hello() { printf '{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":%s,"version":"9","role":"%s"}}' "$protocol" "$1"; }
protocol=$(sed -n 's/^#define ZPS_PROTOCOL_VERSION \([0-9]*\).*/\1/p' "$top/common/base/version.h" | tr -d u)
ok "another client's library is answered" raw worker-w "$(hello worker)"
said "as any" '"role":"coordinator"'
ok "a worker that comes as a server" raw worker-w "$(hello server)"
said "is refused" 'the certificate of zenps://worker/w lets nobody in as a server'
sleep 1.1
raw worker-old "$(hello worker)" >"$scratch/out"
said "one that has expired hears of it" 'certificate expired'
ok "and the coordinator says whose it is" until_true logged 'refused: its certificate, of zenps://worker/old, expired at 20'
refused "a rank may not drain" "'drain' takes a certificate of an admin \(zenps://admin/NAME\), not zenps://worker/w" as "$certs" worker-w zenpsctl --timeout=300s -e "$address" drain a
ok "but look" as "$certs" worker-w zenpsctl --timeout=300s -e "$address" members
refused "nor see what stands open" "'security' takes a certificate of an admin" as "$certs" worker-w zenpsctl --timeout=300s -e "$address" security
ok "an admin may do both" admin security
said "reads are checked, on one host, too" '^reads +guarded +a checksum under a key of the job'
said "the control plane is guarded" '^control plane +guarded +TLS 1.3 at '
said "servers are" '^servers +guarded +certificates name them +-'
said "jobs are not, without keys" '^jobs +open +any rank is let into any job +coordinator.token_key'
said "addresses are" '^addresses +guarded +their own'
said "gradients are not" '^gradients +open '
ok "an admin may" admin drain a
ok "and back" admin undrain a
ok "and its certificate is in the log" logged 'audit: method=undrain by=zenps://admin/[a-z]+ name=a role=ctl reason=-$'
refused "a rank may not place jobs" "'rebalance' takes a certificate of an admin \(zenps://admin/NAME\), not zenps://worker/w" as "$certs" worker-w zenpsctl --timeout=300s -e "$address" rebalance
ok "an admin may" admin rebalance
refused "a rank may not expel others" "'kick' takes a certificate of an admin \(zenps://admin/NAME\), not zenps://worker/w" as "$certs" worker-w zenpsctl --timeout=300s -e "$address" kick j 0

# ---- which server ----
openssl req -new -key "$certs/server-b.key" -subj /CN=b -out "$scratch/b.csr" 2>"$scratch/out"
printf 'subjectAltName=URI:zenps://worker/b,URI:zenps://server/b,URI:zenps://server/c\n' >"$scratch/extensions"
ok "one with several names, as others make them" openssl x509 -req -in "$scratch/b.csr" -CA "$certs/ca.pem" -CAkey "$certs/ca.key" -days 3 \
  -extfile "$scratch/extensions" -out "$certs/server-b.pem"
register() { # NAME
  printf '%s\n{"jsonrpc":"2.0","id":2,"method":"server.register","params":{"name":"%s","host":"h","pid":1,"fabric":{"provider":"net","protocol":"p","addr_format":"FI_SOCKADDR_IN","domain":"d","address":"00","printable":"x"}}}' \
    "$(hello server)" "$1"
}
ok "a server that would be another one" raw server-b "$(register a)"
said "is refused, with both names" '"code":-[0-9]+,"message":"its certificate is for servers of the name b, c, and it would be server .a.: it needs one of its own'
mkdir "$scratch/run-b"
cp "$certs/ca.pem" "$scratch/run-b/"
install_b() { cp "$certs/$1.key" "$scratch/run-b/c.key" && cp "$certs/$1.pem" "$scratch/run-b/c.pem"; }
chmod 600 "$certs/server-b.key"
install_b server-b
start "$scratch/run-b" c --roles=server --control-coordinator="$address" --server-name=c 2>"$scratch/log3"
third=$!
start "$certs" server-pod-+ --roles=server --control-coordinator="$address" --server-name=pod-3 2>"$scratch/log4"
pod=$!
is_in() { admin -o json members | grep -q "\"name\": *\"$1\""; }
ok "the second name will do" until_true is_in c
ok "so does one that begins as it may" until_true is_in pod-3
ok "an admin sees it" admin security
said "of how many" '^servers +guarded +certificates name them, those of 1 by how names begin +-'
kill -STOP "$third" # its connection ends, and it makes another one
ok "a server is lost" until_true logged "server [0-9]+ 'c' .* is lost"
install_b server-a
began=$SECONDS
kill -CONT "$third"
ok "whose certificate is another's when it comes back" until_true logged 'warn.* audit: method=server.register by=zenps:..server.a role=server is refused: its certificate is for servers of the name a, and it would be server .c.:'
ok "it says why" until_true grep -q 'error.* registration with the coordinator .* failed: its certificate is for servers of the name a, and it would be server .c.' "$scratch/log3"
is "and is not in" "$(is_in c || echo no)" no
install_b server-b
ok "with its own it is" until_true is_in c
tries=$(grep -c 'registration with the coordinator .* failed' "$scratch/log3")
ok "it had not tried too often ($tries)" test "$tries" -le $((3 * (SECONDS - began) + 4))
kill -TERM "$third" "$pod"
wait "$third" "$pod"

# ---- files change while a job runs ----
# Jobs that only have to go on have slow rounds, and leave the processors to others.
ZENPS_FABRIC_FAULT=delay=1:5ms ZENPS_TLS_CA=$certs/ca.pem ZENPS_TLS_CERT=$certs/worker-w.pem ZENPS_TLS_KEY=$certs/worker-w.key timeout 1800 zenpsrun -n 2 --coordinator "$address" \
  --provider=fault+net --interface=lo --job=long --prefix=no -- zenps-perf --rows 2000 --density 0.05 --steps 1000000 --warmup 0 >"$scratch/long" 2>&1 &
long=$!
runs() { admin -o json jobs | grep -q '"running"'; }
ok "a job runs" until_true runs
reloads() { [ "$(grep -cE "$1" "$scratch/log")" -ge "$2" ]; }
shown() { # the serial number of the certificate that the coordinator shows
  openssl s_client -connect "$address" -CAfile "$certs/ca.pem" -cert "$certs/worker-w.pem" -key "$certs/worker-w.key" </dev/null 2>/dev/null | openssl x509 -noout -serial
}
old=$(shown)
zenpsctl certs init "$certs" --coordinators=coordinator --days=40 >"$scratch/out" && install_as coordinator-coordinator && kill -HUP "$daemon"
ok "a new certificate is read" until_true reloads ': reloaded' 1
echo rubbish >"$scratch/run/c.pem" # so that it is not read now, when somebody connects
new=$(shown)
ok "at that moment, and shown" test -n "$new" -a "$new" != "$old"
kill -HUP "$daemon"
ok "a bad one is refused" until_true reloads 'reload: .*certificate .*/run/c.pem: no certificate \(PEM\).*: the running configuration stays' 1
is "and the last one shown" "$(shown)" "$new"
install_as coordinator-coordinator
zenpsctl certs init "$certs" --coordinators=coordinator --days=50 >"$scratch/out" && install_as coordinator-coordinator
changed() { [ "$(shown)" != "$new" ] && [ -n "$(shown)" ]; }
ok "one that changes is read without being asked" until_true changed
ok "the job runs on" runs
is "over the connections that it had" "$(grep -cE 'was lost|connecting anew|connected anew' "$scratch/long")" 0

# ---- certificates are revoked while jobs run ----
ZENPS_FABRIC_FAULT=delay=1:5ms as "$certs" worker-gone timeout 1800 zenpsrun -n 2 --coordinator "$address" --provider=fault+net --interface=lo --job=robbed --prefix=no -- \
  zenps-perf --rows 2000 --density 0.05 --steps 1000000 --warmup 0 >"$scratch/robbed" 2>&1 &
robbed=$!
is_running() { admin -o json jobs | tr -d '\n' | grep -qE "\"job\": *\"$1\",[^}]*\"state\": *\"running\""; }
ok "another job runs" until_true is_running robbed
ok "an admin looks" as "$certs" admin-gone zenpsctl --timeout=300s -e "$address" status
ok "its ranks' certificate and an admin's are revoked" zenpsctl certs revoke "$certs" worker-gone "$certs/admin-gone.pem"
said "as it says" "^$certs/crl.pem: 2 certificates are revoked"
cp "$certs/crl.pem" "$scratch/run/" && kill -HUP "$daemon"
ok "the ranks' connections end" until_true logged 'its certificate, of zenps://worker/gone, has been revoked \(tls.crl\)'
wait "$robbed"
is "and their job, with status" $? 1
ok "the ranks say why" grep -q 'its certificate, of zenps://worker/gone, has been revoked' "$scratch/robbed"
refused "such a rank is not let in again" "this end's certificate has been revoked" as "$certs" worker-gone train again 1
refused "nor is the admin" "this end's certificate has been revoked" as "$certs" admin-gone zenpsctl --timeout=300s -e "$address" status
is_named() { # Lines of this kind come once a second.
  as "$certs" admin-gone zenpsctl --timeout=300s -e "$address" status
  logged 'refused: its certificate, of zenps://admin/gone, has been revoked \(tls.crl\)'
}
ok "which the coordinator says" until_true is_named
ok "the other job runs on" is_running long
is "over the connections that it had" "$(grep -cE 'was lost|connecting anew|connected anew' "$scratch/long")" 0
kill "$long"
wait "$long" 2>/dev/null
kill -TERM "$server" "$daemon"
wait "$server"
is "the server ends with status 0" $? 0
wait "$daemon"
is "the coordinator, too" $? 0

# ---- a coordinator without ----
ahead=$(ls /usr/lib/*/faketime/libfaketime.so.1 2>/dev/null | head -n 1)
echo +0 >"$scratch/clock"
insecure=(zenpsd --roles=coordinator --control-listen=0.0.0.0:0 --control-insecure --control-address-file="$scratch/address2")
if [ -n "$ahead" ]; then # its clock is ours
  insecure=(env LD_PRELOAD="$ahead" FAKETIME_TIMESTAMP_FILE="$scratch/clock" FAKETIME_NO_CACHE=1 "${insecure[@]}")
fi
"${insecure[@]}" 2>"$scratch/log" &
daemon=$!
ok "a coordinator without TLS comes up" until_true test -s "$scratch/address2"
ok "and warns of it" until_true logged 'warn.* listening at 0.0.0.0:[0-9]+ without TLS \(--control-insecure\): anybody who reaches it'
address=127.0.0.1:$(sed 's/.*://' "$scratch/address2")
warnings() { [ "$(grep -c 'without TLS (--control-insecure)' "$scratch/log")" -eq "$1" ]; }
if [ -n "$ahead" ]; then
  ok "once" warnings 1
  echo +3590 >"$scratch/clock"
  for i in 1 2; do # a second answer comes after the timers that are due
    ok "less than an hour later" env -u ZENPS_TLS_CA zenpsctl --timeout=300s -e "$address" status
  done
  ok "it has not done so again" warnings 1
  echo +3660 >"$scratch/clock"
  ok "an hour later it has" until_true warnings 2
else
  skip "warnings of an hour" "libfaketime is not installed"
fi
ok "and says so to who asks" env -u ZENPS_TLS_CA zenpsctl --timeout=300s -e "$address" security
said "what stands open" '^control plane +open +plain at 0.0.0.0:[0-9]+, for whoever reaches it +tls.ca'
said "that servers are what they say" '^servers +open +any process is the server that it says it is +tls.ca'
said "that reads are not checked" '^reads +open +bytes that change on the way are not noticed +fabric.checksums = yes'
said "and what follows from it" '^messages +open +a MAC, whose keys cross the control plane as they are'
refused "who speaks TLS is told" 'speaks without TLS, which is wanted here' admin status
ok "and the coordinator says so" until_true logged 'refused: speaks TLS, but without it is spoken here'
kill -TERM "$daemon"
wait "$daemon"

# ---- zenpsrun ----
ok "a run on this host needs nothing, and takes nothing from others" as "$certs" worker-w timeout 1800 zenpsrun -n 2 --provider=net --interface=lo --prefix=no -- \
  zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
free_port() { "/usr/bin/python3" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
there=$(hostname -I 2>/dev/null | tr ' ' '\n' | grep -m 1 -F .)
run_rank() { # RANK OF-THIS-HOST: one of two, as torchrun starts it
  RANK=$1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=$2 MASTER_ADDR=$there MASTER_PORT=1 timeout 1800 zenpsrun --port "$port" --provider=net --interface=lo --prefix=no -- \
    zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
}
both() { # OF-THIS-HOST
  run_rank 1 "$1" >"$scratch/second" 2>&1 &
  local second=$!
  run_rank 0 "$1" && wait "$second"
}
if [ -n "$there" ]; then
  port=$(free_port)
  ok "nor two ranks that a launcher starts here, by this host's address" both 2
  refused "where they are on two hosts" "other hosts reach the coordinator at $there:$port: set ZENPS_TLS_CA" run_rank 0 1
  refused "a rank's certificate will not do" 'ZENPS_TLS_CERT .* is that of no run' as "$certs" worker-w run_rank 0 1
  ok "one for runs is made" zenpsctl certs init "$certs" --runs=team
  port=$(free_port)
  ok "and does, for all of them" as "$certs" run-team both 1
  port=$(free_port)
  ZENPS_CONTROL_INSECURE=yes ok "and so does the word that it is meant so" both 1
  said "of which the coordinator warns" 'without TLS \(ZENPS_CONTROL_INSECURE\)'

  # ---- addresses for gradients: two hosts, which nobody else sees ----
  near=zps-near-$$ far=zps-far-$$
  if [ "$(id -u)" -eq 0 ] && ip netns add "$near" 2>/dev/null && ip netns add "$far"; then
    ip -n "$near" link add zps0 type veth peer name zps0 netns "$far"
    ip -n "$near" addr add 10.213.7.1/24 dev zps0
    ip -n "$far" addr add 10.213.7.2/24 dev zps0
    for space in "$near" "$far"; do ip -n "$space" link set lo up && ip -n "$space" link set zps0 up; done
    # The kernel tells of a carrier up to a second later; libfabric leaves an interface without one out.
    for space in "$near" "$far"; do until_true eval 'ip -n "$space" link show zps0 | grep -q "state UP"'; done
    at() { ip netns exec "$1" env "PATH=$PATH" "${@:2}"; }
    rm -f "$scratch/address2"
    at "$near" zenpsd --roles=coordinator --control-listen=10.213.7.1:0 --control-address-file="$scratch/address2" --tls-ca="$certs/ca.pem" \
      --tls-cert="$certs/coordinator-coordinator.pem" --tls-key="$certs/coordinator-coordinator.key" 2>"$scratch/log" &
    until_true test -s "$scratch/address2"
    address=$(cat "$scratch/address2")
    far() { as "$certs" server-a timeout "$1" ip netns exec "$far" env "PATH=$PATH" zenpsd --roles=server --server-name=a --control-coordinator="$address" --fabric-provider=net "${@:2}"; }
    far 300 --fabric-interface=lo >"$scratch/far" 2>&1 &
    until_true grep -q 'is not that of the connection' "$scratch/far"
    ip netns pids "$far" | xargs -r kill
    wait $!
    cp "$scratch/far" "$scratch/out"
    said "a server that names another's address is refused" 'the address for gradients, .*127.0.0.1.* is not that of the connection, 10.213.7.2'
    far 300 --fabric-interface=zps0 >"$scratch/far" 2>&1 &
    far_is_in() { as "$certs" admin-admin ip netns exec "$near" env "PATH=$PATH" zenpsctl --timeout=300s -e "$address" -o json members | grep -q '"name": *"a"'; }
    ok "with its own it is let in" until_true far_is_in
    for space in "$far" "$near"; do
      ip netns pids "$space" | xargs -r kill
      until_true eval '[ -z "$(ip netns pids "$space")" ]'
      ip netns del "$space"
    done
  else
    skip "addresses for gradients" "no network namespaces"
  fi
else
  skip "a run on several hosts" "this one has no address"
fi
done_testing
