#!/bin/sh
# Prints a Secret with a new key and a certificate that it signs itself, for a name.
# usage: certificate.sh NAME > /etc/coracle/manifests/web-tls.yaml
# A certificate of an authority goes into the same two keys.
set -eu

name=${1:?usage: certificate.sh NAME}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 825 -subj "/CN=$name" \
    -addext "subjectAltName=DNS:$name" -keyout "$work/tls.key" -out "$work/tls.crt" 2>/dev/null
cat <<END
apiVersion: v1
kind: Secret
metadata: {name: web-tls}
type: kubernetes.io/tls
data:
  tls.crt: $(base64 -w0 "$work/tls.crt")
  tls.key: $(base64 -w0 "$work/tls.key")
END
