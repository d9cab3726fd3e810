"""Kinds of models that transformers has, each with what its smallest configuration needs beside the common sizes."""

from __future__ import annotations

from typing import Any

FAMILIES: dict[str, dict[str, Any]] = {
    **{name: {"num_key_value_heads": 2} for name in ("qwen2", "llama", "mistral", "phi3", "stablelm", "olmo2", "starcoder2", "exaone4")},
    **{name: {"num_key_value_heads": 2, "head_dim": 16} for name in ("qwen3", "gemma2", "gemma3_text")},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {"n_layer": 2, "n_head": 2},
    "falcon": {},
    "gpt_neox": {},
    "gptj": {"rotary_dim": 8},
    "mpt": {"d_model": 32, "n_heads": 2, "n_layers": 2},
    "gpt2": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "gpt_bigcode": {},
    "openai-gpt": {},
    "ctrl": {"dff": 64},
    "biogpt": {},
    "distilbert": {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2},
    "albert": {"embedding_size": 16},
    "electra": {"embedding_size": 16},
    "modernbert": {"global_attn_every_n_layers": 1, "sep_token_id": 3, "cls_token_id": 2},
    "big_bird": {"attention_type": "original_full"},
    "longformer": {"attention_window": 16},  # its own, 512, is what texts are padded to: ten times the time
    **{name: {} for name in ("bert", "camembert", "convbert", "data2vec-text", "deberta", "deberta-v2", "ernie", "flaubert", "ibert")},
    **{name: {} for name in ("layoutlm", "megatron-bert", "mobilebert", "mpnet", "rembert", "roberta", "roberta-prelayernorm")},
    **{name: {} for name in ("roformer", "xlm", "xlm-roberta")},
}
