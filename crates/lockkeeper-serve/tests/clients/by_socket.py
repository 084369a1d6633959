"""Hold a lock by a server on a unix socket. Standard library only."""
import http.client, json, os, socket, sys


class OnSocket(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["LOCKKEEPER_ADDRESS"])  # /run/lockkeeper.sock


server = OnSocket("localhost")
server.request("POST", "/v1/locks/orders%2F42?wait=60s", headers={"Authorization": "Bearer " + os.environ["LOCKKEEPER_TOKEN"]})
with server.getresponse() as lock:
    granted = json.loads(lock.readline())
    print("held" if lock.status == 200 else lock.status, granted.get("fence", granted), flush=True)
    sys.stdin.readline()  # the work
