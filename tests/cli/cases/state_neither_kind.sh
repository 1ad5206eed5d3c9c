# SPDX-License-Identifier: Apache-2.0
#
# A file that begins neither as a saved state nor as a session is not called one of them.
# exit: 1
# stderr: leapquant: The file "b" begins neither as a saved state does nor as a session*
# not-stdout: *?*
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out
"$tool" state save --session s --layer 0 --out b >>out || exit 91
flip_bit b 0
flip_bit s 0
for verb in verify inspect; do
  "$tool" state "$verb" s >out 2>err
  [[ $? == 1 && ! -s out && "$(cat err)" == *"begins neither as a saved state"* ]] || exit 92
done
"$tool" state verify b
