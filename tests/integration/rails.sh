#!/usr/bin/env bash
# Two cards of each process, in two namespaces with two links (support/links.sh): gradients come over both, as much over each as
# it carries. A link that goes down in the middle of a round fails no step. The test compares bytes on the links. It prints times
# and judges none: a busy machine has other limits than the links.
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/links.sh"
if ! why=$("$top/tests/cluster/lab" allowed); then
  skip "two cards" "$why"
  done_testing
  exit
fi
trap 'links_down; tap_end' EXIT
coordinator=10.78.0.1:7077
ok "two hosts with two links" links_up 200mbit 200mbit
on a zenpsd --list-providers --fabric-provider=net --fabric-interface=eth1,eth0 --fabric-rails=2 >"$scratch/out" 2>&1
said "the list shows the first rail" '^net eth1 10\.78\.1\.1(, .*)?, rail 0$'
said "the list shows the second rail" '^net eth0 10\.78\.0\.1(, .*)?, rail 1$'
is "and no rail of tls" "$(grep -c '^tls .*rail' "$scratch/out")" 0

on a zenpsd --roles=coordinator --control-listen="$coordinator" --control-insecure --coordinator-min-servers=2 \
  --control-address-file="$scratch/address" 2>"$scratch/c.log" &
until_true [ -s "$scratch/address" ]
for i in 0 1; do
  on a zenpsd --roles=server --control-coordinator="$coordinator" --server-name="s$i" --server-index="$i" --fabric-provider=net \
    --fabric-interface=eth0,eth1 --fabric-rails=2 2>"$scratch/s$i.log" &
done
ctl() { on b zenpsctl --timeout=300s -e "$coordinator" "$@"; }
until_true eval '[ "$(ctl -o json members | grep -c "\"silent_ms\"")" -eq 2 ]'
ctl members >"$scratch/out" 2>&1
said "members shows the rails" '^ *[01] +s0 .* net +random +2 +'

# run RAILS INTERFACES ARGUMENTS...: a verified job of two ranks. Leaves what came into their host by each link, and the median of a step.
run() {
  local rails=$1 names=$2 before after
  shift 2
  before=($(bytes_in b))
  ZENPS_FABRIC_RAILS=$rails on b zenpsrun -n 2 --coordinator "$coordinator" --job "$job" --provider net --interface "$names" --prefix=no \
    -- zenps-perf --rows 2097152 --density 0.05 --verify --json "$@" >"$scratch/json" 2>"$scratch/err" || { cat "$scratch/json" "$scratch/err"; return 1; }
  after=($(bytes_in b))
  first=$((after[0] - before[0])) second=$((after[1] - before[1]))
  ms=$(sed -n 's/.*"median_ms": *\([-0-9.e+]*\).*/\1/p' "$scratch/json")
  longest_ms=$(sed -n 's/.*"p99_ms": *\([-0-9.e+]*\).*/\1/p' "$scratch/json")
  cat "$scratch/json"
  echo "$ms $longest_ms" >"$scratch/ms"
}
share() { echo $((100 * second / (first + second))); } # of the second link, in %
told() { echo "# $1: $ms ms a step, $first and $second bytes into the ranks' host"; }
within() { # FROM TO: the second link's share
  echo "$(share)% came over the second link, wanted $1 to $2"
  [ "$(share)" -ge "$1" ] && [ "$(share)" -le "$2" ]
}
second_link() { for host in a b; do tc -n "$links-$host" qdisc replace dev eth1 root tbf rate "$1" burst 32kb limit 1mb; done; }

job=one
ok "two ranks with one card, the same" run 1 eth0 --steps 8
told "one card"
ok "nothing comes over the second link" within 0 1
job=each
ok "two ranks with one card each" run 1 eth0,eth1 --steps 8
told "a card each"
ok "each link carries half" within 40 60
job=two
ok "two ranks with two cards each" run 2 eth0,eth1 --steps 8
told "two cards each"
ok "each link carries half" within 40 60
second_link 50mbit
job=slow
ok "two cards, one of a quarter of the rate" run 2 eth0,eth1 --steps 8
told "the second at a quarter of the rate"
ok "it carries less, and not nothing" within 5 40
second_link 200mbit

job=down
# The rail is lost twice, and told of 5 s later. Meanwhile the job has to read over the other link.
steps=$(awk -v ms="$ms" 'BEGIN { print int(30000 / ms) + 20 }')
run 2 eth0,eth1 --steps "$steps" >"$scratch/down" 2>&1 &
runner=$!
before=($(bytes_in b))
is_moving() { [ $(($(bytes_in b | tail -n 1) - before[1])) -gt 4000000 ]; }
until_true is_moving
ip -n "$links-b" link set eth1 down
is_told() { cat "$scratch/s0.log" "$scratch/s1.log" >"$scratch/out" && grep -q 'rail 1 (eth1) is out' "$scratch/out"; }
until_true eval 'is_told || ! kill -0 $runner 2>/dev/null'
said "a warning says which card, while the job runs" 'rail 1 \(eth1\) is out, gradients come over the others'
ctl why >"$scratch/out" 2>&1
said "why tells of it" 'does not reliably reach [0-9]+ of its peers over each of its cards'
wait $runner
status=$?
cp "$scratch/down" "$scratch/out"
is "a link goes down in the middle: no step fails" $status 0
said "and all sums are right" '"verified": *true'
echo "# the median of a step and the longest, in ms: $(cat "$scratch/ms")"
is_quiet() { ctl why 2>&1 | tee "$scratch/out" | grep -q . && ! grep -q 'over each of its cards' "$scratch/out"; }
ok "why forgets the card with its peers" until_true is_quiet
stats() { ctl -o json stats >"$scratch/out" 2>&1; }
ok "stats" stats
said "and counts the loss" '"rails_lost": ?[1-9]'
done_testing
