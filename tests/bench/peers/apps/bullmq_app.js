// BullMQ: completed jobs are removed. It has no pool: `work` is run once for each worker process.
//   bullmq_app.js work | backlog FIRST COUNT | paced COUNT GAP
const fs = require('fs');
const { createRequire } = require('module');
const { Queue, Worker } = createRequire(`${process.env.BENCH_HOME}/package.json`)('bullmq');

const { hostname: host, port } = new URL(process.env.BENCH_URL);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const options = { removeOnComplete: true };
const marks = fs.openSync(process.env.BENCH_MARKS, 'a');
const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function mark(job) {
  const record = Buffer.alloc(24);
  record.writeDoubleLE(now(), 0);
  record.writeBigUInt64LE(BigInt(process.pid), 8);
  record.writeBigUInt64LE(BigInt(job.data), 16);
  fs.writeSync(marks, record);
}

async function backlog(queue, first, count) {
  for (let next = first; next < first + count; next += 500) {
    const size = Math.min(500, first + count - next);
    await queue.addBulk(Array.from({ length: size }, (_, i) => ({ name: 'mark', data: next + i, opts: options })));
  }
}

async function paced(queue, count, gapSeconds) {
  const moments = [];
  for (let number = 0, nextAt = now(); number < count; number += 1) {
    await sleep(Math.max(0, nextAt - now()));
    moments.push(now());
    nextAt = moments[number] + gapSeconds;
    await queue.add('mark', number, options);
  }
  console.log(JSON.stringify(moments));
}

async function main(what, ...words) {
  if (what === 'work') {
    new Worker('bench', mark, { connection }).on('error', console.error);
    return;
  }
  const queue = new Queue('bench', { connection });
  await (what === 'backlog' ? backlog : paced)(queue, ...words.map(Number));
  await queue.close();
}

main(...process.argv.slice(2));
