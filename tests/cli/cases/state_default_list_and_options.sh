# SPDX-License-Identifier: Apache-2.0
#
# Options narrow a list of formats that nobody gave, and refuse to contradict one that was given.
# exit: 2
# stderr: leapquant: *int4+:step twice*
states() { # <verb>...: the names of the formats in their order
  "$tool" "$@" --json | grep -o '"state":"[^"]*"' | cut -d '"' -f 4 | tr '\n' ' '
}
for verb in "plan --shape qwen3.5-9b --memory 40GiB" "inspect $model"; do
  # shellcheck disable=SC2086
  {
    # Per step int4-compact is int4+, whose row is there.
    must_be_equal "$verb --policy step" "$(states $verb --policy step)" \
      "fp32 bf16 int8 int6 int4 int8+ int6+ int4+ "
    must_be_equal "$verb --rank 2" "$(states $verb --rank 2)" "int8:r=2 int6:r=2 int4:r=2 "
    "$tool" $verb --rank 2 --policy step >out 2>err
    [[ $? == 2 && "$(cat err)" == *"A rank applies"* && ! -s out ]] || exit 98
    "$tool" $verb --rank 2 --state int8,int8+ >out 2>err
    [[ $? == 2 && "$(cat err)" == *"A rank applies"* && ! -s out ]] || exit 97
  }
done
"$tool" inspect "$model" --state int4-compact,int4+ --policy step
