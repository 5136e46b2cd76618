// BullMQ: completed jobs are removed. It has no pool: `work` is run once for each worker process.
//   bullmq_app.js work | backlog FIRST COUNT | paced COUNT GAP | rate one|many COUNT
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

async function putAll(queue, count, dataOf) {
  for (let next = 0; next < count; next += 1000) {
    const size = Math.min(1000, count - next);
    const jobs = Array.from({ length: size }, (_, i) => ({ name: 'mark', data: dataOf(next + i), opts: options }));
    await queue.addBulk(jobs);
  }
}

async function rate(queue, how, count) {
  const data = { to: 'ada@example.org' };
  const put = async (puts) => {
    if (how === 'many') return putAll(queue, puts, () => data);
    for (let i = 0; i < puts; i += 1) await queue.add('mark', data, options);
  };
  const spent = (since) => { const { user, system } = process.cpuUsage(since); return (user + system) / 1e6; };
  await put(20);
  const began = now();
  const before = process.cpuUsage();
  await put(count);
  console.log(JSON.stringify([now() - began, spent(before)]));
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
  if (what === 'rate') await rate(queue, words[0], Number(words[1]));
  else if (what === 'paced') await paced(queue, ...words.map(Number));
  else await putAll(queue, Number(words[1]), (i) => Number(words[0]) + i);
  await queue.close();
}

main(...process.argv.slice(2));
