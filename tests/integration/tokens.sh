#!/usr/bin/env bash
# Tokens with real processes: who is let into a job, keys that change while jobs run, and zenpsrun's own for each run.
. "$(dirname "$0")/../support/tap.sh"

# ---- zenpsctl token ----
keys=$scratch/keys
ok "a key is made" zenpsctl token key "$keys"
is "its owner alone can read it" "$(stat -c %a "$keys")" 600
zenpsctl token key "$keys" >"$scratch/out" 2>&1
is "a file that is there stays: status 1" $? 1
said "and it is named" "^zenpsctl token: key file $keys: there is a file of this name"
ok "a token is made for a job" zenpsctl token make "$keys" train --ttl=1h --out="$scratch/train"
said "with its end" "/train: a token for job train, expires: 20[0-9-]*T[0-9:]*Z$"
ok "one for jobs of a team is printed" zenpsctl token make "$keys" "team-*"
(umask 077 && cp "$scratch/out" "$scratch/team")
ok "what a token is for is shown" zenpsctl token show "$scratch/team"
said "the job" '^job: team-\*$'
said "and the end" '^expires: never$'
zenpsctl token mak "$keys" train >"$scratch/out" 2>&1
is "a wrong word: status 2" $? 2
said "with the right ones" "there is no 'mak': zenpsctl token key KEYFILE | make KEYFILE JOB | show FILE"
zenpsctl token make "$keys" >"$scratch/out" 2>&1
is "without a job: status 2" $? 2
zenpsctl token show "$keys" >"$scratch/out" 2>&1
is "a key is no token: status 2" $? 2
said "and the form is named" 'this is no token: must be zps1.EXPIRES.MAC.JOB'

# ---- the coordinator's file ----
chmod 644 "$keys"
zenpsd --control-listen=127.0.0.1:0 --coordinator-token-key="$keys" --check >"$scratch/out" 2>&1
is "a key file that others can read: status 2" $? 2
said "and what would be right" "--coordinator-token-key: key file $keys: its mode is 0644, but it holds a secret: must be 0640 at most"
chmod 600 "$keys"
zenpsd --roles=server --control-coordinator=127.0.0.1:1 --coordinator-token-key="$keys" --check >"$scratch/out" 2>&1
is "keys of a server: status 2" $? 2

# ---- ranks ----
zenpsd --fabric-provider=net --fabric-interface=lo --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" \
  --coordinator-token-key="$keys" 2>"$scratch/log" &
daemon=$!
ok "a coordinator with keys comes up" until_true test -s "$scratch/address"
address=$(cat "$scratch/address")
train() { # TOKENFILE JOB: two ranks of a short verified job
  env ${1:+ZENPS_TOKEN_FILE="$1"} timeout 1800 zenpsrun -n 2 --coordinator "$address" --provider=net --interface=lo --job="$2" --prefix=no -- \
    zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
}
refused() { # NAME TOKENFILE JOB PATTERN
  if train "$2" "$3" >"$scratch/out" 2>&1; then tap_result 1 "$1"; else tap_result 0 "$1"; fi
  said "$1: why" "$4"
}
ok "the coordinator says that it asks for tokens" zenpsctl --timeout=300s -e "$address" security
said "of so many keys" "^jobs +guarded +by tokens, of 1 key +"
ok "ranks with the job's token are let in" train "$scratch/train" train
ok "and with the token of a team's jobs into one of these" train "$scratch/team" team-7
refused "none without a token" "" train "job 'train' takes ranks with a token, and this one has none: ZENPS_TOKEN_FILE"
refused "none with another job's" "$scratch/train" other "job 'other': this token lets into 'train' alone"
sed 's/train/other/' "$scratch/train" >"$scratch/forged"
chmod 600 "$scratch/forged"
refused "none with a forged one" "$scratch/forged" other "job 'other': no key of the coordinator's has made this token"
(umask 077 && zenpsctl token make "$keys" train --ttl=1ms >"$scratch/short")
sleep 2.1 # an end is told in whole seconds
refused "none with one that has expired" "$scratch/short" train "job 'train': this token has expired [0-9]+ s ago"
cp "$scratch/train" "$scratch/wide" && chmod 644 "$scratch/wide"
refused "none whose token others can read" "$scratch/wide" train "ZENPS_TOKEN_FILE: token file .*/wide: its mode is 0644"
refused "none whose file is not there" "$scratch/nothing" train "ZENPS_TOKEN_FILE: token file .*/nothing: cannot be opened"
ok "no token is in the log" sh -c "! grep -qE 'zps1\.[0-9]+\.[0-9a-f]{64}' '$scratch/log'"

