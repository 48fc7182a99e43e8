#!/usr/bin/env bash
# A daemon that has nothing to do does nothing, and one that has worked for long is no bigger than before.
. "$(dirname "$0")/../support/tap.sh"

address_file=$scratch/address
echo bait >"$scratch/bait"
ln -s "$scratch/bait" "$address_file.new" # where a daemon of old wrote
zenpsd --control-listen=127.0.0.1:0 --control-address-file="$address_file" --log-level=warn >"$scratch/log" 2>&1 &
daemon=$!
until_true test -s "$address_file"
ok "a daemon with both roles comes up" test -s "$address_file"
is "its address can be read by all, and nothing is left beside it" "$(stat -c %a "$address_file") $(echo "$address_file"*)" "644 $address_file $address_file.new"
is "what lay in the way of old is left alone" "$(cat "$scratch/bait")" "bait"
address=$(cat "$address_file")
# The libtool wrapper of a build tree replaces itself by the program, so this is the daemon's own pid.
rss_kib() { awk '$1 == "VmRSS:" { print $2 }' "/proc/$daemon/status"; }
rounds() { # STEPS: so many rounds of two ranks
  zenpsrun -n 2 --coordinator "$address" --prefix=no -- zenps-perf --rows 20000 --density 0.02 --steps "$1" --warmup 0 --verify
}

share=$(idle_share "$daemon")
ok "idle, it uses under 0.5% of a core ($share thousandths)" [ "$share" -lt 5 ]

# Buffers, threads' heaps and the fabric's tables reach their size in the first jobs.
for _ in 1 2 3; do ok "10,000 rounds, to have held everything once" rounds 10000; done
small=$(rss_kib)
ok "10,000 rounds more, every one verified" rounds 10000
share=$(idle_share "$daemon") # whereupon nothing of the last job is left
large=$(rss_kib)
ok "its memory is flat over them ($small KiB before, $large KiB after)" [ "$large" -le $((small + 512)) ]
ok "idle again ($share thousandths of a core)" [ "$share" -lt 5 ]
is "it has said nothing to worry about" "$(grep -v 'older than 1.18' "$scratch/log")" "" # of this host's libfabric
kill -TERM "$daemon"
wait "$daemon"
is "SIGTERM ends it with status 0" $? 0

rm "$address_file"
zenpsd --roles=coordinator --control-listen=127.0.0.1:0 --control-address-file="$address_file" >"$scratch/log" 2>&1 &
coordinator=$!
until_true test -s "$address_file"
address=$(cat "$address_file")
# Between the two: answers stop at the registration.
cat >"$scratch/deaf.py" <<'END'
import glob, os, socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
server = listener.accept()[0]
coordinator = socket.socket(socket.AF_UNIX) # a caller over TCP may be any user of this host
coordinator.connect(glob.glob(f"/tmp/zenps-{os.getuid()}/{sys.argv[1]}.*")[0])
asked = threading.Event()
def answers():
    while data := coordinator.recv(65536):
        if not asked.is_set(): server.sendall(data)
threading.Thread(target=answers, daemon=True).start()
while data := server.recv(65536):
    if b"server.register" in data:
        asked.set()
    coordinator.sendall(data)
    if asked.is_set(): print("asked", flush=True)
END
python3 "$scratch/deaf.py" "$address" >"$scratch/deaf" &
until_true test -s "$scratch/deaf"
zenpsd --roles=server --control-coordinator=127.0.0.1:"$(cat "$scratch/deaf")" >"$scratch/server" 2>&1 &
server=$!
ok "a server registers, and hears no answer" until_true grep -q asked "$scratch/deaf"
kill -TERM "$server"
wait "$server"
is "SIGTERM ends it, too" $? 0
left() { grep -qE "has left|is lost" "$scratch/log"; }
until_true left
cp "$scratch/log" "$scratch/out"
said "a server without an answer to its registration leaves" 'has left$'
is "and is not lost" "$(grep 'is lost' "$scratch/out")" ""
done_testing
