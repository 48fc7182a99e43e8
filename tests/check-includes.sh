#!/usr/bin/env bash
# The include rules: which folder may see which, and which foreign headers only one place may see. TAP.
set -u
cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}" || exit 1
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
sources() { find "$@" \( -name '*.[ch]' -o -name '*.[ch]pp' -o -name '*.cu*' \) ! -name '*.pb-c.*' 2>/dev/null; }

# may FOLDER ALLOWED...: project headers that FOLDER includes lie in FOLDER itself or in ALLOWED.
may() {
  local folder=$1 allowed
  allowed=$(printf '|%s/' "$@" | sed 's#\.h/#.h"#g')
  result "$folder includes only $*" \
    "$(sources "$folder" | xargs -r grep -HnE '^ *# *include *"(common|proto|gpu|server|worker|tests)/' | grep -vE "include *\"(${allowed:1})")"
}
may common/base
may common/net common/base
may common/control common/base
may proto common/base
# Algorithm 1 is below the codecs, which use it; devices are above them.
result "common/codec/hierarchical.h and what implements it include only common/base" \
  "$(grep -Hn '^ *# *include *"' common/codec/hierarchical.h common/codec/hierarchical.c | grep -vE '"(common/base|gpu/hierarchical)')"
may gpu common/base common/codec
may common/codec common/base common/codec/hierarchical.h
may common/session common/base common/net proto
may common/plan common/base common/codec
may server common proto gpu
may worker common proto gpu

# only PATTERN-OF-FILES HEADER-PATTERN NAME: a foreign header is seen by those files alone.
only() {
  result "$3" "$(sources common proto gpu server worker | grep -vE "$1" | xargs -r grep -HnE "^ *# *include *[<\"]$2")"
}
only '^common/net/ofi/' 'rdma/' "libfabric is seen by common/net/ofi alone"
only '^(common/control|server)/' 'uv\.h' "libuv is seen by common/control and the daemon's loop alone"
only '^common/control/json\.c$' 'jansson' "jansson is seen by common/control/json.c alone"
only '^proto/' '(protobuf-c/|[a-z/]*zenps\.pb-c)' "protobuf-c is seen by proto alone"
only '^common/base/config' '(ini\.h|getopt\.h)' "option files and flags are parsed by common/base/config* alone"
only '^gpu/cuda/' 'cuda' "CUDA is seen by gpu/cuda alone"
only '^server/(shard|daemon)/' 'server/shard/' "the data plane is seen by the daemon alone"
only '^server/daemon/(notify|journal)\.c$' 'systemd/' "libsystemd is seen by server/daemon/notify.c and journal.c alone"

# The public headers stand alone.
result "public headers include only standard headers and each other" \
  "$(grep -Hn '^ *# *include' worker/include/zenps/*.h | grep -vE '<(stddef\.h|stdint\.h|stdbool\.h|zenps/[a-z_]+\.h)>')"

# Cycles between headers would make the order of includes matter.
result "every header has a guard" "$(for f in $(find common proto gpu server worker -name '*.h' ! -name '*.pb-c.h'); do
  grep -qE '^#ifndef (ZPS|ZENPS)_[A-Z0-9_]+_H$' "$f" || echo "$f"; done)"

echo "1..$n"
[ "$bad" -eq 0 ]
