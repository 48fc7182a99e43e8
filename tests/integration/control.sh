#!/usr/bin/env bash
# The control plane with real processes: zenpsd's start, options, signals and logs; zenpsctl; the coordinator's answers
# to clients that are early, late, wrong or gone.
. "$(dirname "$0")/../support/tap.sh"

address=""
# start NAME ARGUMENTS...: a daemon in the background, its log in $scratch/NAME.log, its pid in $pid.
start() {
  local name=$1
  shift
  zenpsd --fabric-provider=net --fabric-interface=lo "$@" 2>"$scratch/$name.log" 10>&- 11>&- &
  pid=$!
}
# coordinator NAME ARGUMENTS...: the same for one that listens; its address is in $address once it does.
coordinator() {
  local name=$1
  rm -f "$scratch/$name.address"
  start "$@" --control-listen=127.0.0.1:0 --control-address-file="$scratch/$name.address"
  until_true [ -s "$scratch/$name.address" ] && address=$(cat "$scratch/$name.address")
}
ctl() { zenpsctl --endpoint "$address" --timeout=300s "$@"; }
servers_are() { [ "$(ctl -o json members | grep -c '"silent_ms"')" -eq "$1" ]; }
logged() { grep -q -- "$2" "$scratch/$1.log"; }
# stop NAME PID: SIGTERM, and its status.
stop() {
  kill -TERM "$2" && wait "$2"
}

# ---- options ----
zenpsd --control-listen=nonsense >"$scratch/out" 2>&1
is "a bad option: status 2" $? 2
said "and it is named" nonsense
printf '[control]\nlisten = 127.0.0.1:0\n\n[log]\nlevel = lous\n' >"$scratch/bad.conf"
zenpsd --config="$scratch/bad.conf" >"$scratch/out" 2>&1
is "a bad value in the file: status 2" $? 2
said "file and line are named" 'bad.conf:5'
printf '[control]\nlissten = 127.0.0.1:0\n' >"$scratch/bad.conf"
zenpsd --config="$scratch/bad.conf" >"$scratch/out" 2>&1
is "an unknown key: status 2" $? 2
said "file, line and key are named" 'bad.conf:2.*lissten'
said "and the key that was meant" "did you mean 'listen'\?"
zenpsd --control-lisen=127.0.0.1:0 >"$scratch/out" 2>&1
is "an unknown flag: status 2" $? 2
said "and the flag that was meant is named" 'lisen=127.0.0.1:0: did you mean --control-listen\?'
zenpsd --log-level=wran >"$scratch/out" 2>&1
said "so is the value that was meant" "must be one of error, .*; did you mean 'warn'\?"
timeout 1800 zenpsd -c /dev/zero >"$scratch/out" 2>&1
is "a device as the file: status 2" $? 2
said "and it is named" '/dev/zero is a device: must be a file or a pipe'
timeout 1800 zenpsd --config=<(cat /dev/zero) >"$scratch/out" 2>&1
is "a pipe without end: status 2" $? 2
said "with the line, and what is wrong" ':1: holds a zero byte: must be text'
zenpsd --roles=server >"$scratch/out" 2>&1
is "a server without coordinator: status 2" $? 2
said "and what it needs" '--roles = server needs control.coordinator = HOST:PORT'
printf '[control]\nsocket_mode = 0680\n' >"$scratch/bad.conf"
zenpsd --config="$scratch/bad.conf" --check >"$scratch/out" 2>&1
is "a bad mode of the socket: status 2, of --check too" $? 2
said "and what would be right" "control.socket_mode \\($scratch/bad.conf:2\\) is '0680': must be an octal file mode"
zenpsd --control-socket="$scratch/no.sock" --control-socket-group=no-such-group --check >"$scratch/out" 2>&1
is "an unknown group of the socket: status 2" $? 2
said "and what would be right" "--control-socket-group is 'no-such-group', .* must be the name of one"
zenpsd --fabric-provider=nonesuch --check >"$scratch/out" 2>&1
is "a provider that is not there: status 2 of --check" $? 2
said "and what would be right" "--fabric-provider is 'nonesuch', which this host does not have: must be one that zenpsd --list-providers shows"
for provider in net tcp tcp\;ofi_rxm fault+net; do ok "--check takes $provider" zenpsd --fabric-provider="$provider" --check; done
zenpsd --fabric-provider=nonesuch --control-listen=127.0.0.1:0 >"$scratch/out" 2>&1
is "a provider that is not there: status 1" $? 1
said "and it is named" nonesuch
timeout 20 zenpsd --fabric-provider=loop --control-listen=127.0.0.1:0 >"$scratch/out" 2>&1
is "the fabric of the tests, within a process, is not there: status 1" $? 1
ok "--help" zenpsd --help
said "has every section" 'fabric-provider'
ok "--version" zenpsd --version
for program in zenpsd zenpsctl zenpsrun zenps-perf zenps-linear zenps-embed; do
  ok "$program -h is --help" eval "[ \"\$($program -h)\" = \"\$($program --help)\" ]"
  ok "which lists the exit codes" eval "$program -h | grep -A99 '^Exit status:' | grep -q '^  2  *an option, argument'"
  $program --nonesuch >"$scratch/out" 2>&1
  is "$program with a wrong option: status 2" $? 2
done
export ZENPS_JOIN_TIMEOUT=1s
for trainer in "zenps-perf" "zenps-linear /dev/null" "zenps-embed /dev/null"; do
  ZENPS_COORDINATOR=127.0.0.1:1 $trainer >"$scratch/out" 2>&1
  is "$trainer without a coordinator: status 3" $? 3
