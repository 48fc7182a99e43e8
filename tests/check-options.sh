#!/usr/bin/env bash
# zenps(7) has every environment variable that the library reads, every exit code of common/base/exit.h, every man page, and no
# other. TAP.
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
  "$(sed -n 's/^ *{\.name = "\([a-z.-]*\)",$/zenps_\1/p' "$top/worker/base/options.c" | tr 'a-z.-' 'A-Z__' | sort -u)" \
  "$(grep -oE 'ZENPS_[A-Z_]+' "$page" | sort -u)"
agree "zenps(7) and exit.h agree on the exit codes, word by word" \
  "$(sed -n 's/^ *X([A-Z]*, \([0-9]*\), "\(.*\)").*/\1 \2/p' "$top/common/base/exit.h")" \
  "$(sed -n '/^\.SH EXIT STATUS/,/^\.PP/p' "$page" | awk '/^\.B / { code = $2; getline; print code, $0 }')"
agree "zenps(7) refers to every page that is made, in this order" \
  "$(sed -n '/^MAN_PAGES =/,/[^\\]$/p' "$top/deploy/Makefile.inc" | grep -oE '[a-z-]+\.[18]' | sed 's/\./ /')" \
  "$(sed -n '/^\.SH SEE ALSO/,$s/^\.BR \([a-z\\-]*\) (\([18]\)).*/\1 \2/p' "$page" | tr -d '\\')"
agree "zenpsctl's commands have pages" \
  "$(grep -oE '^ *\{\.name = "[a-z]+"' "$top/server/ctl/verbs.c" | grep -oE '"[a-z]+"' | tr -d '"' | grep -v '^help$')" \
  "$(sed -n 's/^\.BR zenpsctl\\-\([a-z]*\) (1).*/\1/p' "$page")"
echo "1..$n"
[ "$bad" -eq 0 ]
