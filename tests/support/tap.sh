# Sourced by test scripts: TAP output, programs of the build tree, a scratch folder, and an end that leaves nothing running.
#   . "$(dirname "$0")/../support/tap.sh"
# Gives: $top, $build, $scratch; ok NAME COMMAND..., said NAME PATTERN, is NAME GOT WANTED, skip NAME WHY, until_true COMMAND...,
# in_time PATTERNS COMMAND..., idle_share PID, done_testing.
set -u
top=${ZPS_TOP_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build=${ZPS_TOP_BUILDDIR:-$PWD}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/zenps-test.XXXXXX")
tap_n=0 tap_failed=0
export PATH="$build:$PATH"
# Deadlines for hangs alone. A test in which one is to pass sets its own.
export ZENPS_CONTROL_DEAD=300s ZENPS_COORDINATOR_RESTART_GRACE=300s ZENPS_JOIN_TIMEOUT=300s ZENPS_ROUND_TIMEOUT=300s
export LSAN_OPTIONS="${LSAN_OPTIONS:-print_suppressions=0:suppressions=$top/tests/support/lsan.supp}"

tap_end() {
  local pids
  pids=$(jobs -p)
  [ -z "$pids" ] || kill $pids 2>/dev/null
  wait 2>/dev/null
  rm -rf "$scratch"
}
trap tap_end EXIT
trap 'exit 1' INT TERM

# tap_result STATUS NAME: one line of TAP; a failure shows what the command left in $scratch/out.
tap_result() {
  tap_n=$((tap_n + 1))
  if [ "$1" -eq 0 ]; then
    echo "ok $tap_n - $2"
  else
    tap_failed=$((tap_failed + 1))
    echo "not ok $tap_n - $2"
    [ -f "$scratch/out" ] && tail -n 20 "$scratch/out" | sed 's/^/# /'
  fi
}
# ok NAME COMMAND...: passes when the command succeeds; its output is kept in $scratch/out.
ok() {
  local name=$1 status
  shift
  "$@" >"$scratch/out" 2>&1
  status=$?
  tap_result "$status" "$name"
  return "$status"
}
# said NAME PATTERN: passes when $scratch/out, by ok or by the script, matches the extended regular expression.
said() {
  grep -qE -- "$2" "$scratch/out"
  tap_result $? "$1"
}
is() { # NAME GOT WANTED
  [ "$2" = "$3" ]
  tap_result $? "$1"
  [ "$2" = "$3" ] || printf '#   got:    %s\n#   wanted: %s\n' "$2" "$3"
}
skip() { # NAME WHY
  tap_n=$((tap_n + 1))
  echo "ok $tap_n - $1 # SKIP $2"
}
# until_true COMMAND...: waits for a condition, not for a time. Fails after so many looks without it: two minutes on an idle
# machine, longer on a busy one. A look can cost as much as what it waits for: in long waits there are fewer.
until_true() {
  local looks=0 began=$SECONDS
  while ! "$@" >/dev/null 2>&1; do
    [ $((looks += 1)) -le 450 ] || return 1
    [ $looks -le 60 ] || [ $((SECONDS - began)) -lt 500 ] || return 1 # of looks that take seconds
    if [ $looks -lt 20 ]; then sleep 0.05; elif [ $looks -lt 40 ]; then sleep 0.1; else sleep 0.3; fi
  done
}
# in_time PATTERNS COMMAND...: the status of the command; its output goes to $scratch/out. Something happens to it as it
# runs, which its output shows by these extended regular expressions, one a line. On a busy machine that may come when all
# is over: then the command runs again. In $TURN it finds 1, then 2, and so on, and may take longer by that.
in_time() {
  local patterns=$1 status turn
  shift
  for turn in 1 2 3 4 5 6; do
    TURN=$turn "$@" >"$scratch/out" 2>&1
    status=$?
    if [ "$status" -ne 0 ] || out_has "$patterns"; then break; fi
    echo "# turn $turn: it is over, and was not disturbed in time"
  done
  return "$status"
}
out_has() { # PATTERNS, one a line
  local pattern
  while IFS= read -r pattern; do
    grep -qE -- "$pattern" "$scratch/out" || return 1
  done <<<"$1"
}
# idle_share PID: the processor time of a process that has nothing to do, in thousandths of a core. It is the least of five
# spans: on a busy machine, what is left of a start or of a job falls into the first ones.
idle_share() {
  local before share least=1000 span=4
  for _ in 1 2 3 4 5; do
    before=$(awk '{ print $14 + $15 }' "/proc/$1/stat")
    sleep "$span"
    share=$((($(awk '{ print $14 + $15 }' "/proc/$1/stat") - before) * 1000 / ($(getconf CLK_TCK) * span)))
    [ "$share" -ge "$least" ] || least=$share
    [ "$least" -ge 5 ] || break # as little as is ever asked for
  done
  echo "$least"
}
done_testing() {
  echo "1..$tap_n"
  [ "$tap_failed" -eq 0 ]
}
