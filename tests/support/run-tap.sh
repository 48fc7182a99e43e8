#!/usr/bin/env bash
# Runs a test and completes its TAP.
# - cmocka 1.1 prints a skipped test as "not ok", and a plan per group of tests; TAP has one plan per program.
# - A warning or error on the default log, stderr, fails the test: a test that provokes one takes it with
#   tests/support/logs.h or a sink of its own.
# The exit status is the test's own.
errors=$(mktemp) || exit 99
trap 'rm -f "$errors"' EXIT
"$@" 2>"$errors" | awk -v errors="$errors" '
  /^1\.\.[0-9]+/ { planned += substr($1, 4); plans++; if (!/# *[Ss][Kk][Ii][Pp]/) next; print; whole = 1; next }
  /^(not )?ok( |$)/ {
    verdict = /^not / ? "not ok" : "ok"
    text = $0
    sub(/^(not )?ok *[0-9]* */, "", text)
    if (text ~ /^# *SKIP/) verdict = "ok"
    print verdict, ++n, text
    fflush()
    next
  }
  { print; fflush() }
  END {
    while ((getline line < errors) > 0)
      if (line ~ /^[0-9]+-[0-9]+-[0-9]+T[0-9:.]+Z (warn|error) /) logged = logged "\n# " line
    if (logged && !whole) {
      print "not ok " ++n " - logs neither warnings nor errors" logged
      planned++
    }
    if (plans && !whole) print "1.." planned
  }'
status=${PIPESTATUS[0]}
cat "$errors" >&2
exit "$status"
