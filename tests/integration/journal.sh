#!/usr/bin/env bash
# zenpsd's log in systemd's journal, which journal.py plays where the daemon sees nothing else at /run.
. "$(dirname "$0")/../support/tap.sh"
names=("text comes as entries, none on stderr" "with these fields" "and the subject's" "of zenpsd" "with component and priority"
  "and the component in the text" "JSON comes on stderr, with priorities" "and can be read"
  "without the journal's socket text is on stderr" "a log that was redirected has no priorities")
away=(unshare -m)
"${away[@]}" mount -t tmpfs none /run 2>/dev/null || away=(unshare -rm)
why=
command -v python3 >/dev/null || why="no python3"
"${away[@]}" mount -t tmpfs none /run 2>/dev/null || why="no mount namespace can be made here"
grep -q '^#define HAVE_SYSTEMD' "$build/config.h" || why="built without libsystemd"
if [ -z "$why" ]; then
  "${away[@]}" sh -c 'mount -t tmpfs none /run && exec python3 "$0"' "$top/tests/integration/journal.py" >"$scratch/out" 2>&1
  is "it ends well" $? 0
fi
for name in "${names[@]}"; do
  if [ -n "$why" ]; then skip "$name" "$why"; else said "$name" "^ok $name\$"; fi
done
done_testing
