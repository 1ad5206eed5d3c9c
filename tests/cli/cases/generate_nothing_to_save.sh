# SPDX-License-Identifier: Apache-2.0
#
# A session of which no token is asked is refused before the model is read.
# exit: 2
# stderr: leapquant: --save-session needs a token to be generated*
# not-stdout: *?*
echo '{"prompt":"x","max_tokens":0}' >p.jsonl
"$tool" generate --model none --prompts p.jsonl --save-session s >out 2>err
[[ $? == 2 && "$(cat err)" == *"--save-session needs a token"* ]] || exit 98
"$tool" generate --model none --prompt x --max-tokens 0 --save-session s
code=$?
must_not_exist s
exit $code
