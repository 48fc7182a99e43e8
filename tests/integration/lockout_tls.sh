#!/usr/bin/env bash
# lockout.sh with a control plane that speaks TLS, and jobs that take tokens.
ZPS_ATTACK_TLS=yes
. "$(dirname "$0")/lockout.sh"