done
ZENPS_COORDINATOR=127.0.0.1:1 zenpsrun --coordinator=127.0.0.1:1 -n 1 -- zenps-perf >"$scratch/out" 2>&1
is "zenpsrun passes it on" $? 3
unset ZENPS_JOIN_TIMEOUT
zenps-perf --scheme=blueconnect:levels=2y >"$scratch/out" 2>&1
is "levels that are no numbers: status 2" $? 2

# ---- one process with both roles, and zenpsctl ----
printf 'roles = server,coordinator\n[log]\nlevel = info\n[coordinator]\nmin_servers = 1\n' >"$scratch/both.conf"
coordinator both --config="$scratch/both.conf" --control-socket="$scratch/both.sock" --log-format=json --server-name=alpha
both=$pid
ok "a process with both roles registers with itself" until_true servers_are 1
ok "status" ctl status
said "is a table with a title" '^ADDRESS .*SERVERS'
ok "a data port on loopback brings no warning of libfabric's age" eval '! grep -rq "older than 1.18" "$scratch"/*.log'
ctl security >"$scratch/out"
said "which security tells for users of this host" '^connections +host +libfabric before 1.18 '
ok "members names the server" eval 'ctl members | grep -q "alpha.*net"'
for noun in jobs tensors stats version; do ok "$noun" ctl "$noun"; done
ok "over the Unix socket" zenpsctl --endpoint "unix:$scratch/both.sock" status
is "ZENPS_ENDPOINT is heard" "$(ZENPS_ENDPOINT=$address zenpsctl -o json status | grep -c '"address"')" 1
ok "JSON of stats" eval 'ctl -o json stats | grep -q "\"answer\": \"ok\""'
ctl >"$scratch/out" 2>&1
is "without a verb: status 2" $? 2
ctl gizmos >"$scratch/out" 2>&1
is "an unknown verb: status 2" $? 2
ctl stauts >"$scratch/out" 2>&1
is "a mistyped verb: status 2" $? 2
said "and what was meant" "no command 'stauts': did you mean 'status'\?"
ctl status gizmos >"$scratch/out" 2>&1
is "a word too many: status 2" $? 2
for wrong in "--all status" "--internal jobs" "--timeout=0 status" "-o json plan" "-o json state" "help stauts"; do
  ctl $wrong >"$scratch/out" 2>&1
  is "$wrong: status 2" $? 2
done
ok "help" zenpsctl help
said "lists the commands" '^  tensors  +tensors of all jobs'
said "and the options" '^  -e, --endpoint=ADDRESS'
for verb in status members jobs tensors stats security version plan state; do
  ok "$verb --help" zenpsctl "$verb" --help
  said "names the command" "^Usage: zenpsctl .*$verb"
  cp "$scratch/out" "$scratch/help"
  for way in "help $verb" "$verb -h"; do ok "so does $way" eval "zenpsctl $way | cmp - '$scratch/help'"; done
done
ok "options may stand before it" zenpsctl -e 127.0.0.1:1 stats --help
said "a column has its meaning, unit and key" '^  COLLECT/ms +mean milliseconds from the first'
said "and there is an example" '^  zenpsctl --watch=5s stats'
zenpsctl --endpoint 127.0.0.1:1 --timeout 1s status >"$scratch/out" 2>&1
is "nobody at the endpoint: status 3" $? 3
said "and the endpoint is named" '127.0.0.1:1'
# refuser PORT: a coordinator of another protocol, which answers one hello as a real one would; its port, of its choice
# where PORT is 0, is in refusing.port once it listens.
refuser() {
  rm -f "$scratch/refusing.port"
  perl -MIO::Socket::INET -e '
    my $server = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1", LocalPort => $ARGV[0], ReuseAddr => 1) or die;
    $| = 1; print $server->sockport, "\n";
    my $peer = $server->accept; my $hello = <$peer>; my ($id) = $hello =~ /"id": *(\d+)/;
    print $peer qq({"jsonrpc":"2.0","id":$id,"error":{"code":-9,"message":"this coordinator speaks protocol 12, you speak 1","data":{"name":"ERR_VERSION"}}}\n);
    sleep 1' "$1" >"$scratch/refusing.port" &
  until_true test -s "$scratch/refusing.port"
}
refuser 0
zenpsctl --endpoint "127.0.0.1:$(cat "$scratch/refusing.port")" --timeout 3s status >"$scratch/out" 2>&1
is "a coordinator that refuses: status 4" $? 4
said "and its reason is passed on" 'speaks protocol 12, you speak 1'
zenpsctl -e "$address" --watch=0.1s -o json status >"$scratch/watch" & # no function: the shell in between would be killed
watcher=$!
ok "--watch asks again and again" until_true eval '[ $(wc -l <"$scratch/watch") -ge 3 ]'
kill "$watcher"
wait "$watcher" 2>/dev/null
# Perl, since the parent of this script may ignore the signal.
timeout --preserve-status -k 20 -s INT 1 perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' zenpsctl -e "$address" --watch=0.1s status >"$scratch/out" 2>&1
is "SIGINT ends it: status 130" $? 130

