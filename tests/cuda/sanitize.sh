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
Exit status: 0 when every program is clean under every tool.
USAGE
}
case "${1:-}" in -h | --help) usage; exit 0 ;; esac

folder="${1:-build/tests/cuda}"
if (($# > 0)); then shift; fi
tools=("$@")
if ((${#tools[@]} == 0)); then tools=(memcheck racecheck synccheck); fi
sanitizer="$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)"
limit="${LEAPQUANT_SANITIZE_SECONDS:-240}"  # of one program under one tool

# Program and tests. Every kernel of the library is in one of them. racecheck is many times slower:
# it sees plain states in their own kernels only.
selection=(
  "cuda_determinism_test Determinism.ManyHeadsAFewSteps:Determinism.FewHeadsAFewSteps"
  "cuda_edge_heads_test *ChannelsThatVanish*:*FoldsAfterTwoCalls*"
  "cuda_sequences_128_test *GatesBelong*:*RowsChangePlaces*"
  "cuda_ranges_128_test *NormalisationAdds*:*GrowthIsFlagged*"
  "cuda_faults_test *"
  "cuda_prefill_test *"
  "cuda_prefill_chunks_test *"
  "cuda_plain_states_128_test *TypesOf*:*PaddingRows*"
)
racecheck_selection=(
  "cuda_determinism_test Determinism.SomeHeadsTwoSteps:Determinism.FewHeadsAFewSteps"
  "cuda_edge_heads_test *FoldsAfterTwoCalls*"
  "cuda_sequences_128_test *RowsChangePlaces*"
  "cuda_ranges_128_test *NormalisationAdds*:*GrowthIsFlagged*"
  "cuda_faults_test *Copy*/0:*FoldsDoNot*/0:*Decode*/0"
  "cuda_prefill_test *Checkpoints*"
  "cuda_prefill_chunks_test *BitsDoNotHang*:*BitsOfVector*"
  "cuda_plain_states_128_test *PaddingRows*/cuda_plain_128"
)

logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT
run_one() {
  local tool="$1" program="$2" filter="$3"
  local log="$logs/$tool.$program"
  timeout "$limit" "$sanitizer" --tool "$tool" --error-exitcode 9 "$folder/$program" \
    --gtest_filter="$filter" >"$log" 2>&1
  echo $? >"$log.rc"
}
# Side by side: the tools keep the host busy, not the device.
lines_of() {
  if [[ "$1" == racecheck ]]; then
    printf '%s\n' "${racecheck_selection[@]}"
  else
    printf '%s\n' "${selection[@]}"
  fi
}
for tool in "${tools[@]}"; do
  while read -r line; do
    run_one "$tool" "${line%% *}" "${line#* }" &
  done < <(lines_of "$tool")
done
wait

broken=0
for tool in "${tools[@]}"; do
  while read -r line; do
    program="${line%% *}"
    log="$logs/$tool.$program"
    rc="$(cat "$log.rc")"
    summary="$(grep -oE '(ERROR|RACECHECK) SUMMARY: .*' "$log" | tail -1)"
    printf '%-10s %-26s exit %3s  %s\n' "$tool" "$program" "$rc" "${summary:-no summary}"
    if [[ "$rc" != 0 ]]; then
      broken=$((broken + 1))
      grep -E '=========|FAILED|Failure' "$log" | head -30
    fi
  done < <(lines_of "$tool")
done
exit $((broken > 0))
