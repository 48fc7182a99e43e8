#!/usr/bin/env bash
# What ships, in one clean Debian: the packages are built, the image is made of them and run, systemd boots them as process 1,
# and they are used and purged. Then the wheel is installed there by pip, without libfabric, and used. Packages have the objects of the build tree, so nothing is compiled again.
if [ "$(id -u)" -eq 0 ] && [ -z "${ZPS_TEST_MOUNTS:-}" ] && unshare -m true 2>/dev/null; then
  ZPS_TEST_MOUNTS=own exec unshare -m bash "$0" # mounts of the image end with this script
fi
. "$(dirname "$0")/../support/tap.sh"
all="libzenps0 libzenps-dev zenps-server zenps-tools python3-zenps"
# The clean Debian is kept in the build tree for a day.
debian=$build/clean-debian.tar
root=$scratch/root
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
# tap_end removes the folder, and nothing may be mounted there then.
unmount() {
  awk -v under="$scratch/" 'index($5, under) == 1 { print $5 }' /proc/self/mountinfo | tac | xargs -r umount -l
}
trap 'unmount; tap_end' EXIT

missing() { # what is missing here, or nothing
  local program
  [ "$(id -u)" -eq 0 ] || { echo "needs root"; return; }
  for program in mmdebstrap dpkg-buildpackage dh dh_python3 help2man; do
    command -v "$program" >/dev/null || { echo "$program is not installed (deploy/install-deps.sh package)"; return; }
  done
  unshare -m -n ip link set lo up 2>/dev/null || echo "namespaces are refused here"
}
why=$(missing)
if [ -n "$why" ]; then
  skip "packages" "$why"
  done_testing
  exit
fi

# ---- built, as the clean Debian is made ----
if [ -z "$(find "$debian" -mtime -1 2>/dev/null)" ]; then
  timeout 400 mmdebstrap --quiet --format=tar --variant=minbase --dpkgopt=force-unsafe-io bookworm "$debian.new" >"$scratch/debian.log" 2>&1 &
  making=$!
fi
is "packages are built with what install-deps.sh installs, but for the compiler, and for the packages' own tools" \
  "$(sed -n '/^Build-Depends:/,/^[A-Z]/{/^Build-Depends:/s/.*: //p;/^ /p}' "$top/deploy/debian/control" | tr ', ' '\n\n' | grep -E '^[a-z]' | grep -vE '^(debhelper-compat|dh-python|python3|libgnutls28-dev)$' | sort | xargs)" \
  "$(sed -n '/^build="/,/"$/p' "$top/deploy/install-deps.sh" | tr -d '"' | sed 's/^build=//' | tr ' ' '\n' | grep -E '^[a-z]' | grep -vE '^(build-essential|libcmocka-dev)$' | sort | xargs)"
if ! ok "packages build" env DEB_BUILD_OPTIONS="noautodbgsym terse parallel=2" DPKG_DEB_COMPRESSOR_LEVEL=1 "$top/deploy/debian/build" --objects "$build" --output "$scratch/debs"; then
  done_testing
  exit 1
