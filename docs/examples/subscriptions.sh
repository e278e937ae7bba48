#!/bin/sh
# A second reader of a native outbox, with a position of its own: add it, see its lag, send everything again, remove it.
#
#   sh docs/examples/subscriptions.sh harvest.yaml NAME TOPIC
set -eu
config=$1 name=$2 topic=$3

harvest subscriptions add "$name" -f "$config" --topic "$topic" --from now

# Its harvester has a configuration of its own, with `subscription: NAME` and another `leaderGroupID`.
harvest subscriptions list -f "$config"

# A running harvester goes back within about a second, and delivers everything that is kept once more.
harvest subscriptions rewind "$name" -f "$config" --to beginning
harvest subscriptions list -f "$config"

# The outbox keeps records for a subscription until it has passed them, so one that is not needed has to go.
harvest subscriptions remove "$name" -f "$config"
