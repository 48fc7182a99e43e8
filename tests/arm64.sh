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
packages=libfabric-dev,libuv1-dev,libjansson-dev,libprotobuf-c-dev,libinih-dev,libcmocka-dev,liblzma-dev,libsystemd-dev

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
[ $# -gt 0 ] || set -- base log workpool config config_values partition codec codec_choice codec_oom values values_qsgd \
  values_path simd encode encode_input reduce decode join wire wire_refused wire_message
export ZPS_TOP_SRCDIR="$source" ZPS_TOP_BUILDDIR="$dir/build"
failed=0
for name in "$@"; do
  make -s "tests/unit/test_$name"
  if qemu-aarch64-static -L "$root" "tests/unit/test_$name" >"$name.log" 2>&1; then
    echo "ok: $name"
  else
    echo "failed: $name, see $dir/build/$name.log"
    failed=1
  fi
done
exit $failed
