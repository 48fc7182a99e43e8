#!/usr/bin/env bash
# Every test, from a clean checkout on Debian 12: installs what it needs, builds several ways, and ends with one line
#   N passed, N failed, N skipped
#
#   tests/run.sh [PART...]    parts: unit sim integration python cluster chaos soak figures clang threads cuda dist; none: all of these
#                                    sanitize-processes: daemons and ranks with sanitizers, an hour on two cores
#
# env: BUILD_DIR (default build/test), JOBS (number of cores), NO_INSTALL=1 (apt is left alone)
set -u
# Every process that opens a fabric has libfabric's verbs provider read /proc/kallsyms twice, for the names of two
# symbols: 80 ms of processor time, in thousands of processes. Here that file is empty, where mounts may be made.
if [ -z "${ZPS_TESTS_MOUNTS:-}" ] && unshare --mount mount --bind /dev/null /proc/kallsyms 2>/dev/null; then
  # shellcheck disable=SC2016
  ZPS_TESTS_MOUNTS=own exec unshare --mount bash -c 'mount --bind /dev/null /proc/kallsyms && exec bash "$0" "$@"' "$0" "$@"
fi
top=$(cd "$(dirname "$0")/.." && pwd)
work=$(realpath -m "${BUILD_DIR:-$top/build/test}")
jobs=${JOBS:-$(nproc)}
export CONFIG_SHELL=${CONFIG_SHELL:-/bin/sh} # configure's, make's and libtool's: Debian's is dash, twice as quick as bash at libtool's scripts
passed=0 failed=0 skipped=0 failures=""
# Tests share the machine with each other. Three that fail get a second run at the end, alone. What they printed is
# shown, and the last lines name them. With more than three, the machine is not the reason. Nor is it the reason of what
# a sanitizer finds, or of a wrong sum.
again=() chances=3 second=""
parts=${*:-unit sim integration python cluster chaos soak figures clang threads cuda dist}

