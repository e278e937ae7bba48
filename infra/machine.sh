#!/bin/sh
# Install required system packages, as root on Debian and similar systems. Elsewhere, or if the installation fails, the
# command that needs a program reports that it is missing.
#   machine.sh           for some faults of `harvest chaos`
#   machine.sh pooler    for the tests with a pooler before Postgres, and for the tests of alerts: `make test` only
set -eu
# Many users' PATH lacks the folders of root's programs.
has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }
wanted=
case "${1:-faults}" in
pooler)
  has pgbouncer || wanted="$wanted pgbouncer"
  has promtool || wanted="$wanted prometheus"
  ;;
*)
  has ip && has tc || wanted="$wanted iproute2"
  has mount || wanted="$wanted mount"
  ;;
esac
if [ -z "$wanted" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then exit 0; fi
echo "installing$wanted"
# Debian starts the services that it installs; RUNLEVEL=1 prevents that.
# shellcheck disable=SC2086 # several words
timeout 300 sh -c 'apt-get update -qq -o Acquire::http::Timeout=15 -o Acquire::Retries=0 && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"' \
  apt $wanted >/dev/null 2>&1 || echo "not all could be installed:$wanted"
