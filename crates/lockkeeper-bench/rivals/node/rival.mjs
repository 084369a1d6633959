// One process of a crowd that fights for the lock of a library for Node; its words are those of ../README.md.
import fs from "node:fs";
import readline from "node:readline";
import Redis from "ioredis";
import Redlock from "redlock";

const [name, place, key, ttl, tasks, path, offset] = process.argv.slice(2);
const file = fs.openSync(path, "r+");
const ahead = BigInt(offset);
const now = () => process.hrtime.bigint() + ahead;
const number = Buffer.alloc(8);

function addOne() {
  fs.readSync(file, number, 0, 8, 0);
  number.writeBigUInt64LE(number.readBigUInt64LE() + 1n);
  fs.writeSync(file, number, 0, 8, 0);
}

const [host, port] = place.split(":");
const client = new Redis({ host, port: Number(port) });
await client.ping();
// For ever: as the others, it waits until it has the lock.
const redlock = new Redlock([client], { retryCount: -1 });
const take = () => redlock.acquire([key], Number(ttl));

async function fightAlone(task, until, rounds) {
  for (;;) {
    const asked = now();
    if (until <= asked) return 0;
    try {
      const lock = await take();
      const had = now();
      addOne();
      const gave = now();
      rounds.push(`${task} ${asked} ${had} ${gave}`);
      await lock.release();
    } catch (error) {
      console.error(`${name}: ${error}`);
      return 1;
    }
  }
}

async function fight(until) {
  const rounds = [];
  const all = Array.from({ length: Number(tasks) }, (_, task) => fightAlone(task, until, rounds));
  const refused = (await Promise.all(all)).reduce((sum, it) => sum + it, 0);
  process.stdout.write([`${rounds.length} ${refused}`, ...rounds].join("\n") + "\n");
}

console.log("ready");
for await (const line of readline.createInterface({ input: process.stdin })) {
  const [word, until] = line.split(" ");
  if (word === "fight") {
    await fight(BigInt(until));
  } else {
    await take();
    console.log(word === "hold" ? "held" : `had ${now()}`);
  }
}
// What was to be written may still be under way.
process.stdout.write("", () => process.exit(0));
