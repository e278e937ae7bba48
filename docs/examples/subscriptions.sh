#!/bin/sh
# A second reader of a native outbox, with its own position: add it, list its lag, send all records again, remove it.
#
#   sh docs/examples/subscriptions.sh harvest.yaml NAME TOPIC
set -eu
config=$1 name=$2 topic=$3

harvest subscriptions add "$name" -f "$config" --topic "$topic" --from now

# Its harvester needs another configuration, with `subscription: NAME` and another `leaderGroupID`.
harvest subscriptions list -f "$config"

# A running harvester goes back within about a second, and delivers all kept records again.
harvest subscriptions rewind "$name" -f "$config" --to beginning
harvest subscriptions list -f "$config"

# The outbox keeps records until every subscription has passed them, so remove a subscription that is not needed.
harvest subscriptions remove "$name" -f "$config" --yes
