#!/bin/sh
# Print the folder of downloads, or whether to trust this machine's certificates, for the Makefile.
#   downloads.sh cache STATE_DIR    the folder that all clones share: HARVEST_CACHE, else a folder in the user's cache
#   downloads.sh certificates       true if uv should trust the certificates that this machine trusts, as pip does
set -eu

# A missing folder is writable if its nearest existing parent is.
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
    # harvest_lib/local_stack/state.py makes the same choice.
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
  # If the machine has no certificates, uv does not start when it must use them; with its own certificates it does.
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
