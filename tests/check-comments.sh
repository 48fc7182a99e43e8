#!/usr/bin/env bash
# Comments stand alone (support/comments.awk): none continues another one, or leaves its sentence to the next one. A reader may
# see any comment without its neighbours, and members of a struct may change places. TAP.
#   check-comments.sh FILE...   what is wrong in these files
set -u
top=$(cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}" && pwd) || exit 1
judged() { awk -f "$top/tests/support/comments.awk" "$@"; }
if [ $# -gt 0 ]; then
  judged "$@"
  exit
fi

n=0 bad=0
result() { # NAME FINDINGS: passes when there are none
  n=$((n + 1))
  if [ -z "$2" ]; then
    echo "ok $n - $1"
  else
    bad=$((bad + 1))
    echo "not ok $n - $1"
    printf '%s\n' "$2" | sed 's/^/# /'
  fi
}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/zenps-comments.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
same() { # NAME FILE WANTED < content: the findings in FILE, as "LINE WHAT"
  local found
  cat >"$scratch/$2"
  found=$(judged "$scratch/$2" | sed -E 's/^[^:]*:([0-9]+): ([^:]*):.*/\1 \2/')
  if [ "$found" = "$3" ]; then
    result "$1" ""
  else
    result "$1" "$(printf 'found: %s\nmeant: %s' "$found" "$3")"
  fi
}

# First the check must find every forbidden thing, and no other.
for start in and or but nor as that who whom whose which also "then" else likewise Likewise "of which" "Of which" \
  "so many" "So many" "the same" "the same rows" "The same," "The same for"; do
  same "self-test: a comment that begins with '$start' is refused" a.h "2 continues another comment" <<END
int a; /* the first */
int b; /* $start the second */
END
done
for ending in ":" "," " as" " and" " or" " the" " a" " an" " which"; do
  same "self-test: a comment that ends in '$ending' is refused" a.cu "1 ends open" <<<"int a; // rows$ending"
done
same "self-test: a comment over several lines is one" a.cuh $'1 ends open\n5 continues another comment' <<END
/* Rows,
 * their values,
 */
int a;
/* of which
 * some are zero. */
END
same "self-test: lines of // that follow each other are one" a.cpp "" <<END
// Rows,
// and their values.
END
same "self-test: comments of Python are judged" a.py $'1 continues another comment\n3 ends open\n5 continues another comment' <<END
# Likewise for ranks.
a = 1
# Rows,
# and values:
b = "#"  # which is the second
END
same "self-test: comments of scripts are judged, but for the first line" a.sh $'2 ends open\n4 continues another comment' <<END
#!/usr/bin/env bash
# Usage:
echo "# and this is a text"
# then that.
END
same "self-test: texts, longer words and whole sentences are no continuations" a.c "" <<END
const char *a = "/* and then, */", b = '"'; /* android, orders, the text has an as-is */
int c; /* Which rows come. The same rows twice are summed. */ /* it ends like that */
#define D "// or"
END

# The check of the tree itself, without this file, whose self-tests hold bad comments.
cd "$top" || exit 1
files=$(find common deploy gpu proto server tests worker -type f \
  \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.py' -o -name '*.sh' \) \
  ! -name '*.pb-c.[ch]' ! -path tests/check-comments.sh ! -path '*/.*' ! -path '*/build/*' | sort)
result "the tree has sources" "$([ "$(wc -l <<<"$files")" -gt 100 ] || wc -l <<<"$files")"
# shellcheck disable=SC2086
result "comments stand alone" "$(judged $files)"
echo "1..$n"
[ "$bad" -eq 0 ]
