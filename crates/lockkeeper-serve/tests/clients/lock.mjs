// Hold a lock while this program works. Node 18 or newer, nothing to install.
const closing = new AbortController();
const lock = await fetch(`${process.env.LOCKKEEPER_ADDRESS}/v1/locks/orders%2F42?wait=60s`, {
  method: "POST",
  headers: { Authorization: `Bearer ${process.env.LOCKKEEPER_TOKEN}` },
  signal: closing.signal,
});
if (!lock.ok) throw new Error(await lock.text()); // 409: not obtained in time
const lines = lock.body.pipeThrough(new TextDecoderStream()).getReader();
const granted = JSON.parse((await lines.read()).value.split("\n")[0]);
console.log("held", granted.fence);
await new Promise((done) => process.stdin.once("data", done).once("end", done)); // the work
closing.abort(); // the lock is given back
process.exit(0);
