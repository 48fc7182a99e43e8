#!/usr/bin/env bash
# zenpsctl export: metrics of a running cluster over HTTP and HTTPS, read by promtool and by Prometheus; who may read them;
# a coordinator that is away, or does not answer. The alert rules, and the dashboard's queries.
. "$(dirname "$0")/../support/tap.sh"
if zenpsctl export --listen 0.0.0.0:0 2>&1 | grep -q 'built without libmicrohttpd'; then
  echo "1..0 # SKIP this build has no libmicrohttpd"
  exit 0
fi

# get URL [AUTHORITY [CERTIFICATE KEY]]: the status, and the body under it. The host in a https URL is a name in the
# certificate; the connection goes to 127.0.0.1.
cat >"$scratch/get.py" <<'END'
import http.client, ssl, sys, urllib.parse
url = urllib.parse.urlsplit(sys.argv[1])
if url.scheme == "http":
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
else:
    context = ssl.create_default_context(cafile=sys.argv[2])
    if len(sys.argv) > 3: context.load_cert_chain(sys.argv[3], sys.argv[4])
    class Connection(http.client.HTTPSConnection):
        def connect(self):
            http.client.HTTPConnection.connect(self)
            self.sock = context.wrap_socket(self.sock, server_hostname=url.hostname)
    connection = Connection("127.0.0.1", url.port, timeout=120)
connection.request("GET", url.path + ("?" + url.query if url.query else ""))
answer = connection.getresponse()
print(answer.status)
sys.stdout.write(answer.read().decode())
END
get() { python3 "$scratch/get.py" "$@" 2>&1; }
status() { get "$@" | head -n 1; }
value() { get "$url/metrics" | awk -v series="$1" 'index($0, series " ") == 1 { print $NF }'; } # SERIES
export_at() { # NAME ARGUMENTS...: an exporter, whose address is $url afterwards, and its pid $pid
  local name=$1
  shift
  zenpsctl "$@" >"$scratch/$name.out" 2>"$scratch/$name.err" &
  pid=$!
  until_true grep -q '^listening on ' "$scratch/$name.out"
  url=$(sed 's/^listening on //' "$scratch/$name.out")
}
coordinate() { # ADDRESS: the coordinator, $coordinator
  zenpsd --roles=coordinator --fabric-interface=lo --control-listen="$1" --control-address-file="$scratch/address" --control-heartbeat=0.2s \
    --control-dead=60s --coordinator-state-dir="$scratch/state" >>"$scratch/c.log" 2>&1 &
  coordinator=$!
}

mkdir "$scratch/state"
coordinate 127.0.0.1:0
until_true test -s "$scratch/address"
address=$(cat "$scratch/address")
for i in 0 1; do
  zenpsd --roles=server --fabric-interface=lo --control-coordinator="$address" --server-name="s$i" --control-heartbeat=0.2s --control-dead=60s >>"$scratch/s$i.log" 2>&1 &
done

# ---- a cluster, and a job ----
export_at e export -e "$address" --timeout=300s --listen 127.0.0.1:0
exporter=$pid
ok "servers are counted" until_true eval '[ "$(value "zenps_servers{state=\"in\"}")" = 2 ]'
# Slow rounds: it leaves the processors to the others.
ZENPS_TELEMETRY=0.1s ZENPS_FABRIC_FAULT=delay=1:5ms zenpsrun -n 2 --coordinator "$address" --job j -p fault+auto --interface lo --prefix=no -- \
  zenps-perf --json --rows 20000 --density 0.02 --scheme balanced --warmup 0 --steps 1000000 >"$scratch/perf" 2>&1 &
