#!/usr/bin/env bash
# What is shipped for Kubernetes, as far as a machine without it can tell.
. "$(dirname "$0")/../support/tap.sh"

if command -v kubectl >/dev/null; then
  ok "kubernetes: the base builds" kubectl kustomize "$top/deploy/k8s/base"
  cp "$scratch/out" "$scratch/all.yaml"
  is "kubernetes: objects" "$(grep -c '^kind:' "$scratch/all.yaml")" 9
  is "kubernetes: nobody runs as root" "$(grep -c 'runAsNonRoot: true' "$scratch/all.yaml")" "$(grep -c '^kind: StatefulSet' "$scratch/all.yaml")"
else
  skip "kubernetes: the base" "kubectl is not installed"
fi
# The daemon itself must take what the config maps say.
for role in coordinator server; do
  ok "kubernetes: zenpsd accepts $role.conf" zenpsd --config="$top/deploy/k8s/base/$role.conf" --check
done

done_testing