ok "every log line is JSON" eval '! grep -vE "^\{.*\"level\":.*\}$" "$scratch/both.log"'
sed -i 's/level = info/level = debug/; s/min_servers = 1/min_servers = 3/' "$scratch/both.conf"
kill -HUP "$both"
ok "SIGHUP takes over the level" until_true logged both 'log.level has changed'
ok "and min_servers" until_true logged both 'coordinator.min_servers has changed'
printf '[server]\nread_budget = 1M\n[log]\nlevel = debug\n' >"$scratch/both.conf"
kill -HUP "$both"
ok "SIGHUP says what needs a restart" until_true logged both 'server.read_budget .*restart'
echo '[log' >"$scratch/both.conf"
kill -HUP "$both"
ok "SIGHUP with a broken file keeps the configuration" until_true logged both 'the running configuration stays'
ok "and the daemon" ctl status
stop both "$both"
is "SIGTERM: status 0" $? 0
ok "the address file is gone" [ ! -e "$scratch/both.address" ]
ok "the Unix socket is gone" [ ! -e "$scratch/both.sock" ]

# ---- who may use the Unix socket ----
other_group=$(id -G | tr ' ' '\n' | tail -n 1)
[ "$(id -u)" -ne 0 ] || other_group=54321
umask_before=$(umask)
umask 0077
coordinator shared --control-socket="$scratch/shared.sock" --control-socket-mode=0660 --control-socket-group="$other_group"
umask "$umask_before"
is "the Unix socket has the mode and group asked for, whatever the umask" "$(stat -c '%a %g' "$scratch/shared.sock")" "660 $other_group"
ok "and answers" zenpsctl --endpoint "unix:$scratch/shared.sock" status
stop shared "$pid"
umask 0000
coordinator private --control-socket="$scratch/private.sock"
umask "$umask_before"
is "without a word it is its owner's alone" "$(stat -c '%a' "$scratch/private.sock")" 600
stop private "$pid"
nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
if [ "$(id -u)" -eq 0 ] && nobody test -x "$build/zenpsd"; then
  chmod 0711 "$scratch"
  mkdir -m 0777 "$scratch/open"
  nobody "$build/zenpsd" --fabric-provider=net --fabric-interface=lo \
    --control-listen=127.0.0.1:0 --control-socket="$scratch/open/sock" --control-socket-group=54321 >"$scratch/out" 2>&1
  is "a group that the daemon is not in: status 1" $? 1
  said "and why" 'cannot give the socket to group 54321 .*groups that it is in.*not permitted'
  ok "and no socket stays behind" [ ! -e "$scratch/open/sock" ]
else
  skip "a group that the daemon is not in" "needs root, to become somebody who is not in it, and a build that everybody can read"
fi

# ---- raw clients: one JSON object a line ----
ready=$scratch/ready # of the coordinator; a server's is $ready.s
gone() { [ ! -e "$1" ]; }
echo 1 >"$ready"
echo 1 >"$ready.s"
zenpsd --control-ready-file="$ready" --control-listen=203.0.113.1:1 --control-insecure 2>/dev/null
ok "a daemon removes the ready file that another has left, also when it does not start" gone "$ready"
echo bait >"$scratch/bait"
ln -s "$scratch/bait" "$ready.new" # where a daemon of old wrote
# Long enough for a process that stalls for seconds, and short enough for tests that wait for it to pass.
coordinator c --roles=coordinator --control-heartbeat=0.1s --control-dead=30s --log-level=info --control-ready-file="$ready"
c=$pid
ok "a coordinator that listens is ready" until_true [ -s "$ready" ]
is "with its number in the file" "$(cat "$ready")" "$c"
is "which all can read, and nothing is left beside it" "$(stat -c %a "$ready") $(echo "$ready"*)" "644 $ready $ready.new $ready.s"
is "what lay in the way of old is left alone" "$(cat "$scratch/bait")" "bait"
zenpsd --control-listen=127.0.0.1:0 --control-ready-file="$ready" >"$scratch/out" 2>&1
is "another daemon cannot take its file: status 1" $? 1
said "and is told why" '--control-ready-file: .* is held by a daemon that runs: each must have a file of its own'
ok "and the file is still there" [ -s "$ready" ]
zenpsd --control-listen=127.0.0.1:0 --control-ready-file="$scratch/none/ready" >"$scratch/out" 2>&1
is "a ready file that cannot be made: status 1, at the start" $? 1
said "and it is named" '--control-ready-file: cannot create a file beside .*/none/ready'
fabric='{"provider":"net","protocol":"FI_PROTO_XNET","addr_format":"FI_SOCKADDR_IN","domain":"lo","address":"020000017f0000010000000000000000","printable":"x"}'
# client FD: a worker's connection that has said hello and goes on sending heartbeats. hush FD: no more of them. hang_up FD.
# say FD LINE; hear FD: the next line that is no heartbeat.
declare -A beats
beat() { while say "$1" '{"jsonrpc":"2.0","method":"heartbeat","params":{}}' 2>/dev/null; do sleep 0.1; done; }
client() {
  eval "exec $1<>/dev/tcp/${address%:*}/${address##*:}"
  say "$1" '{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":12,"version":"test","role":"worker"}}'
  hear "$1" >/dev/null
  case $1 in 10) beat 10 11>&- & ;; 11) beat 11 10>&- & ;; esac
  beats[$1]=$!
}
hush() {
  kill "${beats[$1]}"
  wait "${beats[$1]}" 2>/dev/null
}
hang_up() {
  hush "$1"
  eval "exec $1>&-"
}
say() { printf '%s\n' "$2" >&"$1"; }
hear() {
  local line lines=0
  while [ $((lines += 1)) -lt 3000 ] && IFS= read -r -t 300 line <&"$1"; do
    case $line in *'"heartbeat"'*) ;; *)
      printf '%s\n' "$line"
      return 0 ;;
    esac
  done
  return 1
}
join() { # FD RANK WORLD TIMEOUT-MS [JOB [SECRET]]
  say "$1" '{"jsonrpc":"2.0","id":2,"method":"job.join","params":{"job":"'"${5:-j}"'","world":'"$3"',"rank":'"$2"',"host":"h'"$1"'","pid":1'"$1"',"timeout_ms":'"$4${6:+,\"secret\":\"$6\"}"',"fabric":'"$fabric"'}}'
}
has() { # NAME TEXT PATTERN
  printf '%s\n' "$2" >"$scratch/out"
  said "$1" "$3"
}

