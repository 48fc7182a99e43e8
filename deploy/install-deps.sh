#!/usr/bin/env bash
# Installs what Debian 12 needs for a purpose; asks apt only when something is missing.
#   deploy/install-deps.sh build|package|test|python|bench|quickstart|softroce ...
set -euo pipefail

build="build-essential autoconf automake libtool pkg-config protobuf-c-compiler libprotobuf-c-dev libfabric-dev libuv1-dev
  libjansson-dev libssl-dev libsodium-dev libinih-dev liblzma-dev zlib1g-dev libsystemd-dev libcurl4-openssl-dev libmicrohttpd-dev libcmocka-dev help2man"
package="$build debhelper dh-python python3"
test="$package clang libclang-rt-14-dev iproute2 procps xz-utils man-db systemd nftables git python3 python3-seccomp python3-yaml
  openmpi-bin slurm-wlm munge etcd-server etcd-client prometheus openssl faketime mmdebstrap lintian buildah abigail-tools"
command -v kubectl >/dev/null || test="$test kubernetes-client" # a kubectl from elsewhere and the package exclude each other
bench="$test gnuplot-nox libopenmpi-dev python3-torch python3-numpy" # plots, and what zenps is compared with
torch="python3-torch python3-numpy libopenblas0-pthread" # Debian's PyTorch is fifteen times slower over the reference BLAS
quickstart="$torch wordnet-base"
softroce="qemu-system-x86 busybox-static kmod cpio xz-utils iproute2 ibverbs-providers" # tests/cluster/softroce
python="$torch python3-pytest python3-pytest-xdist python3-venv mypy patchelf wordnet-base libreoffice-help-de libreoffice-help-en-us dataset-fashion-mnist" # the package's tests

[ $# -gt 0 ] || { echo "usage: $0 build|package|test|python|bench|quickstart|softroce ..." >&2; exit 2; }
wanted=""
for purpose in "$@"; do
  case $purpose in
    build) wanted="$wanted $build" ;;
    package) wanted="$wanted $package" ;;
    python) wanted="$wanted $python" ;;
    test) wanted="$wanted $test" ;;
    bench) wanted="$wanted $bench" ;;
    quickstart) wanted="$wanted $quickstart" ;;
    softroce) wanted="$wanted $softroce" ;;
    *) echo "$0: '$purpose' is no purpose: must be build, package, test, python, bench, quickstart or softroce" >&2; exit 2 ;;
  esac
done

missing=""
for package in $(printf '%s\n' $wanted | sort -u); do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
  echo "everything is installed"
  exit 0
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# Tests start etcd and Prometheus themselves: their packages must not start the services.
policy='# zenps: until its packages are installed'
if [ ! -e /usr/sbin/policy-rc.d ] || grep -qF "$policy" /usr/sbin/policy-rc.d; then # one of an interrupted run is ours, too
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  printf '#!/bin/sh\n%s\nexit 101\n' "$policy" >/usr/sbin/policy-rc.d
  chmod 755 /usr/sbin/policy-rc.d
fi
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null
