#!/usr/bin/env bash
# zenps(7) has every environment variable that the library reads, every field of the log, every exit code of
# common/base/exit.h, every man page, and no other. Texts of programs name options, variables and flags that there are. TAP.
set -u
top=${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}
page=$top/deploy/man/zenps.7
n=0 bad=0
agree() { # NAME WANTED DOCUMENTED
  n=$((n + 1))
  if [ -n "$3" ] && [ "$2" = "$3" ]; then
    echo "ok $n - $1"
  else
    bad=$((bad + 1))
    echo "not ok $n - $1"
    diff <(echo "$2") <(echo "$3") | sed 's/^</# not in zenps.7:/; s/^>/# in zenps.7 alone:/'
  fi
}
agree "zenps(7) and the library agree on the environment" \
  "$(sed -n 's/.*\.name = "\([a-z._-]*\)".*/zenps_\1/p' "$top/worker/base/options.c" | tr 'a-z.-' 'A-Z__' | sort -u)" \
  "$(grep -oE 'ZENPS_[A-Z_]+' "$page" | sort -u)"
agree "zenps(7) and exit.h agree on the exit codes, word by word" \
  "$(sed -n 's/^ *X([A-Z]*, \([0-9]*\), "\(.*\)").*/\1 \2/p' "$top/common/base/exit.h")" \
  "$(sed -n '/^\.SH EXIT STATUS/,/^\.PP/p' "$page" | awk '/^\.B / { code = $2; getline; print code, $0 }')"
agree "zenps(7) and log.c agree on the fields of a line" \
  "$(sed -n 's/^ *say_\(name\|number\)("\([a-z]*\)".*/\2/p' "$top/common/base/log.c")" \
  "$(sed -n '/^\.SH LOG/,/^\.PP/p' "$page" | awk '/^\.TP/ { getline; print $2 }')"
agree "the guide has a paragraph for each error code" \
  "$(sed -n 's/^ *X(\(ERR_[A-Z_]*\), -[0-9]*,.*/\1/p' "$top/common/base/err.h")" \
  "$(sed -n 's/^### \(ERR_[A-Z_]*\)$/\1/p' "$top/deploy/guide/troubleshooting.md")"
# The first line of a row in metrics.c has name, type, labels and help.
metrics=$(sed -n 's/^ *{"\(zenps_[a-z_]*\)", \([A-Z]*\), "\([^"]*\)", "\(.*\)",$/\1|\2|\3|\4/p' "$top/server/ctl/metrics.c" |
  awk -F '|' '{ gsub(/=[a-z_]+/, "", $3); gsub(/ /, ", ", $3); print $1 "|" tolower($2) "|" $3 "|" $4 }')
agree "the guide's metrics are those of metrics.c, word by word" "$metrics" \
  "$(sed -nE 's/^\| `(zenps_[a-z_]+)` \| ([a-z]+) \| ([a-z_, ]*) ?\| (.*) \|$/\1|\2|\3|\4/p' "$top/deploy/guide/metrics.md" | sed 's/ *|/|/g')"
agree "the guide's alerts are those of alerts.yml" \
  "$(sed -n 's/^ *- alert: //p' "$top/deploy/monitoring/alerts.yml")" \
  "$(sed -n 's/^| \(Zenps[A-Za-z, ]*\) |.*/\1/p' "$top/deploy/guide/metrics.md" | tr -d ' ' | tr ',' '\n')"
agree "zenps(7) refers to every page that is made, in this order" \
  "$(sed -n '/^MAN_PAGES =/,/[^\\]$/p' "$top/deploy/Makefile.inc" | grep -oE '[a-z-]+\.[18]' | sed 's/\./ /')" \
  "$(sed -n '/^\.SH SEE ALSO/,$s/^\.BR \([a-z\\-]*\) (\([18]\)).*/\1 \2/p' "$page" | tr -d '\\')"
agree "zenpsctl's commands have pages" \
  "$(grep -oE '^ *\{\.name = "[a-z]+"' "$top/server/ctl/verbs.c" | grep -oE '"[a-z]+"' | tr -d '"' | grep -v '^help$')" \
  "$(sed -n 's/^\.BR zenpsctl\\-\([a-z]*\) (1).*/\1/p' "$page")"

