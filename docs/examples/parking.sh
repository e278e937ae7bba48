#!/bin/sh
# Resolve records that Kafka rejected: list them, look at one, and send them again once the cause is gone.
#
#   sh docs/examples/parking.sh harvest.yaml TOPIC
set -eu
config=$1 topic=$2

harvest park list -f "$config" --topic "$topic"

# The first of each key, in full. What comes behind it in its key waits for it.
harvest park list -f "$config" --topic "$topic" --json | python3 -c '
import json, sys
for each in json.load(sys.stdin):
    if not each["held"]:
        print(each["id"])
' | while read -r id; do
  harvest park show "$id" -f "$config" --value
done

# To be run after the topic was created, or its limit raised. `harvest park drop` deletes instead.
harvest park retry -f "$config" --topic "$topic"
harvest status -f "$config"
