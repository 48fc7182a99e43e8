#!/usr/bin/env bash
# Two links between two hosts, which are namespaces: processes take the named links in turn, and each link carries half.
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/links.sh"
if ! why=$("$top/tests/cluster/lab" allowed); then
  skip "two links" "$why"
  done_testing
  exit
fi
trap 'links_down; tap_end' EXIT
ok "two hosts with two links" links_up none none
coordinator=10.78.0.1:7077

on a zenpsd --list-providers >"$scratch/out" 2>&1
said "both links are listed" '^net eth1 10\.78\.1\.1$'
ok "a wrong name" eval '! on a zenpsd --roles=server --control-coordinator=127.0.0.1:1 --fabric-interface=eth7'
said "lists the links" 'interface eth7; this host has: net \(.*eth0 10\.78\.0\.1.*eth1 10\.78\.1\.1'

on a zenpsd --roles=coordinator --control-listen="$coordinator" --control-insecure --coordinator-min-servers=2 \
  --control-address-file="$scratch/address" 2>"$scratch/c.log" &
until_true [ -s "$scratch/address" ]
for i in 0 1; do
  on a zenpsd --roles=server --control-coordinator="$coordinator" --server-name="s$i" --server-index="$i" --fabric-provider=net \
    --fabric-interface=eth0,eth1 2>"$scratch/s$i.log" &
done
until_true grep -q "fabric net" "$scratch/s1.log"
cp "$scratch/s1.log" "$scratch/out"
said "the second server takes the second link" 'on eth1 (\(.*\) )?at .*, number 1 of 2 named, as process 1 of this host;'

in_before=($(bytes_in b))
ok "two ranks" on b env ZENPS_LOG_LEVEL=info zenpsrun -n 2 --coordinator "$coordinator" --provider net --interface eth0,eth1 -- \
  zenps-perf --rows 1000000 --density 0.2 --steps 5 --verify
said "the first one is on the first link" 'on eth0 (\(.*\) )?at .*10\.78\.0\.2.*, number 0 of 2 named'
said "the second one is on the second link" 'on eth1 (\(.*\) )?at .*10\.78\.1\.2.*, number 1 of 2 named'
in_after=($(bytes_in b))
first=$((in_after[0] - in_before[0])) second=$((in_after[1] - in_before[1]))
echo "# bytes into the ranks' host: $first and $second"
is "each link carries half, within 5%" $((first > 1000000 && 2 * first < (first + second) * 105 / 100 && 2 * second < (first + second) * 105 / 100)) 1
done_testing
