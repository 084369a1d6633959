"""Hold a lock while this program works. Standard library only."""
import json, os, sys, urllib.request

request = urllib.request.Request(
    os.environ["LOCKKEEPER_ADDRESS"] + "/v1/locks/orders%2F42?wait=60s",
    method="POST",
    headers={"Authorization": "Bearer " + os.environ["LOCKKEEPER_TOKEN"]},
)
with urllib.request.urlopen(request) as lock:  # an HTTPError with status 409: not obtained in time
    granted = json.loads(lock.readline())
    print("held", granted["fence"], flush=True)
    sys.stdin.readline()  # the work; send granted["fence"] along with every write
# The connection is closed, so the lock is given back.
