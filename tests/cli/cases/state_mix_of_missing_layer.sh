# SPDX-License-Identifier: Apache-2.0
#
# A mix that names a layer beyond the model's recurrent ones is wrong usage.
# exit: 2
# stderr: leapquant: *layer 9*recurrent layers 0-5*
# not-stdout: *int4*
"$tool" inspect "$model" --state 'mix(int8@9.0,int4)'
