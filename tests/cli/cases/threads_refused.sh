# SPDX-License-Identifier: Apache-2.0
#
# Threads that the system does not give are told about in words. Stacks of 1,024 threads, 1 MiB each
# at least, do not fit into the address space that is left here.
# exit: 1
# stderr: leapquant: The system does not give this program 1024 threads*Ask for fewer*
# not-stdout: *?*
ulimit -s 8192
ulimit -v 2000000
"$tool" generate --model "$model" --prompt x --max-tokens 1 --threads 1024
