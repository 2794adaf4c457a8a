#!/bin/sh
# Turn on auth in a new cluster: root, and a user who may touch the keys of one namespace only.
# Runs as the job "auth" of compose.tls-auth.yaml. Running it again changes nothing.

set -eu
prefix="leasekeeper/$LEASEKEEPER_NAMESPACE/"

as_root() { etcdctl --user "root:$ROOT_PASSWORD" "$@"; }

healthy() {
  etcdctl --command-timeout=2s endpoint health || as_root --command-timeout=2s endpoint health
}

# The job starts together with the members. 2 minutes are plenty for an election.
tries=60
until healthy >/dev/null 2>&1; do
  tries=$((tries - 1))
  [ $tries -gt 0 ] || { echo "auth: the cluster does not become healthy" >&2; exit 1; }
  sleep 2
done

if as_root user get leasekeeper >/dev/null 2>&1 && ! etcdctl user list >/dev/null 2>&1; then
  echo "auth: on already"
  exit 0
fi

# A run that was cut short left some of these behind; what is missing shows in the last commands.
etcdctl user add "root:$ROOT_PASSWORD" || true
etcdctl role add root || true
etcdctl user grant-role root root
etcdctl user add "leasekeeper:$LEASEKEEPER_PASSWORD" || true
etcdctl role add leasekeeper || true
etcdctl role grant-permission --prefix leasekeeper readwrite "$prefix"
etcdctl user grant-role leasekeeper leasekeeper
etcdctl auth enable
as_root role get leasekeeper
echo "auth: on; user leasekeeper may read and write below $prefix"
