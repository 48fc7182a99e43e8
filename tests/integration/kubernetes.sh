#!/usr/bin/env bash
# The files shipped for Kubernetes, executed without a cluster: the invariants of the manifests, and pods and probes as
# the manifests say (tests/support/pod), in a network namespace of their own.
if [ "$(id -u)" -eq 0 ] && [ -z "${ZPS_TEST_PODS:-}" ] && unshare -n true 2>/dev/null; then
  ZPS_TEST_PODS=1 exec unshare -n bash "$0"
fi
. "$(dirname "$0")/../support/tap.sh"
python=/usr/bin/python3 # Debian's modules are for Debian's python
base=$top/deploy/k8s/base trainer=$top/deploy/k8s/trainer monitoring=$top/deploy/k8s/components/monitoring
export TMPDIR=$scratch

# ---- the manifests ----
rendered=()
if command -v kubectl >/dev/null; then
  ok "the base builds" kubectl kustomize "$base"
  cp "$scratch/out" "$scratch/all.yaml"
  rendered=("$scratch/all.yaml")
  ok "so does the trainer" kubectl kustomize "$trainer"
  mkdir "$scratch/overlay"
  printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [%s]\ncomponents: [%s]\n' \
    "$(realpath --relative-to="$scratch/overlay" "$base")" "$(realpath --relative-to="$scratch/overlay" "$monitoring")" >"$scratch/overlay/kustomization.yaml"
  ok "so does an overlay with monitoring" kubectl kustomize "$scratch/overlay"
  said "which has the exporter" '^  name: zenps-exporter$'
else
  skip "the base builds" "kubectl is not installed"
fi
if "$python" -c 'import yaml' 2>/dev/null; then
  is "selectors, budgets, probes, users, privileges" "$("$python" "$top/tests/support/manifests.py" "$base" "${rendered[@]}" 2>&1)" "8 objects hold"
  is "the namespace lets in the pods of all three folders" "$("$python" "$top/tests/support/manifests.py" --admitted "$base" "$trainer" "$monitoring" 2>&1)" "5 pods are let in"
  is "the trainer as a Job and as a JobSet" "$("$python" "$top/tests/support/manifests.py" --trainer "$trainer" 2>&1)" "all holds"
else
  skip "selectors, budgets, probes, users, privileges" "python3-yaml is not installed"
fi
if "$python" -c 'import kubernetes_validate' 2>/dev/null; then
  is "schemas of Kubernetes 1.31" "$("$python" "$top/tests/support/manifests.py" --schema "$base" "$trainer" "$monitoring" 2>&1)" "all holds"
else
  skip "schemas of Kubernetes 1.31" "kubernetes-validate of PyPI is not installed"
fi
# The secrets that kustomization.yaml asks for, made as it says.
certs=$scratch/certs secrets=$scratch/secrets
names=$(sed -n "s/^#   zenpsctl certs init certs --servers='\(.*\)'$/\1/p" "$base/kustomization.yaml")
ok "certificates can be made as it says" zenpsctl certs init "$certs" --servers="$names"
while read -r role made; do
  mkdir -p "$secrets/zenps-$role-tls"
  cp "$certs/ca.pem" "$secrets/zenps-$role-tls/ca.crt"
  cp "$certs/$made.pem" "$secrets/zenps-$role-tls/tls.crt"
  cp "$certs/$made.key" "$secrets/zenps-$role-tls/tls.key"
done < <(sed -n 's/^#   secret \([a-z]* [^ ]*\)$/\1/p' "$base/kustomization.yaml")
mkdir -p "$secrets/zenps-token"
ok "so can the key of tokens" zenpsctl token key "$secrets/zenps-token/token.key"
ok "and a token" zenpsctl token make "$secrets/zenps-token/token.key" 'job-*' --ttl=24h --out="$scratch/token"
export ZENPS_TLS_CA=$certs/ca.pem
worker=(env ZENPS_TLS_CERT="$certs/worker-worker.pem" ZENPS_TLS_KEY="$certs/worker-worker.key" ZENPS_TOKEN_FILE="$scratch/token")
admin=(env ZENPS_TLS_CERT="$certs/admin-admin.pem" ZENPS_TLS_KEY="$certs/admin-admin.key")
# The daemon itself must take what the config maps say, where the secrets are.
for role in coordinator server; do
  sed "s#/etc/zenps-tls/#$secrets/zenps-$role-tls/#; s#/etc/zenps-token/#$secrets/zenps-token/#; s#/var/lib/zenps#$scratch/state#" "$base/$role.conf" >"$scratch/$role.conf"
  ok "zenpsd accepts $role.conf" env -u ZENPS_TLS_CA zenpsd --config="$scratch/$role.conf" --server-name="zenps-$role-0" --check
done
env -u ZENPS_TLS_CA zenpsd --config="$scratch/server.conf" --server-name=other-0 --check >"$scratch/out" 2>&1
is "but no server of another name" $? 2
said "with the servers' certificate" 'is for servers of the name zenps-server-\*, and --server-name is .other-0.'

