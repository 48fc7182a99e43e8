#!/usr/bin/env bash
# The files shipped for systemd, executed: the unit's own process under the unit's own settings
# (tests/support/confined). For Kubernetes and the image: kubernetes.sh.
. "$(dirname "$0")/../support/tap.sh"
. "$top/tests/support/unit.sh"

# ---- what systemd says of the files ----
checked=$scratch/zenpsd.service
unit_written >"$checked"
if command -v systemd-analyze >/dev/null; then
  ok "systemd: the unit is valid" systemd-analyze verify "$checked"
  is "without a warning" "$(cat "$scratch/out")" ""
  ok "exposure at most 1.5 of 10" systemd-analyze security --offline=true --threshold=15 "$checked"
  mkdir "$checked.d" && cp "$top/deploy/systemd/rdma.conf" "$checked.d/"
  ok "valid with the drop-in for fabrics that are devices" systemd-analyze verify "$checked"
  is "without a warning" "$(cat "$scratch/out")" ""
  cp "$top/deploy/systemd/tls.conf" "$checked.d/"
  ok "and with that for TLS" systemd-analyze verify "$checked"
  is "without a warning" "$(cat "$scratch/out")" ""
else
  skip "systemd: the unit" "systemd-analyze is not installed"
fi
ok "zenpsd accepts the sample configuration" zenpsd --config="$top/deploy/systemd/zenpsd.conf" --check
zenpsctl certs init "$scratch/certs" >"$scratch/out"
made=$scratch/certs/coordinator-coordinator
ok "a revocation list is made" zenpsctl certs revoke "$scratch/certs"
sed -E 's/^#([a-z_]+ = )/\1/; /^coordinator = /d; s/^(socket_group = ).*/\10/' "$top/deploy/systemd/zenpsd.conf" |
  sed "s#/etc/zenps/tls/ca.pem#$scratch/certs/ca.pem#; s#/etc/zenps/tls/cert.pem#$made.pem#; s#/etc/zenps/tls/key.pem#$made.key#; s#/etc/zenps/tls/crl.pem#$scratch/certs/crl.pem#" >"$scratch/all.conf"
ok "and every line of it that is commented out" zenpsd --config="$scratch/all.conf" --check
for device in char-infiniband_verbs /dev/infiniband/rdma_cm char-ucxi /dev/kgni0; do
  ok "the drop-in allows $device" grep -qx "DeviceAllow=$device rw" "$top/deploy/systemd/rdma.conf"
done
ok "make install brings unit, sample and drop-in" make -s -C "$build" install-dist_docDATA install-systemdsystemunitDATA DESTDIR="$scratch/installed"
for file in zenpsd.service zenpsd.conf rdma.conf tls.conf; do
  ok "$file" [ -n "$(find "$scratch/installed" -name "$file")" ]
done
is "no word of the installed unit is left to fill in" "$(grep -rc '@[a-z]*@' "$(find "$scratch/installed" -name zenpsd.service)")" 0

# ---- where it reads its configuration ----
# A page, sample or manifest that names the file names the one that the unit reads, whatever the prefix.
config=/etc/zenps/zenpsd.conf variables=/etc/default/zenpsd
read_by() { # UNIT: systemd's %E is /etc
  sed -n 's#%E#/etc#g; s#^Environment=ZENPS_CONFIG=-##p; s#^EnvironmentFile=-##p' "$1"
}
for prefix in "" prefix=/usr prefix=/opt/x "prefix=/opt/x sysconfdir=/srv/etc"; do
  # shellcheck disable=SC2086
  unit_rendered $prefix >"$scratch/unit.service" 2>"$scratch/out"
  is "the unit reads $config and $variables: ${prefix:-the prefix of this build}" "$(read_by "$scratch/unit.service")" "$config
$variables"
  case $prefix in prefix=*)
    wanted=${prefix%% *} && is "and starts the program of its own prefix" "$(sed -n 's/^ExecStart=//p' "$scratch/unit.service")" "${wanted#prefix=}/sbin/zenpsd" ;;
  esac
