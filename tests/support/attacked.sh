# Sourced by tests of attacks, after tap.sh: a coordinator and two servers on the loopback interface, whose logs are
# $scratch/c.log, s1.log, s2.log. Where $tls is not empty they are as an operator has them: the control plane speaks TLS with
# certificates of `zenpsctl certs init`, in $certs, and jobs take tokens.
# Gives: files_of, start, ctl, token_for, cluster_starts; then $address, $coordinator, $server (s1's process), servers_are.
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
  env "${files[@]}" zenpsd --fabric-provider=net --fabric-interface=lo "${@:3}" 2>"$scratch/$name.log" &
}
ctl() { # an administrator
  files_of admin-admin
  env "${files[@]}" timeout 20 zenpsctl -e "$address" "$@"
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
  ok "two servers are in" until_true servers_are 2
}
