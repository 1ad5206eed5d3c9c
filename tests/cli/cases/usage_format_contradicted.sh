# SPDX-License-Identifier: Apache-2.0
#
# A format string and an option that say different things of the same are refused; where both say
# the same, and where the format leaves it open, the call is taken.
# exit: 2
# stderr: leapquant: --window contradicts the format "int8:window=8"*give one of both*--help*
# not-stdout: *?*
refuse() { # <option that the sentence names> <words of the call>...
  local option="$1"
  shift
  "$tool" inspect "$model" "$@" >out 2>err
  [[ $? == 2 && ! -s out && "$(cat err)" == *"$option contradicts the format"* ]] || {
    echo "$*: $(cat err)" >&2
    exit 99
  }
}
refuse --rank --state int8:r=8 --rank 2
refuse --stagger --state int8:stagger=1 --no-stagger
refuse --no-smoothing --state int8:smooth=fp32 --no-smoothing
refuse --window --state int4,int8:window=8 --window 4
refuse --window --state 'mix(int8:window=8@0,int4:window=8)' --window 4
refuse "--policy step" --state int8:window=8 --policy step
refuse "--policy step" --state fp32,int8:r=8 --policy step
"$tool" inspect "$model" --state int8,int4:step,bf16:step --policy step >out || exit 96
"$tool" inspect "$model" --state int8:window=8 --window 8 >out || exit 98
"$tool" inspect "$model" --state int8:r=8 --window 8 --stagger >out || exit 97
"$tool" inspect "$model" --state int8:window=8 --window 4
