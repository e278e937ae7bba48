#!/bin/sh
# Resolve records that Kafka rejected: list them, show them, and send them again once the cause is removed.
#
#   sh docs/examples/parking.sh harvest.yaml TOPIC
set -eu
config=$1 topic=$2

harvest park list -f "$config" --topic "$topic"

# The first parked record of each key, in full. Later records of the key wait for it.
harvest park list -f "$config" --topic "$topic" --json | python3 -c '
import json, sys
for each in json.load(sys.stdin):
    if not each["held"]:
        print(each["id"])
' | while read -r id; do
  harvest park show "$id" -f "$config" --value
done

# Run this after the topic was created, or its limit raised. `harvest park drop` deletes the records instead.
harvest park retry -f "$config" --topic "$topic"
harvest status -f "$config"