job=$!
ok "rounds of a job are counted" until_true eval '[ "$(value "zenps_rounds_total{zenps_job=\"j\",tensor=\"perf.0\"}")" -gt 10 ]'
is "it lives" "$(get "$url/livez")" "$(printf '200\nok')"
is "it is ready" "$(get "$url/readyz")" "$(printf '200\nok')"
is "another page is not found" "$(get "$url/other")" "$(printf '404\nthere is /metrics, /livez and /readyz')"
get "$url/metrics" >"$scratch/metrics"
counts() { # the count of the histogram is its last bucket, and the limits rise
  python3 - "$scratch/metrics" <<'END'
import re, sys
text = open(sys.argv[1]).read()
labels = r'\{zenps_job="j",tensor="perf\.0"'
buckets = [(float(le), float(n)) for le, n in re.findall(r'zenps_round_seconds_bucket' + labels + r',le="([^"]*)"\} (\S+)', text)]
count, total = (float(re.search(r'zenps_round_seconds_' + part + labels + r'\} (\S+)', text)[1]) for part in ("count", "sum"))
assert len(buckets) == 18 and buckets == sorted(buckets) and buckets[-1] == (float("inf"), count) and count > 10, buckets
counts = [n for _, n in buckets]
assert counts == sorted(counts), buckets
# The mean lies between the limits of the first and the last bucket that has rounds.
first = next(i for i, n in enumerate(counts) if n > 0)
assert total / count > (buckets[first - 1][0] if first else 0), (total, buckets)
END
}
ok "a histogram has the times of its rounds" counts
for series in 'zenps_up 1' 'zenps_scrape_rows_left_out 0' 'zenps_coordinator_info\{version="[^"]+",protocol="[0-9]+"\} 1' \
  'zenps_coordinator_state_free_bytes [0-9]{4,}' 'zenps_server_up\{server="s1"\} 1' 'zenps_server_memory_limit_bytes\{server="s0"\} [0-9]{4,}' \
  'zenps_jobs\{state="running"\} 1' 'zenps_job_servers\{zenps_job="j"\} 2' 'zenps_job_ranks\{zenps_job="j",state="in"\} 2' \
  'zenps_rank_lag_seconds_total\{zenps_job="j",rank="1",server="s0"\} [0-9.e-]+' 'zenps_sent_bytes_total\{zenps_job="j",tensor="perf.0"\} [1-9][0-9]+'; do
  ok "there is $series" grep -qE "^$series\$" "$scratch/metrics"
done
is "zenps's own tensors are left out" "$(grep -c 'tensor="@' "$scratch/metrics")" 0

