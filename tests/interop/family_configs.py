"""Tiny configurations of transformers' causal-LM families, built the same way for all. A byte of a text is a token."""

import inspect

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

# A value is used if the configuration of the family has the name.
SMALL = {
    "vocab_size": 256, "hidden_size": 32, "d_model": 32, "n_embd": 32, "embedding_size": 32, "word_embed_proj_dim": 32,
    "intermediate_size": 48, "ffn_dim": 48, "n_inner": 48, "d_inner": 48, "decoder_ffn_dim": 48, "encoder_ffn_dim": 48,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "decoder_layers": 2, "encoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "decoder_attention_heads": 4, "encoder_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "rotary_dim": 4, "attention_head_dim": 8,
    "max_position_embeddings": 256, "n_positions": 256, "n_ctx": 256, "sliding_window": 32, "window_size": 32,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "is_decoder": True,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_k": 2, "top_k": 2,
    "moe_topk": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "state_size": 8, "time_step_rank": 4, "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_dt_rank": 4,
    "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "mamba_n_groups": 1, "attention_hidden_size": 32,
    "lru_width": 32, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 256, "num_kv_shared_layers": 0,
    "layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}

# What the common values do not fit.
OWN = {
    "falcon_mamba": {"intermediate_size": 64},
    "mamba": {"intermediate_size": 64},
    "mamba2": {"num_heads": 4, "head_dim": 16, "chunk_size": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "xlstm": {"num_blocks": 2},
    "recurrent_gemma": {"attention_window_size": 32, "num_hidden_layers": 3},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1},
    "hunyuan_v1_dense": {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "longcat_flash": {"qk_head_dim": 16, "head_dim": 8, "expert_ffn_hidden_size": 16},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
}


# The families of the table. The others take its time and are close to one of these.
CHOSEN = """
apertus arcee bamba bart bert bigbird_pegasus biogpt bitnet blenderbot bloom codegen cohere cohere2 cpmant ctrl cwm dbrx
deepseek_v2 deepseek_v3 diffllama doge dots1 ernie4_5 ernie4_5_moe exaone4 falcon_mamba flex_olmo gemma gemma2 gemma3_text glm
glm4 glm4_moe gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granitemoe granitemoehybrid helium
hunyuan_v1_dense jamba jetmoe lfm2 llama longcat_flash mamba mamba2 marian mbart minimax mistral mixtral modernbert-decoder mpt
nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe opt pegasus persimmon phi phi3 phimoe plbart qwen2 qwen2_moe qwen3
qwen3_5_text qwen3_moe qwen3_next recurrent_gemma rembert rwkv seed_oss smollm3 stablelm starcoder2 trocr vaultgemma whisper
xglm xlm xlstm
""".split()


def families():
    """Returns the model types of the table."""
    return [name for name in CHOSEN if name in every_family()]


def every_family():
    """Returns the model types with a causal LM, without those whose configuration is that of several models in one."""
    return [name for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
            if name in CONFIG_MAPPING and not getattr(CONFIG_MAPPING[name], "sub_configs", None)]


def config_of(model_type):
    """Returns a tiny configuration. Raises what the configuration's class raises if the values do not fit."""
    cls = CONFIG_MAPPING[model_type]
    default = cls()
    values = {name: value for name, value in SMALL.items() if getattr(default, name, None) is not None}
    values |= {name: value for name, value in SMALL.items() if name.endswith("_token_id") or name == "is_decoder"
               and name in inspect.signature(cls.__init__).parameters}
    cls_name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    values = {name: value for name, value in values.items() if not isinstance(getattr(cls, name, None), property)}
    # Without dropout, trainings with other random numbers have the same losses.
    values |= {name: 0.0 for name, value in vars(default).items() if "drop" in name and isinstance(value, float)}
    if "qk_rope_head_dim" in values:
        values.pop("head_dim", None)
        values["num_key_value_heads"] = values["num_attention_heads"]
    architecture = cls_name if isinstance(cls_name, str) else cls_name[0]
    return cls(**{**values, **OWN.get(model_type, {})}, architectures=[architecture])
