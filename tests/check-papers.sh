#!/usr/bin/env bash
# PAPERS.md: rows are numbered, each has a verdict, and the files, functions, tests and figures that it names are there. TAP.
#   check-papers.sh [FILE]    another page, such as one with a mistake
set -u
cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}" || exit 1
page=${1:-tests/PAPERS.md}
n=0 bad=0
result() { # NAME OFFENDERS: passes when there are none
  n=$((n + 1))
  if [ -z "$2" ]; then
    echo "ok $n - $1"
  else
    bad=$((bad + 1))
    echo "not ok $n - $1"
    printf '%s\n' "$2" | sed 's/^/# /'
  fi
}
# Whether FILE defines NAME: a function in C (its line begins with its type, and is no call), a kernel, a figure's function in
# Python; of a test program, a test that it runs.
defines() { # FILE NAME
  case $1 in
    *.py) grep -qE "^def $2\(" "$1" ;;
    *.cu) grep -qE "\b$2\(" "$1" ;;
    tests/unit/*) grep -qE "\bcmocka_unit_test[a-z_]*\($2\b" "$1" ;;
    *.[ch]) grep -qE "^[a-zA-Z_][^;=]*[ *]$2\(" "$1" ;;
    *) false ;;
  esac
}
missing=
while IFS= read -r reference; do
  file=${reference%%: *}
  [ -e "$file" ] || { missing="$missing$file is not there"$'\n'; continue; }
  [ "$file" != "$reference" ] || continue
  rest=${reference#*: }
  if [ "${rest:0:1}" = '"' ]; then
    # A script may put a word of a test's name together from a loop's variable, and then no word of it is found: such a
    # test is not named here.
    grep -qF "$rest" "$file" || missing="$missing$file has no test $rest"$'\n'
    continue
  fi
  for name in ${rest//,/ }; do
    defines "$file" "$name" || missing="$missing$file does not define $name"$'\n'
  done
done < <(grep -E '^\| [0-9]+ \|' "$page" | grep -oE '`(common|proto|server|worker|gpu|tests|deploy)/[^`]*`' | tr -d '`' | sort -u)
result "what it names is there" "${missing%$'\n'}"
result "each row is the next of its table" "$(awk -F '|' '/^## / { last = 0 } /^\| [0-9]+ \|/ { if ($2 + 0 != last + 1) print $0; last = $2 + 0 }' "$page")"
result "each row has five columns and a verdict" "$(grep -E '^\| [0-9]+ \|' "$page" |
  awk -F ' \\| ' 'NF < 5 || ($3 !~ /^(\*\*(yes|better|no|needs hardware)\*\*|the same$)/) { print }')"
result "what needs hardware says which" "$(grep -E '^\| [0-9]+ \|' "$page" | grep -F 'needs hardware' | grep -vE '\*\*needs hardware\*\*: [a-zA-Z]')"
figures=$(grep -hA 1 '^@figure($' tests/bench/papers/*.py | sed -n 's/^ *"\([a-z0-9-]*\)",$/\1/p')
result "every figure stands in the results" "$(for figure in $figures; do grep -q "^## $figure: " tests/bench/results/figures.md || echo "$figure"; done)"
result "every figure's function is named" "$(grep -A 20 -hE '^@figure' tests/bench/papers/*.py | sed -n 's/^def \([a-z_0-9]*\)(run, found):/\1/p' | sort -u |
  while read -r name; do grep -qE "papers/[a-z_]*\.py: [^\`]*\b$name\b" "$page" || echo "$name"; done)"
echo "1..$n"
[ "$bad" -eq 0 ]
