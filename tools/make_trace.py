#!/usr/bin/env python3
"""Write a made-up trace in Kineto's layout, of a given size: tools/make_trace.py FILE MB [--rank N]

Steps of nested operators, launches, kernels on two streams and arrows between them, in the proportions of
real traces: about 260 bytes an event.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

BASE_NS = 1_795_000_000_000_000_000
MAIN = 4242
_OP = (
    '  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
    '    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n'
    '      "External id": {number},"Record function id": {number}, "Sequence number": {step}, '
    '"Fwd thread id": 0, "Ev Idx": {number}\n    }}\n  }},\n'
)
_LAUNCH = (
    '  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": {pid}, "tid": {tid},\n'
    '    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n'
    '      "External id": {number}, "cbid": 211, "correlation": {number}\n    }}\n  }},\n'
    '  {{\n    "ph": "s", "id": {number}, "pid": {pid}, "tid": {tid}, "ts": {ts:.3f},\n'
    '    "cat": "ac2g", "name": "ac2g"\n  }},\n'
)
_KERNEL = (
    '  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream},\n'
    '    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n'
    '      "External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, '
    '"correlation": {number}, "registers per thread": 32, "shared memory": 0,\n'
    '      "blocks per SM": 1.5, "warps per SM": 12.0, "grid": [162, 1, 1], "block": [256, 1, 1], '
    '"est. achieved occupancy %": 37\n    }}\n  }},\n'
    '  {{\n    "ph": "f", "id": {number}, "pid": 0, "tid": {stream}, "ts": {ts:.3f},\n'
    '    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }},\n'
)
_STEP = (
    '  {{\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}",\n'
    '    "pid": {pid}, "tid": {tid}, "ts": {ts:.3f}, "dur": {dur:.3f},\n'
    '    "args": {{\n      "External id": {number}\n    }}\n  }},\n'
)
_OPS = ["aten::convolution", "aten::batch_norm", "aten::relu", "aten::linear", "aten::add_", "aten::mul"]
_KERNELS = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float> >(int, float)",
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
]


def steps(rank: int) -> Iterator[str]:
    """The text of one step after another."""
    chance = random.Random(rank)
    time, number, step = 1000.0, 1, 0
    pid = MAIN + rank
    device = time
    while True:
        begin = time
        pieces = []
        for _ in range(500):
            number += 1
            gap = chance.uniform(1, 4)
            outer = chance.uniform(20, 60)
            common = {"pid": pid, "tid": pid, "number": number, "step": step}
            pieces.append(_OP.format(name=chance.choice(_OPS), ts=time + gap, dur=outer, **common))
            pieces.append(_OP.format(name="aten::empty", ts=time + gap + 1, dur=outer / 4, **common))
            launch = time + gap + outer / 2
            pieces.append(_LAUNCH.format(ts=launch, dur=outer / 5, **common))
            start = max(device, launch + 5)
            length = chance.uniform(5, 50)
            name = chance.choices(_KERNELS, (20, 20, 1))[0]
            kernel = {"name": name, "stream": chance.choice((7, 7, 20)), "number": number}
            pieces.append(_KERNEL.format(ts=start, dur=length, **kernel))
            device = start + length + 0.5
            time += gap + outer
        number += 1
        pieces.append(_STEP.format(step=step, ts=begin, dur=time - begin, pid=pid, tid=pid, number=number))
        step += 1
        time += 1
        yield "".join(pieces)


def write(path: Path, size_mb: float, rank: int = 0, world_size: int = 2) -> None:
    """Write a trace of about `size_mb` megabytes (of 10^6 bytes)."""
    head = (
        '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n  ],\n'
        f'  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {world_size}}},\n'
        '  "displayTimeUnit": "ms",\n'
        f'  "baseTimeNanoseconds": {BASE_NS},\n  "traceEvents": [\n'
    )
    names = (
        f'  {{\n    "name": "process_name", "ph": "M", "ts": 1000.000, "pid": {MAIN + rank}, "tid": 0,\n'
        '    "args": {\n      "name": "python"\n    }\n  },\n'
        '  {\n    "name": "process_labels", "ph": "M", "ts": 1000.000, "pid": 0, "tid": 0,\n'
        '    "args": {\n      "labels": "GPU 0"\n    }\n  }\n  ],\n'
        '  "traceName": "made-up.json"\n}\n'
    )
    written = 0
    with path.open("w") as file:
        written += file.write(head)
        for text in steps(rank):
            written += file.write(text)
            if written >= size_mb * 1e6:
                break
        file.write(names)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("--rank", type=int, default=0)
    given = parser.parse_args()
    write(given.file, given.megabytes, given.rank)


if __name__ == "__main__":
    main()
