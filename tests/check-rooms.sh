#!/usr/bin/env bash
# shellcheck disable=SC1091
# What the linker sees of the floors (support/floors.sh): which folder calls which, circles of folders and of files, the
# libraries that folders are built into, and what the unit tests of a room of worker/ link. TAP.
#   check-rooms.sh --list BUILD   what is not as it should be, folder by folder, with every name
set -u
top=$(cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}" && pwd) || exit 1
build=${ZPS_TOP_BUILDDIR:-$PWD}
support=$top/tests/support

# Files that form a circle are one object's code; a circle may have this many files. Events of membership call nothing
# above them, so nothing there needs a circle of three.
most=8 most_membership=2
# Folders of several libraries, or of a library with another name. zenpsctl reads records of the coordinator
# (libzpsrecords) without a coordinator.
libraries="common/codec=libzpscodec,libzpscodecsimd common/net=libzpsnet,libzpsnetofi server/membership=libzpsmembers server/coordinator=libzpsrecords,libzpscoordinator"
may() { echo "may $*"; }
# product FIND-OPTION...: files of the product below this folder, without programs that are clients of the library. The
# emulation's objects are what gpu/cuda is compiled to where there is no nvcc.
product() {
  find common proto gpu tests/gpu server worker \( -path worker/tools -o -path worker/examples \) -prune -o \( "$@" \) -print \
    2>/dev/null
}
# calls BUILD SOURCE: the findings of support/rooms.awk in the objects of BUILD, with sources in SOURCE or made in
# BUILD. Floors come on standard input.
calls() {
  local build=$1 source=$2
  {
    cat
    (cd "$source" && product -name '*.c' -o -name '*.cpp' -o -name '*.cu') | sed 's/^/source /'
    (
      cd "$build" || exit
      product -name '*.pb-c.c' | sed 's/^/source /'
      product -name '*.o' ! -name 'tests_*' | xargs -r nm -A -P -g
    )
  } | awk -v limits="server/membership/=$most_membership" -v limit=$most -f "$support/rooms.awk" | sort
}
# links SOURCE: the findings of support/libraries.awk in the Makefile fragments of SOURCE. Floors come on standard
# input.
links() {
  (
    cd "$1" || exit
    # shellcheck disable=SC2046
    { cat; product -path '[csw]*/*.c' | sed 's/^/source /'; } |
      awk -v libraries="$libraries" -f "$support/libraries.awk" - \
        $(find Makefile.am common proto gpu tests/gpu server worker -name 'Makefile.*' ! -name Makefile.in 2>/dev/null) | sort
  )
}
if [ "${1:-}" = --list ]; then
  floors=$(. "$support/floors.sh")
  { calls "${2:-$build}" "$top" <<<"$floors"; links "$top" <<<"$floors"; } | sort -t $'\t' -s -k 1,1r | awk -F '\t' '
    {
      title = $1 " " $2
      split($3, word, " ")
      if ($1 == "use" && word[2] == "uses") {
        names += !((word[3], word[5]) in seen)
        seen[word[3], word[5]]
        sub(/\/[^\/]*$/, "", word[5])
        title = title " -> " word[5]
      }
      lines[title] = lines[title] "\n  " $3
      if (lines[title] == "\n  " $3)
        titles[++n] = title
    }
    END {
      for (i = 1; i <= n; i++)
        print titles[i] lines[titles[i]] "\n"
      print names + 0 " names are used that a line forbids"
    }'
  exit
fi

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
only() { awk -F '\t' -v kind="$2" -v key="${3:-}" '$1 == kind && (key == "" || $2 == key) { print $3 }' <<<"$1"; }

# First the check must find every forbidden thing, in trees of about three files.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/zenps-rooms.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
cc=${CC:-cc}
compiled() { # FILE CODE: an object in the tree under $scratch, as libtool would name it
  mkdir -p "$scratch/$(dirname "$1")/.libs"
  echo "$2" >"$scratch/$1"
  $cc -c -o "$scratch/$(dirname "$1")/.libs/libzps_la-$(basename "$1" .c).o" "$scratch/$1" || exit 1
}
same() { # NAME GOT WANTED
  if [ "$2" = "$3" ]; then
    result "$1" ""
  else
    result "$1" "$(printf 'found: %s\nmeant: %s' "$2" "$3")"
  fi
}
floors=$'may common/base\nmay server/high common/base'
compiled common/base/low.c 'int low(void) { return 1; }'
compiled server/high/high.c 'int low(void); int high(void) { return low(); }'
compiled server/high/main.c 'int high(void); int main(void) { return high(); }'
same "self-test: a call from above is none to tell of" "$(calls "$scratch" "$scratch" <<<"$floors")" ""
found=$(calls "$scratch" "$scratch" <<<'may common/base')
same "self-test: a folder without a line is found" "$(cut -f 1,2 <<<"$found" | uniq)" $'use\tserver/high'
compiled common/base/low.c 'int other(void); int low(void) { return other(); }'
compiled server/high/other.c 'int other(void) { return 1; }'
found=$(calls "$scratch" "$scratch" <<<"$floors")
same "self-test: a call that no line allows is found" "$(only "$found" use common/base)" \
  "common/base/low.o uses other of server/high/other.o"
