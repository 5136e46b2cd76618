// Leasehold over HTTP, as a worker in another language: leases a hundred jobs, runs them, settles them in one call.
import { openSync, writeSync } from 'node:fs';

const worker = `bench-${process.pid}-abcdef`;
const marks = openSync(process.env.BENCH_MARKS, 'a');
const headers = { Authorization: `Bearer ${process.env.BENCH_TOKEN}`, 'Content-Type': 'application/json' };

async function call(path, body) {
  const request = { method: 'POST', headers, body: JSON.stringify({ worker, ...body }) };
  const answer = await fetch(`${process.env.BENCH_URL}/api/v1${path}`, request);
  if (!answer.ok) throw new Error(`${path}: ${await answer.text()}`);
  return answer.json();
}

function mark(number) {
  const record = Buffer.alloc(24);
  record.writeDoubleLE(Number(process.hrtime.bigint()) / 1e9, 0);
  record.writeBigUInt64LE(BigInt(process.pid), 8);
  record.writeBigUInt64LE(BigInt(number), 16);
  writeSync(marks, record);
}

for (;;) {
  const { leases } = await call('/lease', { queues: ['default'], count: 100, block: 5 });
  const outcomes = leases.map(({ jid, token, queue, data }) => {
    mark(data);
    return { jid, token, queue, outcome: 'complete' };
  });
  if (outcomes.length > 0) await call('/settle', { outcomes });
}