# ---- Prometheus ----
if command -v promtool >/dev/null && command -v prometheus >/dev/null; then
  check_metrics() { tail -n +2 "$scratch/metrics" | promtool check metrics; }
  ok "promtool takes the metrics" check_metrics
  is "without a word" "$(cat "$scratch/out")" ""
  mkdir "$scratch/monitoring"
  cp "$top"/deploy/monitoring/* "$scratch/monitoring/"
  chmod -R u+w "$scratch/monitoring"
  sed -i "s/scrape_interval: .*/scrape_interval: 1s/; s/127.0.0.1:7079/${url#http://}/" "$scratch/monitoring/prometheus.yml"
  ok "promtool takes the configuration and the rules" promtool check config "$scratch/monitoring/prometheus.yml"
  ok "the rules' tests pass" promtool test rules "$scratch/monitoring/alerts_test.yml"
  sed -i 's/ > 30$/ > 31/' "$scratch/monitoring/alerts.yml"
  ok "and not with a rule that has changed" eval '! promtool test rules "$scratch/monitoring/alerts_test.yml"'
  cp "$top/deploy/monitoring/alerts.yml" "$scratch/monitoring/"
  prometheus() { # NAME: Prometheus, with $scratch/monitoring/NAME.yml; its pid is $prometheus
    command prometheus --config.file="$scratch/monitoring/$1.yml" --storage.tsdb.path="$scratch/$1" --web.listen-address=127.0.0.1:0 >"$scratch/$1.log" 2>&1 &
    prometheus=$!
  }
  prometheus prometheus
  listens() { port=$(ss -Hltnp | sed -n "s/.* 127\.0\.0\.1:\([0-9]*\) .*pid=$prometheus,.*/\1/p") && [ -n "$port" ]; }
  ok "Prometheus starts" until_true listens
  # ask QUERY: Prometheus' answer: a line for each sample.
  ask() {
    get "http://127.0.0.1:$port/api/v1/query?$(python3 -c 'import sys, urllib.parse as u; print(u.urlencode({"query": sys.argv[1]}))' "$1")" | tail -n +2 |
      python3 -c 'import json, sys
answer = json.load(sys.stdin)
assert answer["status"] == "success", answer
for sample in answer["data"]["result"]: print(sample["value"][1])'
  }
  ok "it answers a query" until_true eval '[ "$(ask "zenps_up{job=\"zenps\"}")" = 1 ]'
  ok "with rates of rounds" until_true eval '[ "$(ask "rate(zenps_rounds_total[1m]) > bool 0")" = 1 ]'
  ok "with a quantile of their times" until_true eval '[ "$(ask "histogram_quantile(0.5, sum by (le) (rate(zenps_round_seconds_bucket[1m]))) > bool 0")" = 1 ]'
  is "rules are evaluated without an error" \
    "$(get "http://127.0.0.1:$port/api/v1/rules" | tail -n +2 | python3 -c '
import json, sys
rules = json.load(sys.stdin)["data"]["groups"][0]["rules"]
print(len(rules), *(rule["lastError"] for rule in rules if rule.get("lastError")))')" 12
  python3 -c '
import json, sys
for panel in json.load(open(sys.argv[1]))["panels"]:
    for target in panel.get("targets", []):
        print(target["expr"].replace("$__rate_interval", "1m").replace("$zenps_job", ".*"))' "$top/deploy/monitoring/dashboard.json" >"$scratch/queries"
  empty=
  while read -r query; do [ -n "$(ask "$query")" ] || empty="$empty
$query"; done <"$scratch/queries"
  ok "the dashboard has queries" [ "$(wc -l <"$scratch/queries")" -gt 15 ]
  # There are no certificates here, and there may be no round at this moment.
  is "each has an answer" "$(grep -vE 'certificate|oldest_round' <<<"$empty")" ""
  kill "$prometheus" && wait "$prometheus" 2>/dev/null
else
  skip "Prometheus reads the metrics" "promtool and prometheus are not installed (apt-get install prometheus)"
fi

# ---- scrapes at a time ----
# The coordinator stands still until all are under way: those that share an answer have the same time to it.
share() {
  kill -STOP "$coordinator"
  for i in 1 2 3 4; do get "$url/metrics" >"$scratch/share.$i" & shares[i]=$!; done
  until_true eval '[ "$(ss -Htn state established "( sport = :${url##*:} )" | wc -l)" -ge 4 ]'
  kill -CONT "$coordinator"
  wait "${shares[@]}"
  [ "$(grep -h '^zenps_scrape_seconds' "$scratch"/share.* | sort -u | wc -l)" = 1 ] && [ "$(grep -hx 'zenps_up 1' "$scratch"/share.* | wc -l)" = 4 ]
}
ok "scrapes at a time share an answer" until_true share

# ---- a job that fails ----
kill -KILL "$(zenpsctl -e "$address" --timeout=300s -o json members | python3 -c '
import json, sys
print(*(row["pid"] for row in json.load(sys.stdin)["ranks"] if row["rank"] == 1))')"
wait "$job" 2>/dev/null
ok "a failed job has the time of its end" until_true eval 'get "$url/metrics" | grep -qE "^zenps_job_failed_timestamp_seconds\{zenps_job=\"j\",code=\"ERR_[A-Z_]+\"\} 1[0-9]{9}$"'

# ---- a coordinator that does not answer ----
export_at brief export -e "$address" --timeout=1s --listen 127.0.0.1:0
kill -STOP "$coordinator"
is "a coordinator that stands still: a scrape ends" "$(get "$url/metrics" | grep -v '^#')" "$(printf '200\nzenps_up 0')"
is "it is not ready" "$(status "$url/readyz")" 503
is "it lives" "$(status "$url/livez")" 200
kill -CONT "$coordinator"
ok "when the coordinator goes on, it is ready" until_true eval '[ "$(status "$url/readyz")" = 200 ]'
kill "$pid"
wait "$pid"
is "SIGTERM ends it with status 0" $? 0
url=$(sed 's/^listening on //' "$scratch/e.out")
kill "$coordinator" && wait "$coordinator"
is "a coordinator that is gone: a scrape ends" "$(get "$url/metrics" | grep -v '^#')" "$(printf '200\nzenps_up 0')"
get "$url/readyz" >"$scratch/out"
is "it is not ready" "$(head -n 1 "$scratch/out")" 503
said "and says why" "^cannot connect to $address: connection refused$"
coordinate "$address"
ok "when another one has come, it is ready" until_true eval '[ "$(status "$url/readyz")" = 200 ]'
is "and has metrics" "$(value zenps_up)" 1

# ---- what is refused ----
zenpsctl export -e "$address" --listen 0.0.0.0:0 >"$scratch/out" 2>&1
is "other hosts, without certificates: status 2" $? 2
said "with what would be right" '^zenpsctl: --listen: 0\.0\.0\.0:0 can be reached from other hosts: that takes certificates, --tls-ca, --tls-cert and --tls-key .* listen on 127\.0\.0\.1:0$'
zenpsctl export -e "$address" --listen "${url#http://}" >"$scratch/out" 2>&1
is "a port that is in use: status 1" $? 1
said "it is said" '^zenpsctl: --listen: cannot listen on 127\.0\.0\.1:[0-9]+: Address already in use$'
zenpsctl export -e "$address" --listen nothing >"$scratch/out" 2>&1
is "no address: status 2" $? 2
zenpsctl status -e "$address" --listen 127.0.0.1:0 >"$scratch/out" 2>&1
is "--listen is for export: status 2" $? 2
zenpsctl export -e "$address" --allow zenps://worker/prometheus >"$scratch/out" 2>&1
is "--allow without certificates: status 2" $? 2
kill "$exporter" "$coordinator"

# ---- TLS ----
command -v openssl >/dev/null || { skip "TLS" "openssl is not installed"; done_testing; exit; }
certs=$scratch/certs
zenpsctl certs init "$certs" --coordinators=c --admins=exporter.example --workers=prometheus,other,gone >"$scratch/out"
zenpsctl certs init "$scratch/strange" --admins=admin >"$scratch/out"
zenpsctl certs revoke "$certs" worker-gone >"$scratch/out"
zenpsd --fabric-interface=lo --control-listen=127.0.0.1:0 --control-address-file="$scratch/tls" --tls-ca="$certs/ca.pem" --tls-cert="$certs/coordinator-c.pem" \
  --tls-key="$certs/coordinator-c.key" --server-name=c >"$scratch/tls.log" 2>&1 &
until_true test -s "$scratch/tls"
export_at secure export -e "$(cat "$scratch/tls")" --timeout=300s --listen 0.0.0.0:0 --allow zenps://worker/prometheus,zenps://worker/gone \
  --tls-ca="$certs/ca.pem" --tls-cert="$certs/admin-exporter.example.pem" --tls-key="$certs/admin-exporter.example.key" --tls-crl="$certs/crl.pem"
is "with certificates it listens for other hosts, with TLS" "${url%:*}" https://0.0.0.0
port=${url##*:} url=https://exporter.example:$port
as() { get "$url/metrics" "$certs/ca.pem" "$1.pem" "$1.key"; } # CERTIFICATE
as "$certs/worker-prometheus" >"$scratch/metrics"
is "an allowed certificate reads the metrics" "$(sed -n '1p; /^zenps_up/p' "$scratch/metrics")" "$(printf '200\nzenps_up 1')"
ok "certificates have their ends" grep -qE '^zenps_coordinator_certificate_end_timestamp_seconds [0-9]{10}$' "$scratch/metrics"
is "an administrator's does" "$(as "$certs/admin-exporter.example" | head -n 1)" 200
is "another one does not, and hears who may" "$(as "$certs/worker-other")" \
  "$(printf "403\nyour certificate may not read metrics: it must be an administrator's (zenps://admin/NAME), or named by --allow")"
is "one that is revoked does not" "$(as "$certs/worker-gone" | head -n 1)" 403
is "one of another authority does not" "$(as "$scratch/strange/admin-admin" | head -n 1)" 403
if [ -d "$scratch/monitoring" ]; then
  # The commented lines of the configuration, with the paths and names of here.
  sed -E "s/^( *)# (scheme|tls_config|  [a-z_]+):/\1\2:/; s,/etc/prometheus/zenps/,$certs/,; s/server_name: .*/server_name: exporter.example/
    s/targets: .*/targets: [\"127.0.0.1:$port\"]/" "$scratch/monitoring/prometheus.yml" >"$scratch/monitoring/secure.yml"
  exporter_port=$port
  prometheus secure
  ok "Prometheus reads them with TLS" until_true eval 'listens && [ "$(ask "zenps_up{job=\"zenps\"}")" = 1 ]'
  port=$exporter_port
  kill "$prometheus" && wait "$prometheus" 2>/dev/null
fi
is "nobody reads them without one" "$(status "$url/metrics" "$certs/ca.pem")" 403
is "probes need none" "$(status "$url/livez" "$certs/ca.pem") $(status "$url/readyz" "$certs/ca.pem")" "200 200"
openssl s_client -connect "127.0.0.1:$port" -tls1_2 </dev/null >"$scratch/out" 2>&1
is "TLS 1.2 is not spoken" "$(grep -c 'Cipher is (NONE)' "$scratch/out")" 1
serial() { openssl s_client -connect "127.0.0.1:$port" </dev/null 2>/dev/null | openssl x509 -noout -serial; }
before=$(serial)
zenpsctl certs init "$certs" --admins=exporter.example >"$scratch/out"
kill -HUP "$pid"
renewed() { [ "$(serial)" != "$before" ] && [ "$(serial)" != "" ]; }
ok "a new certificate is shown after SIGHUP" until_true renewed
is "and the metrics are read" "$(as "$certs/worker-prometheus" | head -n 1)" 200
echo nothing >"$certs/admin-exporter.example.pem"
kill -HUP "$pid"
ok "files that are none: it says so" until_true grep -q 'the previous certificate stays in use' "$scratch/secure.err"
is "and serves" "$(as "$certs/worker-prometheus" | head -n 1)" 200
done_testing