waits() { ctl members | grep -qE "^j +$1 +joining"; } # RANK

client 10
say 10 '{"jsonrpc":"2.0","id":2,"method":"no.such","params":{}}'
has "an unknown method" "$(hear 10)" '-32601'
say 10 '{"jsonrpc":"2.0","id":2,"method":"job.join","params":{"job":"j"}}'
has "missing parameters are named" "$(hear 10)" "-32602.*job.join: member 'world' is missing, want an integer"
say 10 '{"jsonrpc":"2.0","id":2,"method":"server.drain","params":{}}'
has "a worker is no server" "$(hear 10)" 'ERR_REFUSED'
join 10 3 3 1000
has "a rank outside the world" "$(hear 10)" 'ERR_INVALID'
join 10 0 3 300
has "ranks that do not come are named" "$(hear 10)" 'ERR_MISSING.*|.*had not joined: 1-2'
ok "which jobs --all remembers" eval 'ctl jobs --all | grep -qE "^j +0x[0-9a-f]+ +failed +3 +0 +0 +0 +- +0 +0 .* ERR_MISSING +job .j.: after 0.3 s 2 of 3 ranks had not joined: 1-2$"'
ok "and jobs without it does not show" eval '! ctl jobs | grep -qE "^j |ENDED"'
client 11
join 10 0 2 300000
until_true waits 0 # what comes over two connections comes in any order
join 11 0 2 300000
has "a taken rank names host and pid of its holder" "$(hear 11)" 'held by host h10, pid 110.*ERR_RANK_TAKEN|ERR_RANK_TAKEN.*held by host h10, pid 110'
join 11 1 3 300000
has "another world size" "$(hear 11)" 'ERR_SHAPE'
join 11 1 2 400
has "servers that do not come are counted" "$(hear 11)" '0 servers of the 1 needed'
gone_address=127.0.0.1:1 # where nobody listens
start early --roles=server --control-coordinator="$gone_address" --server-name=early --control-ready-file="$ready.s"
ok "a server that finds no coordinator is not ready, and the stale file is gone" until_true gone "$ready.s"
kill -TERM "$pid"
wait "$pid"
start s --roles=server --control-coordinator="$address" --server-name=s --control-ready-file="$ready.s"
s=$pid
ok "a server joins" until_true servers_are 1
ok "and is ready once it knows" until_true [ -s "$ready.s" ]
join 11 1 2 300000
first=$(hear 10)
second=$(hear 11)
has "both ranks are answered" "$first$second" '"view".*"view"'
job=$(printf '%s' "$first" | grep -oE '"job_id": ?"0x[0-9a-f]{16}"' | grep -oE '0x[0-9a-f]+')
same_seed() { [ "$(grep -oE '"seed": ?"[^"]*"' <<<"$first")" = "$(grep -oE '"seed": ?"[^"]*"' <<<"$second")" ]; }
ok "with one seed" same_seed
tensor() { # FD ROWS [MORE-MEMBERS]
  say "$1" '{"jsonrpc":"2.0","id":3,"method":"tensor.register","params":{"job_id":"'"$job"'","name":"w","rows":'"$2"',"width":4,"dtype":"f32","op":"sum","partitions":0'"${3:-}"'}}'
}
tensor 10 4096 ',"codec":7'
has "a codec that is no name is refused with those that are" "$(hear 10)" "'codec' is no string, want auto, paper or coo"
tensor 10 4096 ',"codec":"small"'
has "so is one that does not exist" "$(hear 10)" "small.*auto, paper or coo"
tensor 10 4096 ',"values":false'
has "values that are no name are refused with those that are" "$(hear 10)" "'values' is no string, want raw, bf16, f16, qsgd2, qsgd4 or qsgd8"
tensor 10 4096 ',"values":"f8"'
has "so are those that do not exist" "$(hear 10)" "f8.*raw, bf16, f16, qsgd2, qsgd4 or qsgd8"
tensor 10 4096
has "a tensor gets four partitions a server" "$(hear 10)" '"partitions": ?4,.*"owners": ?\[0, ?0, ?0, ?0\]'
tensor 11 4097
has "another shape names both and who was first" "$(hear 11)" '4096 x 4 .*rank 0 \(host h10\).*rank 1 \(host h11\) says 4097 x 4'
tensor 11 4096 ',"values":"qsgd4"'
has "ranks must agree on what values travel as" "$(hear 11)" 'values raw, .*since rank 0 \(host h10\).*rank 1 \(host h11\) says .*values qsgd4'
say 10 '{"jsonrpc":"2.0","id":5,"method":"tensor.register","params":{"job_id":"'"$job"'","name":"p","rows":4096,"width":4,"dtype":"f32","op":"sum","partitions":0,"scheme":{"name":"auto","choices":["fast"]}}}'
has "a choice among schemes that do not exist is refused" "$(hear 10)" "'fast'; there are: balanced "
say 10 '{"jsonrpc":"2.0","id":6,"method":"tensor.register","params":{"job_id":"'"$job"'","name":"p","rows":4096,"width":4,"dtype":"f32","op":"sum","partitions":0,"scheme":{"name":"auto"}}}'
has "a tensor may leave its scheme to the coordinator" "$(hear 10)" '"tensor": ?1'
report() { # FD STEP
  say "$1" '{"jsonrpc":"2.0","method":"tensor.report","params":{"job_id":"'"$job"'","tensor":1,"step":"'"$2"'","waits":true}}'
}
report 11 0x0000000000000000
runs='"tensor": ?1.*"from": ?"0x0000000000000000".*"until": ?"0x000000000000000[1-9a-f]".*"scheme": ?"balanced"'
has "when a rank asks, the first one hears the scheme of steps to come" "$(hear 10)" "tensor.plan.*$runs|$runs.*tensor.plan"
report 10 0x0000000000000003
has "when it asks again, all runs" "$(hear 10)" '"whole": ?true'
say 10 '{"jsonrpc":"2.0","method":"tensor.report","params":{"tensor":-1}}'
ok "a report that makes no sense is left out" until_true logged c 'tensor.report is left out'
ok "tensors shows what is planned" eval 'ctl tensors | grep -q "p .*auto .* balanced "'
ok "jobs shows it" eval 'ctl jobs | grep -q "^j .*running"'
ok "tensors shows it" eval 'ctl tensors | grep -q "w .*open.* auto  *raw "'
say 10 '{"jsonrpc":"2.0","method":"job.stats","params":{"job_id":"'"$job"'","tensors":[{"tensor":0,"done":3,"rounds":3,"bytes_out":3072,"step":2,"scheme":"ring"}]}}'
ok "stats shows what a rank tells of its rounds" until_true eval 'ctl stats | grep -qE "^j +w +(- +)?ring +2 +3 +0 .* 3.0K "'
ok "and of which rank it is" eval 'ctl stats | grep -qE "^j +0 +h10 +in +2 +3 +0 +3.0K "'
say 10 '{"jsonrpc":"2.0","method":"job.stats","params":{"job_id":"'"$job"'","tensors":[{"tensor":0,"done":4,"rounds":-1}]}}'
ok "what makes no sense is left out" until_true logged c "job.stats is left out: .*rounds"
is "and counts for nothing" "$(ctl -o json stats | grep -c '"rounds": 3')" 2
say 10 '{"jsonrpc":"2.0","id":7,"method":"tensor.register","params":{"job_id":"'"$job"'","name":"@own","rows":8,"width":1,"dtype":"f32","op":"sum","partitions":0}}'
hear 10 >/dev/null
for verb in tensors stats; do
  ok "$verb hides what is zenps's own" eval "ctl $verb | grep -q ' w ' && ! ctl $verb | grep -q '@own'"
  ok "in JSON, too" eval "ctl -o json $verb | grep -q '\"w\"' && ! ctl -o json $verb | grep -q '@own'"
  ok "but with --internal" eval "ctl $verb --internal | grep -q '@own' && ctl -o json --internal $verb | grep -q '\"@own\"'"
