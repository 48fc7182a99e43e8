#!/usr/bin/env bash
# The README's trainer compiles, and gets the sum from real daemons; its table has every folder. Links of all pages lead to
# files, also those of installed pages where they are installed; files, functions, structs and columns that pages name are there. TAP.
set -u
: "${ZPS_TOP_SRCDIR:=$(cd "$(dirname "$0")/.." && pwd)}"
. "$ZPS_TOP_SRCDIR/tests/support/tap.sh"
cd "$top" || exit 1
readme=README.md

# The block is a fragment: this script defines around it the names that the block leaves to its reader. Two ranks send
# rows unsorted and twice.
block=$(sed -n '/^```c$/,/^```$/{/^```/d;p}' $readme)
cat >"$scratch/trainer.c" <<END
#include <stdio.h>
#include <stdlib.h>
$(grep '^#' <<<"$block")
static int wrong = 1;
static void apply(uint64_t n, const int64_t *rows, const void *values)
{
  const float *sums = values; /* of rank 0 rows 3, 7, 3, 8; of rank 1 rows 9, 8, 3 */
  static const int64_t row[4] = {3, 7, 8, 9};
  static const float sum[4] = {1 + 2 + 1, 3, 4 + 3, 2};
  wrong = n != 4;
  for (uint64_t i = 0; i < n && !wrong; i++)
    for (int k = 0; k < 64; k++) wrong |= rows[i] != row[i] || sums[64 * i + k] != sum[i];
}
int main(void)
{
  const char *rank = getenv("ZENPS_RANK");
  const int second = rank && *rank == '1';
  int64_t *rows = (int64_t[2][4]){{3, 7, 3, 8}, {9, 8, 3, 0}}[second];
  float gradients[4 * 64];
  const uint64_t step = 1, n_rows = second ? 3 : 4;
  for (int i = 0; i < 4 * 64; i++) gradients[i] = (float[2][4]){{1, 3, 2, 4}, {2, 3, 1, 0}}[second][i / 64];
$(grep -v '^#' <<<"$block")
  zenps_close(job);
  return wrong;
}
END
made() { sed -n "s/^$1 = //p" "$build/Makefile"; } # a variable of the build
cc=${CC:-$(made CC 2>/dev/null)} cc=${cc:-cc}
ok "the trainer compiles without a warning" $cc -std=c11 -Wall -Wextra -Wpedantic -Werror -Iworker/include -fsyntax-only "$scratch/trainer.c"
if [ -x "$build/libtool" ] && [ -e "$build/libzenps.la" ] && [ -x "$build/zenpsrun" ]; then
  ok "the trainer links with the library" "$build/libtool" --quiet --tag=CC --mode=link $cc $(made CFLAGS) $(made LDFLAGS) \
    -Iworker/include "$scratch/trainer.c" "$build/libzenps.la" -o "$scratch/trainer"
  ok "two ranks of it get the sum of their gradients" "$build/zenpsrun" -n 2 -- "$scratch/trainer"
else
  skip "the trainer links with the library" "this folder has no build"
  skip "two ranks of it get the sum of their gradients" "this folder has no build"
fi
is "the trainer has twelve lines" "$(grep -c . <<<"$block")" 12

# Results of measurements and NEWS speak of what was.
pages=$(find . -name '*.md' -not -path './build*' -not -path './_*' -not -path '*/deploy/doc/*' -not -path './tests/bench/results/*' -not -path '*/.*' | sed 's,^\./,,' | sort)
links() { # FILE: where its links lead, without addresses and places of a page
  grep -oE '\]\([^)#: ]+' "$1" | cut -c 3-
  grep -oE '(src|href)="[^":#]+"' "$1" | cut -d '"' -f 2
}
missing=
for page in $pages; do
  for file in $(links "$page"); do
    [ -e "$(dirname "$page")/$file" ] || missing="$missing $page:$file"
  done
done
is "links lead to files" "$missing" ""
files=$(find . -type f -not -path './build*' -not -path './_*' -not -path '*/.git/*' | sed 's,^\./,,')
named() { grep -ohE '`[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*\.(sh|c|h|py|md|proto|pl|in|yaml)`' "$@" | tr -d '`' | sort -u; }
# Not of this tree: a file of libfabric; names with a part to fill in.
is "files that pages name are there" \
  "$(named $pages | grep -vE '[A-Z]{4}\.|_TARGET|^prov/|^(README|FINDINGS|PAPERS|PROTOCOL|INTEGRATIONS)\.md$|/README.md$' |
    awk 'NR == FNR { is[$0] = 1; while (sub("^[^/]*/", "")) is[$0] = 1; next }
      { t = $0; while (sub(/^\.\.?\//, "", t)) ; } !(t in is)' <(echo "$files") -)" ""
is "functions and structs that pages name are there" \
  "$(comm -23 <(grep -ohE '`(struct z(ps|enps)_[a-z0-9_]+|z(ps|enps)_[a-z0-9_]+\(\))`' $pages | tr -d '`' | sort -u) \
    <(grep -ohE '(struct z(ps|enps)_[a-z0-9_]+ \{|z(ps|enps)_[a-z0-9_]+\()' $(grep -E '\.(c|h|cu|cuh)$' <<<"$files") |
      sed 's/ {$//; s/($/()/' | sort -u))" ""
is "folders that ARCHITECTURE.md names are there" \
  "$(grep -ohE '`[a-z]+(/[a-z]+)+/?`' ARCHITECTURE.md | tr -d '`' | sort -u | while read -r folder; do [ -d "$folder" ] || echo "$folder"; done)" ""
# As make_title() in table.c makes them of the keys.
titles=$(sed -n '/ views\[\] = {$/,/^};/p' server/ctl/table.c | grep -oE '"[^"]*"' | tr -d '" ' | tr ',' '\n' |
  sed -E 's/^.*=//; t; s/[.#]$//; y/_/-/; s/-per-s$/-s/; s/^(.*)-(m?s)$/\U\1\E\/\2/; t; s/^(.*)-percent$/\U\1\E\/%/; t; s/.*/\U&/')
is "columns that pages and helps name are zenpsctl's" \
  "$(grep -ohE '\b[A-Z]{2,}((-[A-Z]{2,})+(/m?s)?|/m?s)\b' $pages deploy/man/zenps.7 deploy/systemd/* deploy/k8s/base/* server/ctl/verbs.c server/daemon/options.c |
    sort -u | grep -vxF -e "$titles" -e JSON-RPC -e MPI-OPT -e GB/s -e MB/s)" ""
if [ -e "$build/Makefile" ] && [ -x "$build/zenpsd" ]; then
  ok "pages are installed" make -s -C "$build" install-docDATA install-dist_docDATA DESTDIR="$scratch/installed"
  installed=$(find "$scratch/installed" -name README.md)
  is "of which the README is one" "$(wc -l <<<"$installed")" 1
  missing=
  for file in $(links "$installed"); do
    [ -e "$(dirname "$installed")/$file" ] || missing="$missing $file"
  done
  is "links of the installed README lead to files" "$missing" ""
else
  skip "links of the installed README lead to files" "this folder has no build"
fi
is "the table has every folder" \
  "$(sed -n 's/^| \[`\([a-z]*\)\/`\].*/\1/p' $readme | sort)" \
  "$(for file in common/ */README.md; do dirname "$file/x"; done | sed 's,/.*,,' | sort -u)"
done_testing
