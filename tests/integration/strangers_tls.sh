#!/usr/bin/env bash
# strangers.sh with a control plane that speaks TLS, and jobs that take tokens.
ZPS_ATTACK_TLS=yes
. "$(dirname "$0")/strangers.sh"
