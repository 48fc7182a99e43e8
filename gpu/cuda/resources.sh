#!/usr/bin/env bash
# Compiles every kernel for one chip and writes a page with the table of what ptxas says of each.
#
#   gpu/cuda/resources.sh NVCC PAGE [ARCH]     ARCH: 90
set -eu
nvcc=$1 page=$2 arch=${3:-90}
top=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for source in "$top"/gpu/cuda/*.cu; do
  "$nvcc" -std=c++17 -O3 -fmad=false -arch="sm_$arch" -Xptxas -v -I"$top" -c -o "$work/object" "$source" \
    -Xcompiler -Wno-missing-field-initializers 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  c++filt <"$work/log" | awk -v file="$(basename "$source")" '
    /Compiling entry function/ { name = $0; sub(/^[^\047]*\047/, "", name); sub(/\047.*$/, "", name)
      sub(/^void /, "", name); gsub(/zps::\(anonymous namespace\)::|zps::/, "", name); sub(/\(.*$/, "", name)
      gsub(/unsigned long long/, "u64", name); gsub(/unsigned int/, "u32", name)
      gsub(/unsigned short/, "u16", name); gsub(/unsigned char/, "u8", name); gsub(/ >/, ">", name) }
    /spill stores/ { stack = $1; spills = $5 + $9 }
    /Used [0-9]+ registers/ { registers = $0; sub(/^.*Used /, "", registers); sub(/ .*$/, "", registers)
      shared = 0; if (match($0, /[0-9]+ bytes smem/)) { shared = substr($0, RSTART, RLENGTH); sub(/ .*$/, "", shared) }
      printf "| `%s` | %s | %d | %d | %d | %d |\n", name, file, registers, stack, spills, shared }'
done | sort -u >"$work/rows"
{
  echo '# What each kernel takes of a multiprocessor'
  echo
  echo 'Registers of a thread, bytes of its stack and bytes spilled; bytes of shared memory of a block of 256 threads.'
  echo 'Written by `make gpu-resources` (`gpu/cuda/resources.sh`), which compiles the kernels and reads the words of ptxas.'
  echo
  echo "| kernel (sm_$arch, $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/nvcc \1/p')) | file | registers | stack | spilled | shared |"
  echo '|---|---|--:|--:|--:|--:|'
  cat "$work/rows"
} >"$work/page"
cp "$work/page" "$page"
