#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# scripts/prove_device with programs that only say how they were called: which part calls what,
# where rows go, that one failure fails the whole, and what it refuses.
set -euo pipefail

cd "$LEAPQUANT_SOURCE_DIR"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/programs" "$folder/bin"
export PATH="$folder/bin:$PATH"

fail() {
  echo "prove_device_test: $*" >&2
  exit 1
}

# program FOLDER NAME BODY
program() {
  printf '#!/usr/bin/env bash\n%s\n' "$3" >"$folder/$1/$2"
  chmod +x "$folder/$1/$2"
}
program bin nvidia-smi 'echo "NVIDIA H200, 580.1"'
program bin compute-sanitizer 'echo "$*" >>"'"$folder"'/sanitized"
  echo "ERROR SUMMARY: 0 errors"'
program programs gpu_tests 'echo "tests $GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS $*"'
program programs cuda_runtime_engine_test 'echo engine'
program programs timeline 'echo "timeline $*"'
program programs streams 'echo "streams $*"'
program programs leapquant 'echo "{\"tool\": \"$2\"}"'
for name in decode_128 plain_128 prefill; do
  program programs "$name" 'if [[ "$1" == time ]]; then
    echo "copy 4000 GB/s"
    echo "{\"program\": \"'"$name"'\", \"set\": \"$3\"}" >"$2"
  fi'
done
echo "$PWD" >"$folder/programs/source"
echo abc1234 >"$folder/programs/commit"
prove=(scripts/prove_device --programs "$folder/programs" --out "$folder/out")

# refused SENTENCE ARGUMENT...
refused() {
  local sentence="$1" said
  shift
  if said="$("$@" 2>&1)"; then fail "'$*' was not refused"; fi
  grep -qF -- "$sentence" <<<"$said" || fail "'$*' said '$said', not '$sentence'"
}
refused "no part 'kernel'; parts are: first tests" "${prove[@]}" kernel
refused "--out needs a value" scripts/prove_device --out
refused "usage:" scripts/prove_device --quick
refused "there is no gpu_tests in $folder/bin" scripts/prove_device --programs "$folder/bin"

"${prove[@]}" >"$folder/said" || fail "a run in which all is well: $(cat "$folder"/out/log.*)"
expected="first tests replay check kernels timeline plain prefill model tasks "
[[ "$(awk '$2 == "ok" {print $1}' "$folder/said" | tr '\n' ' ')" == "$expected" ]] ||
  fail "parts: $(cat "$folder/said")"
for shard in 0 1 2 3 4; do
  grep -q "tests $shard of 5" "$folder/out/log.tests.$shard" || fail "shard $shard did not run"
done
grep -q engine "$folder/out/log.runtime" || fail "the runtime's tests did not run"
[[ "$(grep -c '^timeline int' "$folder/out/log.timeline")" == 3 ]] || fail "timelines"
grep -q '^streams int8 512' "$folder/out/log.streams" || fail "streams"
[[ "$(grep -c '"program": "decode_128"' "$folder/out/rows.jsonl")" == 4 ]] || fail "rows of decode"
[[ "$(wc -l <"$folder/out/rows.jsonl")" == 6 ]] || fail "rows: $(cat "$folder/out/rows.jsonl")"
python3 - "$folder/out/run.json" <<'CHECK' || fail "run.json"
import json, sys

run = json.load(open(sys.argv[1]))
assert run["gpu"] == "NVIDIA H200" and run["driver"] == "580.1", run
assert run["copy_gb_per_s"] == 4000 and run["commit"] == "abc1234", run
assert run["command"].startswith("decode_128 time ROWS.JSONL table; decode_128 time"), run
CHECK

# Programs may be links to one that has all tests: what the sanitizers see is named by suite.
[[ "$(grep -c gtest_filter "$folder/sanitized")" == 25 ]] ||
  fail "sanitizers: $(cat "$folder/sanitized")"
if grep -E 'gtest_filter=\*? *$|[=:](\*|[^:]*/)?\*[A-Z]' "$folder/sanitized"; then
  fail "a sanitizer's selection does not name its suite"
fi

# One shard, one program, one sanitizer that fails: its part fails, the others still run.
program programs gpu_tests '[[ "$GTEST_SHARD_INDEX" != 3 ]]'
refused "see $folder/out/log" "${prove[@]}" tests check
grep -q '^tests *FAILED' "$folder/out/log.parts" || fail "a failing shard was not noticed"
grep -q '^check *ok' "$folder/out/log.parts" || fail "nothing ran behind a part that failed"
program programs gpu_tests ''
# Hazards that are known are told and do not fail it; others do, and tests that are not there.
program bin compute-sanitizer '[[ "$*" != *racecheck*FewHeads* ]] || exit 9'
"${prove[@]}" tests >/dev/null || fail "known hazards failed it: $(cat "$folder/out/log.sanitize")"
grep -q 'exit   9 .*(known)' "$folder/out/log.sanitize" || fail "known hazards are not told"
for fault in 'exit 9' 'echo "[==========] Running 0 tests from 0 test suites."'; do
  program bin compute-sanitizer "$fault"
  refused "see $folder/out/log" "${prove[@]}" tests
done
echo '{"program": "stale"}' >"$folder/out/part.jsonl"
program programs decode_128 'exit 3'
refused "see $folder/out/log" "${prove[@]}" kernels prefill
[[ "$(wc -l <"$folder/out/rows.jsonl")" == 1 ]] || fail "rows of an earlier run were left"
program bin nvidia-smi 'exit 9'
refused "see $folder/out/log" "${prove[@]}" prefill
[[ ! -e "$folder/out/run.json" ]] || fail "a run without a device's name was told"
program bin nvidia-smi 'echo "NVIDIA H200, 580.1"'
script="$PWD/${prove[0]}"
(cd "$folder" && "$script" --programs programs --out near prefill) >/dev/null
[[ -s "$folder/near/rows.jsonl" ]] || fail "relative folders are not those of the caller"
mkdir "$folder/programs/lib"
program bin ldd 'echo "libhwy.so.1 => not found"'
refused "libraries are missing: libhwy.so.1" "${prove[@]}" check
program bin ldd 'echo "libhwy.so.1 => /usr/lib/libhwy.so.1 (0x1)"'
program programs decode_128 ''
program programs prefill 'echo "$LD_LIBRARY_PATH" >"'"$folder"'/libraries"'
"${prove[@]}" check >/dev/null
[[ "$(cut -d: -f1 <"$folder/libraries")" == "$folder/programs/lib" ]] ||
  fail "programs do not find their libraries: $(cat "$folder/libraries")"
echo "no such checkout" >"$folder/programs/source"
refused "make that a link to" "${prove[@]}" check
echo "$PWD" >"$folder/programs/source"
rm "$folder/programs/commit"
refused "lacks the file commit" "${prove[@]}" check
