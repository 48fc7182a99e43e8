#!/usr/bin/env bash
# Faults of all kinds on real daemons, for two minutes; and that what is wrong is found, and nothing is left behind.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/tap.sh"
run=("$here/run" --build "$build" --keep "$scratch/logs")

ok "the sums and the judge find what is wrong" python3 "$here/selftest.py" "$build"
list() { "$here/run" --list --faults 30 --seed "$1"; }
is "a seed repeats its sequence" "$(list 1)" "$(list 1)"
ok "which other seeds do not have" test "$(list 1)" != "$(list 2)"
ok "a kind that there is not is refused" test "$("$here/run" --kinds kill,flood >/dev/null 2>&1; echo $?)" = 2
if ! why=$("$here/../cluster/lab" allowed); then
  skip "faults" "$why"
  done_testing
  exit
fi

faults=${CHAOS_FAULTS:-60} seed=${CHAOS_SEED:-7}
drawn() { "$here/run" --list --faults "$faults" --seed "$seed" | sed 's/.* s: \([a-z-]*\) .*/\1/' | sort -u; }
survived() { "$here/run" --help | sed -n '/^kinds:/,/^options:/s/^  \([a-z-]*\) *$/\1/p' | sort; }
if [ "$faults:$seed" = 60:7 ]; then
  is "its sequence has every kind that a job survives" "$(drawn)" "$(survived)"
fi
ok "$faults faults of seed $seed: no hang, no wrong sum, no lost step, no error, no left-over" \
  timeout 1500 "${run[@]}" --faults "$faults" --seed "$seed" --longest 4 --gap 0.6
sed 's/^/# /' "$scratch/out"
said "the table has all" "^\| all, also together \| $faults \|"

# Ranks read from it when it stops: what they read is given up, though their fabric holds it for as long. A busy machine
# holds steps up as well: the shortest of three times counts.
for turn in 1 2 3; do
  timeout 600 "${run[@]}" --dead 5000 --faults 1 --seed 21 --kinds stop --longest 45 >"$scratch/out" 2>&1
  status=$?
  extra=$(sed -n 's/^| all, also together .* \([0-9]*\) |$/\1/p' "$scratch/out")
  if [ "$status" -ne 0 ] || [ "${extra:-99999}" -lt 11000 ]; then break; fi
  echo "# turn $turn: $extra ms"
done
is "a server that is silent for long holds steps up until it is taken for lost" "$status" 0
ok "and no longer: ${extra:-?} ms, with control.dead at 5000" test "${extra:-99999}" -lt 11000
ok "zenpsd itself has no moments" eval \
  'grep -q "push read, not summed" "$build/tests/chaos/zenpsd-moments" && ! grep -q "push read, not summed" "$build/zenpsd"'
ok "a rank that is killed is told" test "$(timeout 600 "${run[@]}" --faults 1 --kinds rank-kill --json >"$scratch/killed" 2>/dev/null; echo $?)" = 1
cp "$scratch/killed" "$scratch/out"
said "as errors of the others" '"errors": \["job2, rank [0-3]: error [0-9]+ -15 '
said "and nothing else" '"hangs": \[\], "wrong_sums": \[\], "lost_steps": \[\]'

# A run that is ended, politely or not, takes everything down.
spaces() { ip netns list | grep -c "^b$1-" || true; }
are_gone() { [ "$(spaces "$1")" = 0 ]; }
disks() { mount | grep -c "^zenps-chaos" || true; }
disks_before=$(disks)
disk_more() { [ "$(disks)" -gt "$disks_before" ]; }
no_disk_more() { [ "$(disks)" = "$disks_before" ]; }
are_there() { [ "$(spaces "$1")" = 9 ]; }
for signal in TERM KILL; do
  "${run[@]}" --faults 100 >/dev/null 2>&1 &
  victim=$!
  until_true are_there $((victim % 100000000))
  until_true disk_more
  kill -$signal $victim
  wait $victim 2>/dev/null
  ok "SIG$signal leaves nothing" until_true are_gone $((victim % 100000000))
  ok "and no disk" until_true no_disk_more
done
done_testing
