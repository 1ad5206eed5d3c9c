# SPDX-License-Identifier: Apache-2.0
#
# The version is that of the library.
# stdout: leapquant [0-9]*.[0-9]*.[0-9]*
"$tool" --version
