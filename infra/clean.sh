#!/bin/sh
# Remove all state of this clone, and print the space that this frees.
#   clean.sh STATE_DIR CACHE_DIR
set -eu
state=$1 cache=$2

# HARVEST_HOME may name a folder with other files. The folder is ours if it has set-up's mark or is named `.harvest`.
if [ -e "$state" ] && [ "${state##*/}" != .harvest ] && [ ! -e "$state/.harvest-state" ]; then
  echo "error: $state is not removed: it was there before set-up, and may have files of others" >&2
  echo "  next step: check HARVEST_HOME, or remove it yourself" >&2
  exit 1
fi

megabytes() { du -sk "$1" 2>/dev/null | awk '{ printf "%.0f MB", $1 / 1024 }'; }
# Files that uv has linked from the cache are not counted, because they stay in the cache.
own_megabytes() { find "$1" ! -type d -links 1 -exec du -k {} + 2>/dev/null | awk '{ kib += $1 } END { printf "%.0f MB", kib / 1024 }'; }

for each in "$state" .mypy_cache .ruff_cache .pytest_cache .hypothesis; do
  [ -e "$each" ] || continue
  size=$(own_megabytes "$each")
  rm -rf "$each"
  echo "removed $each: $size"
done
if [ -d "$cache" ]; then
  echo "kept $cache: $(megabytes "$cache") of downloads, shared by all clones; to remove it: rm -rf '$cache'"
fi
