"""Small traces of every kind, and damage to them: what merging has to survive."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from typing import Any

KINETO = (
    b'{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2},\n'
    b'  "baseTimeNanoseconds": 1795000000000000000,\n  "traceEvents": [\n'
    b'  {\n    "ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 4242, "tid": 4242,\n'
    b'    "ts": 1000.125, "dur": 20.5,\n'
    b'    "args": {\n      "External id": 7, "Input Dims": [[1, 2], []]\n    }\n  },\n'
    b'  {\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4242, "tid": 4242,\n'
    b'    "ts": 1004.5, "dur": 3.0,\n    "args": {\n      "correlation": 9\n    }\n  },\n'
    b'  {\n    "ph": "s", "id": 9, "pid": 4242, "tid": 4242, "ts": 1004.5,\n'
    b'    "cat": "ac2g", "name": "ac2g"\n  },\n'
    b'  {\n    "ph": "X", "cat": "kernel", "name": "gemm<float, 4>", "pid": 0, "tid": 7,\n'
    b'    "ts": 1010.0, "dur": 5.0,\n    "args": {\n      "correlation": 9, "stream": 7\n    }\n  },\n'
    b'  {\n    "ph": "f", "id": 9, "pid": 0, "tid": 7, "ts": 1010.0,\n'
    b'    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  },\n'
    b'  {\n    "name": "process_labels", "ph": "M", "ts": 1000.0, "pid": 0, "tid": 0,\n'
    b'    "args": {\n      "labels": "GPU 0"\n    }\n  },\n'
    b'  {\n    "ph": "C", "name": "memory", "pid": 4242, "ts": 1011.0, "args": {"bytes": 12}\n  },\n'
    b'  {\n    "name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 1020.000\n  }\n'
    b'  ],\n  "traceName": "x.json"\n}\n'
)
ARRAY = (
    b'[{"ph":"B","pid":1,"tid":1,"ts":1795000000000000,"name":"a"},{"ph":"E","pid":1,"tid":1,"ts":1795000000000010},'
    b'{"ph":"b","cat":"io","id":"0x1f","pid":1,"tid":1,"ts":1795000000000001,"name":"read"},'
    b'{"ph":"e","cat":"io","id":"0x1f","pid":1,"tid":1,"ts":1795000000000004,"name":"read"},'
    b'{"ph":"X","pid":"Spans","tid":"t","ts":1795000000000001.123,"dur":7,"name":"\xc3\xa9","mine":{"a":[1,null]}},'
    b'{"ph":"X","pid":1,"tid":2,"ts":"1795000000000003","dur":"4.5","name":"text","args":{"f":1.5e3}}]'
)
DFTRACER = (
    b'{"name":"HH","cat":"dftracer","type":1,"pid":4242,"tid":4242,"ph":4,'
    b'"args":{"hhash":"68","name":"node1","value":"68"}}\n'
    b'{"name":"FH","cat":"dftracer","type":1,"pid":4242,"tid":4242,"ph":4,'
    b'"args":{"hhash":"68","name":"data/d.h5","value":"f64c"}}\n'
    b'{"id":5,"name":"pread64","cat":"POSIX","type":3,"pid":4242,"tid":4242,"ts":1795000000001002,"dur":10,'
    b'"ph":1,"args":{"hhash":"68","ret":8,"offset":0,"count":8,"fhash":"f64c"}}\n'
    b'{"id":6,"name":"close","cat":"POSIX","type":3,"pid":4242,"tid":4243,"ts":1795000000001020,"dur":2,'
    b'"ph":1,"args":{"hhash":"68","ret":0,"fhash":"f64c"}}\n'
)
SEEDS = [KINETO, ARRAY, DFTRACER, gzip.compress(KINETO, 1, mtime=0), b"[\n" + DFTRACER]
_TOKENS = [
    b"NaN",
    b"1e400",
    b"-1",
    b"null",
    b"true",
    b'""',
    b'"x"',
    b"{}",
    b"[]",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"\\",
    b"\\ud800",
    b"\xff\xfe",
    b"\x00",
    b"\x07",
    b"\n",
    b"18446744073709551616",
    b"-9223372036854775808",
    b"4294967297",
    b"1e-400",
    b"0x1f",
    b"[[[[[[[[",
    b'{"a":' * 60,
    b"1.5",
    b'"ph":"s",',
    b'"ph":"f",',
    b'"id":1,',
    b'"ts":0,',
    b'"dur":-5,',
    b'"pid":null,',
    b'"args":7,',
    b'"traceEvents":[',
    b"\xef\xbb\xbf",
    b"9" * 400,
    b"\\u0000",
    b"[" * 2000,
    b'{"a":' * 1500,
    b"1e999999999",
]


def mutated(seed: int, seeds: Sequence[bytes] = SEEDS) -> bytes:
    """One of `seeds`, traces by default, damaged: always the same for the same number."""
    chance = random.Random(seed)
    data: Any = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at = chance.randrange(len(data) + 1)
        way = chance.randrange(7)
        if way == 0:
            data = data[:at]
        elif way == 1:
            data[at:at] = chance.choice(_TOKENS)
        elif way == 2 and at < len(data):
            data[at] = chance.randrange(256)
        elif way == 3:
            del data[at : at + chance.choice((1, 2, 5, 40))]
        elif way == 4:
            piece = data[at : at + chance.choice((4, 30, 200))]
            target = chance.randrange(len(data) + 1)
            data[target:target] = piece
        elif way == 5:
            end = at + chance.choice((1, 3, 8))
            data[at:end] = chance.choice(_TOKENS)
        else:
            for value in (b": 4242", b"1000.125", b'"X"', b"20.5", b'"ts"', b'"args"'):
                if chance.random() < 0.3:
                    data = data.replace(value, b": " + chance.choice(_TOKENS), 1)
        if not data:
            break
    return bytes(data)
