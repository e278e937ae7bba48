#!/bin/sh
# Install Chromium for the browser tests from the system's packages. This needs root. Without root nothing is installed,
# and the tests report what is missing.
set -eu
for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing chromium for the browser tests"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null \
    || echo "chromium could not be installed"
fi
