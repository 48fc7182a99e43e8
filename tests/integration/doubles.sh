#!/usr/bin/env bash
# Verified jobs of real daemons on doubles of efa, cxi and gni (tests/support/double/README.md): in order, with all bad luck at
# once, with a server that is killed, and with one that is stopped. Then jobs with messages that come out of order.
# ZPS_DOUBLES: the fabrics.
. "$(dirname "$0")/../support/tap.sh"
export FI_PROVIDER_PATH=$build/.libs ZPS_DOUBLE_LOG=$scratch/log ZPS_DOUBLE
[ -f "$FI_PROVIDER_PATH/libdouble-fi.so" ] || { echo "Bail out! there is no $FI_PROVIDER_PATH/libdouble-fi.so: make it"; exit 1; }

job() { # zenps-perf arguments: 4 ranks, 2 servers
  : >"$ZPS_DOUBLE_LOG"
  timeout 600 zenpsrun -n 4 --servers 2 --prefix=no --provider "$ZPS_DOUBLE" -- "${rank[@]}" --verify --json "$@"
}
rank=(zenps-perf)
verified() { job "$@" >"$scratch/job" 2>&1; status=$?; cat "$scratch/job"; [ "$status" -eq 0 ] && grep -q '"verified": *true' "$scratch/job"; }
# Adds up what the endpoints say at their ends.
total() { sed -n "s/.* $1=\([0-9]*\).*/\1/p" "$ZPS_DOUBLE_LOG" | awk '{ n += $1 } END { print n + 0 }'; }
some() { # NAME FIELD: it happened
  echo "# $2 $(total "$2")"
  ok "$1" [ "$(total "$2")" -gt 0 ]
}

# Server 0 gets a signal when the tensor is open. It is one of two, so the job goes on.
cat >"$scratch/rank.sh" <<'END'
signal=$1
shift
if [ "$RANK" = 0 ]; then
  (
    until zenpsctl -e "$ZENPS_COORDINATOR" --timeout=300s -o json tensors 2>/dev/null | grep -q '"perf.0"'; do
      kill -0 $$ 2>/dev/null || exit
      sleep 0.05
    done
    kill "-$signal" "$(pgrep -P "$PPID" -f -- '--server-name=server0( |$)')"
  ) &
fi
exec zenps-perf "$@"
END
disturbed() { verified --rows 50000 --density 0.05 --steps $((500 * TURN)); }
without_server() { # SIGNAL
  local lost='plane: server [01] \(server0\) is lost'
  rank=(sh "$scratch/rank.sh" "$1")
  ZPS_DOUBLE_SILENT=1 ZENPS_CONTROL_DEAD=5s in_time "$lost" disturbed
  is "$ZPS_DOUBLE, $1 of a server: the job ends well, verified" $? 0
  said "$ZPS_DOUBLE, $1 of a server: in the middle of it" "$lost"
  rank=(zenps-perf)
}

for ZPS_DOUBLE in ${ZPS_DOUBLES:-efa cxi gni}; do
  ok "$ZPS_DOUBLE, in order" verified --rows 262144 --density 0.01 --steps 5
  is "by 6 endpoints on it" "$(grep -cE ' (rdmap0s6-rdm|cxi0|ipogif0) opens$' "$ZPS_DOUBLE_LOG")" 6
  is "and in order" "$(total overtaken)" 0
  (
    export ZPS_DOUBLE_RX=16 ZPS_DOUBLE_TX=8 ZPS_DOUBLE_AGAIN=100 ZPS_DOUBLE_EAGER=1000 ZPS_DOUBLE_LATE_US=50 ZPS_DOUBLE_JITTER_US=100
    verified --rows 262144 --density 0.01 --steps 5
  ) >"$scratch/out" 2>&1
  is "$ZPS_DOUBLE, small queues, refused posts, late and shuffled completions" $? 0
  some "completions came out of order" overtaken
  some "queues were full" full
  some "posts were refused" unlucky
  without_server KILL
  without_server STOP
done

# A long message is a rendezvous, and completes behind short ones that were sent later.
reordered() { # VARIABLES -- zenps-perf arguments
  local -a variables=()
  while [ "$1" != -- ]; do variables+=("$1") && shift; done
  (export "${variables[@]}" && verified "${@:2}")
}
late=(--width 16 --density 0.002 --partitions 64 --steps 20)
ok "cxi, rendezvous 5 us late" reordered ZPS_DOUBLE=cxi ZPS_DOUBLE_LATE_US=5 -- --rows 4000000 --density 0.0005 --partitions 128 --steps 80
some "they were overtaken" overtaken
ok "cxi, rendezvous 50 us late, many rows" reordered ZPS_DOUBLE=cxi ZPS_DOUBLE_LATE_US=50 -- --rows 4000000 --density 0.0005 --partitions 128 --steps 80
some "they were overtaken" overtaken
ok "cxi, rendezvous from 16 KiB on" reordered ZPS_DOUBLE=cxi ZPS_DOUBLE_EAGER=16384 ZPS_DOUBLE_LATE_US=50 -- --rows 100000 "${late[@]}"
is "no message is that long" "$(total overtaken)" 0
ok "efa, in any order" reordered ZPS_DOUBLE=efa ZPS_DOUBLE_JITTER_US=100 -- --rows 262144 --density 0.01
some "completions came out of order" overtaken

export ZPS_DOUBLE=efa ZPS_DOUBLE_CARDS=8
zenpsd --list-providers >"$scratch/out" 2>&1
is "a host with 8 cards lists them" "$(grep -cE 'efa rdmap[0-7]s6-rdm' "$scratch/out")" 8

done_testing
