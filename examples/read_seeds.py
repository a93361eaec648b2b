"""Rebuild a seed file's models with numpy alone: python read_seeds.py run.seeds [base.safetensors]
writes shared.npy
"""

# fmt: off
import hashlib
import io
import json
import sys
import zlib

import numpy as np

f4, u4, u8, LOW, SHIFT = np.float32, np.uint32, np.uint64, np.uint64(0xFFFFFFFF), np.uint64(32)
LOG = "-0.10106764 0.16222525 -0.17250848 0.19900173 -0.24969909 0.3333506 -0.50000364 0.99999994"
SIN = "0.00015148513 -0.0046737664 0.07968968 -0.6459637 1.5707964"
COS = "0.0008581906 -0.020810628 0.25365075 -1.2336982 0.99999994"
LOG, SIN, COS = (np.array(row.split(), f4) for row in (LOG, SIN, COS))

def _splitmix(x, bits):  # a bijection of words of so many bits
    x = (x + u8(0x9E3779B97F4A7C15)) & u8((1 << bits) - 1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> u8(shift))) * u8(factor)) & u8((1 << bits) - 1)
    return x ^ (x >> u8(31))

# a seed's numbers, float32 [count], and the factor that puts them on the sphere
def _stream(seed, count, law):
    c0, c1 = np.arange(-(-count // (32768 if law == "rademacher" else 1024)) * 256, dtype=u8), u8(0)
    c2, c3, keys = u8(0), u8(0), [(seed + n * 0x9E3779B9, (seed >> 32) + n * 0xBB67AE85) for n in range(10)]
    for k0, k1 in keys:  # Philox4x32-10
        p0, p1 = c0 * u8(0xD2511F53), c2 * u8(0xCD9E8D57)
        c0, c1 = (p1 >> SHIFT) ^ c1 ^ u8(k0 & 0xFFFFFFFF), p1 & LOW
        c2, c3 = (p0 >> SHIFT) ^ c3 ^ u8(k1 & 0xFFFFFFFF), p0 & LOW
    w = np.stack([c0, c1, c2, c3]).astype(u4)
    if law == "rademacher":
        bits = w.reshape(4, -1, 1, 256) >> np.arange(32, dtype=u4)[:, None] & u4(1)
        return (f4(1) - f4(2) * bits.transpose(1, 0, 2, 3).astype(f4)).ravel()[:count], 1.0
    bits = (w[::2].astype(f4) * f4(2**-32) + f4(2**-33)).view(np.int32) - np.int32(0x3F3504F3)
    f = ((bits & np.int32(0x7FFFFF)) + np.int32(0x3F3504F3)).view(f4) - f4(1)  # Box-Muller
    c, f2, s = LOG, f * f, (t := w[1::2].view(np.int32).astype(f4) * f4(2**-31)) * t
    p = ((c[0] * f + c[1]) * f2 + (c[2] * f + c[3])) * (f2 * f2) + ((c[4] * f + c[5]) * f2 + (c[6] * f + c[7]))
    r = np.sqrt(np.maximum((f * f4(-2)) * p + (bits >> 23).astype(f4) * f4(-1.3862944), f4(0)))
    sine, cosine = ((c[0] * (s * s) + (c[1] * s + c[2])) * (s * s) + (c[3] * s + c[4]) for c in (SIN, COS))
    pairs = np.stack([((r * cosine).view(u4) ^ (w[1::2] << u4(31))).view(f4), r * (sine * t)], 1)
    z = pairs.reshape(4, -1, 256).transpose(1, 0, 2).ravel()[:count]
    lanes = np.add.accumulate(np.append(z.astype(float) ** 2, np.zeros(-count % 1024)).reshape(-1, 1024))[-1]
    return z, np.sqrt(count / np.add.accumulate(lanes)[-1]) if law == "sphere" else 1.0

def _weights(name):  # a tensor of float32 of a safetensors file
    assert sys.argv[2:], "the first weights are not in the file: give the public weights as well"
    file = np.fromfile(sys.argv[2], "u1").tobytes()
    about = json.loads(file[8 : (begin := 8 + int.from_bytes(file[:8], "little"))]).get(name)
    assert about, f"{sys.argv[2]} has no tensor {name}"
    return np.frombuffer(file[begin:][slice(*about["data_offsets"])], "<f4")
data = np.fromfile(sys.argv[1], "u1").tobytes()
assert data[:6] + hashlib.sha256(data[:-32]).digest() == b"SEEDS\1" + data[-32:], "no whole seed file of version 1"
header = json.loads(zlib.decompress((stream := io.BytesIO(data[10:-32])).read(int.from_bytes(data[6:10], "little"))))
law, rule, of_steps = header["law"], header["rule"], header["seeds"] == "steps"
laws = ("gaussian", "sphere", "rademacher", "rank_one") if rule["name"] == "sgd" else ()
assert law in laws, f"the law {law} with the rule {rule['name']} is not read here"
for about in header["models"]:
    parts, spans, phases, drawn = [], [], about["phases"], 0
    factors = about.get("factors", [(1, 1)] * len(about["tensors"]))
    for (_, shape, start, *more), (lr_factor, smoothing) in zip(about["tensors"], factors, strict=True):
        x = np.full(np.prod(shape, dtype=int), more[0] if start in ("constant", "uniform") else 0, f4)
        if start == "uniform":
            x *= np.random.Generator(np.random.Philox(key=int(more[1], 16))).random(x.size, f4) * f4(2) - 1
        elif start != "constant":
            x = np.frombuffer(stream.read(4 * x.size), "<f4") if start == "stored" else _weights(more[0])
        rows = shape[0] if law == "rank_one" and len(shape) > 1 and 1 < shape[0] < x.size else 0
        # of the stream's numbers: a and b of a matrix
        count = rows + x.size // rows if rows else x.size
        spans.append((sum(part.size for part in parts), x.size, drawn, count, rows, lr_factor / smoothing))
        parts, drawn = [*parts, x.ravel()], drawn + count
    x = np.concatenate(parts)
    assert hashlib.sha256(x).hexdigest() == about["initial"], "other first weights"
    widths = np.repeat([p[2] for p in phases], [p[0] * p[1] for p in phases])
    places = (np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)).astype(u8)
    if "root" in about:
        before, after, party = (int(word, 16) for word in about["root"])
        packed = np.arange(len(widths), dtype=u8) | u8(party << 32)
        packed = packed if of_steps else np.repeat(packed, widths) << u8(10) | places
        seeds = (_splitmix(packed ^ u8(before), 54 if of_steps else 64) ^ u8(after)) << u8(10 * of_steps)
    else:
        seeds = np.frombuffer(stream.read(8 * len(widths if of_steps else places)), "<u8")
    seeds = _splitmix(np.repeat(seeds, widths) | places, 64) if of_steps else seeds
    kind, bits = {"float32": ("<f4", 32), "float16": ("<f2", 16), "sign": ("u1", 1)}[about["scalars"]]
    deltas = np.frombuffer(stream.read(-(-bits * len(places) // 8)), kind)
    deltas = f4(about["size"]) * (1 - 2.0 * np.unpackbits(deltas, bitorder="little")) if bits < 2 else deltas
    momentum, v, iterates = rule.get("momentum", 0.0), np.zeros_like(x), []
    pairs, to = zip(seeds.tolist(), deltas.tolist(), strict=False), v if momentum else x
    for step, (width, lr) in enumerate(p[2:] for p in phases for _ in range(p[0] * p[1])):
        v *= f4(momentum)
        for seed, s in (next(pairs) for _ in range(width)):
            amount = -s / width * (1 - momentum * rule.get("damped", 0)) if momentum else lr * s / width
            z, norm = _stream(seed, drawn, law)
            for begin, size, first, count, rows, factor in spans:
                part, own = f4(amount * norm * factor), z[first : first + count]
                to[begin : begin + size] -= np.outer(part * own[:rows], own[rows:]).ravel() if rows else part * own
        x += f4(-lr) * v
        iterates += [x.astype(float)] if step >= about.get("average", np.inf) else []
    x = (sum(iterates[1:], iterates[0]) / len(iterates)).astype(f4) if iterates else x
    assert hashlib.sha256(x).hexdigest() == about["result"], f"{about['name']} has other bits"
    np.save(f"{about['name'].replace(' ', '_')}.npy", x)
