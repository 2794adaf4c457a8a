#!/bin/sh
# Build the local image of the compose files from programs on this machine; nothing is pulled.
#
#   compose/build-image.sh FOLDER [IMAGE]
#
# FOLDER holds static etcd and etcdctl programs, such as build/etcd/3.6.16 after
# scripts/build_etcd.py. A static busybox is taken from PATH (Debian: apt-get install busybox-static).
# IMAGE is leasekeeper-etcd:local unless given.

set -eu
folder="${1:?usage: compose/build-image.sh FOLDER [IMAGE]}"
image="${2:-leasekeeper-etcd:local}"
here="$(cd "$(dirname "$0")" && pwd)"
busybox="$(command -v busybox)" || {
  echo "build-image.sh: no busybox on PATH; on Debian: apt-get install busybox-static" >&2
  exit 1
}

context="$(mktemp -d)"
trap 'rm -rf "$context"' EXIT
cp "$folder/etcd" "$folder/etcdctl" "$busybox" "$context/"
docker build --tag "$image" --file "$here/Dockerfile" "$context"
# A program that needs shared libraries would not start in an image that has none.
docker run --rm --network none "$image" etcd --version
docker run --rm --network none "$image" sh -c 'etcdctl version'