same "self-test: folders that form a circle are found, whatever their lines allow" \
  "$(only "$(calls "$scratch" "$scratch" <<<$'may common/base server/high\nmay server/high common/base')" folders)" \
  $'common/base/low.o uses other of server/high/other.o\nserver/high/high.o uses low of common/base/low.o'
# circle FOLDER N: files that call the next each, and the last one the first.
circle() {
  local i
  mkdir -p "$scratch/$1/.libs"
  for ((i = 1; i <= $2; i++)); do
    echo "int f$((i % $2 + 1))(void); int f$i(void) { return f$((i % $2 + 1))(); }" >"$scratch/$1/f$i.c"
  done
  (cd "$scratch/$1/.libs" && $cc -c ../f*.c) || exit 1
}
rm -rf "${scratch:?}"/*
circle server/high $most
floors=$'may server/high\nmay worker/high'
same "self-test: files of one object may form a circle" "$(calls "$scratch" "$scratch" <<<"$floors")" ""
circle server/high $((most + 1))
found=$(calls "$scratch" "$scratch" <<<"$floors")
same "self-test: more of them are found" "$(only "$found" files | tail -n 1)" \
  "server/high/f$((most + 1)).o uses f1 of server/high/f1.o"
rm -rf "${scratch:?}"/*
circle server/membership $((most_membership + 1))
found=$(calls "$scratch" "$scratch" <<<$'may server/membership\nmay worker/high')
same "self-test: and in server/membership/, from $((most_membership + 1)) on" \
  "$(only "$found" files | grep -c '^server/membership')" $((most_membership + 1))
rm -rf "$scratch/server"
circle worker/high 2
rm "$scratch/worker/high/.libs/f1.o"
same "self-test: a source without an object is found" "$(calls "$scratch" "$scratch" <<<"$floors" | cut -f 1,2)" \
  $'unread\tworker/high/f1.c'
rm -rf "${scratch:?}"/*
floors=$'may worker/base\nmay worker/api worker/base'
mkdir -p "$scratch/worker/base" "$scratch/worker/api"
touch "$scratch/worker/base/low.c" "$scratch/worker/api/high.c" "$scratch/worker/api/more.c"
cat >"$scratch/worker/Makefile.inc" <<'END'
noinst_LTLIBRARIES = liblow.la libhigh.la
liblow_la_SOURCES = %D%/base/low.c
libhigh_la_SOURCES = %D%/api/high.c \
  %D%/api/more.c
W_BASE = liblow.la
W_API = libhigh.la $(W_BASE)
UNIT_TESTS = tests/unit/worker/base/test_low tests/unit/worker/api/test_high
tests_unit_worker_base_test_low_LDADD = $(W_BASE)
tests_unit_worker_api_test_high_LDADD = $(W_API)
END
same "self-test: a library a folder, and tests of what is theirs, are none to tell of" "$(libraries='' links "$scratch" <<<"$floors")" ""
cat >>"$scratch/worker/Makefile.inc" <<'END'
noinst_LTLIBRARIES += libmore.la
libmore_la_SOURCES = %D%/api/more.c
liblow_la_LIBADD = libhigh.la
END
found=$(libraries='' links "$scratch" <<<"$floors")
same "self-test: a file in two libraries is found" "$(only "$found" library worker/api | grep -c 'libhigh.* libmore')" 1
same "self-test: a test that links a room above is found, by whatever library" \
  "$(only "$found" links worker/base | grep test_low)" "tests/unit/worker/base/test_low links worker/api"

# The check of the tree itself.
floors=$(. "$support/floors.sh")
found=$(calls "$build" "$top" <<<"$floors"; links "$top" <<<"$floors")
rooms=$(cut -d ' ' -f 2 <<<"$floors" | grep -vE '^(worker/(include|tools|examples)|tests/gpu/bench)') # whose objects are not read
for folder in $rooms; do
  result "$folder calls only what its line allows" "$(only "$found" use "$folder")"
done
result "every folder has a line" "$(awk -F '\t' 'NR == FNR { has[$1] = 1; next } $1 == "use" && !($2 in has) { print $3 }' \
  <(echo "$rooms") <(echo "$found"))"
result "every source has an object" "$(only "$found" unread)"
result "no folders form a circle" "$(only "$found" folders)"
result "no more than $most files form a circle, nor $most_membership of server/membership/" "$(only "$found" files)"
result "every folder of common/, server/ and worker/ is a library" "$(only "$found" library)"
result "unit tests of a room of worker/ link only what the room may use" "$(only "$found" links)"
echo "1..$n"
[ "$bad" -eq 0 ]
