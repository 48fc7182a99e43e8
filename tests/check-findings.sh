#!/usr/bin/env bash
# FINDINGS.md: rows are numbered; each test that they name is there and is run; a row without one is open, and says why. TAP.
#   check-findings.sh [FILE]    another page, such as one with a mistake
set -u
cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}" || exit 1
page=${1:-tests/FINDINGS.md}
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
rows() { grep -E '^\| [0-9]+ \|' "$page"; }
# Whether FILE runs a test NAME. A program defines it and lists it; pytest and cases/runner.py collect theirs by prefix.
runs() { # FILE NAME
  case $1 in
    tests/python/cases/*.py) [[ $2 == case_* ]] && grep -qE "^def $2\(" "$1" ;;
    *.py) [[ $2 == test_* ]] && grep -qE "^def $2\(" "$1" ;;
    *) grep -qE "^(static )?(void|int) $2\(void \*\*" "$1" && [ "$(grep -cE "\b$2\b" "$1")" -gt 1 ] ;;
  esac
}
# A script's test is called ok "TEXT", is "TEXT" or said "TEXT".
says() { # FILE "TEXT"
  grep -qE '^ *(ok|is|said) "' "$1" && grep -F -- "$2" "$1" | grep -qE '^ *(ok|is|said) "'
}
missing=
while IFS= read -r reference; do
  file=${reference%%: *}
  [ -f "$file" ] || { missing="$missing$file is not there"$'\n'; continue; }
  [ "$file" != "$reference" ] || continue
  rest=${reference#*: }
  if [ "${rest:0:1}" = '"' ]; then
    while IFS= read -r text; do
      says "$file" "$text" || missing="$missing$file has no test $text"$'\n'
    done < <(grep -oE '"[^"]*"' <<<"$rest")
    continue
  fi
  for name in ${rest//,/ }; do
    runs "$file" "$name" || missing="$missing$file does not run $name"$'\n'
  done
done < <(rows | grep -oE '`tests/[^`]*`' | tr -d '`' | sort -u)
result "each test that it names is there, and is run" "${missing%$'\n'}"
result "each row is the next" "$(rows | awk -F '|' '$2 + 0 != ++last { print }')"
result "each row has four columns, none of them empty" "$(rows | awk -F ' \\| ' 'NF != 4 || $2 == "" || $3 == "" { print }')"
result "a row without a test is open" "$(rows | grep -vF '`tests/' | grep -vF '**open**')"
result "what is open says why" "$(rows | grep -F '**open**' | grep -vE '\*\*open\*\*: [a-z]')"
echo "1..$n"
[ "$bad" -eq 0 ]
