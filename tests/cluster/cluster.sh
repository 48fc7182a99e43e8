#!/usr/bin/env bash
# The refusals of softroce. The lab: the things that it makes, leaves alone, and leaves behind when interrupted; and a quick benchmark in it.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/tap.sh"
lab=$here/lab

mkdir "$scratch/bare"
PATH=$scratch/bare "$BASH" "$here/softroce" -- true >"$scratch/out" 2>&1
is "softroce without its tools: status" $? 77
said "names what is missing" "^softroce: skipped: (it needs root|qemu-system-x86_64 is missing: deploy/install-deps.sh softroce)$"
"$here/softroce" --cards many -- true >"$scratch/out" 2>&1
is "softroce with a number that is none: status" $? 2
"$here/softroce" --rows jobs,kills >"$scratch/out" 2>&1
is "softroce with a row that is none: status" $? 2
said "names it and the rows" "^softroce: --rows jobs,kills: 'kills' must be one of suite jobs schemes checksums kill stop rails$"
"$here/softroce" --rows rails >"$scratch/out" 2>&1
is "softroce with rails of one card: status" $? 2

if ! why=$("$lab" allowed); then
  skip "the lab and the quick benchmark" "$why"
  done_testing
  exit
fi
export LAB_NAME=t$$
trap '"$lab" down; tap_end' EXIT
spaces() { ip netns list | awk '{ print $1 }' | grep -c "^$LAB_NAME-" || true; }
packet() { "$lab" exec "$1" ip -d link show eth0 | sed -n 's/.*gso_max_size \([0-9]*\).*/\1/p'; } # bytes at most
refused() { ! "$@"; }

ok "four hosts" "$lab" up 4 50mbit
is "and a switch are there" "$(spaces)" 5
ok "a command on a host" "$lab" exec 2 hostname
said "runs under the host's name" "^$LAB_NAME-2\$"
ok "a host is known by its address" "$lab" exec 10.77.0.3 hostname
ok "a command on each" "$lab" each sh -c 'echo "on $LAB_HOST"'
said "runs on the last, too" "on 3"
ok "a failure on one of them" refused "$lab" each sh -c '[ $LAB_HOST != 1 ]'
is "which packets its link takes" "$(packet 2)" 16384
ok "links carry what they should" "$lab" check 1
said "which is said" "the shaping is real"
ok "counters" "$lab" stat
said "of every host" "^host 3 out [1-9]"
"$lab" exec 0 sleep 1000 &
sleeper=$!
ok "taken down" "$lab" down
is "nothing is left" "$(spaces)" 0
wait $sleeper 2>/dev/null
status=$?
ok "its processes were ended" [ $status = 143 -o $status = 137 ] # by SIGTERM, or on a busy machine by SIGKILL

ip netns add "$LAB_NAME-1"
ok "a namespace that is there already" refused "$lab" up 4 50mbit
said "is not touched" "a namespace $LAB_NAME-1 is there already"
is "and nothing else is left" "$(spaces)" 1
ip netns del "$LAB_NAME-1"
ok "one host, its namespace swapped for another" "$lab" up 1 none
is "whose link is not shaped" "$(packet 0)" 65536
ip netns del "$LAB_NAME-0" && ip netns add "$LAB_NAME-0"
ok "is taken down" "$lab" down
is "but for what it did not make" "$(spaces)" 1
ip netns del "$LAB_NAME-0"

"$lab" run 3 10mbit -- sleep 1000 >"$scratch/out" 2>&1 &
runner=$!
until_true eval '[ "$(spaces)" = 4 ] && [ -f "/run/zenps-lab/$LAB_NAME/topology" ]'
is "a lab for one command" "$(spaces)" 4
kill $runner
wait $runner 2>/dev/null
is "is gone when it is interrupted" "$(spaces)" 0
"$lab" up 60 10mbit >"$scratch/out" 2>&1 &
upping=$!
until_true eval '[ "$(spaces)" -ge 3 ]'
kill $upping
wait $upping 2>/dev/null
is "one that is interrupted on its way up leaves nothing" "$(spaces)" 0
ok "an unknown rate" refused "$lab" up 2 50mb
said "says what would be right" "must end in kbit, mbit or gbit"
ok "two racks behind slow links" "$lab" run 4 50mbit --racks 2 --uplink 20mbit -- "$lab" check 1
said "carry no more than they should" "2 hosts of a rack to another.*the link can carry"

# As many of a job's hosts in each rack, and nobody else there: the coordinator's traffic is not the experiment's.
racks_of() { # N RACKS [SERVERS]: hosts of each rack of the lab that `bench` and `figures` make
  PYTHONPATH=$here python3 -B - "$build" "$@" <<'END'
import subprocess, sys
from labbench.zenps import Service

build, n, racks, *servers = sys.argv[1:]
spec = {"n": int(n), "rate": "50mbit", "racks": int(racks), "uplink": "20mbit", "servers": int(servers[0]) if servers else None}
with Service(spec, build).lab as lab:
    ports = [
        subprocess.run(["ip", "-n", f"{lab.name}-sw", "-o", "link", "show", "master", f"rack{rack}"], capture_output=True, text=True)
        for rack in range(int(racks))
    ]
hosts = [sorted(int(word[1:].split("@")[0]) for word in port.stdout.split() if word[0] == "p" and "@" in word) for port in ports]
print(*(" ".join(map(str, rack)) for rack in hosts), sep=" | ")
END
}
is "eight hosts in two racks" "$(racks_of 8 2)" "0 1 2 3 | 4 5 6 7"
is "two hosts in two racks" "$(racks_of 2 2)" "0 | 1"
is "four hosts in two racks, servers on others" "$(racks_of 4 2 2)" "0 1 | 2 3"
is "16 hosts in four racks" "$(racks_of 16 4)" "0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13 14 15"
ok "racks of unequal size" refused "$lab" up 9 50mbit --racks 2 --uplink 20mbit
said "say what would be right" "9 hosts are not 2 racks of equal size: --racked 8"

data=()
[ -z "${ZENPS_DATA:-}" ] || data=(--data "$ZENPS_DATA")
ok "the quick benchmark" timeout 400 "$here/bench" --quick --json --build "$build" --out "$scratch/bench" "${data[@]}"
cp "$scratch/bench/report.md" "$build/cluster-quick.md" 2>/dev/null
said "measures zenps" '"system": "zenps", "scheme": "balanced"'
is "every result is verified" "$(grep -vc -e '"verified": true' -e '"system": "fabric"' "$scratch/bench/rows.jsonl")" 0
ok "done again" timeout 300 "$here/bench" --quick --json --build "$build" --out "$scratch/bench" "${data[@]}"
is "it measures nothing again" "$(grep -c '"system"' "$scratch/out")" 0
ok "auto on slow links takes no longer than it may" \
  timeout 400 python3 "$here/../bench/trying" --turns 1 --limit 40 --most 3 "$build" -- check
said "beside balanced" "^| check | "
if /usr/bin/python3 -c 'import numpy, torch' 2>/dev/null && [ -d /usr/share/libreoffice/help/de ]; then
  ok "PyTorch trains on shaped hosts" timeout 300 "$here/../bench/training" --quick --build "$build"
  said "by Gloo and by zenps" '^| nmt | zenps |'
else
  skip "PyTorch trains on shaped hosts" "no PyTorch, or no texts: deploy/install-deps.sh python"
fi
done_testing