fi
is "nothing was compiled" "$(grep -cE '^  (CC|CXX) ' "$scratch/out")" 0
is "five packages" "$(cd "$scratch/debs" && ls -- *.deb | sed 's/_.*//' | sort | xargs)" "$(tr ' ' '\n' <<<"$all" | sort | xargs)"
if command -v lintian >/dev/null; then
  ok "lintian has no error and no warning" lintian --allow-root --fail-on error,warning --suppress-tags bad-distribution-in-changes-file "$scratch"/debs/*.changes
else
  skip "lintian has no error and no warning" "lintian is not installed"
fi
# What a program or library lacks of what Debian's flags give.
unhardened() { # FILE
  local headers symbols
  headers=$(readelf -hldW "$1") symbols=$(readelf -W --dyn-syms "$1")
  grep -qE 'Type: +DYN' <<<"$headers" || echo "a position of its own"
  grep -q GNU_RELRO <<<"$headers" || echo "relocations read-only"
  grep -qE 'FLAGS.*\<(BIND_)?NOW' <<<"$headers" || echo "relocations before main"
  ! grep -qE 'GNU_STACK.* RWE ' <<<"$headers" || echo "a stack without code"
  case $(sed -n 's/^S\["CFLAGS"\]=//p' "$build/config.status") in *-fstack-protector-strong*)
    grep -q __stack_chk_fail <<<"$symbols" || echo "protection of the stack"
    grep -qE '__[a-z]+_chk\>' <<<"$symbols" || echo "checked copies" ;;
  esac
}
for file in usr/sbin/zenpsd usr/bin/zenpsctl usr/bin/zenpsrun "usr/lib/$(gcc -print-multiarch)/libzenps.so.0"; do
  case $file in *zenpsd) package=zenps-server ;; *libzenps*) package=libzenps0 ;; *) package=zenps-tools ;; esac
  [ -d "$scratch/$package" ] || dpkg-deb -x "$scratch"/debs/"$package"_*.deb "$scratch/$package"
  is "$file is hardened" "$(unhardened "$scratch/$package/$file" 2>&1)" ""
done
case $(sed -n 's/^S\["CFLAGS"\]=//p' "$build/config.status") in
  *-fstack-protector-strong*) ;;
  *) skip "their objects, too" "this build tree has flags of its own: tests/run.sh builds with Debian's" ;;
esac

# ---- the image, of those packages on the clean Debian: its root is that of all tests below ----
mkdir "$root"
if [ -n "${making:-}" ] && ! { wait "$making" && mv "$debian.new" "$debian"; }; then
  rm -f "$debian.new"
  skip "image, installed, used and purged" "mmdebstrap made no clean Debian: $(tail -n 1 "$scratch/debian.log")"
  done_testing
  exit
fi
no_mirror() { grep -qE 'Temporary failure|Could not (connect|resolve)|Failed to fetch' "$scratch/out"; }
bud=(env BUILDAH_ISOLATION=chroot TMPDIR="$scratch" buildah --root "$scratch/images" --runroot "$scratch/containers")
tag=$(sed -n 's/^FROM //p' "$top/deploy/container/Containerfile")
base() { # the clean Debian, under the name that the Containerfile has for it
  local container
  container=$("${bud[@]}" from scratch) && "${bud[@]}" add --quiet "$container" "$debian" / &&
    "${bud[@]}" commit --quiet --rm "$container" "localhost/$tag"
}
if ! command -v buildah >/dev/null; then
  skip "the image" "buildah is not installed"
elif ! base >"$scratch/out" 2>&1; then
  skip "the image" "buildah cannot keep images here: $(tail -n 1 "$scratch/out")"
elif ! "${bud[@]}" bud --pull-never --network host --tag localhost/zenps --file "$top/deploy/container/Containerfile" "$scratch/debs" >"$scratch/out" 2>&1 && no_mirror; then
  skip "the image, installed, used and purged" "no mirror of Debian can be reached"
  done_testing
  exit
else
  ok "the image builds" "${bud[@]}" inspect --type image localhost/zenps
  container=$("${bud[@]}" from --pull-never localhost/zenps) && mount --bind "$("${bud[@]}" mount "$container")" "$root"
fi
# A network of its own, where the default port is free.
unshare -n sh -c 'ip link set lo up && : >"$0" && exec sleep 1000' "$scratch/net" &
network=$!
until_true test -e "$scratch/net"
ranks=(timeout 120 zenpsrun -n 2 --coordinator=127.0.0.1:7077 --prefix=no)
rounds=(zenps-perf --rows 10000 --width 4 --warmup 1 --verify --steps)
if [ -n "${container:-}" ]; then
  image() { nsenter -t "$network" -n "${bud[@]}" run "$container" -- "$@"; }
  entry=$("${bud[@]}" inspect --type image --format '{{index .OCIv1.Config.Entrypoint 0}}' localhost/zenps)
  image "$entry" --control-ready-file=/tmp/ready >"$scratch/image.log" 2>&1 &
  daemon=$!
  ok "its entry point starts" until_true test -e "$root/tmp/ready"
  is "as a user without privileges, of the number in the manifests" "$(stat -c %u "$root/tmp/ready")" 65532
  ok "verified rounds in the image" image "${ranks[@]}" --job=image -- "${rounds[@]}" 5
  ok "and zenpsctl" image zenpsctl status
  is "no compiler and no header comes with it" "$(cd "$root" && find usr/include usr/bin -name '*gcc*' -o -name 'zenps*.h' 2>/dev/null)" ""
  for process in /proc/[0-9]*; do
    [ "$(cat "$process/comm" 2>/dev/null)" != zenpsd ] || [ "$(readlink "$process/ns/net")" != "$(readlink "/proc/$network/ns/net")" ] || kill -TERM "${process#/proc/}"
  done
  wait "$daemon"
  is "it ends on SIGTERM: status 0" $? 0
else
  tar -C "$root" -xf "$debian"
fi

# ---- installed, by apt and with their dependencies ----
mkdir "$root/debs" && cp "$scratch"/debs/*.deb "$root/debs"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# shellcheck disable=SC2016
if ! unshare -m sh -c 'mount --bind /proc "$0/proc" && exec chroot "$0" sh -c "apt-get update -qq && apt-get install -y -qq --no-install-recommends /debs/*.deb systemd-sysv"' "$root" >"$scratch/out" 2>&1 && no_mirror; then
  skip "installed, used and purged" "no mirror of Debian can be reached"
  done_testing
  exit
fi
for package in $all; do
  is "$package is installed" "$(chroot "$root" dpkg-query -W -f '${db:Status-Status}' "$package" 2>&1)" installed
done
is "with nothing to say" "$(grep zenps "$scratch/out" | grep -vE '^(Selecting previously|Preparing to|Unpacking|Setting up|Creating (group|user)|Created symlink) | depends on systemd \|')" ""
ok "files are as the packages have them" chroot "$root" dpkg --verify $all
ok "the unit starts what is installed" chroot "$root" sh -c '[ -x "$(sed -n "s/^ExecStart=//p" /lib/systemd/system/zenpsd.service)" ]'
ok "it starts at a boot" test -L "$root/etc/systemd/system/multi-user.target.wants/zenpsd.service"
ok "the daemon has a user" chroot "$root" getent passwd _zenps
is "and the unit has that one" "$(sed -n 's/^User=//p' "$root/lib/systemd/system/zenpsd.service")" _zenps
ok "man pages are there" chroot "$root" sh -c 'ls /usr/share/man/man8/zenpsd.8.gz /usr/share/man/man1/zenpsctl-why.1.gz /usr/share/man/man7/zenps.7.gz'

# ---- started: by systemd as process 1, where the machine lets it be that ----
# Deadlines of tap.sh, by the file of variables that the unit reads. State, which the sample leaves to the operator.
env | grep '^ZENPS_' >"$root/etc/default/zenpsd"
echo ZENPS_COORDINATOR_STATE_DIR=/var/lib/zenps >>"$root/etc/default/zenpsd"
"$top/tests/support/boot" "$root" console-getty.service >"$scratch/first" 2>"$scratch/refused" &
booting=$!
booted() {
  [ -s "$scratch/first" ] && nsenter -t "$(cat "$scratch/first")" -a systemctl is-active multi-user.target
}
until_true eval 'booted || ! kill -0 $booting'
first="" # the number of process 1
kill -0 "$booting" 2>/dev/null && first=$(cat "$scratch/first")
log() { inside journalctl -b -q -o cat -u zenpsd; }
logged() { log >"$scratch/out" && grep -qE -- "$1" "$scratch/out"; }
if [ -n "$first" ]; then
  inside() { nsenter -t "$first" -a env PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
  show() { inside systemctl show -P "$1" zenpsd; }
  active() { [ "$(show ActiveState)" = active ]; }
  ok "systemd boots" booted
  ok "and with it zenpsd" active
else
  skip "systemd as process 1" "$(tail -n 1 "$scratch/refused")"
  mount --bind /proc "$root/proc"
  inside() { nsenter -t "$network" -n chroot "$root" "$@"; }
  ok "the state's folder, which systemd makes" inside install -d -o _zenps -g _zenps /var/lib/zenps /run/zenps
  # shellcheck disable=SC2046
  nsenter -t "$network" -n chroot "$root" setpriv --reuid=_zenps --regid=_zenps --clear-groups env $(cat "$root/etc/default/zenpsd") ZENPS_CONFIG=-/etc/zenps/zenpsd.conf \
    /usr/sbin/zenpsd >"$scratch/zenpsd.log" 2>&1 &
  daemon=$!
  log() { cat "$scratch/zenpsd.log"; }
fi
ok "zenpsctl reaches it" until_true inside zenpsctl status
ok "it has read the configuration of the package" logged 'configuration: read from /etc/zenps/zenpsd.conf'

# ---- used ----
job() { inside "${ranks[@]}" --job="job-$RANDOM" -- "$@"; }
ok "verified rounds" job "${rounds[@]}" 5
cat >"$scratch/trainer.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <zenps/zenps.h>
#define MUST(call) if ((call) != ZENPS_OK) { fprintf(stderr, "%s\n", zenps_last_error()->text); exit(1); }
int main(void) {
  zenps_job_t *job; zenps_tensor_t *tensor; zenps_request_t *request; zenps_grad_t in, sum;
  int64_t row = 7; float value = 1.5f;
  MUST(zenps_open(NULL, &job));
  MUST(zenps_tensor_open(job, "embedding", 1000, 1, ZENPS_F32, NULL, &tensor));
  ZENPS_GRAD_INIT(&in); ZENPS_GRAD_INIT(&sum);
  in.layout = sum.layout = ZENPS_ROWS;
  in.nnz = 1; in.row_ids = &row; in.values = &value;
  MUST(zenps_allreduce(tensor, 1, &in, &sum, &request));
  MUST(zenps_wait(request, -1));
  printf("%d row %d: %g\n", (int)sum.nnz, (int)sum.row_ids[0], ((const float *)sum.values)[0]);
  zenps_request_free(request);
  zenps_close(job);
}
C
# The compiler is the machine's, but headers, library and flags are the packages'.
# shellcheck disable=SC2016
ok "a C program is compiled with libzenps-dev" env PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_LIBDIR="$root/usr/lib/$(gcc -print-multiarch)/pkgconfig" \
  PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 \
  sh -c 'flags=$(pkg-config --cflags --libs zenps) && echo "$flags" && case $flags in *"$2/"*) gcc -Wall -Werror -o "$2/usr/local/bin/trainer" "$1" $flags ;; *) exit 1 ;; esac' - "$scratch/trainer.c" "$root"
ok "it runs" job trainer
is "and both ranks have the sum" "$(grep -c '^1 row 7: 3$' "$scratch/out")" 2
ok "the Python package runs" job python3 -m zenps.selftest
said "and is right" 'right, bit for bit'

# ---- what only systemd does ----
if [ -n "$first" ]; then
  pid=$(show MainPID)
  inside sh -c 'id -u _zenps; sed -n "s/^Uid:\t//p" "/proc/$1/status" | cut -f1; stat -Lc %u /var/lib/zenps; stat -Lc %u /var/lib/zenps/*' - "$pid" >"$scratch/out"
  is "it runs as the package's user, who has the state" "$(sort -u "$scratch/out" | wc -l)" 1
  ok "the unit is valid" inside systemd-analyze verify --man=no zenpsd.service
  ok "exposure at most 1.5 of 10" inside systemd-analyze security --threshold=15 --no-pager zenpsd.service
  printf '[log]\nlevel = debug\n' >>"$root/etc/zenps/zenpsd.conf"
  ok "a reload" inside systemctl reload zenpsd
  ok "reads the configuration anew" until_true logged 'log.level has changed'
  is "and keeps the process" "$(show MainPID)" "$pid"
  inside systemctl kill --signal=KILL zenpsd
  ok "killed, it is started again" until_true eval '[ "$(show NRestarts)" = 1 ] && active'
  ok "verified rounds again" job "${rounds[@]}" 5
  # The stop waits for the job that runs.
  inside "${ranks[@]}" --job=last -- "${rounds[@]}" 2000 --json >"$scratch/last" 2>&1 &
  last=$!
  ok "a job trains" until_true eval 'inside zenpsctl jobs | grep -q "last .*running"'
  inside systemctl stop zenpsd
  is "a stop drains: status 0" "$? $(show Result) $(show ExecMainStatus)" "0 success 0"
  wait "$last"
  is "and the job has ended well before" $? 0
  cp "$scratch/last" "$scratch/out"
  said "with every sum right" '"verified": *true'

  # By tls.conf a group lets the user read its key. The state belongs to another user, as after an upgrade from one.
  zenpsctl certs init "$scratch/certs" >"$scratch/out" 2>&1
  drop_ins=$root/etc/systemd/system/zenpsd.service.d
  mkdir -p "$root/etc/zenps/tls" "$drop_ins"
  for file in ca.pem:ca.pem coordinator-coordinator.pem:cert.pem coordinator-coordinator.key:key.pem; do
    install -m 0640 "$scratch/certs/${file%:*}" "$root/etc/zenps/tls/${file#*:}"
  done
  inside sh -c 'groupadd --system zenps-tls && chgrp -R zenps-tls /etc/zenps/tls && chown -R 54321:54321 /var/lib/private/zenps'
  cp "$top/deploy/systemd/tls.conf" "$drop_ins/"
  printf '[Service]\nWatchdogSec=2\n' >"$drop_ins/watchdog.conf"
  ok "with tls.conf it starts" inside sh -c 'systemctl daemon-reload && systemctl start zenpsd'
  tls() { nsenter -t "$first" -n zenpsctl --tls-ca="$scratch/certs/ca.pem" --tls-cert="$scratch/certs/admin-admin.pem" --tls-key="$scratch/certs/admin-admin.key" "$@"; }
  ok "with TLS, whose key its user reads by the group" tls status
  ok "and not without" eval '! inside zenpsctl status'
  is "its state has a new owner" "$(inside sh -c 'stat -Lc %U /var/lib/zenps /var/lib/zenps/*' | sort -u)" _zenps
  before=$(show NRestarts)
  inside systemctl kill --signal=STOP zenpsd
  ok "hung, it is started again by the watchdog" until_true eval '[ "$(show NRestarts)" -gt "$before" ] && tls status'
  rm -r "$drop_ins" "$root/etc/zenps/tls"
else
  kill -TERM "$daemon"
  wait "$daemon"
  is "zenpsd ends on SIGTERM: status 0" $? 0
fi

# ---- purged ----
rm -rf "$root/debs" "$root/usr/local/bin/trainer" "$root/etc/default/zenpsd"
ok "removed" inside apt-get remove -y -qq $all
[ -z "$first" ] || is "which stops it" "$(inside systemctl is-active zenpsd)" inactive
ok "its state and configuration stay" test -e "$root/etc/zenps/zenpsd.conf" -a -n "$(ls "$root"/var/lib/zenps "$root"/var/lib/private/zenps 2>/dev/null)"
ok "purged" inside apt-get purge -y -qq zenps-server
is "no file is left" "$(find "$root" -xdev -path "$root/proc" -prune -o -name '*zenps*' -print | grep -vE "^$root/(run|tmp)/")" ""
is "but the user, as Debian does" "$(grep -rl zenps "$root/etc" "$root/var/lib/dpkg" 2>/dev/null | sed "s#^$root##" | grep -vE '^/etc/(passwd|group|shadow|gshadow)-?$|/status-old$')" ""

kill "$booting" "$network" 2>/dev/null
wait "$booting" 2>/dev/null

# ---- the wheel, on the same Debian without the packages ----
clean() { unshare -m sh -c 'mount --bind /proc "$0/proc" && exec chroot "$0" "$@"' "$root" "$@"; }
if ! command -v patchelf >/dev/null; then
  skip "the wheel" "patchelf is not installed"
elif ! "$top/worker/python/make-libfabric" "$scratch/libfabric" >"$scratch/out" 2>&1; then
  skip "the wheel" "there is no libfabric for it: $(tail -n 1 "$scratch/out")"
else
  mkdir "$root/wheel"
  ok "the wheel is made" python3 "$top/worker/python/make-wheel" --build "$build" --output "$root/wheel" --fallback "$scratch/libfabric/libfabric.so.1"
  ok "nothing is left that the packages needed" clean apt-get autoremove -y -qq
  is "not even libfabric" "$(find "$root"/usr/lib "$root"/lib -name 'libfabric.so*')" ""
  ok "Python comes" clean apt-get install -y -qq --no-install-recommends python3-venv
  ok "pip installs the wheel" clean sh -c 'python3 -m venv /wheel/venv && /wheel/venv/bin/pip install --quiet --no-index /wheel/*.whl'
  ok "ranks of its own zenpsrun" clean timeout 120 /wheel/venv/bin/zenpsrun -n 2 --servers 2 -- /wheel/venv/bin/python -m zenps.selftest
  said "have right sums" 'right, bit for bit'
  said "over its own libfabric" "the package's own"
fi
done_testing
