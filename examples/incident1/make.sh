#!/usr/bin/env bash
# The texts of incident 1, scaled down: 10,000 short Korean and English business texts with 280 labels where it had 2,988,208, a tenth
# of them for the older script, and a tokenizer for both.
set -euo pipefail
ROWS=${ROWS:-10000}
ftcli sample-data --output incident1/corpus --rows "$ROWS" --labels 280 --overwrite
all=incident1/corpus/train.jsonl
head -n "$(($(wc -l < "$all") / 10))" "$all" > incident1/corpus/tenth.jsonl
[ -e incident1/tokenizer ] || ftcli train-tokenizer "$all" --vocab-size 8000 --output incident1/tokenizer
cat > incident1/model.json <<'JSON'
{"model_type": "qwen3", "vocab_size": 8000, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024}
JSON
here=$(cd "$(dirname "$0")" && pwd)
echo "ftcli benchmark attribute $here/base.toml $here/new.toml --rows 1000 --steps 12"