done

# Rank 1 goes without a word; rank 0 hears of it by name and leaves; then the job is over.
hang_up 11
has "a lost rank is reported to the others" "$(hear 10)" 'job.failed.*ERR_PEER_LOST.*rank 1 \(host h11, pid 111\) was lost'
say 10 '{"jsonrpc":"2.0","id":4,"method":"job.leave","params":{"job_id":"'"$job"'"}}'
hear 10 >/dev/null
hang_up 10
ok "the job is closed" until_true eval '! ctl jobs | grep -q "^j "'
ctl jobs --all >"$scratch/out"
said "jobs --all says since when, and the first cause" \
  "^j +$job +failed +2 +1 +1 +1 +- +[0-9]+ +3 +3 +3.0K +0 +[0-9.]+ +20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-9:]{8}Z +ERR_PEER_LOST +job 'j': rank 1 \(host h11, pid 111\) was lost: "
ctl -o json jobs --all >"$scratch/out"
said "as JSON, too" '"ended_at": "20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-9:]{8}Z"'
said "with the code's name" '"code": "ERR_PEER_LOST"'
ok "at the server too" until_true eval 'ctl stats | grep -qE "^s +[^ ]+ +ok +0 "'

# The same name again. Rank 0 falls silent: as dead as one whose connection ended.
client 10
client 11
join 10 0 2 300000
join 11 1 2 300000
hear 10 >/dev/null # the answer to one rank comes when all are in
ok "the name of a closed job can be used again" hear 11
hush 10
has "a silent rank is lost" "$(hear 11)" 'ERR_PEER_LOST.*rank 0 .*nothing heard for'
ok "which is in the log" logged c 'audit: job=j rank=0 is expelled: nothing heard for'
exec 10>&-
hang_up 11

# Rank 0 says that it lives, and that its progress thread does not.
until_true eval '! ctl jobs | grep -q "^j "'
client 10
client 11
join 10 0 2 300000
join 11 1 2 300000
hear 10 >/dev/null
hear 11 >/dev/null
say 10 '{"jsonrpc":"2.0","method":"heartbeat","params":{"stuck_ms":29500}}'
say 10 '{"jsonrpc":"2.0","method":"heartbeat","params":{"stuck_ms":30500}}'
has "a rank whose progress thread is stuck for too long is lost" "$(hear 11)" \
  'ERR_PEER_LOST.*rank 0 .*its progress thread has not run for 30\.5 s'
