#!/bin/sh
# Bring what some faults of `harvest chaos` need of the machine, by its packages, where that may be done: as root on
# Debian and its like. Where it may not, or fails, those faults say what is missing and are left out.
set -eu
wanted=
command -v ip >/dev/null 2>&1 && command -v tc >/dev/null 2>&1 || wanted="$wanted iproute2"
command -v mount >/dev/null 2>&1 || wanted="$wanted mount"
if [ -z "$wanted" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then exit 0; fi
echo "installing$wanted for the faults of the machine"
# shellcheck disable=SC2086 # several words
timeout 300 sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"' \
  apt $wanted >/dev/null 2>&1 || echo "not all could be installed:$wanted"