# ---- in place of the image, which packages.sh builds and runs, its programs: they are where the packages have them ----
entry=$(sed -n 's/^ENTRYPOINT \["\(.*\)"\]$/\1/p' "$top/deploy/container/Containerfile")
image=$scratch/image
ok "the programs are installed" make -s -C "$build" install-sbinPROGRAMS prefix=/usr DESTDIR="$image"
ok "the image's entry point is there" [ -x "$image$entry" ]

# ---- pods ----
pod() { "$python" "$top/tests/support/pod" "$@"; }
why=""
[ -n "${ZPS_TEST_PODS:-}" ] || why="needs root and a network namespace"
"$python" -c 'import yaml' 2>/dev/null || why="python3-yaml is not installed"
[ -n "$why" ] || { ip link set lo up && ip link add eth0 type veth peer name far && ip addr add 10.244.0.1/24 dev eth0 && ip link set eth0 up && ip link set far up; } ||
  why="no pair of network devices can be made here"
if [ -n "$why" ]; then
  skip "pods and their probes" "$why"
  done_testing
  exit
fi
until_true eval 'ip link show eth0 | grep -q "state UP"' # libfabric leaves an interface without a carrier out
printf '127.0.0.1 localhost\n10.244.0.1 zenps-coordinator zenps-exporter trainer-0.trainer\n' >"$scratch/hosts"
# run_pod SET NUMBER: in the background; $pid is the daemon's.
run_pod() {
  "$python" "$top/tests/support/pod" run "$1" "$2" "$image" "$scratch/hosts" "$secrets" >"$scratch/${1##*/}-$2.log" 2>&1 &
  pid=$!
}
inside() { # PID COMMAND...
  nsenter -t "$1" -m -r -w -S 65532 -G 65532 -- "${@:2}"
}
not() { ! "$@"; }
rounds() {
  timeout 1800 "${worker[@]}" zenpsrun -n 2 --coordinator=10.244.0.1:7077 --job="job-$RANDOM" --prefix=no -- \
    zenps-perf --rows 100000 --width 4 --steps 20 --warmup 1 --verify --json "$@" >"$scratch/json" 2>"$scratch/err"
  local status=$?
  cat "$scratch/json" "$scratch/err" "$scratch"/zenps-*.log
  [ "$status" -eq 0 ] && grep -q '"verified": *true' "$scratch/json"
}

run_pod zenps-server 0
server=$pid
if ! until_true grep -q 'cannot connect to the coordinator' "$scratch/zenps-server-0.log"; then
  cp "$scratch/zenps-server-0.log" "$scratch/out"
  tap_result 1 "a server's pod starts without a coordinator"
  done_testing
  exit 1
fi
ok "a server's pod that finds no coordinator is not ready" not pod probe zenps-server readinessProbe "$server"
is "nor privileged: user, capabilities, new privileges" "$(awk '/^(Uid|CapEff|CapBnd|NoNewPrivs):/ { printf "%s ", $2 }' "/proc/$server/status")" "65532 0000000000000000 0000000000000000 1 "
ok "it can write to its volume" inside "$server" touch /run/zenps/written
ok "but not to its image" not inside "$server" touch /usr/written /etc/zenps/written
run_pod zenps-coordinator 0
coordinator=$pid
for probe in startupProbe readinessProbe livenessProbe; do
  ok "the coordinator's $probe" until_true pod probe zenps-coordinator "$probe" "$coordinator"
