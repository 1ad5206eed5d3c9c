# SPDX-License-Identifier: Apache-2.0
"""Times FLA's Triton kernels (packages fla-core and flash-linear-attention) as peers.

Decode of one token with FP32 states in both layouts, GDN and KDA, and chunked prefill. Decode is
replayed from one CUDA graph over several sets of states, together past the second cache level.
Rows go to a JSON Lines file in the form of decode_128's, with "peer": true.
Usage: peers.py ROWS.JSONL
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")

import torch
from fla.ops.gated_delta_rule import (
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
)
from fla.ops.kda import chunk_kda, fused_recurrent_kda

HEADS = 32
DIM = 128


def copy_rate():
    """Bytes per second of a large copy on the device, read and written."""
    source = torch.randint(0, 255, (1 << 31,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2.0 * source.numel() / (median_us(lambda: target.copy_(source), 1, 9) * 1e-6)


def median_us(call, per_call, repeats):
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / per_call)
    return sorted(times)[len(times) // 2]


def inputs(batch, tokens, family):
    shape = (batch, tokens, HEADS, DIM)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    if family == "kda":
        g = -0.05 * torch.rand(shape, device="cuda", dtype=torch.float32)
    else:
        g = -0.05 * torch.rand(shape[:3], device="cuda", dtype=torch.float32)
    beta = torch.full(shape[:3], 0.5, device="cuda", dtype=torch.float32)
    return {"q": q, "k": k, "v": v, "g": g, "beta": beta}


def graph_of(call):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def decode_row(family, batch, value_first):
    operation = fused_recurrent_kda if family == "kda" else fused_recurrent_gated_delta_rule
    one = batch * HEADS * DIM * DIM * 4
    sets = max(1, min(256, (240 << 20) // one))
    states = [torch.randn(batch, HEADS, DIM, DIM, device="cuda") * 0.1 for _ in range(sets)]
    given = inputs(batch, 1, family)

    def call():
        for state in states:
            operation(
                **given,
                initial_state=state,
                output_final_state=True,
                use_qk_l2norm_in_kernel=True,
                state_v_first=value_first,
            )

    with torch.no_grad():
        graph = graph_of(call)
        us = median_us(graph.replay, sets, 15)
    moved = (
        batch * HEADS * (2 * DIM * DIM * 4 + 4 * DIM * 2 + 8 + (4 * DIM if family == "kda" else 0))
    )
    return us, moved


def prefill_row(family, batch, tokens):
    operation = chunk_kda if family == "kda" else chunk_gated_delta_rule
    given = inputs(batch, tokens, family)

    def call():
        operation(**given, output_final_state=True, use_qk_l2norm_in_kernel=True)

    with torch.no_grad():
        return median_us(call, 1, 9)


def main():
    torch.manual_seed(5)
    copy = copy_rate()
    print(f"copy {copy / 1e9:.0f} GB/s", flush=True)
    rows = []

    def add(family, batch, tokens, schedule, us, moved, peer):
        row = {
            "family": family,
            "state": "fp32",
            "rank": 0,
            "window": 1,
            "heads": HEADS,
            "batch": batch,
            "tokens": tokens,
            "schedule": schedule,
            "us": round(us, 2),
            "bytes": moved,
            "gb_per_s": round(moved / us / 1e3) if moved else None,
            "copy_share": round(moved / (us * 1e-6) / copy, 3) if moved else None,
            "peer": peer,
        }
        rows.append(row)
        print(json.dumps(row), flush=True)

    for family in ("gdn", "kda"):
        for batch in (1, 8, 64, 128, 256, 512, 1024):
            for value_first in (False, True):
                us, moved = decode_row(family, batch, value_first)
                layout = "value first" if value_first else "key first"
                add(family, batch, 1, "-", us, moved, f"fla fused_recurrent, {layout}")
                torch.cuda.empty_cache()
        for batch, tokens in ((1, 8192), (16, 1024)):
            us = prefill_row(family, batch, tokens)
            add(family, batch, tokens, "prefill", us, None, "fla chunk")
    Path(sys.argv[1]).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
