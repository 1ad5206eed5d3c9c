# SPDX-License-Identifier: Apache-2.0
#
# An unknown verb, or verb of a verb, is named, with the known ones.
# exit: 2
# stderr: leapquant: 'fly' is no verb of leapquant*generate*bench*--help*
unknown() { # <verb> <words of the call>...
  local verb="$1"
  shift
  "$tool" "$@" >out 2>err
  [[ $? == 2 && ! -s out && "$(cat err)" == *"'$verb' is no verb"*--help* ]] || {
    echo "$*: $(cat err)" >&2
    exit 99
  }
}
unknown compare state compare
unknown compare state compare a b --json
unknown verfy state verfy a.session
unknown modell bench modell
unknown modell bench --rounds 1 modell --tokens 5
unknown x x --help-me
"$tool" fly