done
ok "whereupon the server's pod is ready" until_true pod probe zenps-server readinessProbe "$server"
run_pod zenps-server 1
ok "a second one, too" until_true pod probe zenps-server readinessProbe "$pid"
second=$pid
is "servers have the names of their pods" "$("${admin[@]}" zenpsctl --timeout=300s --endpoint 10.244.0.1:7077 members | grep -oE 'zenps-server-[01]' | sort | tr '\n' ' ')" "zenps-server-0 zenps-server-1 "
ok "verified rounds over both" rounds
train() { # the two pods of the trainer's Job
  local number status=0 pids=()
  make -s -C "$build" install-libLTLIBRARIES prefix=/usr DESTDIR="$image" || return
  mkdir -p "$image/usr/lib/python3/dist-packages" "$secrets/zenps-worker-tls" "$secrets/trainer-token"
  cp -r "$top/worker/python/zenps" "$image/usr/lib/python3/dist-packages"
  for file in ca.crt:ca.pem tls.crt:worker-worker.pem tls.key:worker-worker.key; do
    cp "$certs/${file#*:}" "$secrets/zenps-worker-tls/${file%:*}"
  done
  rm -f "$scratch/trainer.token"
  zenpsctl token make "$secrets/zenps-token/token.key" trainer --ttl=24h --out="$scratch/trainer.token" &&
    cp "$scratch/trainer.token" "$secrets/trainer-token/token" || return
  for number in 0 1; do
    timeout 1800 "$python" "$top/tests/support/pod" run trainer/trainer $number "$image" "$scratch/hosts" "$secrets" >"$scratch/trainer-$number.log" 2>&1 &
    pids+=($!)
  done
  for number in 0 1; do wait "${pids[number]}" || status=1; done
  cat "$scratch"/trainer-?.log
  return $status
}
# The exporter, with the certificates that its kustomization names.
metrics() { # CERTIFICATE
  "$python" - "$certs" "$1" <<'END'
import http.client, socket, ssl, sys
folder, name = sys.argv[1:]
context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
context.load_cert_chain(f"{folder}/{name}.pem", f"{folder}/{name}.key")
connection = http.client.HTTPSConnection("zenps-exporter", context=context)
connection.sock = context.wrap_socket(socket.create_connection(("10.244.0.1", 7079), 60), server_hostname="zenps-exporter")
connection.request("GET", "/metrics")
answer = connection.getresponse()
print(answer.read().decode())
sys.exit(answer.status != 200)
END
}
if zenpsctl help export >/dev/null 2>&1; then
  command=$(sed -n 's/^#   zenpsctl certs init certs \(--admins.*\)$/\1/p' "$monitoring/kustomization.yaml")
  # shellcheck disable=SC2086
  ok "certificates of the exporter, as its page says" zenpsctl certs init "$certs" $command
  mkdir -p "$secrets/zenps-exporter-tls"
  sed -n 's/^#.*--from-file=ca.crt=certs.*/ca.crt ca.pem/p; s/.*--from-file=tls.crt=certs\/\([^ ]*\).*--from-file=tls.key=certs\/\([^ ]*\)$/tls.crt \1\ntls.key \2/p' \
    "$monitoring/kustomization.yaml" | while read -r key file; do cp "$certs/$file" "$secrets/zenps-exporter-tls/$key"; done
  make -s -C "$build" install-binPROGRAMS prefix=/usr DESTDIR="$image" >"$scratch/out" 2>&1
  run_pod components/monitoring/zenps-exporter 0
  exporter=$pid
  for probe in readinessProbe livenessProbe; do
    ok "the exporter's $probe" until_true pod probe components/monitoring/zenps-exporter "$probe" "$exporter"
  done
  ok "Prometheus reads its metrics" metrics worker-prometheus
  said "of both servers" '^zenps_server_up\{.*server="zenps-server-1".*\} 1$'
  not_read() { ! metrics worker-worker; }
  ok "another worker does not" not_read
  kill -TERM "$exporter"
  wait "$exporter"
else
  skip "the exporter" "this build has no libmicrohttpd"
fi
if "$python" -c 'import torch' 2>/dev/null; then
  ok "the trainer's pods train" train
  is "to the same parameters on both" "$(grep -oE 'rank [01] of 2|parameters .*' "$scratch/out" | sort | uniq -c | awk '{ print $1, $2 }' | tr '\n' ' ')" "2 parameters 1 rank 1 rank "
else
  skip "the trainer's pods train" "PyTorch is not installed for $python"
fi
worker+=(ZENPS_TOKEN_FILE=)
not_let_in() { not rounds; }
ok "but not without a token" not_let_in
said "as ranks hear" 'token'
unset 'worker[-1]'
zenpsctl --timeout=300s --endpoint 10.244.0.1:7077 --tls-ca= members >"$scratch/out" 2>&1
is "nobody without a certificate is let in" $? 2
env -u ZENPS_TLS_CA zenpsctl --timeout=300s --endpoint 10.244.0.1:7077 members >"$scratch/out" 2>&1
said "and hears why" 'TLS is spoken here'
mkdir -p "$scratch/kept"
"${worker[@]}" zenpsrun -n 2 --coordinator=10.244.0.1:7077 --job=job-kept --prefix=no -- "$build/tests/integration/restart_trainer" "$scratch/kept" >"$scratch/kept.out" 2>&1 &
kept=$!
steps() { local n; n=$(cat "$scratch/kept/rounds" 2>/dev/null); echo $((10#${n:-0})); }
trains() { until_true eval "[ \$(steps) -gt $(($(steps) + 20)) ]"; }
job() { "${admin[@]}" zenpsctl --timeout=300s --endpoint 10.244.0.1:7077 jobs | awk '$1 == "job-kept" { print $2, $3 }'; }
ok "a job trains" trains
id=$(job)
kill -KILL "$coordinator"
wait "$coordinator" 2>/dev/null
ok "without the coordinator it goes on" trains
ok "a server's pod is not ready" until_true not pod probe zenps-server readinessProbe "$server"
run_pod zenps-coordinator 0
coordinator=$pid
ok "with the next one it is" until_true pod probe zenps-server readinessProbe "$server"
ok "and so is the other" until_true pod probe zenps-server readinessProbe "$second"
ok "its volume has the state: the job is there" until_true eval '[ "$(job)" = "$id" ]'
ok "and trains" trains
touch "$scratch/kept/stop"
wait "$kept"
is "to its end, with every sum right" $? 0
ok "verified rounds again" rounds
for one in "$server" "$second" "$coordinator"; do kill -TERM "$one"; done
for one in "$server" "$second" "$coordinator"; do
  wait "$one"
  is "a pod that is told to end ends with status 0" $? 0
done

done_testing
