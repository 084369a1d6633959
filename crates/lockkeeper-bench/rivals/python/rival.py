"""One process of a crowd that fights for the lock of a Python library; its words are those of ../README.md."""
import os
import sys
import threading
import time

NAME, PLACE, KEY, TTL, TASKS, PATH, _OFFSET = sys.argv[1:8]
TTL, TASKS = int(TTL) / 1000, int(TASKS)
FILE = os.open(PATH, os.O_RDWR)


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def redis_client():
    import redis

    # Without end: one of the locks waits in a call that the server answers when there is something to tell.
    client = redis.Redis.from_url("redis://" + PLACE, socket_timeout=None)
    client.ping()
    return client


def redis_py():
    client = redis_client()
    return lambda: client.lock(KEY, timeout=TTL)


def python_redis_lock():
    import redis_lock

    client = redis_client()
    return lambda: redis_lock.Lock(client, KEY, expire=int(TTL))


def kazoo():
    from kazoo.client import KazooClient

    client = KazooClient(hosts=PLACE, timeout=TTL)
    client.start()
    return lambda: client.Lock("/rivals/" + KEY)


def add_one():
    number = int.from_bytes(os.pread(FILE, 8, 0), "little") + 1
    os.pwrite(FILE, number.to_bytes(8, "little"), 0)


def fight_alone(task, lock, until, rounds, refused):
    while True:
        asked = now()
        if until <= asked:
            return
        try:
            if not lock.acquire():
                raise TimeoutError("not acquired")
            had = now()
            add_one()
            gave = now()
            rounds.append((task, asked, had, gave))
            lock.release()
        except Exception as error:  # whatever it is, it is counted
            print(f"{NAME}: {error!r}", file=sys.stderr)
            refused.append(error)
            return


def fight(new_lock, until):
    rounds, refused = [], []
    threads = [
        threading.Thread(target=fight_alone, args=(task, new_lock(), until, rounds, refused))
        for task in range(TASKS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [f"{len(rounds)} {len(refused)}"]
    lines.extend("%d %d %d %d" % it for it in rounds)
    print("\n".join(lines), flush=True)


def main():
    new_lock = {"redis-py": redis_py, "python-redis-lock": python_redis_lock, "kazoo": kazoo}[NAME]()
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "fight":
            fight(new_lock, int(words[1]))
        else:
            new_lock().acquire()
            print("held" if words[0] == "hold" else f"had {now()}", flush=True)
    os._exit(0)


main()
