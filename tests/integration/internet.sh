#!/usr/bin/env bash
# Training across the internet: four peers, two of them behind NATs with the same private address, round trips of 100 ms,
# 0.1% of packets lost, everything encrypted. Peers take outer steps. One is killed, one replaces it, one is stopped
# for a while. The loss is that of DDP at equal samples. And a round with a quorum goes on without a stopped peer.
#
# env: ZPS_STOPPED_S  each stopped peer stays so for this many seconds at least, and the others go on meanwhile (default 0: until
#                     they have gone on)
. "$(dirname "$0")/../support/tap.sh"
wan=$top/tests/cluster/wan python=/usr/bin/python3
export WAN_NAME=i$(($$ % 1000000)) ZPS_TOP_BUILDDIR=$build
trap '"$wan" down; tap_end' EXIT
why=$("$wan" allowed) || true
"$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' || why="python3-torch is not installed"
if [ -n "$why" ]; then
  skip "training across the internet" "$why"
  done_testing
  exit
fi
unset ZENPS_CONTROL_DEAD ZENPS_COORDINATOR_RESTART_GRACE ZENPS_JOIN_TIMEOUT ZENPS_ROUND_TIMEOUT ZENPS_INTERFACE
export ZENPS_PROFILE=internet ZENPS_LIBRARY=$build/.libs/libzenps.so.0 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1

server=$("$wan" up 5 && "$wan" host s)
for peer in a b e; do "$wan" host $peer delay=50 loss=0.1; done >"$scratch/out"
for peer in c d; do "$wan" host $peer delay=50 loss=0.1 nat=yes; done >"$scratch/out"
ok "certificates" zenpsctl certs init "$scratch/certs" --coordinators=s --workers=team
ok "a key of tokens" zenpsctl token key "$scratch/token.keys"
ok "a token" zenpsctl token make "$scratch/token.keys" 'team-*' --out="$scratch/token"
export ZENPS_TLS_CA=$scratch/certs/ca.pem
as() { export ZENPS_TLS_CERT=$scratch/certs/$1.pem ZENPS_TLS_KEY=$scratch/certs/$1.key; }
daemon() { # PORT OPTION...
  as coordinator-s
  "$wan" exec s zenpsd --control-listen="$server:$1" --coordinator-token-key="$scratch/token.keys" "${@:2}" >"$scratch/zenpsd.$1" 2>&1 &
  as worker-team
}
peer() { # NAME COMMAND...: its process is $scratch/NAME.pid, its output $scratch/NAME.out
  local name=$1
  shift
  "$wan" exec "$name" "$@" >"$scratch/$name.out" 2>&1 &
  echo $! >"$scratch/$name.pid"
}
send() { kill -"$2" "$(cat "$scratch/$1.pid")"; } # PEER SIGNAL
export ZENPS_TOKEN_FILE=$scratch/token ZENPS_COORDINATOR=$server:7077

# ---- outer steps ----
daemon 7077 --control-dead=20s --control-heartbeat=1s --control-resume-grace=1s
until_true grep -q 'listening at' "$scratch/zenpsd.7077"
cp "$scratch/zenpsd.7077" "$scratch/out"
said "the log shows the profile" 'profile internet: control.heartbeat as --control-heartbeat says, .*coordinator.restart_grace = 2m, fabric.encrypt = yes'

"$python" - "$scratch/text" <<'END'
import random, sys