hang_up 10
hang_up 11

# A server that is stopped is as dead as one that was killed.
until_true eval '! ctl jobs | grep -q "^j "'
client 10
join 10 0 1 300000
has "a job of one" "$(hear 10 | tee "$scratch/joined")" '"view"'
job=$(grep -oE '"job_id": ?"0x[0-9a-f]{16}"' "$scratch/joined" | grep -oE '0x[0-9a-f]+')
say 10 '{"jsonrpc":"2.0","id":4,"method":"job.leave","params":{"job_id":"'"$job"'"}}'
hear 10 >/dev/null
ok "that is left in peace has no cause" eval "ctl jobs --all | grep -qE '^j +$job +left +1 +1 +0 +1 +- +[0-9]+ +0 .* - +-\$'"
ok "as the last one of the list" eval "ctl jobs --all | tail -n 1 | grep -q '$job'"
join 10 0 1 300000
ok "another one" hear 10
kill -STOP "$s"
has "a stopped server is lost by name" "$(hear 10)" "ERR_SERVER_LOST.*server 0 's'"
kill -CONT "$s"
hang_up 10 # The failed job ends, and does not wait for its rank.
ok "it comes back" until_true servers_are 1
ok "and has closed the lost job" until_true eval 'ctl stats | grep -qE "^s +[^ ]+ +ok +0 "'

# A job that loses one of two servers goes on; zenpsctl names the lost one.
start lost --roles=server --control-coordinator="$address" --server-name=lost
ok "two servers" until_true eval 'ctl members | grep -qE " lost +in "'
client 10
join 10 0 1 300000 j 0x00000000000000aa
has "a job on both" "$(hear 10 | tee "$scratch/joined")" '"view"'
job=$(grep -oE '"job_id": ?"0x[0-9a-f]{16}"' "$scratch/joined" | grep -oE '0x[0-9a-f]+')
job_epoch() { ctl -o json jobs | grep -oE '"epoch": ?[0-9]+' | grep -oE '[0-9]+$'; }
before=$(job_epoch)
ok "of which none is lost" eval "ctl jobs | grep -qE '^j +$job +running +1 +1 +0 +0 +2 +- +$before '"
kill -KILL "$pid"
wait "$pid" 2>/dev/null
has "its rank hears of the loss" "$(hear 10)" 'job\.view.*"state": ?"free", ?"lost": ?true'
after=$(job_epoch)
ok "which is another epoch" [ "$after" -gt "$before" ]
ok "jobs shows that, and the lost server" eval "ctl jobs | grep -qE '^j +$job +running +1 +1 +0 +0 +2 +lost +$after '"
ctl -o json jobs >"$scratch/out"
said "and how many there are, as JSON" '"servers_lost": ?1[,}]'
ok "members has the other one alone" servers_are 2 # with the rank
client 11
join 11 0 1 300000 j 0x00000000000000aa
hear 11 >"$scratch/again"
grep -q '"view"' "$scratch/again" || hear 11 >>"$scratch/again"
ok "the rank, which may not have had its answer, joins once more" grep -qF "$job" "$scratch/again"
ok "and hears which server is not there any more" grep -qE '"state": ?"free", ?"lost": ?true' "$scratch/again"
hang_up 10
say 11 '{"jsonrpc":"2.0","id":4,"method":"job.leave","params":{"job_id":"'"$job"'"}}'
hear 11 >/dev/null
hang_up 11
ok "jobs --all does so when the job has ended" until_true eval "ctl jobs --all | grep -qE '^j +$job +left +1 +1 +0 +2 +lost +$after '"

# zenpsctl drain: jobs leave a server, or stay and say why; the last one is refused.
start spare --roles=server --control-coordinator="$address" --server-name=spare
spare=$pid
ok "two servers" until_true eval 'ctl members | grep -qE " spare +in "'
client 10
join 10 0 1 300000
has "a job on both" "$(hear 10 | tee "$scratch/joined")" '"view"'
job=$(grep -oE '"job_id": ?"0x[0-9a-f]{16}"' "$scratch/joined" | grep -oE '0x[0-9a-f]+')
mapped() { say 10 '{"jsonrpc":"2.0","method":"job.mapped","params":{"job_id":"'"$job"'","epoch":'"$(job_epoch)"',"tensors":[]}}'; }
fails_with() { # status, what it is, text, COMMAND...
  local want=$1 what=$2 text=$3
  shift 3
  ctl "$@" >"$scratch/told" 2>"$scratch/err"
  is "$what" $? "$want"
  ok "and says: $text" grep -qF -- "$text" "$scratch/err"
}
fails_with 2 "drain wants a name" "drain wants the name of a server" drain
fails_with 2 "and jobs takes none" "unexpected argument 's'" jobs s
fails_with 2 "wait is drain's" "--wait is for drain and rebalance, not for jobs" jobs --wait
fails_with 2 "which does not watch" "--watch is for commands that ask, not for drain" drain s --watch
fails_with 4 "a server that there is not" "there is no server 'spaer': did you mean 'spare'?" drain spaer
fails_with 1 "a job leaves a server when its ranks know" "server 'spare' still has 1 jobs after 0.2 s" drain spare --wait=200ms
ok "which is shown" grep -qE "^j +$job +leaves" "$scratch/told"
has "the rank hears of it" "$(hear 10)" 'job\.view.*"state": ?"leaving"'
zenpsctl -e "$address" drain spare --wait=300s -o json >"$scratch/waited" 2>&1 &
waiter=$!
mapped
has "and goes on" "$(hear 10)" 'job\.replay'
wait "$waiter"
is "drain --wait ends then, status 0" $? 0
ok "without a job" eval 'ctl members | grep -qE "spare +draining .* 0 +[0-9]+ +[^ ]+ +[^ ]+ +[^ ]+$"'
ok "no server is lost" eval "ctl jobs | grep -qE '^j +$job +running +1 +1 +0 +0 +2 +- +'"
ctl drain spare >"$scratch/told"
is "again it is as it was" $? 0
ok "with no job to show" eval '! grep -q "$job" "$scratch/told"'
fails_with 4 "the last server is refused" "server 's' is the last that takes jobs: start another one first" drain s
ctl undrain spare >"$scratch/told"
is "it is taken back" $? 0
ok "and is in" grep -qE "^spare +in " "$scratch/told"
ctl drain s >"$scratch/told"
is "now the other one may go" $? 0
ok "but keeps the job that has no other, and says so" grep -qE "^j +$job +stays +it has no other server" "$scratch/told"
fails_with 1 "for which nobody waits for ever" "server 's' still has 1 jobs after 0.1 s" drain s --wait=100ms
ctl undrain s >/dev/null

