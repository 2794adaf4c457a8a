#!/bin/sh
# Make a certificate authority and one certificate for the three members, for compose.tls-auth.yaml.
#
#   compose/make-certificates.sh [FOLDER]       # compose/tls unless given
#
# For trials only: the authority's key lies beside its certificate. Needs openssl 1.1.1 or later.

set -eu
folder="${1:-$(dirname "$0")/tls}"
days=825
names="DNS:etcd1,DNS:etcd2,DNS:etcd3,DNS:localhost,IP:127.0.0.1"

umask 077
mkdir -p "$folder"
cd "$folder"
[ ! -e ca.pem ] || { echo "make-certificates.sh: $folder/ca.pem is there already" >&2; exit 1; }

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

new_key ca-key.pem
openssl req -x509 -new -key ca-key.pem -days "$days" -out ca.pem \
  -subj "/CN=leasekeeper trial authority"

new_key server-key.pem
openssl req -new -key server-key.pem -out server.csr -subj "/CN=etcd"
cat >server.ext <<END
subjectAltName=$names
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
END
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial \
  -days "$days" -extfile server.ext -out server.pem
rm server.csr server.ext
chmod 644 ca.pem server.pem
