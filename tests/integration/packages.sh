#!/usr/bin/env bash
# The Debian packages: built, installed in a clean Debian, used, and purged. The clean Debian is kept in the build tree
# for a day. Packages have the objects of the build tree, so nothing is compiled again.
. "$(dirname "$0")/../support/tap.sh"
all="libzenps0 libzenps-dev zenps-server zenps-tools python3-zenps"
# What compiles and runs programs there.
base=gcc,libc6-dev,pkgconf,python3-minimal,procps
debian=$build/clean-debian-$(cksum <<<"$base" | cut -d" " -f1).tar
root=$scratch/root
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

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
  timeout 400 mmdebstrap --quiet --format=tar --variant=minbase --include="$base" --dpkgopt=force-unsafe-io bookworm "$debian.new" >"$scratch/debian.log" 2>&1 &
  making=$!
fi
is "packages are built with what install-deps.sh installs, but for the compiler, and for the packages' own tools" \
  "$(sed -n '/^Build-Depends:/,/^[A-Z]/{/^Build-Depends:/s/.*: //p;/^ /p}' "$top/deploy/debian/control" | tr ', ' '\n\n' | grep -E '^[a-z]' | grep -vE '^(debhelper-compat|dh-python|python3|libgnutls28-dev)$' | sort | xargs)" \
  "$(sed -n '/^build="/,/"$/p' "$top/deploy/install-deps.sh" | tr -d '"' | sed 's/^build=//' | tr ' ' '\n' | grep -E '^[a-z]' | grep -vE '^(build-essential|libcmocka-dev)$' | sort | xargs)"
if ! ok "packages build" env DEB_BUILD_OPTIONS="noautodbgsym terse parallel=2" "$top/deploy/debian/build" --objects "$build" --output "$scratch/debs"; then
  done_testing
  exit 1
fi
is "nothing was compiled" "$(grep -cE '^  (CC|CXX) ' "$scratch/out")" 0
is "five packages" "$(cd "$scratch/debs" && ls -- *.deb | sed 's/_.*//' | sort | xargs)" "$(tr ' ' '\n' <<<"$all" | sort | xargs)"
if command -v lintian >/dev/null; then
  ok "lintian has no error" lintian --allow-root --fail-on error --suppress-tags bad-distribution-in-changes-file "$scratch"/debs/*.changes
else
  skip "lintian has no error" "lintian is not installed"
fi

# ---- installed ----
if [ -n "${making:-}" ] && ! { wait "$making" && mv "$debian.new" "$debian"; }; then
  rm -f "$debian.new"
  skip "installed, used and purged" "mmdebstrap made no clean Debian: $(tail -n 1 "$scratch/debian.log")"
  done_testing
  exit
fi
mkdir "$root" && tar -C "$root" -xf "$debian"
mkdir "$root/debs" && cp "$scratch"/debs/*.deb "$root/debs"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe"
# shellcheck disable=SC2016
if ! unshare -m sh -c 'mount --bind /proc "$0/proc" && exec chroot "$0" sh -c "apt-get update -qq && apt-get install -y -qq --no-install-recommends /debs/*.deb"' "$root" >"$scratch/out" 2>&1 && grep -qE 'Temporary failure|Could not connect|Failed to fetch' "$scratch/out"; then
  skip "installed, used and purged" "no mirror of Debian can be reached"
  done_testing
  exit
fi
for package in $all; do
  is "$package is installed, by apt and with its dependencies" "$(chroot "$root" dpkg-query -W -f '${db:Status-Status}' "$package" 2>&1)" installed
done
ok "files are as the packages have them" chroot "$root" dpkg --verify $all
is "with nothing to say" "$(cat "$scratch/out")" ""

# ---- used, in a network of its own, where the default port is free ----
# shellcheck disable=SC2016
unshare -m -n sh -c 'ip link set lo up && mount --bind /proc "$0/proc" && : >"$1" && exec sleep 1000' "$root" "$scratch/ready" &
holder=$!
until_true test -e "$scratch/ready"
inside() { nsenter -t "$holder" -m -n chroot "$root" "$@"; }
ok "the unit starts what is installed" inside sh -c '[ -x "$(sed -n "s/^ExecStart=//p" /lib/systemd/system/zenpsd.service)" ]'
ok "it starts at a boot" test -L "$root/etc/systemd/system/multi-user.target.wants/zenpsd.service"
ok "the daemon has a user" inside getent passwd zenpsd
ok "man pages are there" inside sh -c 'ls /usr/share/man/man8/zenpsd.8.gz /usr/share/man/man1/zenpsctl-why.1.gz /usr/share/man/man7/zenps.7.gz'
ok "the state's folder, which systemd makes" inside install -d -o zenpsd -g zenpsd /var/lib/zenps /run/zenps
nsenter -t "$holder" -m -n chroot "$root" setpriv --reuid=zenpsd --regid=zenpsd --clear-groups env ZENPS_CONFIG=-/etc/zenps/zenpsd.conf \
  /usr/sbin/zenpsd --coordinator-state-dir=/var/lib/zenps --control-ready-file=/run/zenps/ready >"$scratch/zenpsd.log" 2>&1 &
daemon=$!
ok "zenpsd starts with the configuration of the package" until_true test -s "$root/run/zenps/ready"
ok "and logs that it has read it" grep -q 'configuration: read from /etc/zenps/zenpsd.conf' "$scratch/zenpsd.log"
ok "zenpsctl reaches it" inside zenpsctl status
job() { inside timeout 120 zenpsrun -n 2 --coordinator=127.0.0.1:7077 --job="job-$RANDOM" --prefix=no -- "$@"; }
ok "verified rounds" job zenps-perf --rows 10000 --width 4 --steps 5 --warmup 1 --verify
cat >"$root/trainer.c" <<'C'
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
# shellcheck disable=SC2016
ok "a C program is compiled with libzenps-dev" inside sh -c 'cc -Wall -Werror -o /trainer /trainer.c $(pkg-config --cflags --libs zenps)'
ok "it runs" job /trainer
is "and both ranks have the sum" "$(grep -c '^1 row 7: 3$' "$scratch/out")" 2
ok "the Python package runs" job python3 -m zenps.selftest
said "and is right" 'right, bit for bit'
kill -TERM "$daemon"
wait "$daemon"
is "zenpsd ends on SIGTERM: status 0" $? 0

# ---- purged ----
rm -rf "$root/debs" "$root"/trainer*
ok "removed" inside apt-get remove -y -qq $all
ok "its state and configuration stay" test -e "$root/etc/zenps/zenpsd.conf" -a -n "$(ls "$root/var/lib/zenps")"
ok "purged" inside apt-get purge -y -qq zenps-server
is "no file is left" "$(find "$root" -xdev -path "$root/proc" -prune -o -name '*zenps*' -print | grep -vE "^$root/(run|tmp)/")" ""
is "but the user, as Debian does" "$(grep -rl zenps "$root/etc" "$root/var/lib/dpkg" 2>/dev/null | sed "s#^$root##" | grep -vE '^/etc/(passwd|group|shadow|gshadow)-?$|/status-old$')" ""
done_testing
