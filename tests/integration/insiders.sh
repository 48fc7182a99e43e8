#!/usr/bin/env bash
# Insiders at the data plane of a cluster with TLS and tokens (insider.c): a member of one job against another one, also when
# it has been expelled; and what owners of certificates are told. ZPS_INSIDER_N: how many of each it tries.
. "$(dirname "$0")/../support/tap.sh"
command -v python3 >/dev/null || { skip "insiders" "no python3"; done_testing; exit; }
tls=yes log_level=debug
. "$top/tests/support/attacked.sh"
n=${ZPS_INSIDER_N:-100}
ok "certificates are made of two teams" zenpsctl certs init "$certs" --servers=s1,s2 --workers=team,spies
cluster_starts
job_starts victim team
victim=$(look members "[r['job_id'] for r in d['ranks'] if r['job'] == 'victim'][0]")
mapfile -t at_ranks < <(look members "'\n'.join(r['address'] for r in sorted(d['ranks'], key=lambda r: r['rank']) if r['job'] == 'victim')")
forged_by_servers() { look stats "sum(s.get('forged', 0) for s in d['servers'])"; }
forged_by_ranks() { look stats "sum(r.get('forged', 0) for r in d['ranks'] if r['job'] == 'victim')"; }
insider() { # JOB EXPELLED: in the background
  token_for "$1"
  files_of worker-spies "$1"
  env "${files[@]}" ZENPS_PROVIDER=net ZENPS_INTERFACE=lo timeout 1800 "$build/tests/integration/insider" "$address" "$1" "$victim" "$n" \
    "$2" "${at_ranks[@]}" >"$scratch/$1.said" 2>"$scratch/$1.log" &
  insider=$!
}
has_said() { grep -q "^$2 " "$scratch/$1.said"; }
of() { sed -n "s/^$2 //p" "$scratch/$1.said"; } # JOB WORD

# What it was told by right, and what it makes of it.
before=$(rounds victim)
insider spy "$scratch/expelled"
ok "a member of another job has tried all it can" until_true has_said spy forged
read -r spy secret <<<"$(of spy in)"
read -r keys n_own <<<"$(of spy own)"
ok "it was told keys ($keys)" [ "${keys:-0}" -gt 0 ]
is "its own job's memory is read by them" "$n_own" "$keys"
is "nothing is read by others" "$(of spy guessed)" "$n 0"
is "it has signed messages to servers and ranks" "$(of spy forged)" "$((4 * n))"
forged_is() { [ "$("$1")" -eq "$2" ]; }
ok "servers count each of them" until_true forged_is forged_by_servers "$((2 * n))"
ok "and so do ranks" until_true forged_is forged_by_ranks "$n" # no link is between them
ok "rounds go on" until_true rounds_are_above victim "$before"

# The job's secret is its members', whatever one asks for.
told=0
for verb in status members "jobs --all" tensors stats security; do
  for name in admin-admin worker-team; do
    files_of "$name"
    # shellcheck disable=SC2086
    env "${files[@]}" timeout 1800 zenpsctl --timeout=300s -e "$address" -o json $verb >"$scratch/told.$told" 2>&1
    told=$((told + 1))
  done
done
ok "who asks was told of the job" grep -q "$spy" "$scratch"/told.*
is "but never its secret" "$(grep -il "$secret" "$scratch"/told.* "$scratch"/*.log)" ""
is "a secret is of 16 bytes" "${#secret}" 32

# It is expelled, and goes on.
ctl kick spy 0 --reason 'it looks about' >"$scratch/out" 2>&1
is "it is expelled" $? 0
before=$(rounds victim)
touch "$scratch/expelled"
wait "$insider"
is "who was expelled reads nothing, after its job" "$? $(of spy former)" "0 $((2 * n)) 0"
ok "rounds go on without it" until_true rounds_are_above victim "$before"

# Such messages are well made: a member's own are taken, and found to be of no epoch.
insider clumsy -
wait "$insider"
is "a member sends some of its own" "$? $(of clumsy former)" "0 $((2 * n)) 0"
taken() { grep -cE "job clumsy: rank 0: CREDIT frame 1[0-9]+ is of epoch 0" "$scratch/s$1.log"; }
is "they are taken, on one server" "$(taken 1)" "$n"
is "and on the other" "$(taken 2)" "$n"
is "no round of the other job has failed" "$(look stats "sum(s['aborted'] for s in d['shards'] if s['job'] == 'victim')")" 0
job_ends victim
ok "both servers are still in" servers_are 2
done_testing
