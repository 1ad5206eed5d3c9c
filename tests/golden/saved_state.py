# SPDX-License-Identifier: Apache-2.0
"""A second reader of saved states, written from docs/FORMAT.md and the standard library alone.

It proves that the document says enough. Slow and plain on purpose; it does not check checksums.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

FORMAT_FIELDS = [
    "payload_bits",
    "levels",
    "value_scale_type",
    "smoothing",
    "num_fp16",
    "num_int8",
    "num_int4",
    "policy",
    "window",
    "stagger",
    "log_decay_type",
    "fit_start",
    "fit_rounds",
]
SHAPE_FIELDS = [
    "num_k_heads",
    "num_v_heads",
    "head_k_dim",
    "head_v_dim",
    "decay",
    "delta_rule",
    "sub_steps",
    "first_k_head",
    "total_k_heads",
]
Matrix = list[list[float]]


@dataclass
class Cursor:
    """Takes parts off a run of bytes, front to back."""

    data: bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        if len(part) != count:
            raise ValueError(f"the bytes end at {len(self.data)}, {self.at + count} are needed")
        self.at += count
        return part

    def numbers(self, code: str, count: int) -> list:
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code))))


def unpack_codes(data: bytes, count: int, bits: int) -> list[int]:
    if bits == 8:
        return list(struct.unpack(f"<{count}b", data))
    per_group, group_bytes = {6: (4, 3), 4: (2, 1), 3: (8, 3)}[bits]
    codes = []
    for at in range(0, len(data), group_bytes):
        word = int.from_bytes(data[at : at + group_bytes], "little")
        for j in range(per_group):
            codes.append(((word >> (bits * j)) & ((1 << bits) - 1)) - (1 << (bits - 1)))
    return codes[:count]


def packed_bytes(count: int, bits: int) -> int:
    per_group, group_bytes = {8: (1, 1), 6: (4, 3), 4: (2, 1), 3: (8, 3)}[bits]
    return (count + per_group - 1) // per_group * group_bytes


def read_compensators(part: Cursor, form: dict, k: int, v: int) -> list[tuple]:
    """Pairs of a key side [K] and a value side [V], FP16 ones first, then INT8, then INT4."""
    n16, n8, n4 = form["num_fp16"], form["num_int8"], form["num_int4"]
    keys = [part.numbers("e", k) for _ in range(n16)]
    values = [part.numbers("e", v) for _ in range(n16)]
    key_scales = part.numbers("e", n8 + n4)
    value_scales = part.numbers("e", n8 + n4)
    key_codes = [part.numbers("b", k) for _ in range(n8)]
    value_codes = [part.numbers("b", v) for _ in range(n8)]
    key_halves = [unpack_codes(part.take(packed_bytes(k, 4)), k, 4) for _ in range(n4)]
    value_halves = [unpack_codes(part.take(packed_bytes(v, 4)), v, 4) for _ in range(n4)]
    for codes, scales, sides in (
        (key_codes + key_halves, key_scales, keys),
        (value_codes + value_halves, value_scales, values),
    ):
        for i, (vector, scale) in enumerate(zip(codes, scales, strict=True)):
            half = 0.0 if i < n8 else 0.5
            sides.append([(code + half) * scale for code in vector])
    return list(zip(keys, values, strict=True))


def read_boundary_state(part: Cursor, form: dict, k: int, v: int) -> Matrix:
    start = part.at
    bits = form["payload_bits"]
    if bits == 32:
        state = [part.numbers("f", v) for _ in range(k)]
    elif bits == 16:
        rows = [part.numbers("H", v) for _ in range(k)]
        state = [[struct.unpack("<f", struct.pack("<I", x << 16))[0] for x in row] for row in rows]
    else:
        half = form["levels"] == 1
        largest = 1 << (bits - 1) if half else (1 << (bits - 1)) - 1
        codes = [unpack_codes(part.take(packed_bytes(v, bits)), v, bits) for _ in range(k)]
        scales = part.numbers("e" if form["value_scale_type"] == 1 else "f", v)
        factors = [1.0] * k
        if form["smoothing"] == 1:
            factors = part.numbers("f", k)
        elif form["smoothing"] == 2:
            factors = [2.0 ** ((n - 128) / 8) for n in part.numbers("B", k)]
        pairs = read_compensators(part, form, k, v)
        state = []
        for i in range(k):
            row = [
                factors[i] * (codes[i][j] + (0.5 if half else 0.0)) * scales[j] / largest
                for j in range(v)
            ]
            for key, value in pairs:
                row = [x + key[i] * y for x, y in zip(row, value, strict=True)]
            state.append(row)
    while (part.at - start) % 16 != 0:
        if part.take(1) != b"\0":
            raise ValueError("padding of a boundary state is not zero")
    return state


class SavedState:
    """position, fingerprint, shape, formats, bases, and states(): one matrix [K][V] per head."""

    def __init__(self, blob: bytes) -> None:
        head = Cursor(blob)
        if head.take(8) != b"LQSTATE\x1a":
            raise ValueError("not a saved state")
        version, header_bytes = head.numbers("I", 2)
        if version != 1:
            raise ValueError(f"version {version}")
        self.blob_bytes, self.fingerprint = head.numbers("Q", 2)
        self.position, self.num_records = head.numbers("i", 2)
        self.states_bytes, self.window_bytes = head.numbers("Q", 2)
        head.take(4 * 8)  # checksums
        self.shape = dict(zip(SHAPE_FIELDS, head.numbers("i", 9), strict=True))
        (num_formats,) = head.numbers("i", 1)
        self.formats = []
        for _ in range(num_formats):
            form = dict(zip(FORMAT_FIELDS, head.numbers("i", 13), strict=True))
            (form["scale_steps"],) = head.numbers("f", 1)
            head.take(8)
            self.formats.append(form)
        heads = self.shape["num_v_heads"]
        self.bases = head.numbers("i", heads)
        constant = self.shape["decay"] == 1
        self.constant_decays = head.numbers("f", heads) if constant else [0.0] * heads
        self.health = [struct.unpack("<fffI", head.take(16)) for _ in range(heads)]
        self.head_formats = head.numbers("B", heads)
        self.states_part = Cursor(blob[header_bytes : header_bytes + self.states_bytes])
        self.window_part = Cursor(blob[header_bytes + self.states_bytes : self.blob_bytes])

    def states(self) -> list[Matrix]:
        s = self.shape
        k, v, steps = s["head_k_dim"], s["head_v_dim"], s["sub_steps"]
        heads, group = s["num_v_heads"], s["num_v_heads"] // s["num_k_heads"]
        matrices = [
            read_boundary_state(self.states_part, self.formats[self.head_formats[h]], k, v)
            for h in range(heads)
        ]
        tokens = [self.position - base for base in self.bases]
        part = self.window_part
        keys = []
        for first in range(0, heads, group):
            count = max(tokens[first : first + group])
            keys.append([part.numbers("e", k) for _ in range(count * steps)])
        corrections = [[part.numbers("e", v) for _ in range(n * steps)] for n in tokens]
        code = "e" if s["decay"] == 3 and self.formats[0]["log_decay_type"] == 1 else "f"
        for h in range(heads):
            for t in range(tokens[h]):
                if s["decay"] == 2:
                    decays = part.numbers(code, 1) * k
                elif s["decay"] == 3:
                    decays = part.numbers(code, k)
                else:
                    decays = [self.constant_decays[h]] * k
                # Records of a key head start at the smallest base of its value heads.
                skipped = len(keys[h // group]) // steps - tokens[h]
                state = [
                    [math.exp(g) * x for x in row]
                    for g, row in zip(decays, matrices[h], strict=True)
                ]
                for j in range(steps):
                    key = keys[h // group][(skipped + t) * steps + j]
                    u = corrections[h][t * steps + j]
                    state = [
                        [x + key[i] * y for x, y in zip(row, u, strict=True)]
                        for i, row in enumerate(state)
                    ]
                matrices[h] = state
        return matrices
