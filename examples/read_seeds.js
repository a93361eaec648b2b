// Rebuild a seed file's models: node read_seeds.js run.seeds [base.safetensors] writes shared.f32, ... (raw float32)
"use strict";
const fs = require("fs"), zlib = require("zlib"), { createHash } = require("crypto");
const F = Math.fround; // every operation on float32 is rounded by it: doubles hold the products, and sums round alike
const [LOG, SIN, COS] = [ // float32 each
  [-0.10106764, 0.16222525, -0.17250848, 0.19900173, -0.24969909, 0.3333506, -0.50000364, 0.99999994],
  [0.00015148513, -0.0046737664, 0.07968968, -0.6459637, 1.5707964],
  [0.0008581906, -0.020810628, 0.25365075, -1.2336982, 0.99999994]].map((row) => Float32Array.from(row));
const float = new Float32Array(1), int = new Int32Array(float.buffer); // the same four bytes
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
const bytesOf = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);
const refuse = (why) => { console.error(why); process.exit(1); };
function splitmix(x, bits) { // a bijection of words of so many bits
  const cut = (word) => BigInt.asUintN(bits, word);
  x = cut(x + 0x9e3779b97f4a7c15n);
  x = cut((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n);
  x = cut((x ^ (x >> 27n)) * 0x94d049bb133111ebn);
  return x ^ (x >> 31n);
}
function high(a, b) { // the upper half of a product of 32-bit words
  const ah = a >>> 16, al = a & 0xffff, bh = b >>> 16, bl = b & 0xffff;
  const one = ah * bl + ((al * bl) >>> 16), two = al * bh + (one & 0xffff);
  return ah * bh + (one >>> 16) + (two >>> 16);
}
function philox(k0, k1, block) { // Philox4x32-10: four 32-bit words
  let c0 = block >>> 0, c1 = Math.floor(block / 2 ** 32), c2 = 0, c3 = 0;
  for (let round = 0; round < 10; round++) {
    const high0 = high(c0, 0xd2511f53), low0 = Math.imul(c0, 0xd2511f53) >>> 0;
    const high1 = high(c2, 0xcd9e8d57), low1 = Math.imul(c2, 0xcd9e8d57) >>> 0;
    [c0, c1, c2, c3] = [(high1 ^ c1 ^ k0) >>> 0, low1, (high0 ^ c3 ^ k1) >>> 0, low0];
    [k0, k1] = [(k0 + 0x9e3779b9) >>> 0, (k1 + 0xbb67ae85) >>> 0];
  }
  return [c0, c1, c2, c3];
}
function polynomial(c, s) {
  const s2 = F(s * s);
  return F(F(F(F(c[0] * s2) + F(F(c[1] * s) + c[2])) * s2) + F(F(c[3] * s) + c[4]));
}
function boxMuller(a, b) { // two normals: the radius from a, the angle from b
  float[0] = F(F(a) * 2 ** -32) + 2 ** -33;
  const bits = (int[0] - 0x3f3504f3) | 0;
  int[0] = (bits & 0x7fffff) + 0x3f3504f3;
  const c = LOG, f = F(float[0] - 1), f2 = F(f * f), f4 = F(f2 * f2);
  const upper = F(F(F(F(c[0] * f) + c[1]) * f2) + F(F(c[2] * f) + c[3]));
  const lower = F(F(F(F(c[4] * f) + c[5]) * f2) + F(F(c[6] * f) + c[7]));
  const squared = F(F(F(f * -2) * F(F(upper * f4) + lower)) + F((bits >> 23) * F(-1.3862944)));
  const r = F(Math.sqrt(Math.max(squared, 0))), t = F(F(b | 0) * 2 ** -31), s = F(t * t);
  const cosine = F(r * polynomial(COS, s));
  return [b & 1 ? -cosine : cosine, F(r * F(polynomial(SIN, s) * t))];
}
function stream(seed, d, law) { // a seed's numbers, float32 [d], and the factor that puts them on the sphere
  const k0 = Number(seed & 0xffffffffn), k1 = Number(seed >> 32n), z = new Float32Array(d);
  const tile = law === "rademacher" ? 32768 : 1024;
  for (let start = 0, block = 0; start < d; start += tile) {
    for (let i = 0; i < 256; i++, block++) {
      const w = philox(k0, k1, block);
      const four = tile === 1024 ? [...boxMuller(w[0], w[1]), ...boxMuller(w[2], w[3])] : [];
      for (let k = 0; k < tile / 256; k++) { // beyond the end nothing is kept
        z[start + 256 * k + i] = tile === 1024 ? four[k] : (w[k >> 5] >>> (k & 31)) & 1 ? -1 : 1;
      }
    }
  }
  if (law !== "sphere") return [z, 1];
  const lanes = new Float64Array(1024);
  z.forEach((value, e) => (lanes[e % 1024] += value * value));
  return [z, Math.sqrt(d / lanes.reduce((sum, lane) => sum + lane, 0))];
}
function uniform(key, bound, size) { // numpy's Philox (4x64, from counter 1) as float32 on ±bound
  const M = [0xd2e7470ee14c6c93n, 0xca5a826395121157n], x = new Float32Array(size);
  for (let block = 1n, at = 0; at < size; block++) {
    let c = [block, 0n, 0n, 0n], k0 = BigInt.asUintN(64, key), k1 = key >> 64n;
    for (let round = 0; round < 10; round++) {
      const p0 = c[0] * M[0], p1 = c[2] * M[1], low = (p) => BigInt.asUintN(64, p);
      c = [(p1 >> 64n) ^ c[1] ^ k0, low(p1), (p0 >> 64n) ^ c[3] ^ k1, low(p0)];
      [k0, k1] = [low(k0 + 0x9e3779b97f4a7c15n), low(k1 + 0xbb67ae8584caa73bn)];
    }
    const halves = c.flatMap((word) => [word & 0xffffffffn, word >> 32n]);
    for (const half of halves) x[at++] = F(F(F((Number(half) >>> 8) * 2 ** -24) * 2) - 1) * F(bound);
  }
  return x;
}
function half(word) { // float16 to float32
  const exponent = (word >> 10) & 31, size = (exponent ? 1024 : 0) + (word & 1023);
  return (word >> 15 ? -size : size) * 2 ** (Math.max(exponent, 1) - 25);
}
function rebuilt(about, header, take, base) {
  let spans = [], begin = 0, drawn = 0; // of the stream's numbers
  const parts = about.tensors.map(([name, shape, start, number, key], n) => {
    const size = shape.reduce((a, b) => a * b, 1), [lr, smoothing] = about.factors ? about.factors[n] : [1, 1];
    const rows = header.law === "rank_one" && shape.length > 1 && shape[0] > 1 && shape[0] < size ? shape[0] : 0;
    const columns = rows && size / rows; // a matrix's direction is a b', of as many numbers
    spans.push([begin, size, drawn, rows, columns, lr / smoothing]);
    [begin, drawn] = [begin + size, drawn + (rows ? rows + columns : size)];
    if (start === "uniform") return uniform(BigInt("0x" + key), number, size);
    if (start === "constant") return new Float32Array(size).fill(number);
    return start === "stored" ? take(Float32Array, size) : base(number); // of the file's name for it
  });
  const x = new Float32Array(begin), d = begin, ofSteps = header.seeds === "steps";
  parts.forEach((part, n) => x.set(part, spans[n][0]));
  if (sha256(bytesOf(x)) !== about.initial) refuse(`other first weights than those with the sha256 ${about.initial}`);
  const steps = about.phases.flatMap(([updates, count, width, lr]) => Array(updates * count).fill([width, lr]));
  const total = steps.reduce((sum, [width]) => sum + width, 0);
  const stored = about.root ? null : take(BigUint64Array, ofSteps ? steps.length : total);
  const [before, after, party] = (about.root || [0, 0, 0]).map((word) => BigInt("0x" + word));
  const kinds = { float32: [Float32Array, total], float16: [Uint16Array, total], sign: [Uint8Array, (total + 7) >> 3] };
  const numbers = take(...kinds[about.scalars]), size = F(about.size);
  const scalars = { float32: (n) => numbers[n], float16: (n) => half(numbers[n]),
    sign: (n) => ((numbers[n >> 3] >> (n & 7)) & 1 ? -size : size) };
  let beta = header.rule.momentum || 0, v = new Float32Array(d), sum = new Float64Array(d), at = 0, iterates = 0;
  steps.forEach(([width, lr], step) => {
    if (beta) v.forEach((value, i) => (v[i] = value * F(beta)));
    for (let p = 0; p < width; p++, at++) {
      const place = BigInt(p), packed = (party << 32n) | BigInt(step);
      let seed = stored ? stored[ofSteps ? step : at] : ofSteps ? (splitmix(packed ^ before, 54) ^ after) << 10n
        : splitmix(((packed << 10n) | place) ^ before, 64) ^ after;
      if (ofSteps) seed = splitmix(seed | place, 64);
      const [z, norm] = stream(seed, drawn, header.law), s = scalars[about.scalars](at), to = beta ? v : x;
      const plain = beta ? (-s / width) * (1 - beta * (header.rule.damped || 0)) : (lr * s) / width;
      for (const [start, size, first, rows, columns, factor] of spans) {
        const amount = F(plain * norm * factor);
        for (let i = 0; i < size; i++) {
          const row = rows ? F(amount * z[first + Math.floor(i / columns)]) : amount;
          to[start + i] -= F(row * z[first + (rows ? rows + (i % columns) : i)]);
        }
      }
    }
    if (beta) v.forEach((value, i) => (x[i] += F(F(-lr) * value)));
    if (step >= (about.average ?? Infinity)) iterates += sum.forEach((value, i) => (sum[i] = value + x[i])) ?? 1;
  });
  return iterates ? Float32Array.from(sum, (value) => value / iterates) : x;
}
const data = fs.readFileSync(process.argv[2]), body = data.subarray(0, -32), start = data.toString("latin1", 0, 6);
if (start + sha256(body) !== "SEEDS\x01" + data.toString("hex", body.length)) refuse("no whole seed file of version 1");
let place = 10 + data.readUInt32LE(6), header = JSON.parse(zlib.inflateSync(body.subarray(10, place)));
if (!["gaussian", "sphere", "rademacher", "rank_one"].includes(header.law) || header.rule.name !== "sgd")
  refuse(`the law ${header.law} with the rule ${header.rule.name} is not read here`);
const take = (Kind, count) => // the next numbers, copied to where they are aligned
  new Kind(Uint8Array.from(body.subarray(place, (place += count * Kind.BYTES_PER_ELEMENT))).buffer);
function base(name) { // a tensor of float32 of a safetensors file
  const path = process.argv[3] || refuse("the first weights are not in the file: give the public weights as well");
  const file = fs.readFileSync(path), begin = 8 + Number(file.readBigUInt64LE(0));
  const about = JSON.parse(file.subarray(8, begin))[name] || refuse(`${path} has no tensor ${name}`);
  const [first, last] = about.data_offsets.map((offset) => begin + offset);
  return new Float32Array(Uint8Array.from(file.subarray(first, last)).buffer);
}
for (const about of header.models) {
  const x = rebuilt(about, header, take, base);
  if (sha256(bytesOf(x)) !== about.result) refuse(`${about.name} has other bits`);
  fs.writeFileSync(about.name.replaceAll(" ", "_") + ".f32", bytesOf(x));
}
