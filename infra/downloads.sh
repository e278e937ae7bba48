#!/bin/sh
# Say where downloads are kept, and what they trust, for the Makefile.
#   downloads.sh cache STATE_DIR    the folder of all clones: HARVEST_CACHE, else one in the user's cache folder
#   downloads.sh certificates       whether uv is to trust what this machine trusts, as pip does
set -eu

# A folder that is missing can be written if the nearest one above it can.
writable() {
  above=$1
  while [ ! -e "$above" ]; do above=$(dirname "$above"); done
  [ -d "$above" ] && [ -w "$above" ]
}

case $1 in
cache)
  folder=${HARVEST_CACHE:-}
  if [ -z "$folder" ]; then
    case ${XDG_CACHE_HOME:-} in
    /*) folder=$XDG_CACHE_HOME/harvest ;;
    *) folder=
      if [ -d "${HOME:-}" ]; then folder=$HOME/.cache/harvest; fi ;;
    esac
    # harvest_lib/local_stack/state.py chooses in the same way.
    if [ -z "$folder" ] || ! writable "$folder"; then
      folder=$2/cache
      echo "downloads are kept in $folder, as there is no cache folder of the user's that can be written" >&2
    fi
  fi
  case $folder in
  /*) echo "$folder" ;;
  *) echo "$PWD/$folder" ;;
  esac
  ;;
certificates)
  # Without any to trust uv would not start, and with its own it does.
  for each in "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt \
    /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
    if [ -n "$each" ] && [ -s "$each" ]; then
      echo true
      exit
    fi
  done
  echo false
  ;;
esac
