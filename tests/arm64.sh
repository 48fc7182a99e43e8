#!/bin/sh
# Builds zenps for 64-bit ARM on a Debian of another kind, and runs the unit tests that need no network on qemu:
#
#     tests/arm64.sh DIR [NAME...]       DIR/root becomes the other machine's files, DIR/build the build;
#                                        NAME: which unit tests, in place of those of common/ and proto/
#
# Needs debootstrap, gcc-aarch64-linux-gnu, qemu-user-static, and ./configure (autoreconf -fi). Not part of make check:
# it fetches 200 MB once, and qemu takes its time.
set -eu

[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
root=$dir/root
lib=$root/usr/lib/aarch64-linux-gnu
packages=libfabric-dev,libuv1-dev,libjansson-dev,libprotobuf-c-dev,libinih-dev,libssl-dev,libsodium-dev,libcmocka-dev,liblzma-dev,zlib1g-dev,libsystemd-dev

if [ ! -e "$lib/libfabric.so" ]; then
  # shellcheck disable=SC1091
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  debootstrap --foreign --arch=arm64 --variant=minbase --include="libc6-dev,$packages" "$suite" "$root" \
    "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
  for package in "$root"/var/cache/apt/archives/*.deb; do dpkg -x "$package" "$root"; done
fi

mkdir -p "$dir/build"
cd "$dir/build"
export PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_LIBDIR="$lib/pkgconfig:$root/usr/share/pkgconfig"
[ -e Makefile ] || "$source/configure" --host=aarch64-linux-gnu CC="aarch64-linux-gnu-gcc --sysroot=$root" CXX=
make -j"$(nproc)"

# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- base/test_base base/test_log base/test_workpool base/test_config base/test_config_values \
  codec/test_partition codec/test_codec codec/test_codec_choice codec/test_codec_oom codec/test_values codec/test_values_qsgd \
  codec/test_values_path codec/test_simd codec/test_encode codec/test_encode_input codec/test_reduce codec/test_decode \
  codec/test_join proto/test_wire proto/test_wire_refused proto/test_wire_message
export ZPS_TOP_SRCDIR="$source" ZPS_TOP_BUILDDIR="$dir/build"
failed=0
for name in "$@"; do
  make -s "tests/unit/$name"
  if qemu-aarch64-static -L "$root" "tests/unit/$name" >"$(basename "$name").log" 2>&1; then
    echo "ok: $name"
  else
    echo "failed: $name, see $dir/build/$(basename "$name").log"
    failed=1
  fi
done
exit $failed