# zenpsctl rebalance: the job takes the server in that it has left, at once; else it says why not.
fails_with 2 "rebalance takes one job" "unexpected argument 'k': rebalance takes [JOB]" rebalance j k
fails_with 4 "which there is" "there is no job 'k': zenpsctl jobs lists those that there are" rebalance k
fails_with 1 "a job takes a server in when its ranks know" "job 'j' does not go on with 2 servers yet, after 0.2 s" rebalance --wait=200ms
ok "which is shown" grep -qE "^j +$job +(moves|waits) +2 +0 +servers take free places: spare" "$scratch/told"
has "the rank hears of it" "$(hear 10)" 'job\.view.*"since": ?[0-9]+, ?"name"'
mapped
has "and goes on" "$(hear 10)" 'job\.replay'
ok "with both" until_true eval "ctl rebalance j --wait | grep -qE '^j +$job +stays +2 +0 +it began with 2 servers and has them all$'"
say 10 '{"jsonrpc":"2.0","id":4,"method":"job.leave","params":{"job_id":"'"$job"'"}}'
hear 10 >/dev/null
hang_up 10
ok "without a job there is nothing to do" eval '[ "$(ctl rebalance | wc -l)" = 1 ]'

# zenpsctl kick: a rank is lost to its job, hears it, and does not come back.
fails_with 2 "kick wants a job and a rank" "kick wants the name of a job and the number of a rank" kick j
fails_with 2 "that is a number" "kick: 'one' is no rank: a number" kick j one
fails_with 2 "a reason is for changes" "--reason is for drain, undrain, rebalance and kick, not for jobs" jobs --reason x
ZENPS_COORDINATOR=nowhere zenpsctl status 2>"$scratch/out"
said "a wrong address is named by its variable" "^zenpsctl: ZENPS_COORDINATOR: address 'nowhere': no port"
ZENPS_TLS_CERT=/none zenpsctl --tls-ca=/none status 2>"$scratch/out"
said "the files of TLS by their sources" '^zenpsctl: --tls-ca, ZENPS_TLS_CERT and --tls-key: '
client 10
join 10 0 1 300000
hear 10 >"$scratch/joined"
fails_with 4 "a rank that there is not" "job 'j' has ranks 0 to 0, and no rank 1" kick j 1
ctl kick j 0 --reason 'its GPU is broken' >"$scratch/told"
is "a rank is expelled" $? 0
ok "which ends its job" grep -qE "^j +0x[0-9a-f]+ +0 +.* +ended$" "$scratch/told"
has "it hears it" "$(hear 10)" 'job\.failed.*ERR_PEER_LOST.*an administrator expelled it: its GPU is broken'
hang_up 10
ok "who did it is in the log" logged c 'audit: method=kick by=- name=j rank=0 role=ctl reason=its GPU is broken$'
ok "and who it was" logged c "audit: job=j rank=0 host=h10 pid=110 is expelled: an administrator expelled it"
job=$(grep -oE '"job_id": ?"0x[0-9a-f]{16}"' "$scratch/joined" | grep -oE '0x[0-9a-f]+')
client 10
say 10 '{"jsonrpc":"2.0","id":7,"method":"job.next","params":{"job":"j","host":"h","world":1,"rank":0,"pid":1,"timeout_ms":1000,"fabric":'"$fabric"',"min_world":1,"max_world":2,"wait_ms":1,"step":0,"generation":1,"last_rank":0,"last_job":"'"$job"'"}}'
has "and is refused when it asks for the next generation" "$(hear 10)" 'expelled it: its GPU is broken.*ERR_REFUSED'
ok "which is in the log" logged c 'audit: method=job.next by=- role=worker is refused: this process was rank 0'
hang_up 10
kill -TERM "$spare"
wait "$spare"
is "a server without jobs ends at once" $? 0
ok "one server" until_true servers_are 1

