# SPDX-License-Identifier: Apache-2.0
#
# No verb replaces what it reads or a file of its model, under whatever name. A file of another
# kind in the model's folder may be replaced, and a session that goes on in its own place.
short="$model/tasks/short/copy.jsonl"
mkdir tasks
head -n 1 "$short" >tasks/t.jsonl
printf '{"id": "1", "prompt": "C abc"}\n' >p.jsonl
printf 'some text of a few tokens' >t.txt
model_copy mm
replace_file mm/config.json cat
"$tool" record --model mm --text t.txt --out r.st --quiet >out || exit 91
"$tool" state save --model mm --text t.txt --out s >>out || exit 92
for file in r.st s t.txt p.jsonl tasks/t.jsonl mm/config.json; do
  ln -s "$file" "link-${file//\//-}"
done
sums() { cat r.st s t.txt p.jsonl tasks/t.jsonl mm/config.json mm/*.safetensors | cksum; }
before="$(sums)"
check() { # <verb>...
  "$tool" "$@" >out 2>err
  [[ $? == 2 && "$(cat err)" == *"it would be replaced"* && ! -s out ]] ||
    { echo "$*: $(cat err)" >&2; exit 99; }
  must_be_equal "what $* reads" "$(sums)" "$before"
}
for output in r.st ./r.st link-r.st; do
  check drift --inputs r.st --from 0 --csv "$output"
done
for output in t.txt link-t.txt mm/config.json link-mm-config.json; do
  check drift --model mm --text t.txt --from 0 --csv "$output"
  check record --model mm --text t.txt --out "$output"
  check state save --model mm --text t.txt --out "$output"
done
for output in tasks/t.jsonl link-tasks-t.jsonl; do
  check drift --model mm --tasks tasks --from 0 --csv "$output"
  check record --model mm --tasks tasks --out "$output"
done
for output in p.jsonl link-p.jsonl mm/config.json mm/model-*.safetensors; do
  check generate --model mm --prompts p.jsonl --max-tokens 1 --save-session "$output"
done
for output in s link-s; do
  check state save --session s --out "$output"
  check state convert s "$output" --to int4+
done
for i in 1 2; do
  "$tool" generate --model mm --prompt 'C abc' --max-tokens 2 --save-session mm/s --quiet >out ||
    exit 97
done
"$tool" generate --model mm --prompt d --resume mm/s --max-tokens 2 --save-session mm/s \
  --quiet >out || exit 96
