#!/usr/bin/env bash
# The cases of tests/bench/internet, in small: outer steps with a slow peer and a quorum, and with peers that are killed and replaced.
# tests/bench/wan-rounds, too.
# Times are not looked at. The program itself fails where peers have different parameters, or an outer step is missing.
. "$(dirname "$0")/../support/tap.sh"
why=$("$top/tests/cluster/wan" allowed) || true
/usr/bin/python3 -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' || why="python3-torch is not installed"
if [ -n "$why" ]; then
  skip "outer steps across the internet" "$why"
  done_testing
  exit
fi
case_of() { timeout 600 python3 "$top/tests/bench/internet" --quick "$build" "$1"; } # CASE
ok "an outer step of all values, and of some" case_of round
said "takes some time" '^\| chunks \| 100 Mbit/s, 100 ms, 0\.1% \| [0-9]+, [0-9]+ \| [0-9]+ \|'
ok "peers with a quorum go on beside a slow one" case_of slow
said "which is late" '^\| one with local steps ten times longer \| 3 \| .*\| 0, 0, 0, [1-9][0-9]* of 6 \|$'
ok "peers are killed and replaced" case_of churn
said "without a missing outer step" '^Missing outer steps: 0\. Outer steps with different parameters: 0\.'
ok "rounds over links that lose packets" timeout 600 "$top/tests/bench/wan-rounds" 0.1 bbr 2 4 --rows 65536 --density 0.01 --verify
said "take some time" '^loss 0\.1% bbr 2 connections: [0-9]+ ms, .* of the limit of [0-9]+ ms$'
python3 "$top/tests/bench/internet" "$build" fast >"$scratch/out" 2>&1
is "an unknown case is refused" $? 2
said "with those that are known" "case 'fast' is none of round, slow, churn"
done_testing
