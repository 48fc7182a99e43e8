#!/usr/bin/env bash
# What a host with a GPU can show of zenps, in one command. Without options it ends within 10 minutes. Each step has a
# time limit of its own; one that fails stops no other. The last line is
#   N passed, N failed, N skipped
# and the exit status is 0 where steps passed and none failed, 1 where one failed, 2 where none could be begun.
#
#   gpu/truth.sh [--parts LIST] [--emulated] [--build DIR] [--work DIR] [--library FILE] [--bench FILE] [--minutes N]
#
#   --parts LIST    names from this list, with commas between (build,compare,rounds,times); all: every one, half an hour
#                     build       zenps and the kernels' benchmark; without it, the programs of an earlier run
#                     compare     every kernel against the cpu's bits
#                     rounds      all schemes end to end, with gradients in the GPU's memory
#                     times       kernels and rounds
#                     hashing     Algorithm 1 by its memory and hash functions
#                     sanitizers  memcheck and racecheck
#   --emulated      what can be had without a GPU, in a minute: the emulated device in its place
#   --build DIR     programs and tests from the build tree DIR instead of one made here; --emulated needs no more than that
#   --work DIR      where builds, logs and tables go (build/truth of the tree)
#   --library FILE  the library of the device, instead of the build's
#   --bench FILE    the kernels' benchmark (tests/gpu/bench/gpu-bench), instead of one made here
#   --minutes N     what it may take in all (9; with --parts 30); what has no time left is skipped
#
# It needs the tree, nvcc, a driver, and the packages that zenps is built with (deploy/install-deps.sh build). It installs
# nothing: what is missing is named, and what needs it is skipped.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
work=$top/build/truth build='' library='' bench='' emulated=no minutes='' parts=build,compare,rounds,times within=9
all_parts=build,compare,rounds,times,hashing,sanitizers
usage() {
  echo "gpu/truth.sh: $1; gpu/truth.sh [--parts LIST] [--emulated] [--build DIR] [--work DIR] [--library FILE] [--bench FILE] [--minutes N]" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --emulated) emulated=yes ;;
    --build | --work | --library | --bench | --minutes | --parts)
      [ $# -gt 1 ] || usage "$1 has no value"
      case $1 in --parts) parts=$2 within=30 ;; --build) build=$2 ;; --work) work=$2 ;; --library) library=$2 ;; --bench) bench=$2 ;; --minutes) minutes=$2 ;; esac
      shift
      ;;
    *) usage "'$1' is no option" ;;
  esac
  shift