draw = random.Random(1)
follows = [[draw.randrange(400) for _ in range(4)] for _ in range(400)]  # each word is followed by one of four
with open(sys.argv[1], "w", encoding="ascii") as file:
    for _ in range(9500):
        word = draw.randrange(400)
        words = [word]
        for _ in range(11):
            word = follows[word][min(int(draw.expovariate(1.2)), 3)]
            words.append(word)
        print(*(chr(97 + word // 20) + chr(97 + word % 20) for word in words), file=file)
END
folder=$scratch/run
mkdir "$folder"
model=(--data "$scratch/text" --width 16 --hidden 32 --negatives 32 --length 10 --threads 1 --every 10)
each=$((4 * 10 * 16)) # samples of an outer step of four peers
stopped_s=${ZPS_STOPPED_S:-0}
more=$((stopped_s / 5)) # outer steps of the others, one in 5 s, while a peer stays stopped
last=$(((16 + more) * each))
most() { echo "$1" >"$folder/most.part" && mv "$folder/most.part" "$folder/most"; }
trainer() { ZENPS_JOB=team-outer peer "$1" "$python" "$top/tests/integration/internet.py" "$folder" "$1" "${model[@]}" --batch 16 \
  --peers 2:4 --samples $last --outer-dense --outer-values qsgd8; }
shows() { sed -nE "s/.*\b$2 ([0-9]+).*/\1/p" "$folder/$1" 2>/dev/null; } # PEER WHAT
reaches() { # SAMPLES WORLD PEER...
  local samples=$1 world=$2 peer
  shift 2
  for peer in "$@"; do [ "$(shows "$peer" trained)" -ge "$samples" ] && [ "$(shows "$peer" world)" = "$world" ] || return 1; done
}
most $((3 * each))
for name in a b c d; do trainer $name; done
ok "four peers take outer steps" until_true reaches $((3 * each)) 4 a b c d
send a KILL
most $((6 * each))
ok "three go on when one is killed" until_true reaches $((6 * each)) 3 b c d
trainer e
most $((9 * each))
ok "another one takes its place" until_true reaches $((9 * each)) 4 b c d e
send c STOP
began=$SECONDS
most $((12 * each))
ok "the others go on when one is stopped" until_true reaches $((12 * each)) 3 b d e
for ((n = 13; n <= 12 + more; n++)); do
  until [ $((SECONDS - began)) -ge $((5 * (n - 12))) ]; do sleep 0.5; done
  most $((n * each))
  until_true reaches $((n * each)) 3 b d e || break
done
[ $more = 0 ] || ok "and all the time, $((SECONDS - began)) s" [ $n -gt $((12 + more)) ]
send c CONT
ok "it comes back when it is continued" until_true reaches $(((12 + more) * each)) 4 b c d e
most $last
for name in b c d e; do
  wait "$(cat "$scratch/$name.pid")"
  is "peer $name ends well" $? 0
done
cat "$scratch"/[bcde].out >"$scratch/out"
is "all have the same parameters" "$(grep -oE 'digest [0-9a-f]+' "$scratch/out" | uniq -c | awk '{ print $1 }')" 4
sed -n 's/^peer/# peer/p' "$scratch/out"

# One process with batches of four ranks trains what four ranks of DDP train.
trained=$(grep -m 1 -oE 'trained [0-9]+' "$scratch/out" | tr -dc 0-9)
ok "DDP of as many samples" "$python" "$top/worker/examples/python/lm.py" --how alone "${model[@]}" --batch 64 --epochs 2 --steps $((trained / 128)) --json
grep '^{' "$scratch/out" >"$scratch/ddp"
cat "$scratch"/[bcde].out >"$scratch/out"
"$python" - "$scratch/ddp" "$(grep -m 1 -oE 'loss [0-9.]+' "$scratch/out")" >"$scratch/compared" <<'END'
import json, math, sys

with open(sys.argv[1], encoding="ascii") as file:
    right = math.log(json.loads(file.readlines()[-1])["metrics"][-1])
own = float(sys.argv[2].split()[1])
print(f"outer steps {own:.4f}, DDP {right:.4f}: {100 * (own / right - 1):+.2f}%")
sys.exit(own > 1.01 * right)
END
is "the loss is within 1% of DDP's: $(cat "$scratch/compared")" $? 0

# ---- a quorum ----
daemon 7078 --control-dead=300s
until_true grep -q 'listening at' "$scratch/zenpsd.7078"
folder=$scratch/rounds
mkdir "$folder"
most 6
export ZENPS_COORDINATOR=$server:7078 ZENPS_JOB=team-quorum ZENPS_WORLD_SIZE=3
rank=0
for name in b c d; do
  ZENPS_RANK=$rank peer $name "$python" "$top/tests/integration/quorum.py" "$folder" 100
  rank=$((rank + 1))
done
has() { [ "$(shows "rank-$1" "$2")" -ge "$3" ]; } # RANK WHAT N
for rank in 0 1 2; do ok "rank $rank does its first rounds" until_true has $rank steps 6; done
late=$(shows rank-2 late)
send d STOP
most 14
began=$SECONDS
for rank in 0 1; do ok "rank $rank goes on while one behind NAT is stopped" until_true has $rank steps 14; done
until [ $((SECONDS - began)) -ge "$stopped_s" ]; do sleep 0.5; done
ok "which does not" [ "$(shows rank-2 steps)" -le 7 ]
send d CONT
ok "it gets the sums that it has missed" until_true has 2 steps 14
ok "and knows that it was late" [ "$(shows rank-2 late)" -ge $((late + 7)) ]
most 0
for name in b c d; do
  wait "$(cat "$scratch/$name.pid")"
  is "rank on $name ends well" $? 0
done
"$wan" stat >"$scratch/out"
said "packets were lost on the way" 'lost [1-9]'
done_testing