# Two servers of one name; a server whose coordinator goes and comes back.
start twin --roles=server --control-coordinator="$address" --server-name=s
ok "a second server of that name is refused" until_true logged twin "server name 's' is held by host"
kill -TERM "$pid"
wait "$pid"
is "and stops when told to" $? 0
# Meanwhile zenpsctl watches: in lines, as JSON, on a terminal, and on a terminal with frames far apart.
watchers=""
look_on() { # NAME ARGUMENTS...
  local name=$1
  shift
  zenpsctl -e "$address" --timeout=1s --watch=0.1s "$@" >"$scratch/$name" 2>"$scratch/$name.err" 10>&- 11>&- &
  watchers="$watchers $!"
}
terminal() { # NAME ROWS COLUMNS ARGUMENTS...
  local name=$1 size="stty rows $2 cols $3"
  shift 3
  TERM=xterm script -qfc "tty >'$scratch/$name.tty'; $size; exec zenpsctl -e $address --timeout=1s $*" "$scratch/$name" >/dev/null 2>&1 </dev/null 10>&- 11>&- &
  watchers="$watchers $!"
}
frames() { [ "$(grep -oF $'\e[H' "$scratch/$1" | wc -l)" -ge "$2" ]; } # NAME AT-LEAST
look_on lines status
look_on json -o json stats
ok "lookers-on see it" until_true eval '[ -s "$scratch/lines" ] && [ -s "$scratch/json" ]'
if command -v script >/dev/null; then
  terminal drawn 12 70 --watch=0.1s members
  terminal still 12 70 --watch=600s members
  ok "a terminal is drawn again and again" until_true frames drawn 3
  ok "at first once" until_true frames still 1
  stty -F "$(cat "$scratch/still.tty")" rows 5 cols 20
  ok "and again when its size changes" until_true frames still 2
  ok "as much as fits into it" until_true grep -qE '^\([0-9]+ more lines: the w'$'\r''?$' "$scratch/still"
fi
kill -KILL "$c"
wait "$c" 2>/dev/null
ok "the server sees its coordinator go" until_true logged s 'connection to the coordinator .* is lost'
ok "and is not ready" until_true gone "$ready.s"
ok "the file of a coordinator that was killed stays behind" [ -s "$ready" ]
ok "--watch says since when it has no answer" until_true grep -qE '^zenpsctl: [0-9:]{8}: no answer, asking until there is one: ' "$scratch/lines.err"
[ ! -s "$scratch/drawn" ] || ok "on the terminal above the last frame" until_true grep -qE '  no answer since [0-9:]{8}, still asking: ' "$scratch/drawn"
start c2 --roles=coordinator --control-listen="$address" --control-ready-file="$ready"
c=$pid
ok "and registers with the next one" until_true servers_are 1
ok "and is ready again" until_true [ -s "$ready.s" ]
is "so is the next one, whose file it is now" "$(cat "$ready")" "$c"
ok "--watch goes on" until_true grep -qF ": $address answers again" "$scratch/lines.err"
more_than() { [ "$(wc -l <"$scratch/$1")" -gt "$2" ]; }
before=$(wc -l <"$scratch/lines")
ok "with what the next one says" until_true more_than lines "$((before + 8))"
ok "as JSON, too" until_true grep -qF ": $address answers again" "$scratch/json.err"
before=$(wc -l <"$scratch/json")
ok "one object a line" until_true more_than json "$((before + 2))"
if [ -s "$scratch/drawn" ]; then
  ok "on the terminal with the gap marked" until_true grep -qE '  \(no answer from [0-9:]{8} to [0-9:]{8}\)' "$scratch/drawn"
  ok "which is never cleared as a whole" eval '! grep -qF "$(printf "\033[2J")" "$scratch/drawn"'
fi
kill $watchers
wait $watchers 2>/dev/null
ok "and nothing but objects on stdout" eval '! head -n -1 "$scratch/json" | grep -qvE "^\{.*\}\$"'
ok "without a rate below 0" eval '! grep -qE "_per_s\": -" "$scratch/json"'
ok "and lines tell of the gap on stderr alone" eval '! grep -q answer "$scratch/lines"'
ok "what ended before is not remembered" eval '! ctl jobs --all | grep -q "^j "'

# SIGTERM with a job running: waits for it, unless told twice.
client 10
join 10 0 1 300000
hear 10 >/dev/null
kill -TERM "$s"
ok "a stopping server says so" until_true eval 'ctl members | grep -q "s  *stopping"'
ok "and is not ready, though it runs on" gone "$ready.s"
kill -TERM "$s"
wait "$s"
is "a second SIGTERM ends it at once, status 0" $? 0
has "whereupon its job fails" "$(hear 10)" 'ERR_SERVER_LOST'
hang_up 10
rm -f "$scratch/lines" "$scratch/lines.err" # the next one is to have answered
zenpsctl -e "$address" --timeout=1s --watch=0.1s status >"$scratch/lines" 2>"$scratch/lines.err" &
watcher=$!
until_true test -s "$scratch/lines"
stop c2 "$c"
is "the coordinator drains, status 0" $? 0
ok "and its ready file is gone" gone "$ready"
until_true test -s "$scratch/lines.err"
refuser "${address##*:}"
wait "$watcher"
is "--watch ends when the next coordinator refuses: status 4" $? 4
cp "$scratch/lines.err" "$scratch/out"
said "with its reason" '^zenpsctl: .*speaks protocol 12, you speak 1'

# ---- an idle daemon ----
coordinator idle
idle=$pid
until_true servers_are 1
share=$(idle_share "$idle")
ok "an idle daemon uses less than 0.5% of a core ($share thousandths)" [ "$share" -lt 5 ]
stop idle "$idle"

done_testing
