#!/usr/bin/env bash
# The library's binary interface: no function is gone and no type has changed since worker/libzenps.abi was written. New
# functions are no break. TAP.
#   check-abi.sh           compares
#   check-abi.sh --write   writes worker/libzenps.abi anew: at a release, and after a change that is meant
# The sources that define the API are compiled for it, since the build's library may be without types.
set -u
cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}" || exit 1
build=${ZPS_TOP_BUILDDIR:-build/test/gcc} baseline=worker/libzenps.abi
why=""
command -v abidiff >/dev/null && command -v gcc >/dev/null || why="abidiff (abigail-tools) or gcc is not installed"
[ "$(uname -m)" = x86_64 ] || why="$baseline is of x86_64"
[ -e "$build/config.h" ] || why="$build is no build tree: set ZPS_TOP_BUILDDIR"
if [ -n "$why" ]; then
  echo "1..1"
  echo "ok 1 - the library's binary interface # SKIP $why"
  exit 0
fi
scratch=$(mktemp -d "${TMPDIR:-/tmp}/zenps-abi.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
mapfile -t sources < <(grep -lE '^[a-z].*\bzenps_[a-z_]+\(.*\{$|^[a-z].*\bzenps_[a-z_]+\([^;]*,$' -r worker --include='*.c' | grep -vE '^worker/(tools|examples)/' | sort)
compiled() { # NAME FOLDER-OF-HEADERS: objects of the API's sources
  local source
  for source in "${sources[@]}"; do
    gcc -c -g -O0 -fPIC -fvisibility=hidden -D_GNU_SOURCE -DHAVE_CONFIG_H -I"$2" -I. -I"$build" -Iworker/include \
      -o "$scratch/$1-${source//\//_}.o" "$source" || return 1
  done
}
linked() { # NAME OBJECTS MAP: $scratch/NAME.so
  gcc -shared -Wl,-soname,libzenps.so.0 -Wl,--version-script="$3" -o "$scratch/$1.so" "$scratch/$2"-*.o
}
described() { # NAME FOLDER-OF-HEADERS: the interface of $scratch/NAME.so, without types that no header has
  abidw --headers-dir "$2/zenps" --drop-private-types --exported-interfaces-only --no-corpus-path --no-comp-dir-path --no-show-locs "$scratch/$1.so"
}
compared() { # NAME FOLDER-OF-HEADERS: status 0 when a program of the baseline runs with this library
  described "$1" "$2" >"$scratch/$1.abi" && abidiff --no-added-syms "$baseline" "$scratch/$1.abi" >"$scratch/out" 2>&1
}
compiled now worker/include && linked now now worker/libzenps.map || exit 1
if [ "${1:-}" = --write ]; then
  described now worker/include >"$baseline"
  exit
fi
n=0 bad=0
result() { # STATUS NAME
  n=$((n + 1))
  [ "$1" -eq 0 ] && echo "ok $n - $2" && return
  bad=$((bad + 1))
  echo "not ok $n - $2"
  sed 's/^/# /' "$scratch/out"
}
compared now worker/include
result $? "programs of the baseline run with this library (else: raise -version-info, and check-abi.sh --write)"
# What such a comparison must see.
sed 's/^  local:$/  local: zenps_version;/' worker/libzenps.map >"$scratch/map"
linked less now "$scratch/map" || exit 1
compared less worker/include
[ $? -ne 0 ] && grep -q "zenps_version" "$scratch/out"
result $? "a function that is gone is noticed"
mkdir -p "$scratch/include" && cp -r worker/include/zenps "$scratch/include/"
sed -i 's/^  uint32_t n_parts;/  uint64_t n_parts;/' "$scratch/include/zenps/zenps.h"
compiled wide "$scratch/include" && linked wide wide worker/libzenps.map || exit 1
compared wide "$scratch/include"
[ $? -ne 0 ] && grep -q "n_parts" "$scratch/out"
result $? "a member of another type is noticed"
echo "1..$n"
[ "$bad" -eq 0 ]
