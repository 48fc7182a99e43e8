#!/usr/bin/env bash
# The table "Messages" of proto/PROTOCOL.md has every message that the code sends or takes, with its two ends, and no other. The tables of
# members are those of the code, but for their last column. TAP.
set -u
top=$(cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}" && pwd) || exit 1
program=${ZPS_TOP_BUILDDIR:-$top}/tests/support/print_messages
[[ $program = /* ]] || program=$PWD/$program
cd "$top" || exit 1
page=proto/PROTOCOL.md
n=0 bad=0
agree() { # NAME CODE PAGE: lines of both sides
  n=$((n + 1))
  if [ -n "$2" ] && [ "$2" = "$3" ]; then
    echo "ok $n - $1"
  else
    bad=$((bad + 1))
    echo "not ok $n - $1"
    diff <(echo "$2") <(echo "$3") | sed -n 's/^</# not in PROTOCOL.md:/p; s/^>/# in PROTOCOL.md alone:/p'
  fi
}
# Rows as MESSAGE|FROM|TO|PLANE|ANSWER|SINCE.
rows=$(sed -n '/^## Messages/,/^### /s/^| *\(.*[^ ]\) *|$/\1/p' $page | sed 's/`//g; s/ *| */|/g' | grep -E '^([a-z.]+|[0-9]+ [A-Z]+)\|')
control() { awk -F '|' -v from="$1" -v to="$2" '$4 == "control" && (from == "" || $2 == from) && $3 == to { print }' <<<"$rows"; }
# shellcheck disable=SC2016
is_notice='{ print $1, ($5 == "-" ? "notification" : "call") }'

# Tables of methods: {"name", ROLES, notifies, ...
methods=$(grep -ohE '^ *\{"[a-z.]+", [A-Z_ |]+, (true|false)' server/coordinator/methods_*.c | sed -E '
  s/^ *\{"([a-z.]+)", ([A-Z_ |]+), true$/\1|\2|notification/; s/^ *\{"([a-z.]+)", ([A-Z_ |]+), false$/\1|\2|call/
  s/ZPS_METHOD_ANY_ROLE/any/; s/ZPS_CONN_SERVER \| ZPS_CONN_WORKER/server, rank/; s/ZPS_CONN_SERVER/server/; s/ZPS_CONN_WORKER/rank/
  s/ZPS_CONN_CTL/zenpsctl/')
agree "messages to the coordinator are those of methods_*.c, hello beside" \
  "$({ echo "$methods"; grep -q '"hello"' common/control/rpc_hello.c && echo 'hello|server, rank, zenpsctl|call'; } | sort)" \
  "$(control "" coordinator | awk -F '|' '{ print $1 "|" $2 "|" ($5 == "-" ? "notification" : "call") }' | sort)"
agree "calls to servers are those of agent_jobs.c" \
  "$({ sed -n '/^} calls\[\]/,/};/p' server/daemon/agent_jobs.c | grep -oE '"[a-z.]+"'
    grep -oE 'strcmp\(method, "[a-z.]+"' server/daemon/agent_jobs.c | grep -oE '"[a-z.]+"'; } | tr -d '"' | sed 's/$/ call/' | sort -u)" \
  "$(control coordinator server | awk -F '|' "$is_notice" | sort)"
agree "the coordinator makes just these calls" \
  "$({ grep -ohE 'method_p = "[a-z.]+"' server/coordinator/calls.c
    grep -ohE 'zps_rpc_call\(.*"[a-z.]+"' server/coordinator/*.c; } | grep -oE '"[a-z.]+"' | tr -d '"' | sort)" \
  "$(control coordinator server | cut -d '|' -f 1 | sort)"
agree "notifications to ranks are those of membership.c" \
  "$(grep -oE 'strcmp\(method, "[a-z.]+"' worker/control/membership.c | grep -oE '"[a-z.]+"' | tr -d '"' | sed 's/$/ notification/' | sort)" \
  "$(control coordinator rank | awk -F '|' "$is_notice" | sort)"
agree "the coordinator makes just these notifications" \
  "$(cat server/coordinator/*.c | tr -s ' \n' ' ' | grep -oE '(tell_worker\( ?action|zps_rpc_notify\( ?conn->rpc), "[a-z.]+"' | grep -oE '"[a-z.]+"' | tr -d '"' | sort)" \
  "$({ control coordinator rank; control coordinator "server, rank"; } | cut -d '|' -f 1 | sort)"
agree "frames are those of wire.h, with their numbers" \
  "$(sed -nE 's/^ *ZPS_FRAME_([A-Z]+) = ([0-9]+),.*/\2 \1/p' proto/wire.h | sort)" \
  "$(awk -F '|' '$4 == "data" { print $1 }' <<<"$rows" | sort)"
# wire.h: "worker -> owner", "worker -> owner or worker", "either way".
agree "frames go where wire.h says" \
  "$(sed -nE 's/^ *ZPS_FRAME_([A-Z]+) = [0-9]+, *\/\* (either way|[a-z]+ -> [a-z]+( or [a-z]+)?):.*/\1 \2/p' proto/wire.h |
    sed 's/either way/server, rank -> server, rank/; s/worker/rank/g; s/owner/server/g; s/server or rank/server, rank/' | sort)" \
  "$(awk -F '|' '$4 == "data" { sub(/^[0-9]+ /, "", $1); print $1, $2, "->", $3 }' <<<"$rows" | sort)"
version=$(sed -n 's/^#define ZPS_PROTOCOL_VERSION \([0-9]*\)u$/\1/p' common/base/version.h)
agree "the page is of the version that version.h has, and no message is newer" "$version" \
  "$(sed -nE 's/.*control plane is at version ([0-9]+).*/\1/p' $page; cut -d '|' -f 6 <<<"$rows" | awk -v version="$version" '$1 + 0 > version + 0')"
agree "every message has a heading or is named in the text" "$(cut -d '|' -f 1 <<<"$rows" | sed 's/^[0-9]* //' | sort -u)" \
  "$(cut -d '|' -f 1 <<<"$rows" | sed 's/^[0-9]* //' | sort -u | while read -r name; do
    sed '1,/^## Control plane/d' $page | grep -qF "$name" && echo "$name"
  done)"
# A table of members has "| `MESSAGES` | type | values | left out | meaning |" at its head.
if [ -x "$program" ]; then
  named=$(cat proto/control*.c | grep -oE '\.name = "[a-z.]+( answer)?"' | cut -d '"' -f 2 | sort -u)
  agree "every table of the code that is a message's is among them" "$named" \
    "$("$program" | cut -d '|' -f 1 | sed 's/, /\n/g' | sort -u | grep -xF "$named")"
  agree "members of messages are those of the code's tables" "$("$program" | sort)" \
    "$(sed 's/`//g; s/ *| */|/g; s/^|//' $page | awk -F '|' '
      $2 == "type" && $3 == "values" && $4 == "left out" { message = $1; next }
      !/\|/ { message = ""; next }
      message != "" && !/^---/ { print message "|" $1 "|" $2 "|" $3 "|" $4 }' | sort)"
else
  n=$((n + 1))
  echo "ok $n - members of messages are those of the code's tables # SKIP no $program"
fi
echo "1..$n"
[ "$bad" -eq 0 ]
