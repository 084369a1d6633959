"""Hold a lock without a stream: take it, renew it in time, give it back."""
import json, os, sys, urllib.request


def ask(method, path):
    request = urllib.request.Request(
        os.environ["LOCKKEEPER_ADDRESS"] + path,
        method=method,
        headers={"Authorization": "Bearer " + os.environ["LOCKKEEPER_TOKEN"]},
    )
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or "null")


held = ask("POST", "/v1/tokens?name=orders%2F42&ttl=30s&wait=60s")
print("held", held["fence"], flush=True)
sys.stdin.readline()  # a step of the work
ask("POST", "/v1/tokens/" + held["token"])  # before valid_for_ms is over; an HTTPError with status 410: it is lost
ask("DELETE", "/v1/tokens/" + held["token"])
