// Submits a recording from Node.js, follows it and prints the transcript. Needs Redis and a worker, and no Python:
// the scripts that it runs are those of `python -m queueing.scripts FOLDER`.
//
//     npm ci
//     node transcribe.mjs FOLDER recording.m4a [redis://127.0.0.1:6379/0]

import { createHash, randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import Redis from "ioredis";

const [folder, recording, server = "redis://127.0.0.1:6379/0"] = process.argv.slice(2);
const root = "decibatch:{main}";
const model = "tiny.en";

const redis = new Redis(server, { maxRetriesPerRequest: 3 });
for (const name of ["submit", "status"]) {
  redis.defineCommand(`decibatch_${name}`, {
    numberOfKeys: 1,
    lua: await readFile(join(folder, `${name}.lua`), "utf8"),
  });
}

const sha256 = (data) => createHash("sha256").update(data).digest("hex");

async function submit(bytes) {
  const work = {
    v: 1,
    kind: "transcribe",
    model,
    input: { type: "inline", size: bytes.length, sha256: sha256(bytes) },
  };
  const id = Date.now().toString(16).padStart(12, "0") + randomBytes(10).toString("hex");
  const [verdict, job, , retryAfter] = await redis.decibatch_submit(
    root,
    id,
    JSON.stringify({ ...work, id }),
    model,
    "normal", // lane
    "default", // tenant
    1, // wire version
    sha256(JSON.stringify(work)), // the same for the same work
    "", // deadline
    "", // not before
    86400, // seconds for which the result is kept
    "", // idempotency key
    1_000_000, // jobs that may wait
    256 * 1024 * 1024, // bytes of uploads that may wait
    "", // hook
    "", // its target
    bytes,
  );
  if (verdict === "full") throw new Error(`the queue is full; try again in ${retryAfter} ms`);
  if (verdict === "conflict") throw new Error(`job ${job} asks for something else`);
  return job;
}

async function status(job) {
  const pairs = await redis.decibatch_status(root, job);
  const fields = {};
  for (let i = 0; i < pairs.length; i += 2) fields[pairs[i]] = pairs[i + 1];
  return fields;
}

// Events come from the job's own stream. It begins when the job does, and the status is the truth: a look every
// second finds the end of a job that never started, too. The state is asked for before the events are read, so that
// none that came before the end is missed.
async function* events(job) {
  const reader = redis.duplicate();
  let last = "0-0";
  try {
    for (;;) {
      const { state } = await status(job);
      const ended = !["waiting", "running"].includes(state);
      const patience = ended ? [] : ["BLOCK", 1000];
      const reply = await reader.xread(...patience, "STREAMS", `${root}:events:${job}`, last);
      for (const [entry, pairs] of reply?.[0][1] ?? []) {
        last = entry;
        const fields = {};
        for (let i = 0; i < pairs.length; i += 2) fields[pairs[i]] = pairs[i + 1];
        yield fields;
      }
      if (ended) return;
    }
  } finally {
    reader.disconnect();
  }
}

const job = await submit(await readFile(recording));
console.error(`job ${job}`);
for await (const event of events(job)) console.error(`${event.type} ${event.data}`);
const ended = await status(job);
redis.disconnect();
if (ended.state !== "done") {
  console.error(`${ended.state}: ${ended.error}`);
  process.exit(1);
}
console.log(JSON.parse(ended.result).text);