done
{
  zenpsd --help
  (cd "$top" && cat README.md deploy/README.md deploy/guide/*.md deploy/systemd/* deploy/container/* deploy/k8s/base/* deploy/man/zenps.7)
} | sed 's#\\-#-#g; s#%E#/etc#g' >"$scratch/pages"
is "pages, samples and manifests name that file alone" "$(grep -oE '[^][ `=(<"]*/zenpsd\.conf' "$scratch/pages" | grep -v '^-*systemd/\|^%D%' | sed -E 's/^(-|>|[a-z0-9]+:)//' | sort -u)" "$config"
is "and that file of variables" "$(grep -oE '[^][ `=(<"]*/default/zenpsd' "$scratch/pages" | sed 's/^-//' | sort -u)" "$variables"
for page in README.md deploy/README.md deploy/man/zenps.7 deploy/systemd/zenpsd.conf; do
  ok "$page names it" grep -q "$config" "$top/$page"
done
zenpsd --help >"$scratch/out"
said "zenpsd --help names it" "$config"

# ---- its process ----
why=$(unit_needs)
if [ -n "$why" ]; then
  skip "the unit's process" "$why"
  done_testing
  exit
fi
as_root=$([ "$(id -u)" -ne 0 ] || echo root)
unit_written >"$scratch/confined.service"
unit_prepare "$scratch/confined.service"
cp "$top/tests/support/held.py" "$scratch/etc/held.py"
cat >"$scratch/etc/zenps/zenpsd.conf" <<CONF
[control]
listen = 127.0.0.1:0
address_file = $unit_run/address
socket = $unit_run/zenpsd.sock
socket_mode = 0660
ready_file = $unit_run/ready
[fabric]
provider = net
interface = lo
CONF
run_to_end() { # confined's arguments...
  unit once "$@"
  wait "$pid"
  local status=$?
  cat "$scratch/once.out" "$scratch/once.log" >"$scratch/out"
  return "$status"
}
rounds() {
  timeout 1800 zenpsrun -n 2 --coordinator "$(cat "$scratch/run/address")" --job="job-$RANDOM" --provider=net --interface=lo --prefix=no -- \
    zenps-perf --rows 100000 --width 4 --steps 20 --warmup 1 --verify --json "$@" >"$scratch/json" 2>"$scratch/err"
  local status=$?
  cat "$scratch/json" "$scratch/err" "$scratch"/*.log
  [ "$status" -eq 0 ] && grep -q '"verified": *true' "$scratch/json"
}
gone() { [ ! -e "$scratch/run/address" ] && [ ! -e "$scratch/run/zenpsd.sock" ] && [ ! -e "$scratch/run/ready" ]; }
is_up() { [ -s "$scratch/run/ready" ]; }
up() { until_true is_up || { cat "$scratch"/*.log; return 1; }; }
ended() { # PID, after SIGTERM
  kill -TERM "$1"
  wait "$1"
  local status=$?
  cat "$scratch"/*.log
  return "$status"
}

# Without a real confinement, every later test would pass.
run_to_end --set SystemCallErrorNumber=EXFULL --set "ExecStart=$unit_python $unit_etc/held.py $as_root"
is "what the unit forbids is forbidden to its process" "$(cat "$scratch/once.out")" "looked"
sed -n 's/^confined: not applied: \([A-Za-z]*\)=\(.*\)/\1 \2/p' "$scratch/once.log" | while read -r key text; do echo "$key $text"; done >"$scratch/not-applied"
while read -r key text; do skip "$key" "$text"; done <"$scratch/not-applied"
[ -n "$as_root" ] || skip "user, capabilities and mounts of the unit" "needs root"

# The unit turns system calls that are not in its list into errors. Here they kill: the daemon is to need none of them.
strict="--set SystemCallErrorNumber=kill"
for flag in --version --check --list-providers; do
  # shellcheck disable=SC2086
  ok "zenpsd $flag, of system calls in the list alone" run_to_end $strict -- "$flag"
done
# shellcheck disable=SC2086
WATCHDOG_USEC=300000 unit strict $strict
strict_pid=$pid
if ! ok "the daemon starts, of system calls in the list alone" up; then
  done_testing # all that follows would fail, each after a long wait
  exit 1
fi
ok "it logs the file that it has read" grep -q "configuration: read from $unit_etc/zenps/zenpsd.conf" "$scratch/strict.log"
ok "and its limits" grep -qE 'server: memory_limit [0-9]+ MiB, reduce_threads [0-9]+, read_budget 64 MiB' "$scratch/strict.log"
ok "it tells systemd that it is ready" until_true told '^READY=1'
ok "and what it does" until_true told '^STATUS=registered with the coordinator'
ok "and that it lives, again and again" until_true eval '[ "$(grep -c "^WATCHDOG=1" "$scratch/told")" -ge 3 ]'
for scheme in balanced sparse-ps dense-ps omnireduce ring auto; do
  ok "verified rounds: $scheme" rounds --scheme="$scheme"
done
is "the socket is its group's, though the unit's umask is 0077" "$(stat -c %a "$scratch/run/zenpsd.sock")" 660
reload=$(sed -n 's/^ExecReload=//p' "$scratch/confined.service")
printf '[log]\nlevel = debug\n' >>"$scratch/etc/zenps/zenpsd.conf"
ok "the unit's ExecReload" env MAINPID="$strict_pid" sh -c "$reload"
ok "makes the daemon read the file that the unit names" until_true grep -q 'log.level has changed' "$scratch/strict.log"
ok "of which systemd is told" until_true told '^RELOADING=1'
ok "SIGTERM: status 0" ended "$strict_pid"
ok "systemd is told that it stops" until_true told '^STOPPING=1'
ok "and nothing is left in the runtime folder" gone

unit plain
plain_pid=$pid
ok "the same as the unit has it, where other system calls fail" up
ok "verified rounds" rounds
ok "SIGTERM: status 0" ended "$plain_pid"

unit rdma --drop-in "$top/deploy/systemd/rdma.conf"
rdma_pid=$pid
ok "with the drop-in for fabrics that are devices, but for its list of devices" up
ok "verified rounds" rounds
ok "SIGTERM: status 0" ended "$rdma_pid"

# As the drop-in for TLS says, but for the group, which is none of this host's.
tls_group=54322
mkdir -p "$scratch/etc/zenps/tls"
for pair in ca.pem:ca.pem coordinator-coordinator.pem:cert.pem coordinator-coordinator.key:key.pem; do
  install -m 0640 "$scratch/certs/${pair%:*}" "$scratch/etc/zenps/tls/${pair#*:}"
done
[ -z "$as_root" ] || { chgrp -R "$tls_group" "$scratch/etc/zenps/tls" && chmod 0750 "$scratch/etc/zenps/tls"; }
sed "s#^SupplementaryGroups=zenps-tls\$#SupplementaryGroups=$tls_group#" "$top/deploy/systemd/tls.conf" >"$scratch/tls.conf"
is "what the drop-in for TLS sets" "$(grep -c "=$tls_group\$\|=%E/zenps/tls/" "$scratch/tls.conf")" 4
with_tls() { # ROLE-NAME COMMAND...
  local cert=$scratch/certs/$1
  shift
  env ZENPS_TLS_CA="$scratch/certs/ca.pem" ZENPS_TLS_CERT="$cert.pem" ZENPS_TLS_KEY="$cert.key" "$@"
}
unit tls --drop-in "$scratch/tls.conf"
tls_pid=$pid
ok "with the drop-in for TLS" up
address=$(cat "$scratch/run/address")
ok "an administrator is answered" with_tls admin-admin zenpsctl --timeout=300s --endpoint "$address" status
with_tls admin-admin zenpsctl --timeout=300s --endpoint "$address" security >"$scratch/out"
said "over TLS" 'control plane +guarded'
zenpsctl --timeout=300s --endpoint "$address" status >"$scratch/out" 2>&1
said "others are not" 'TLS is spoken here'
reload=$(sed -n 's/^ExecReload=//p' "$scratch/confined.service")
ok "the unit's ExecReload" env MAINPID="$tls_pid" sh -c "$reload"
ok "reads certificates anew under it" until_true grep -q ': reloaded' "$scratch/tls.log"
ok "SIGTERM: status 0" ended "$tls_pid"
if [ -n "$as_root" ]; then
  is "without its group it reads none of them: status 2" "$(run_to_end --drop-in "$scratch/tls.conf" --set SupplementaryGroups= >/dev/null; echo $?)" 2
  said "and says which" "tls/(ca|cert|key).pem.*[Pp]ermission denied"
fi

if [ -n "$as_root" ]; then
  unit group --set Group=54321
  group_pid=$pid
  ok "with Group= in a drop-in" up
  is "the socket is that group's" "$(stat -c '%a %g' "$scratch/run/zenpsd.sock")" "660 54321"
  as() { setpriv --reuid=65534 --regid="$1" --clear-groups zenpsctl --timeout="$2" --endpoint "unix:$scratch/run/zenpsd.sock" status; }
  if setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$build/zenpsctl"; then
    ok "a member of it reaches the daemon" as 54321 300s
    as 65534 4s >"$scratch/out" 2>&1
    is "others do not" $? 3
    said "and are told why" 'permission denied'
  else
    skip "who reaches the daemon" "the build cannot be read by everybody"
  fi
  ok "SIGTERM: status 0" ended "$group_pid"
fi

rm "$scratch/etc/zenps/zenpsd.conf"
printf '# a comment\nZENPS_CONTROL_LISTEN=127.0.0.1:0\nZENPS_CONTROL_READY_FILE=%s/ready\n' "$unit_run" >"$scratch/etc/default/zenpsd"
unit bare
bare_pid=$pid
ok "without the file, with variables alone" up
ok "it logs where it has looked for one" grep -q "configuration: $unit_etc/zenps/zenpsd.conf is missing" "$scratch/bare.log"
ok "SIGTERM: status 0" ended "$bare_pid"

done_testing
