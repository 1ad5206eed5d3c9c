# SPDX-License-Identifier: Apache-2.0
#
# What a sentence repeats of the call cannot steer the terminal: control characters, line breaks and
# bytes that are no text are written as numbers.
# exit: 2
# stderr: leapquant: *a\\x1b[31mb\\x0ac\\xff*Grüße*--help*
# not-stdout: *?*
bad=$'a\x1b[31mb\nc\xff Grüße'
for call in "generate|--$bad" "$bad" "inspect|$bad|--state|$bad" "plan|--shape|$bad|--memory|1GiB" \
  "generate|--model|$bad|--prompt|x" "generate|--model|$model|--prompt|x|--kv|$bad" \
  "generate|--model|$model|--prompt|x|--resume|$bad"; do
  readarray -t -d '|' words < <(printf '%s' "$call")
  "$tool" "${words[@]}" >out 2>err
  code=$?
  if ((code != 1 && code != 2)) || grep -q $'\x1b' err || [[ "$(wc -l <err)" != 1 ]] ||
    ! iconv -f utf-8 -t utf-8 err >valid 2>&1; then
    echo "CASE: code $code for $call" >&2
    cat err >&2
    exit 99
  fi
done
"$tool" generate --model "$model" --prompt x "$bad"
