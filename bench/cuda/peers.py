# SPDX-License-Identifier: Apache-2.0
"""Times FLA's Triton kernels (package fla-core) as peers.

Decode of one token with FP32 states in both layouts, and chunked prefill. Both are replayed from
CUDA graphs, decode over several sets of states, together past the second cache level. Compilation
and the choice among Triton's configurations come first, in several processes, and are not timed.
Each row is appended as soon as it is measured, in the form of decode_128's with the peer's name.
Usage: peers.py ROWS.JSONL PART..., PART one of gdn-decode, gdn-prefill, kda-decode, kda-prefill
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")

import torch
import triton
from fla.ops.gated_delta_rule import (
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
)
from fla.ops.kda import chunk_kda, fused_recurrent_kda

HEADS = 32
DIM = 128
BATCHES = (1, 8, 64, 256, 512, 1024)
PREFILLS = ((1, 8192), (16, 1024))
COMPILERS = 14


def median_us(call, per_call, repeats):
    for _ in range(2):
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


def copy_rate():
    """Bytes per second of a large copy on the device, read and written."""
    source = torch.randint(0, 255, (1 << 31,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2.0 * source.numel() / (median_us(lambda: target.copy_(source), 1, 9) * 1e-6)


def inputs(batch, tokens, family):
    shape = (batch, tokens, HEADS, DIM)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    decays = shape if family == "kda" else shape[:3]
    g = -0.05 * torch.rand(decays, device="cuda", dtype=torch.float32)
    beta = torch.full(shape[:3], 0.5, device="cuda", dtype=torch.float32)
    return {"q": q, "k": k, "v": v, "g": g, "beta": beta}


def graph_of(call):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def decode_call(family, given, state, value_first):
    operation = fused_recurrent_kda if family == "kda" else fused_recurrent_gated_delta_rule
    return operation(
        **given,
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        state_v_first=value_first,
    )


def decode_rows(family):
    """Yields the rows of one family's decode."""
    for batch in BATCHES:
        one = batch * HEADS * DIM * DIM * 4
        sets = max(8, min(96, (240 << 20) // one))
        states = [torch.randn(batch, HEADS, DIM, DIM, device="cuda") * 0.1 for _ in range(sets)]
        given = inputs(batch, 1, family)
        gates = 4 * DIM if family == "kda" else 4
        moved = batch * HEADS * (2 * DIM * DIM * 4 + 4 * DIM * 2 + 4 + gates)
        for value_first in (False, True):

            def call(given=given, states=states, value_first=value_first):
                for state in states:
                    decode_call(family, given, state, value_first)

            us = median_us(graph_of(call).replay, sets, 11)
            layout = "value first" if value_first else "key first"
            yield batch, 1, "-", us, moved, f"fla fused_recurrent, {layout}"
            torch.cuda.empty_cache()


def prefill_calls(family):
    """Name -> call of (inputs); KDA with free and with bounded gates."""
    common = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    if family == "gdn":
        return {"fla chunk": lambda given: chunk_gated_delta_rule(**given, **common)}
    return {
        "fla chunk": lambda given: chunk_kda(**given, **common),
        "fla chunk, safe gate": lambda given: chunk_kda(**given, **common, safe_gate=True),
    }


def prefill_rows(family):
    """Yields the rows of one family's prefill."""
    for batch, tokens in PREFILLS:
        given = inputs(batch, tokens, family)
        gates = 4 * DIM if family == "kda" else 4
        per_token = 4 * DIM * 2 + 4 + gates
        moved = batch * HEADS * (tokens * per_token + DIM * DIM * 4)
        for name, operation in prefill_calls(family).items():
            graph = graph_of(lambda operation=operation, given=given: operation(given))
            us = median_us(graph.replay, 1, 9)
            yield batch, tokens, "prefill", us, moved, name


def compile_share(parts, index):
    """Compiles every COMPILERS-th configuration of the parts' kernels into Triton's cache."""
    tuner = triton.runtime.autotuner.Autotuner
    prune = tuner.prune_configs
    seen = {}

    def share(self, *args, **kwargs):
        configs = prune(self, *args, **kwargs)
        first = seen.setdefault(id(self), len(seen))
        own = [c for i, c in enumerate(configs) if (i + first) % COMPILERS == index]
        return own or configs[:1]

    tuner.prune_configs = share
    for part in parts:
        family, _, kind = part.partition("-")
        if kind == "decode":
            state = torch.zeros(1, HEADS, DIM, DIM, device="cuda")
            for value_first in (False, True):
                decode_call(family, inputs(1, 1, family), state, value_first)
        else:
            for batch, tokens in PREFILLS:
                for operation in prefill_calls(family).values():
                    operation(inputs(batch, tokens, family))
    torch.cuda.synchronize()


def main():
    path, parts = sys.argv[1], sys.argv[2:]
    torch.manual_seed(5)
    torch.set_grad_enabled(False)
    if path == "--compile":
        compile_share(parts[1:], int(parts[0]))
        return
    start = time.monotonic()
    command = [sys.executable, __file__, "--compile"]
    workers = [subprocess.Popen([*command, str(i), *parts]) for i in range(COMPILERS)]
    for worker in workers:
        worker.wait()
    print(f"compiled in {time.monotonic() - start:.0f} s", flush=True)
    copy = copy_rate()
    print(f"copy {copy / 1e9:.0f} GB/s", flush=True)
    with Path(path).open("a") as rows:
        for part in parts:
            family, _, kind = part.partition("-")
            measured = decode_rows(family) if kind == "decode" else prefill_rows(family)
            for batch, tokens, schedule, us, moved, peer in measured:
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
                    "gb_per_s": round(moved / us / 1e3),
                    "copy_share": round(moved / (us * 1e-6) / copy, 3),
                    "peer": peer,
                }
                rows.write(json.dumps(row) + "\n")
                rows.flush()
                print(json.dumps(row), flush=True)
            print(f"{part} done at {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