# ---- a key goes while a job runs ----
reloaded() { [ "$(grep -c ': reloaded' "$scratch/log")" -ge "$1" ]; }
reload() { # NUMBER of the reload
  kill -HUP "$daemon" && until_true reloaded "$1"
}
ZENPS_TOKEN_FILE=$scratch/train timeout 1800 zenpsrun -n 2 --coordinator "$address" --provider=net --interface=lo --job=train --prefix=no -- \
  sh -c 'while [ ! -e "$1" ]; do sleep 0.05; done; exec zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify' sh "$scratch/go" >"$scratch/late" 2>&1 &
late=$!
# This one is in before the key changes. Its rounds are slow, and leave the processors to others.
ZENPS_TOKEN_FILE=$scratch/team ZENPS_FABRIC_FAULT=delay=1:5ms timeout 1800 zenpsrun -n 2 --coordinator "$address" --provider=fault+net --interface=lo --job=team-long --prefix=no -- \
  zenps-perf --rows 2000 --density 0.05 --steps 1000000 --warmup 0 >"$scratch/long" 2>&1 &
long=$!
runs() { zenpsctl --timeout=300s -e "$address" -o json jobs | grep -q '"running"'; }
ok "a job runs" until_true runs
zenpsctl token key "$scratch/new" >/dev/null
cat "$scratch/new" "$keys" >"$scratch/both" && cat "$scratch/both" >"$keys"
ok "a new key stands in front of the old one: reload" reload 1
touch "$scratch/go"
wait "$late"
is "a token of the old key still lets in" $? 0
ok "the new key makes a token" zenpsctl token make "$keys" train --out="$scratch/train2"
cat "$scratch/new" >"$keys"
ok "the old key is taken away: reload" reload 2
ok "the new token lets in" train "$scratch/train2" train
refused "the old one does not any more" "$scratch/train" train "no key of the coordinator's has made this token"
ok "the job that was in before runs on" runs
kill "$long"
wait "$long" 2>/dev/null
echo "what is this" >"$keys"
kill -HUP "$daemon"
complains() { grep -q 'reload: --coordinator-token-key: key file .*: line 1 is no key.*: the running configuration stays' "$scratch/log"; }
ok "a file that makes no sense is refused at a reload" until_true complains
ok "and the keys stay" train "$scratch/train2" train
kill -TERM "$daemon"
wait "$daemon"
is "SIGTERM ends the coordinator with status 0" $? 0

# ---- zenpsrun ----
cat >"$scratch/inside.sh" <<'S'
[ -n "$ZENPS_TOKEN_FILE" ] && stat -c 'the file has mode %a' "$ZENPS_TOKEN_FILE"
dirname "$ZENPS_TOKEN_FILE" >"$1/folder"
cut -d. -f1,4 "$ZENPS_TOKEN_FILE"
env -u ZENPS_TOKEN_FILE ZENPS_JOB=stranger zenps-perf --rows 100 --density 0.5 --steps 1 --warmup 0
echo "without it: status $?"
exec zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
S
ok "a run has secrets of its own" timeout 1800 zenpsrun -n 1 --provider=net --interface=lo --prefix=no -- sh "$scratch/inside.sh" "$scratch"
said "its ranks a token" '^the file has mode 600$'
said "for all jobs" '^zps1\.\*$'
said "without which nobody is let in" '^without it: status [1-9]'
ok "nothing of it stays" test ! -e "$(cat "$scratch/folder")"
ok "a run can have the keys of others" timeout 1800 zenpsrun -n 1 --token-key "$scratch/new" --provider=net --interface=lo --prefix=no -- \
  zenps-perf --rows 2000 --density 0.05 --steps 3 --warmup 0 --verify
ok "and leaves them as they are" test -s "$scratch/new"
zenpsrun -n 1 --token-key "$scratch/new" --coordinator 127.0.0.1:1 -- true >"$scratch/out" 2>&1
is "but not with a coordinator of others: status 2" $? 2
done_testing
