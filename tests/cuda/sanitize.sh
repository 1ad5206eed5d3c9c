#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs compute-sanitizer over a selection of the device's tests that takes three minutes on 16
# cores: memcheck, racecheck and synccheck over decodes, folds, prefills, transfers and faults, on
# the special kernels and the general ones. Not part of ./test; docs/TESTING.md says when.
set -uo pipefail

usage() {
  cat <<'USAGE'
usage: tests/cuda/sanitize.sh [folder] [tool...]

  folder  where the programs of tests/cuda lie; default: build/tests/cuda
  tool    memcheck, racecheck, synccheck; default: all three
Exit status: 0 when every program is clean under every tool, but for hazards that are known.
USAGE
}
case "${1:-}" in -h | --help) usage; exit 0 ;; esac

folder="${1:-build/tests/cuda}"
if (($# > 0)); then shift; fi
tools=("$@")
if ((${#tools[@]} == 0)); then tools=(memcheck racecheck synccheck); fi
sanitizer="$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)"
limit="${LEAPQUANT_SANITIZE_SECONDS:-240}"  # of one program under one tool

# Program and tests, by suites, since programs may be links to one that has all suites
# (scripts/prove_device). Every kernel of the library is in one of them. racecheck is many times
# slower: it sees plain states in their own kernels only.
selection=(
  "cuda_determinism_test Determinism.ManyHeadsAFewSteps:Determinism.FewHeadsAFewSteps"
  "cuda_edge_heads_test */EdgeHeads128.ChannelsThatVanish*:*/EdgeHeads128.FoldsAfterTwoCalls*"
  "cuda_sequences_128_test */Sequences128.GatesBelong*:*/Sequences128.RowsChangePlaces*"
  "cuda_ranges_128_test */Ranges128.NormalisationAdds*:*/Ranges128.GrowthIsFlagged*"
  "cuda_faults_test Dims/Faults.*"
  "cuda_prefill_test Prefill.*"
  "cuda_prefill_chunks_test PrefillChunks.*"
  "cuda_plain_states_128_test */PlainStates128.TypesOf*:*/PlainStates128.PaddingRows*"
)
racecheck_selection=(
  "cuda_determinism_test Determinism.SomeHeadsTwoSteps"
  "cuda_edge_heads_test */EdgeHeads128.FoldsAfterTwoCalls*"
  "cuda_sequences_128_test */Sequences128.RowsChangePlaces*"
  "cuda_ranges_128_test */Ranges128.NormalisationAdds*:*/Ranges128.GrowthIsFlagged*"
  "cuda_faults_test Dims/Faults.Copy*/0:Dims/Faults.FoldsDoNot*/0:Dims/Faults.Decode*/0"
  "cuda_prefill_test Prefill.Checkpoints"
  "cuda_prefill_chunks_test PrefillChunks.BitsDoNotHang*:PrefillChunks.BitsOfVector*"
  "cuda_plain_states_128_test */PlainStates128.PaddingRows*/cuda_plain_128"
)
# Hazards that racecheck names there and nobody has explained (docs/TESTING.md): shown, not counted.
known_hazards=("cuda_determinism_test Determinism.FewHeadsAFewSteps")

logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT
# run_one LOG TOOL PROGRAM FILTER
run_one() {
  timeout "$limit" "$sanitizer" --tool "$2" --error-exitcode 9 "$folder/$3" \
    --gtest_filter="$4" >"$logs/$1" 2>&1
  echo $? >"$logs/$1.rc"
}
# Name of the log, then program and tests.
lines_of() {
  local line
  if [[ "$1" == racecheck ]]; then
    for line in "${racecheck_selection[@]}"; do echo "racecheck.${line%% *} $line"; done
    for line in "${known_hazards[@]}"; do echo "known.${line%% *} $line"; done
  else
    for line in "${selection[@]}"; do echo "$1.${line%% *} $line"; done
  fi
}
# Side by side: the tools keep the host busy, not the device.
for tool in "${tools[@]}"; do
  while read -r log program filter; do
    run_one "$log" "$tool" "$program" "$filter" &
  done < <(lines_of "$tool")
done
wait

broken=0
for tool in "${tools[@]}"; do
  while read -r log program filter; do
    rc="$(cat "$logs/$log.rc")"
    summary="$(grep -oE '(ERROR|RACECHECK) SUMMARY: .*' "$logs/$log" | tail -1)"
    if grep -q 'Running 0 tests' "$logs/$log"; then
      rc=1
      summary="no test is called $filter"
    fi
    known=""
    if [[ "$log" == known.* && "$rc" == 9 ]] && ! grep -q 'FAILED' "$logs/$log"; then
      known=" (known)"
    fi
    printf '%-10s %-26s exit %3s  %s%s\n' "$tool" "$program" "$rc" "${summary:-no summary}" "$known"
    if [[ "$rc" != 0 && -z "$known" ]]; then
      broken=$((broken + 1))
      grep -E '=========|FAILED|Failure' "$logs/$log" | head -30
    fi
  done < <(lines_of "$tool")
done
exit $((broken > 0))
