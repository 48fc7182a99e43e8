# Sourced by tests of attacks, after tap.sh: a coordinator and two servers on the loopback interface, whose logs are
# $scratch/c.log, s1.log, s2.log. Where $tls is not empty they are as an operator has them: the control plane speaks TLS with
# certificates of `zenpsctl certs init`, in $certs, and jobs take tokens.
# $log_level, where it is set, is the daemons'.
# Gives: files_of, start, ctl, token_for, cluster_starts; then $address, $coordinator, $server and $other_server (processes of s1 and s2), servers_are; look and
# what is seen by it; and for a job whose sums are checked: job_starts, $ranks (its processes), job_ends.
certs=$scratch/certs
if [ -n "$tls" ]; then
  ok "certificates are made" zenpsctl certs init "$certs" --servers=s1,s2
  ok "and a key for tokens" zenpsctl token key "$scratch/token.key"
fi

# files_of CERTIFICATE [JOB]: $files, by which a process is its owner and has the token of the job; none without TLS.
files_of() {
  files=()
  [ -n "$tls" ] || return 0
  files=(ZENPS_TLS_CA="$certs/ca.pem" ZENPS_TLS_CERT="$certs/$1.pem" ZENPS_TLS_KEY="$certs/$1.key")
  [ -z "${2:-}" ] || files+=(ZENPS_TOKEN_FILE="$scratch/$2.token")
}
token_for() { # JOB [FILE]: a name, or its beginning and a star; the file is FILE.token
  [ -z "$tls" ] || zenpsctl token make "$scratch/token.key" "$1" --ttl=24h --out="$scratch/${2:-$1}.token" >/dev/null
}
start() { # NAME CERTIFICATE ARGUMENTS...; $! is its process
  local name=$1
  files_of "$2"
  env "${files[@]}" ${log_level:+ZENPS_LOG_LEVEL="$log_level"} zenpsd --fabric-provider=net --fabric-interface=lo "${@:3}" 2>"$scratch/$name.log" &
}
ctl() { # an administrator
  files_of admin-admin
  env "${files[@]}" timeout 300 zenpsctl --timeout=300s -e "$address" "$@"
}
servers_are() { [ "$(ctl -o json members | grep -c '"silent_ms"')" -eq "$1" ]; }
cluster_starts() {
  start c coordinator-coordinator --roles=coordinator --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" \
    --coordinator-min-servers=2 ${tls:+--coordinator-token-key="$scratch/token.key"}
  coordinator=$!
  until_true [ -s "$scratch/address" ]
  address=$(cat "$scratch/address")
  start s1 server-s1 --roles=server --control-coordinator="$address" --server-name=s1
  server=$!
  start s2 server-s2 --roles=server --control-coordinator="$address" --server-name=s2
  other_server=$!
  ok "two servers are in" until_true servers_are 2
}

# look VERB EXPRESSION: what the expression makes of the answer d.
look() {
  ctl -o json "$1" | python3 -c 'import json, sys; d = json.load(sys.stdin); print(eval(sys.argv[1]))' "$2"
}
server_count() { look stats "[s.get('$1', 0) for s in d['servers'] if s['server'] == 's1'][0]"; }
rounds() { look stats "sum(s['rounds'] for s in d['shards'] if s['job'] == '$1')"; }
rounds_are_above() { local n; n=$(rounds "$1") && [ "$n" -gt "$2" ]; }
failed_rounds() { look stats "sum(s['aborted'] for s in d['shards']) + sum(t['failed'] for t in d['tensors'])"; }

# A job that goes on until it is told to end, and whose sums are all checked; gradients and sums are so long that they are
# read, from ranks and servers.
ranks=()
job_starts() { # NAME [CERTIFICATE]
  local rank
  ranks=()
  rm -f "$scratch/over"
  token_for "$1"
  files_of "worker-${2:-worker}" "$1"
  for rank in 0 1; do
    env "${files[@]}" ZENPS_LOG=warn CHAOS_PAUSE_MS=20 ZENPS_PROVIDER=net ZENPS_INTERFACE=lo "$build/tests/chaos/chaos-rank" "$address" "$1" $rank 2 1 2 300000 "$scratch/over" \
      >"$scratch/$1.$rank.steps" 2>"$scratch/$1.$rank.log" &
    ranks+=($!)
  done
  ok "$1: a job runs" until_true rounds_are_above "$1" 5
}
job_ends() { # NAME
  local rank
  touch "$scratch/over"
  for rank in 0 1; do
    wait "${ranks[rank]}"
    is "$1: rank $rank ends well" $? 0
    cut -d' ' -f1 "$scratch/$1.$rank.steps" | sort -u | tr '\n' ' ' >"$scratch/out"
    said "$1: and all of its sums were right" '^in left step $'
  done
  echo "# $1: $(grep -c ^step "$scratch/$1.0.steps") steps"
}
