# SPDX-License-Identifier: Apache-2.0
#
# What the option parser itself finds is told as the rest is: which word is at fault, what belongs
# there and where to read on.
# exit: 2
# stderr: leapquant: 'b' stands where leapquant inspect takes nothing more*leapquant inspect --help*
# not-stdout: *?*
refuse() { # <pattern> <words of the call>...
  local pattern="$1"
  shift
  "$tool" "$@" >out 2>err
  # shellcheck disable=SC2053
  [[ $? == 2 && ! -s out && "$(cat err)" == "leapquant: "$pattern"; see 'leapquant"*"--help'." ]] ||
    {
      echo "$*: $(cat err)" >&2
      exit 99
    }
}
refuse "leapquant needs a verb: run, generate, *"
refuse "state needs a verb: save, verify, *" state
refuse "--rounds needs a value: ?*" bench --rounds
refuse "--tasks is required: ?*" eval --model "$model"
refuse "other is required: the one to compare with it" state diff a
refuse "files is required: ?*" state verify
refuse "--batch needs a value: ?*" bench model --batch
refuse "--tasks needs a value: ?*" eval --model "$model" --tasks
refuse "--model was given 2 times; give it once" eval --model "$model" --model x
refuse "'--bogus' is no option of verify" state verify --bogus x
refuse "'1' stands where leapquant bench model takes nothing more" \
  bench model --shape qwen3.5-9b --random-weights 1
refuse "--json takes no value, found 'maybe'" inspect "$model" --json=maybe
refuse "--policy: must be window or step, found 'often'" inspect "$model" --policy often
refuse "--device: must be cpu or cuda, found 'tpu'" generate --model "$model" --device tpu
"$tool" inspect "$model" b
