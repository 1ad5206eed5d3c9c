# SPDX-License-Identifier: Apache-2.0
#
# An amount of memory that is none.
# exit: 2
# stderr: leapquant: *12parsecs*24GiB*
"$tool" plan --shape qwen3.5-9b --memory 12parsecs
