# SPDX-License-Identifier: Apache-2.0
#
# A saved session is sound, can be inspected, converted and compared.
# stdout: s: sound, 6 recurrent layers*
# stdout: *session, checksums agree*
# stdout: *f: sound*t: sound*
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out

"$tool" state verify s || exit 91
"$tool" state inspect s || exit 92
"$tool" state convert s f --to fp32 >>out || exit 93
"$tool" state convert f t --to int8 >>out || exit 94
"$tool" state verify f t || exit 95
"$tool" state diff s f --json >diff || exit 96
must_be_equal heads "$(wc -l <diff)" 24
