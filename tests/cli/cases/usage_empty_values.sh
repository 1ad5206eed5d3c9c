# SPDX-License-Identifier: Apache-2.0
#
# Empty text for an option does not silently mean its default.
# exit: 2
# stderr: *--temperature*--memory*--save-session*--csv*
for option in --temperature --memory --save-session --resume --prompts --seed --top-p --state \
  --policy --stop; do
  "$tool" generate --model "$model" --prompt x "$option" '' >out 2>err
  code=$?
  cat err >&2
  if [[ "$code" != 2 || -s out || "$(cat err)" != "leapquant: $option"*see* ]]; then
    echo "CASE: code $code for $option" >&2
    exit 99
  fi
done
"$tool" eval --model "$model" --tasks "$model/tasks/short" --csv ''