# ---- what error texts, log lines and helps name ----
known() { # NAME KNOWN-WORDS FOUND: lines FILE:WORD
  n=$((n + 1))
  local unknown
  unknown=$(echo "$3" | awk -F: -v known="$2" 'BEGIN { split(known, words, /[ \n]+/); for (i in words) is_known[words[i]] = 1 }
    NF && !($NF in is_known)' | sort -u)
  if [ -n "$3" ] && [ -z "$unknown" ]; then
    echo "ok $n - $1"
  else
    bad=$((bad + 1))
    echo "not ok $n - $1"
    echo "$unknown" | sed 's/^/# there is no such: /'
  fi
}
rows() { grep -hoE '\.name = "[a-z0-9._-]+"' "$@" | sed 's/.*"\(.*\)"/\1/'; }
# in_strings PATTERN FILE...: FILE:WORD for each match in a text. A string that is one word is a name, and no text.
in_strings() {
  local pattern=$1
  shift
  grep -noE '"([^"\]|\\.)*"' /dev/null "$@" | grep -vE ':"[^ ]*"$' | sed -E 's/^([^:]*):[0-9]+:/\1 /' |
    awk -v pattern="$pattern" '{ file = $1; sub(/^[^ ]* /, ""); gsub(/\{[^}]*\}/, "")
      while (match($0, pattern)) {
        word = substr($0, RSTART, RLENGTH); $0 = substr($0, RSTART + RLENGTH - 1)
        gsub(/^[^A-Za-z]+|[^A-Za-z0-9_]+$/, "", word); print file ":" word
      } }'
}
cd "$top" || exit 1
c_texts=$(find server common worker -name '*.[ch]')
py_texts=$(find worker/python -name '*.py')
daemon=$(rows server/daemon/options.c)
tools=$(rows $(grep -lE 'struct zps_opt |struct zps_opt_table|OPT\(' $c_texts))
library=$(rows worker/base/options.c)
variables() { tr 'a-z.-' 'A-Z__' | sed 's/^/ZENPS_/'; }
names='(^|[^A-Za-z0-9_./-])[a-z]+\\.[a-z_]+($|[^A-Za-z0-9_./(-])'
known "dotted words of C texts are options of zenpsd, methods or files" \
  "$daemon $(grep -hoE '[a-z]+\.[a-z_]+' proto/PROTOCOL.md proto/golden/control/*.jsonl | sort -u) ca.key torch.distributed" \
  "$(in_strings "$names" $c_texts | grep -vE '\.(pem|conf|service|so|xz|gz|sock|md|new|py|h|txt)$')"
sections=$(echo "$daemon" | sed -n 's/\..*//p' | sort -u | tr '\n' '|')
# Python's docstrings speak of attributes.
known "dotted words of Python texts, of a section of zenpsd's options, are options" "$daemon job.servers" \
  "$(in_strings "(^|[^A-Za-z0-9_./-])(${sections}memory)\\\\.[a-z_]+(\$|[^A-Za-z0-9_./(])" $py_texts)"
known "variables that texts name are read by a program" \
  "$(printf '%s\n' "$daemon" "$tools" "$library" | variables) $(grep -ohE '\bZENPS_[A-Z0-9_]+' worker/include/zenps/*.h | sort -u) \
   ZENPS_COMPONENT ZENPS_LIBFABRIC ZENPS_LIBRARY" \
  "$(in_strings 'ZENPS_[A-Z0-9_]+' $c_texts $py_texts | grep -v '_$')"
known "metrics that alerts, their tests and the dashboard name are those of metrics.c" \
  "$(cut -d '|' -f 1 <<<"$metrics") zenps_round_seconds_bucket zenps_job" \
  "$(grep -oE 'zenps_[a-z_]+' deploy/monitoring/*)"
# --no_python is torchrun's, --shm-size docker's.
known "flags that texts name are options of a program, or of configure" \
  "$(printf '%s\n' "$daemon" "$tools" | tr '._' '--') help version no shm-size $(sed -nE 's/.*WITH(_PKG)?\(\[([a-z]+)\].*/with-\2/p' configure.ac)" \
  "$(in_strings '(^|[^A-Za-z0-9_-])--[a-z][a-z-]*[a-z]' $c_texts)"
echo "1..$n"
[ "$bad" -eq 0 ]
