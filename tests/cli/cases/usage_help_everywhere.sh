# SPDX-License-Identifier: Apache-2.0
#
# Every verb has a help text with an example.
# stdout: *generate*eval*inspect*plan*state*
for verb in run generate eval inspect plan state drift record bench "bench generate" \
  "state save" "state verify" "state inspect" "state convert" "state diff"; do
  # shellcheck disable=SC2086
  text="$("$tool" $verb --help)" || exit 98
  [[ "$text" == *Example*leapquant* ]] || { echo "no example: $verb" >&2; exit 97; }
done
"$tool" --help