say() {
  spend
  printf '\n== %s (%d s, %s)\n' "$*" "$SECONDS" "$spent"
}
# The processor time of what has ended, in $spent. A subshell would count anew.
spend() {
  local file=$work/times.$BASHPID
  times >"$file"
  spent=$(awk 'NR == 2 { split($1 "m" $2, t, /[ms]+/); printf "%d s of processors", 60 * (t[1] + t[3]) + t[2] + t[4] }' "$file")
  rm "$file"
}
one() { # STATUS NAME: counts a step that is one test of its own
  if [ "$1" -eq 0 ]; then passed=$((passed + 1)); echo "passed: $2"; else failed=$((failed + 1)); failures="$failures\n  $2"; echo "FAILED: $2"; fi
}
# Shows what a failed test printed, from stdin. True: this command is its second run.
chance() { # NAME [COMMAND...]
  local shown
  shown=$(cat)
  if [ $# -eq 1 ] || [ ${#again[@]} -ge "$chances" ] || grep -qE 'Sanitizer|runtime error:|different sums|wrong sums [1-9]|^not ok .*(sums|bit for bit)' <<<"$shown"; then
    printf '%s\n' "$shown"
    failures="$failures\n  $1"
    return 1
  fi
  sed 's/^/| /' <<<"$shown"
  again+=("$(printf '%q ' "${@:2}")")
  second="$second\n  $1"
  echo "$1: runs again at the end, alone"
}
# Runs what failed again. What fails now is counted.
run_again() {
  local command
  chances=0
  for command in ${again+"${again[@]}"}; do
    say "again, alone: ${command:0:100}"
    eval "$command"
  done
}
# Adds up the TAP lines of a file. With a command: what fails may get a second run by it.
count_tap() { # FILE NAME STATUS [COMMAND...]
  local ok not_ok skip
  skip=$(grep -Eic '^ok .*# *skip' "$1")
  ok=$(($(grep -c '^ok ' "$1") - skip))
  not_ok=$(grep -c '^not ok ' "$1")
  [ "$3" -eq 0 ] || [ "$not_ok" -gt 0 ] || not_ok=1 # it died
  echo "$2: $ok passed, $not_ok failed, $skip skipped${took:+ ($took)}"
  if [ "$not_ok" -gt 0 ]; then # what a process prints comes before its test's line
    chance "$2" "${@:4}" < <(grep -B 12 -A 20 '^not ok ' "$1" | head -90; tail -n 5 "$1") && return
  fi
  passed=$((passed + ok)) failed=$((failed + not_ok)) skipped=$((skipped + skip))
}
# Runs a function of this script in the time in which no other process wants a core: in a scheduling group of its own, at
# the lowest share, since the kernel shares cores among sessions first.
beside() { # FUNCTION ARGUMENTS...
  setsid --wait bash -c "$(declare -p top work jobs is_built); $(declare -f); "'
    set -u
    { echo 19 >/proc/self/autogroup; } 2>/dev/null
    chrt --idle --pid 0 $$
    "$@"' beside "$@"
}
# Gives back its priority: this script now waits for it.
hasten() { # PROCESS: of a job with beside()
  local leader process
  for leader in $(pgrep -P "$1"); do
    for process in $(pgrep -s "$leader"); do chrt --other --pid 0 "$process"; done
    echo 0 >"/proc/$leader/autogroup"
  done 2>/dev/null
}
# make, in a build of $work; libtool-quick says why.
make_in() { # NAME ARGUMENTS...
  local dir=$work/$1
  shift
  make -C "$dir" -j"${at_once:-$jobs}" LIBTOOL="$top/tests/support/libtool-quick $CONFIG_SHELL $dir/libtool" "$@"
}
# Debian's flags for packages (deploy/debian/rules), so that tests run the objects that packages.sh packs: as words for a
# shell. -g1 for -g, since it is quicker.
debian_flags() {
  DEB_BUILD_MAINT_OPTIONS="hardening=+all reproducible=-fixfilepath,-fixdebugpath" dpkg-buildflags --export=cmdline | sed 's/="-g /="-g1 /g'
}
# Configures and builds in $work/NAME with configure's arguments, without a warning; TARGET: not everything, but these words for make.
build_in() { # NAME ARGUMENTS...
  local name=$1 dir=$work/$1
  shift
  mkdir -p "$dir"
  [ "$dir" != "$work/gcc" ] || eval "set -- $(debian_flags) "'"$@"'
  # shellcheck disable=SC2086
  (cd "$dir" && { [ -f Makefile ] || "$top/configure" --enable-werror "$@"; } && make_in "$name" ${TARGET:-}) >"$dir/build.log" 2>&1 || { tail -n 30 "$dir/build.log"; return 1; }
}
# Runs make check in $work/NAME and adds up automake's totals. Tests wait now and then: one more than there are cores.
check_in() { # NAME MAKE-ARGUMENTS...
  local name=$1 log=$work/$1/check.log
  shift
  at_once=$((jobs + 1)) make_in "$name" check "$@" >"$log" 2>&1
  local status=$? totals
  totals=$(sed -n 's/^# *\(PASS\|SKIP\|FAIL\|ERROR\|XFAIL\|XPASS\): *\([0-9]*\)$/\1 \2/p' "$log" | sed 's/\x1b\[[0-9;]*m//g')
  local p s f
  p=$(awk '$1 == "PASS" || $1 == "XFAIL" { n += $2 } END { print n + 0 }' <<<"$totals")
  s=$(awk '$1 == "SKIP" { n += $2 } END { print n + 0 }' <<<"$totals")
  f=$(awk '$1 == "FAIL" || $1 == "ERROR" || $1 == "XPASS" { n += $2 } END { print n + 0 }' <<<"$totals")
  local command=(check_again "$f" "$name" "$@")
  [ "$status" -eq 0 ] || [ "$f" -gt 0 ] || { f=1; unset command; }
  passed=$((passed + p)) skipped=$((skipped + s))
  echo "make check ($name): $p passed, $f failed, $s skipped"
  if [ "$f" -gt 0 ]; then
    chance "make check ($name)" ${command+"${command[@]}"} < <(
      grep -E '^(FAIL|ERROR|XPASS):' "$log" | head -40
      grep -vE '^(ok |PASS:|SKIP:|$)' "$work/$name/test-suite.log" 2>/dev/null | tail -n 80 # what a test prints comes before its line
    ) || failed=$((failed + f))
  fi
}
# Runs those programs of make check again whose tests failed.
check_again() { # FAILED NAME MAKE-ARGUMENTS...
  make_in "$2" recheck "${@:3}" >"$work/$2/recheck.log" 2>&1
  count_again $? "make check ($2)" "$1" "$work/$2/recheck.log"
}
# Counts tests that failed, by their second run.
count_again() { # STATUS NAME FAILED LOG
  if [ "$1" -eq 0 ]; then
    passed=$((passed + $3))
    echo "$2: $3 passed"
  else
    failed=$((failed + $3)) failures="$failures\n  $2"
    echo "$2: failed again"
    tail -n 80 "$4"
  fi
}

# Debian's libfabric loads libpsm2 and libinfinipath. Before main() each measures the clock for 100 ms on the first core,
# in thousands of processes. Where this script has mounts of its own, copies do so for 0.1 ms and are equal otherwise.
shorten_clock_measurements() {
  local library copy
  [ "${ZPS_TESTS_MOUNTS:-}" = own ] || return 0
  for library in $(/sbin/ldconfig -p | sed -n 's/.*\(libpsm2\|libinfinipath\)\.so\.[0-9]* .*=> //p'); do
    library=$(readlink -f "$library") copy=$work/${library##*/}
    # The operand of one instruction, in picoseconds.
    perl -0777 -ne 'print if 1 == s/\x49\xbd\xff\xe7\x76\x48\x17\0\0\0/\x49\xbd\xff\xe0\xf5\x05\0\0\0\0/g' "$library" >"$copy.new" &&
      [ -s "$copy.new" ] && mv "$copy.new" "$copy" && mount --bind "$copy" "$library" && echo "${library##*/} measures the clock for 0.1 ms in place of 100 ms"
  done
  return 0
}

# Parts of scripts leave processor time. In a whole run the builds of later parts take it, one after another. Each part
# looks at its build again by itself.
declare -A ahead=()
last_ahead="" is_built=no # is_built: by the part unit
begin_ahead() { # PART... to come, with the one that begins
  local part
  [ "$is_built" = yes ] || return 0
  for part in "${@:2}"; do
    [ -z "${ahead[$part]:-}" ] || continue
    case $part in
      clang | threads) ;;
      cuda) has_nvcc || continue ;;
      dist) case " $* " in *" integration "* | *" python "*) continue ;; esac ;; # it makes files in gcc's build, and scripts copy from there
      *) continue ;;
    esac
    { [ -z "$last_ahead" ] || tail --pid="$last_ahead" -f /dev/null; beside "build_$part"; } >/dev/null 2>&1 &
    ahead[$part]=$! last_ahead=$!
  done
}
await_ahead() { # PART
  local job
  [ -n "${ahead[$1]:-}" ] || return 0
  for job in "${ahead[@]}"; do hasten "$job"; done
  wait "${ahead[$1]}"
  return 0
}
# The builds of parts that have one of their own.
build_clang() {
  build_in clang CC=clang --enable-sanitize=address,undefined CFLAGS="-O1 -g1" &&
    make_in clang check TESTS= >"$work/clang/tests.log" 2>&1 || return
  build_fuzzers
  return 0
}
# Unit tests that cannot start a thread are not built. The part unit has built the same programs, and so tells them apart;
# without it all are built.
build_threads() {
  local tests=
  [ "$is_built" = no ] || tests=$(threaded gcc)
  TARGET=${tests:-check TESTS= PROGRAMS= MANS=} build_in tsan --enable-sanitize=thread CFLAGS="-O1 -g1"
}
threaded() { # BUILD: its unit tests that can start a thread
  (cd "$work/$1" 2>/dev/null && find tests/unit tests/conform -type f -executable -name '[ct]*_*' ! -path '*/.libs/*' ! -name 'lt-*' -exec nm -A -u {} + 2>/dev/null) |
    sed -n 's/:.* pthread_create\(@.*\)\{0,1\}$//p' | sort -u | tr '\n' ' '
}
build_fuzzers() {
  # shellcheck disable=SC2046
  make_in clang $(printf 'tests/fuzz/fuzz_%s ' codec control values wire state config token tls encrypted rounds shard link members methods worker) >"$work/clang/fuzz.log" 2>&1
}
has_nvcc() { PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null; }
build_cuda() { TARGET=libzenps_cuda.so.0 build_in cuda --with-cuda NVCC_CHIPS=90; } # one chip for all: they take a minute each
part_unit() {
  say "build with gcc, unit tests"
  build_in gcc && is_built=yes && check_in gcc || one 1 "build with gcc"
}
run_sim() {
  cd "$work/gcc" && ZPS_TOP_SRCDIR=$top ZPS_TOP_BUILDDIR=$work/gcc SIM_JOBS=$jobs timeout 7200 bash "$top/tests/sim/sim.sh"
}
# Runs beside the parts that follow.
part_sim() {
  say "sim: a cluster in one thread, under seeds (begun; beside what follows)"
  build_in gcc && make_in gcc tests/sim/sim >"$work/gcc/sim.log" 2>&1 || { tail -n 20 "$work/gcc/sim.log"; one 1 "build with gcc"; return; }
  beside run_sim >"$work/sim.tap" 2>&1 &
  sim=$!
}
end_sim() {
  say "sim: a cluster in one thread, under seeds (awaited)"
  hasten "$sim"
  wait "$sim"
  count_tap "$work/sim.tap" "sim" $?
  grep -E '^# [0-9]+ seeds' "$work/sim.tap"
}
# Runs scripts of real processes with the programs of $work/BUILD, so many at once. In a shell of its own, which waits for
# them and for nothing that was begun before.
run_scripts() { # BUILD SECONDS AT-ONCE NAME...
  local build=$1 seconds=$2 at_once=$3 name status took
  shift 3
  (
    running=0
    for name in "$@"; do
      [ "$running" -lt "$at_once" ] || { wait -n; running=$((running - 1)); }
      {
        SECONDS=0
        cd "$work/$build" || exit
        ZPS_TOP_SRCDIR=$top ZPS_TOP_BUILDDIR=$work/$build timeout "$seconds" bash "$top/tests/integration/$name.sh" >"$work/$build.$name.tap" 2>&1
        status=$?
        spend
        echo "$status $SECONDS s, $spent" >"$work/$build.$name.status"
      } &
      running=$((running + 1))
    done
    wait
  )
  for name in "$@"; do
    status=1 took=
    read -r status took <"$work/$build.$name.status"
    count_tap "$work/$build.$name.tap" "integration/$([ "$build" = gcc ] || echo "$build/")$name.sh" "$status" \
      run_scripts "$build" "$seconds" 1 "$name"
  done
}
# Most of the time a script waits, for deadlines and for its own processes: on a core to itself it needs less than
# half of it. So one more than there are cores, which leaves them some air; the longest come first, so that none runs
# alone at the end.
part_integration() {
  local scripts="libfabric doubles api api_faults schemes secure nights device perf packages elastic truth zenpsrun daemon served why guide training inputs" name
  say "integration: real daemons in real processes"
  build_in gcc && make_in gcc check TESTS= >"$work/gcc/tests.log" 2>&1 || { one 1 "build with gcc"; return; }
  for name in "$top"/tests/integration/*.sh; do
    name=$(basename "$name" .sh)
    case " $scripts " in *" $name "*) ;; *) scripts="$scripts $name" ;; esac
  done
  # shellcheck disable=SC2086
  run_scripts gcc 900 $((jobs + 1)) $scripts
}
# The packages of Debian's python3, not those of another one that may come first in PATH. Tests wait for a quarter of the
# time and more: two files of them a core (a file shares what it launches).
part_python() {
  say "python: the package against real daemons, with Debian's PyTorch"
  build_in gcc || { one 1 "build with gcc"; return; }
  local log=$work/python.log status totals p f s
  (cd "$work/gcc" && ZPS_TOP_SRCDIR=$top ZPS_TOP_BUILDDIR=$work/gcc timeout 1800 /usr/bin/python3 -m pytest -n $((2 * jobs)) --dist loadfile -o cache_dir="$work/pytest" -rs -q "$top/tests/python") >"$log" 2>&1
  status=$?
  totals=$(tail -n 1 "$log") # "1 failed, 2 passed, 3 skipped in 4.00s", each where there are any
  p=$(grep -oE '[0-9]+ passed' <<<"$totals" | tr -dc 0-9) s=$(grep -oE '[0-9]+ skipped' <<<"$totals" | tr -dc 0-9)
  f=$(grep -oE '[0-9]+ (failed|error)' <<<"$totals" | awk '{ n += $1 } END { print n + 0 }')
  local command=(python_again "$f")
  [ "$status" -eq 0 ] || [ "$f" -gt 0 ] || { f=1; unset command; } # it found no test, or its time was over
  passed=$((passed + ${p:-0})) skipped=$((skipped + ${s:-0}))
  echo "python: ${p:-0} passed, $f failed, ${s:-0} skipped"
  grep '^SKIPPED' "$log"
  if [ "$f" -gt 0 ]; then
    chance python ${command+"${command[@]}"} < <(tail -n 80 "$log") || failed=$((failed + f))
  fi
}
python_again() { # FAILED
  (cd "$work/gcc" && ZPS_TOP_SRCDIR=$top ZPS_TOP_BUILDDIR=$work/gcc timeout 900 /usr/bin/python3 -m pytest --last-failed -o cache_dir="$work/pytest" -q "$top/tests/python") >"$work/python.again.log" 2>&1
  count_again $? python "$1" "$work/python.again.log"
}
part_cluster() {
  say "cluster: hosts as namespaces with shaped links, and a quick benchmark"
  build_in gcc || { one 1 "build with gcc"; return; }
  (cd "$work/gcc" && ZPS_TOP_SRCDIR=$top ZPS_TOP_BUILDDIR=$work/gcc timeout 1800 bash "$top/tests/cluster/cluster.sh") >"$work/cluster.tap" 2>&1
  count_tap "$work/cluster.tap" "cluster" $? part_cluster
  grep '# SKIP' "$work/cluster.tap"
  cat "$work/gcc/cluster-quick.md" 2>/dev/null
}
part_chaos() {
  say "chaos: real faults on real daemons, each on a host of its own"
  build_in gcc || { one 1 "build with gcc"; return; }
  (cd "$work/gcc" && ZPS_TOP_SRCDIR=$top ZPS_TOP_BUILDDIR=$work/gcc timeout 1800 bash "$top/tests/chaos/chaos.sh") >"$work/chaos.tap" 2>&1
  count_tap "$work/chaos.tap" "chaos" $? part_chaos
  grep -E '# SKIP|^# (seed|\|)' "$work/chaos.tap"
}
part_soak() {
  say "soak: short jobs, one after another, and what daemons hold"
  build_in gcc || { one 1 "build with gcc"; return; }
  (cd "$work/gcc" && ZPS_TOP_SRCDIR=$top ZPS_TOP_BUILDDIR=$work/gcc timeout 1800 bash "$top/tests/soak/soak.sh") >"$work/soak.tap" 2>&1
  count_tap "$work/soak.tap" "soak" $? part_soak
  grep -E '^# ([0-9]+ jobs|\|)' "$work/soak.tap"
}
part_figures() {
  say "figures: the papers' figures, small, and their shape"
  build_in gcc || { one 1 "build with gcc"; return; }
  timeout 600 "$top/tests/bench/figures" all --quick --tap --build "$work/gcc" >"$work/figures.tap" 2>&1
  count_tap "$work/figures.tap" "figures" $? part_figures
  grep -E '# SKIP|^# [a-z0-9-]*: [0-9.]* s$' "$work/figures.tap"
}
part_clang() {
  say "clang without a warning, address and undefined-behaviour sanitizers, all unit tests"
  echo "the heaviest tests by sample: tests/support/thin.h"
  # Checks that read the tree alone find here what they found in gcc's build.
  # shellcheck disable=SC2016
  build_clang && check_in clang 'TESTS=$(check_PROGRAMS) $(BUILD_CHECKS)' || {
    grep -hE 'error:|warning:' "$work"/clang/*.log | head
    one 1 "build with clang"
  }
  build_fuzzers
  local status=$?
  [ "$status" -eq 0 ] || tail -n 20 "$work/clang/fuzz.log"
  one "$status" "the fuzzers build"
}
# Only programs that can start a thread have anything to find: those with NO_THREADS cannot. tests/support/thin.h says
# which combinations they leave out here. Unit tests need no more than libraries, so no other program is built.
part_threads() {
  say "thread sanitizer, unit tests with threads"
  echo "combinations by sample: tests/support/thin.h"
  build_threads || {
    one 1 "build with tsan"
    return
  }
  check_in tsan PROGRAMS= MANS= check_PROGRAMS= TESTS="$(threaded tsan)"
}
# A finding of a sanitizer ends the process, which fails the test.
part_sanitize-processes() {
  say "address and undefined-behaviour sanitizers, real processes"
  export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}" TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1}"
  build_in asan --enable-sanitize=address,undefined CFLAGS="-O1 -g1" && make_in asan check TESTS= >"$work/asan/tests.log" 2>&1 || { one 1 "build with asan"; return; }
  run_scripts asan 1800 "$jobs" schemes perf api api_faults served control
  say "thread sanitizer, real processes"
  build_in tsan --enable-sanitize=thread CFLAGS="-O1 -g1" && make_in tsan check TESTS= >"$work/tsan/tests.log" 2>&1 || { one 1 "build with tsan"; return; }
  run_scripts tsan 1800 "$jobs" schemes api
}
# The emulation runs the kernels among the unit tests; nvcc is another compiler, and its code other code.
part_cuda() {
  say "device kernels with nvcc"
  if ! has_nvcc; then
    skipped=$((skipped + 1))
    echo "skipped: nvcc is not installed"
    return
  fi
  build_cuda
  one $? "libzenps_cuda.so builds without a warning"
  local arch=90
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then arch=; fi # this machine's
  cp -r "$top/gpu" "$top/common" "$work/cuda/" && mkdir -p "$work"/cuda/{worker,tests/support,tests/gpu} &&
    cp -r "$top/tests/gpu/bench" "$work/cuda/tests/gpu/" && cp -r "$top/worker/select" "$work/cuda/worker/" &&
    cp "$top"/tests/support/{device,coder,tag}_cpu.* "$work/cuda/tests/support/" &&
    make -C "$work/cuda/tests/gpu/bench" -j"$jobs" ARCH=$arch >"$work/cuda/bench.log" 2>&1
  local status=$?
  [ "$status" -eq 0 ] || tail -n 30 "$work/cuda/bench.log"
  one "$status" "the benchmark of the kernels builds by itself"
  if [ -z "$arch" ] && [ "$status" -eq 0 ]; then
    "$work/cuda/tests/gpu/bench/gpu-bench" --quick --json
    one $? "the kernels on this GPU make what the cpu makes"
  fi
}
# The other parts check the results of tests; this part checks whether the tarball holds all files that build and run
# them. At -O3 compilers look further than at the other parts' -O2 and -O1, and warn of more. Nobody gets the tarball.
build_dist() {
  rm -f "$work"/dist.sum "$work"/distcheck.status
  build_in gcc && XZ_OPT=-0 make -C "$work/gcc" dist >"$work/dist.log" 2>&1 && sha256sum "$work"/gcc/zenps-*.tar.xz >"$work/dist.sum"
  XZ_OPT=-0 make -C "$work/gcc" -j"$jobs" distcheck DISTCHECK_CONFIGURE_FLAGS="CFLAGS=-O3 CXXFLAGS=-O3 --enable-werror" 'TESTS=$(TREE_TESTS)' >"$work/distcheck.log" 2>&1
  echo $? >"$work/distcheck.status"
}
part_dist() {
  local status
  say "release tarball: built at -O3, tested and uninstalled from a read-only tree"
  [ -n "${ahead[dist]:-}" ] || build_dist
  status=$(cat "$work/distcheck.status" || echo 1)
  [ "$status" -eq 0 ] && [ -s "$work/dist.sum" ] || tail -n 30 "$work/dist.log" "$work/distcheck.log"
  one "$status" "make distcheck"
  sha256sum --quiet -c "$work/dist.sum" # distcheck has made another one, at another time
  one $? "the same commit makes the same tarball"
}

for part in $parts; do
  case $part in
    unit | sim | integration | python | cluster | chaos | soak | figures | clang | threads | cuda | dist | sanitize-processes) ;;
    *) echo "tests/run.sh: '$part' is no part: must be unit, sim, integration, python, cluster, chaos, soak, figures, clang, threads, cuda, dist or sanitize-processes" >&2; exit 2 ;;
  esac
done
mkdir -p "$work"
if [ "${NO_INSTALL:-0}" != 1 ]; then
  say "packages"
  case " $parts " in *" python "*) purposes="test python" ;; *) purposes=test ;; esac
  # shellcheck disable=SC2086
  "$top/deploy/install-deps.sh" $purposes || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
fi
shorten_clock_measurements
[ -x "$top/configure" ] || (cd "$top" && autoreconf -fi) >"$work/autoreconf.log" 2>&1 || {
  tail -n 20 "$work/autoreconf.log"
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
}
sim=""
# shellcheck disable=SC2086
set -- $parts
while [ $# -gt 0 ]; do
  begin_ahead "$@"
  await_ahead "$1"
  "part_$1"
  shift
done
[ -z "$sim" ] || end_sim
run_again
say "done"
[ -z "$second" ] || printf 'failed beside other tests, and ran again:%b\n' "$second"
[ -z "$failures" ] || printf 'failed:%b\n' "$failures"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
