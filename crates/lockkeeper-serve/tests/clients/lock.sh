#!/bin/sh
# Hold a lock while this script works. Needs curl.
pipe=$(mktemp -u) && mkfifo -m 600 "$pipe"
curl -sS -N -f -X POST -H "Authorization: Bearer $LOCKKEEPER_TOKEN" \
  "$LOCKKEEPER_ADDRESS/v1/locks/orders%2F42?wait=60s" >"$pipe" &
exec 3<"$pipe"; rm "$pipe"
read -r granted <&3 || exit 75        # curl said why on standard error: 409, not obtained in time
echo "held $granted"
read -r _                             # the work
kill $!                               # the connection is closed, so the lock is given back
