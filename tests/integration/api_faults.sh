#!/usr/bin/env bash
# The library's API against real daemons over a fabric that pushes back and dawdles, and checks its callers.
export ZENPS_PROVIDER="fault+${ZENPS_PROVIDER:-auto}" ZENPS_FABRIC_FAULT="seed=3,again=0.1,delay=0.05:3ms"
export ZPS_TESTS_THIN="${ZPS_TESTS_THIN:-5}" # of what api.sh runs whole (tests/support/thin.h); it divides neither 12 nor 16
exec "$(dirname "$0")/api.sh" "$@"