done
PATH=$PATH:/usr/local/cuda/bin
jobs=$(nproc)
minutes=${minutes:-$within}
[ "$parts" != all ] || parts=$all_parts
names=$parts,
while [ -n "$names" ]; do # what is between commas, also where that is empty
  name=${names%%,*} names=${names#*,}
  [[ ,$all_parts, == *,"$name",* ]] || usage "--parts: '$name' is no part; parts are $all_parts, or all"
done
has() { # PART
  [[ ,$parts, == *,"$1",* ]]
}
[[ $minutes =~ ^[1-9][0-9]?$ ]] || usage "--minutes $minutes; must be 1 to 99"
[ -z "$bench" ] || [ -x "$bench" ] || usage "--bench $bench: no such program"
passed=0 failed=0 skipped=0 failures=''
mkdir -p "$work" || exit 2
work=$(cd "$work" && pwd)
[ -z "$build" ] || { [ -d "$build" ] && build=$(cd "$build" && pwd); } || usage "--build $build: no such folder"

# Runs a command for at most that long, and for as long as is left; its output goes to $work/NAME.log. A failed step shows
# what it said last.
step() { # NAME SECONDS COMMAND...
  local name=$1 seconds=$2 left=$((60 * minutes - SECONDS)) begin=$SECONDS log status
  shift 2
  log=$work/$(tr -c 'a-zA-Z0-9\n' '-' <<<"$name").log
  [ "$seconds" -le "$left" ] || seconds=$left
  if [ "$seconds" -lt 1 ]; then
    skip "$name" "no time is left of $minutes minutes"
    return 1
  fi
  timeout --kill-after=10 "$seconds" "$@" >"$log" 2>&1
  status=$?
  if [ "$status" -eq 0 ]; then
    passed=$((passed + 1))
    echo "passed: $name ($((SECONDS - begin)) s)"
  else
    failed=$((failed + 1))
    [ "$status" -ne 124 ] || echo "it took longer than $seconds seconds" >>"$log"
    failures="$failures\n  $name: $(tail -n 1 "$log" | cut -c 1-200) ($log)"
    echo "FAILED: $name ($((SECONDS - begin)) s)"
    { grep -A 5 '^not ok ' "$log" || tail -n 15 "$log"; } | head -n 60 | sed 's/^/  | /'
  fi
  return "$status"
}
skip() { # NAME WHY
  skipped=$((skipped + 1))
  echo "skipped: $1: $2"
}
# A test script's output is TAP.
script() { # FILE ARGUMENTS...
  ZENPS_DEVICE_LIBRARY=$library ZPS_TOP_SRCDIR=$top ZPS_TOP_BUILDDIR=$build bash "$@" | tee /dev/stderr | awk '/^not ok /{ bad = 1 } /^1\.\./{ whole = 1 } END { exit bad || !whole }'
}
# The unit tests of the kernels, on the library's device.
unit() { # [PREFIX...] NAME
  (cd "$build" && ZENPS_DEVICE_LIBRARY=$library "${@:1:$#-1}" "tests/unit/gpu/test_gpu_${*: -1}")
}
export -f script unit
export top

# ------------------------------------------------------------ what is there

missing=''
need() { # COMMAND WHAT-FOR
  command -v "$1" >/dev/null || missing="$missing\n  $1: $2"
}
cc=${CC:-cc}
if has build; then
  need make "building"
  need "${cc%% *}" "building" # CC may be "ccache gcc"
fi
has_gpu=no
if [ "$emulated" = no ]; then
  ! has build || need nvcc "compiling kernels (CUDA toolkit 11.8 or newer)"
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    has_gpu=yes
    nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader
  else
    missing="$missing\n  a GPU: nvidia-smi lists none (--emulated does what needs none)"
  fi
fi
# A build tree needs more than the kernels' benchmark does.
packages=''
if [ -z "$build" ] && has build; then
  for library_name in libfabric libuv jansson libprotobuf-c libsodium inih cmocka; do
    pkg-config --exists "$library_name" 2>/dev/null || packages="$packages $library_name"
  done
  [ -x "$top/configure" ] || command -v autoreconf >/dev/null || packages="$packages autoconf+automake+libtool"
  command -v protoc-c >/dev/null || packages="$packages protoc-c"
fi
if [ -n "$missing" ]; then
  printf 'missing:%b\n' "$missing" >&2
  exit 2
fi
[ -z "$packages" ] || echo "missing, so that only the kernels' benchmark is built:$packages (deploy/install-deps.sh build)"

# ------------------------------------------------------------ builds

configure_and_make() {
  { [ -x "$top/configure" ] || (cd "$top" && autoreconf -fi); } && mkdir -p "$1" && cd "$1" || return 1
  [ -f Makefile ] || "$top/configure" "${@:2}" || return 1
  make -j"$jobs" && make -j"$jobs" check TESTS=
}
build_bench() {
  mkdir -p "$work"/bench/{worker,tests/support,tests/gpu} && cp -r "$top/gpu" "$top/common" "$work/bench/" &&
    cp -r "$top/tests/gpu/bench" "$work/bench/tests/gpu/" && cp -r "$top/worker/select" "$work/bench/worker/" &&
    cp "$top"/tests/support/{device,coder,tag}_cpu.* "$work/bench/tests/support/" && make -C "$work/bench/tests/gpu/bench" -j"$jobs"
}
export -f configure_and_make build_bench
export work jobs
if [ -n "$build" ]; then
  echo "programs of $build"
elif [ -n "$packages" ]; then
  skip "building zenps" "missing:$packages"
elif ! has build; then
  [ -x "$work/tree/zenps-perf" ] && build=$work/tree && echo "programs of an earlier run: $build"
elif [ "$emulated" = yes ]; then
  step "building zenps" 900 bash -c 'configure_and_make "$@"' . "$work/tree" && build=$work/tree
else
  step "building zenps with nvcc" 600 bash -c 'configure_and_make "$@"' . "$work/tree" --with-cuda \
    NVCC_CHIPS="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)" && build=$work/tree
fi
if [ -n "$build" ] && [ -z "$library" ]; then
  library=$build/libzenps_cuda.so.0
  [ "$emulated" = no ] || library=$build/.libs/libzenps_emu_sealed.so
fi
export build library
built_bench=$work/bench/tests/gpu/bench/gpu-bench
if [ "$has_gpu" = yes ] && [ -z "$bench" ]; then
  if has build; then
    step "building the kernels' benchmark" 400 bash -c build_bench && bench=$built_bench
  elif [ -x "$built_bench" ]; then
    bench=$built_bench
  fi
fi
not_built="zenps is not built (--parts build, or --build)"

# ------------------------------------------------------------ the parts

kernels="encode decode hash device poly1305 select"
[ "$emulated" = no ] || export ZPS_TESTS_THIN="${ZPS_TESTS_THIN:-3}" # make check has emulated all of it (tests/support/thin.h)
run_compare() {
  local name shapes=40
  [ "$emulated" = no ] || shapes=1 # the emulation takes seconds for each
  if [ -n "$build" ]; then
    for name in $kernels; do step "kernels: $name" 120 bash -c 'unit "$@"' . "$name"; done
    step "kernels: random gradients in $shapes shapes" 240 "$build/tests/gpu/bench/gpu-check" "$library" $((shapes * 1000)) $shapes
  else
    skip "kernels: unit tests" "$not_built"
  fi
  if [ -n "$bench" ]; then
    step "kernels: the benchmark's comparison" 120 "$bench" --no-times
  else
    skip "kernels: the benchmark's comparison" "there is no GPU, or no benchmark"
  fi
}

run_rounds() {
  local some='' quick=''
  if [ -z "$build" ]; then
    skip "rounds" "$not_built"
    return
  fi
  [ "$emulated" = no ] || { some='test_device_layouts' quick=quick; } # device.sh and device_programs.sh run all of it
  # shellcheck disable=SC2086
  step "rounds: the library's calls" 300 bash -c 'script "$@"' . "$top/tests/integration/device.sh" $some
  # shellcheck disable=SC2086
  step "rounds: zenps-perf, every scheme, and the trainers" 300 bash -c 'script "$@"' . "$top/tests/integration/device_programs.sh" $quick
}

# Rounds of the same gradients in host memory and in the GPU's, with their results compared.
time_rounds() {
  for memory in host device; do
    echo "gradients in $memory memory"
    ZENPS_DEVICE_LIBRARY=$library PATH=$build:$PATH zenpsrun -n 2 --servers 2 --prefix=no -- zenps-perf \
      --rows 33554432 --density 0.01 --steps 5 --warmup 2 --verify --verify-by turns --memory "$memory" || return 1
  done
}
export -f time_rounds
run_times() {
  if [ -z "$bench" ]; then
    skip "times of the kernels" "there is no GPU, or no benchmark"
  elif step "times of the kernels: 214M and 406M floats" 300 bash -c '"$1" --no-check >"$2"' . "$bench" "$work/times.md"; then
    cat "$work/times.md"
  fi
  if [ "$has_gpu" = no ]; then
    skip "times of rounds" "there is no GPU"
  elif [ -z "$build" ]; then
    skip "times of rounds" "$not_built"
  elif step "times of rounds: 32M floats" 240 bash -c time_rounds; then
    cat "$work/times-of-rounds--32M-floats.log"
  fi
}

# Zen's figure 14: the share of rows that goes to serial memory must fall with more memory and with more hash functions,
# and be under 2% with four of each.
figure_14() {
  "$build/tests/bench/hashing-bench" --device "$library" "$@" || return 1
}
shares_fall() {
  figure_14 "$@" --functions 1,4 --memory 1,4 | tee /dev/stderr | awk 'NR > 1 { share[$6, $7] = $10 }
    END { exit !(NR == 5 && share[1, 1] > share[1, 4] && share[1, 4] > share[4, 4] && share[1, 1] > share[4, 1] && share[4, 4] < 0.02) }'
}
export -f figure_14 shares_fall
run_hashing() {
  if [ -z "$build" ]; then
    skip "Algorithm 1 by memory and hash functions" "$not_built"
    return
  fi
  step "kernels: Algorithm 1 by memory and hash functions" 120 bash -c 'shares_fall "$@"' . --parameters 100000 --density 0.1 --runs 1
  if [ "$has_gpu" = no ]; then
    skip "times of Algorithm 1 by memory and hash functions" "there is no GPU"
  elif step "times of Algorithm 1 by memory and hash functions: 214M floats" 300 \
    bash -c 'figure_14 "$@" >"$work/figure-14.txt"' . --parameters 214000000 --partitions 64; then
    cat "$work/figure-14.txt"
  fi
}

run_sanitizers() {
  local tool name sanitizer
  if [ "$has_gpu" = no ]; then
    skip "memcheck and racecheck" "they watch a GPU"
    return
  elif ! command -v compute-sanitizer >/dev/null; then
    skip "memcheck and racecheck" "compute-sanitizer is not installed (cuda-sanitizer of the CUDA toolkit)"
    return
  fi
  for tool in memcheck racecheck; do
    sanitizer="compute-sanitizer --tool $tool --error-exitcode 1"
    # shellcheck disable=SC2086
    [ -z "$bench" ] || step "$tool: the benchmark's comparison" 180 $sanitizer "$bench" --quick --no-times
    # shellcheck disable=SC2086
    [ -z "$build" ] || for name in $kernels; do step "$tool: $name" 120 bash -c 'unit "$@"' . $sanitizer "$name"; done
  done
}

for name in compare rounds times hashing sanitizers; do
  if has "$name"; then "run_$name"; fi
done

echo
[ -z "$failures" ] || printf 'failed:%b\n' "$failures"
echo "$passed passed, $failed failed, $skipped skipped"
[ $((passed + failed)) -gt 0 ] || exit 2
[ "$failed" -eq 0 ]
