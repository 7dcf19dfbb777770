"""Fields of config.json that a loader ignores, or obeys wrongly."""

from __future__ import annotations

from meta.audits.planted import BERT, GEMMA, GPT2, LLAMA, NUMPY, OPT, T5, Planted

THETA = 'rope.get("rope_theta", c.get("rope_theta", 10000.0))'
ROPE = 'dict(c.get("rope_parameters") or c.get("rope_scaling") or {})'
KIND = 'rope.get("rope_type", rope.get("type", "default"))'
LLAMA3 = (
    'original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]'
)

FIELDS = (
    Planted(LLAMA, "llama", THETA, "10000.0", "rope_theta"),
    Planted(LLAMA, "mistral", THETA, "10000.0", "rope_theta"),
    Planted(LLAMA, "llama", THETA, 'c.get("rope_theta", 10000.0)', "rope_parameters"),
    Planted(LLAMA, "llama", THETA, 'rope.get("rope_theta", 10000.0)', "rope_theta"),
    Planted(LLAMA, "llama", THETA, 'rope.get("rope_theta", c.get("rope_theta", 500000.0))', "rope_theta"),
    Planted(LLAMA, "llama", ROPE, 'dict(c.get("rope_scaling") or {})', "rope_parameters"),
    Planted(LLAMA, "qwen3", ROPE, 'dict(c.get("rope_parameters") or {})', "rope_scaling"),
    Planted(LLAMA, "llama", KIND, 'rope.get("type", "default")', "rope_scaling"),
    Planted(LLAMA, "llama", KIND, 'rope.get("rope_type", "default")', "rope_scaling"),
    Planted(LLAMA, "mistral", 'base / rope["factor"]', "base", "rope_scaling"),
    Planted(LLAMA, "llama", LLAMA3, LLAMA3.replace('rope["low_freq_factor"]', "1.0"), "rope_scaling"),
    Planted(LLAMA, "llama", LLAMA3, LLAMA3.replace('rope["high_freq_factor"]', "4.0"), "rope_scaling"),
    Planted(LLAMA, "llama", LLAMA3, LLAMA3.replace('rope["original_max_position_embeddings"]', "8192"), "rope_scaling"),
    Planted(LLAMA, "llama", 'base * (smooth + (1 - smooth) / rope["factor"])', 'base / rope["factor"]', "rope_scaling"),
    Planted(LLAMA, "llama", 'c.get("rms_norm_eps", 1e-6)', "1e-5", "rms_norm_eps"),
    Planted(LLAMA, "qwen3", 'c.get("rms_norm_eps", 1e-6)', "1e-6", "rms_norm_eps"),
    Planted(LLAMA, "llama", 'c.get("rms_norm_eps", 1e-6)', 'c.get("rms_norm_eps", 1e-5)', "rms_norm_eps"),
    Planted(LLAMA, "qwen2", "if settings.tied:", "if True:", "tie_word_embeddings"),
    Planted(
        LLAMA,
        "llama",
        'c.get("tie_word_embeddings", False)',
        'c.get("tie_word_embeddings", True)',
        "tie_word_embeddings",
    ),
    Planted(LLAMA, "llama", 'ACTIVATIONS[c.get("hidden_act", "silu")]', "F.silu", "hidden_act"),
    Planted(LLAMA, "mistral", '[c["sliding_window"]] *', "[5] *", "sliding_window"),
    Planted(LLAMA, "qwen2", ' or not c.get("use_sliding_window", False)', "", "use_sliding_window"),
    Planted(LLAMA, "qwen2", "if i >= first else", "if True else", "max_window_layers"),
    Planted(LLAMA, "qwen3", 'c["sliding_window"], c.get("layer_types")', 'c["sliding_window"], None', "layer_types"),
    Planted(
        LLAMA, "qwen3", 'return [window if kind == "sliding_attention" else None', "return [None", "sliding_window"
    ),
    Planted(
        NUMPY,
        "llama",
        'self.theta = c["rms_norm_eps"], c["rope_theta"]',
        'self.theta = 1e-5, c["rope_theta"]',
        "rms_norm_eps",
    ),
    Planted(
        NUMPY,
        "llama",
        "np.float32(self.head_dim**0.5)",
        'np.float32((self.c["hidden_size"] / self.heads) ** 0.5)',
        "head_dim",
    ),
    Planted(
        NUMPY,
        "llama",
        'bias, length = self.c["attention_bias"], len(x)',
        "bias, length = False, len(x)",
        "attention_bias",
    ),
    Planted(NUMPY, "llama", "out, bias)\n\n", "out)\n\n", "attention_bias"),
    Planted(NUMPY, "llama", 'ids], self.c["mlp_bias"]', "ids], False", "mlp_bias"),
    Planted(NUMPY, "llama", ' or c["rope_scaling"] is not None', "", "rope_scaling"),
    Planted(NUMPY, "llama", 'c["hidden_act"] != "silu" or ', "", "hidden_act"),
    Planted(GPT2, "gpt2", 'np.float32(c["layer_norm_epsilon"])', "np.float32(1e-5)", "layer_norm_epsilon"),
    Planted(GPT2, "gpt2", 'ACTIVATIONS[c["activation_function"]]', 'ACTIVATIONS["gelu_new"]', "activation_function"),
    Planted(GPT2, "gpt2", ', c["scale_attn_weights"]', ", True", "scale_attn_weights"),
    Planted(GPT2, "gpt2", ' if c["tie_word_embeddings"] else p["lm_head.weight"]', "", "tie_word_embeddings"),
    Planted(GPT2, "gpt2", 'c["n_head"]\n', "3\n", "n_head"),
    Planted(GEMMA, "gemma2", 'c["query_pre_attn_scalar"] if', "7 if", "query_pre_attn_scalar"),
    Planted(GEMMA, "gemma2", 'c["attn_logit_softcapping"] if', "3.0 if", "attn_logit_softcapping"),
    Planted(GEMMA, "gemma2", 'c["final_logit_softcapping"] if', "30.0 if", "final_logit_softcapping"),
    Planted(
        GEMMA,
        "gemma2",
        'c["layer_types"] if',
        '["sliding_attention", "full_attention"] * (c["num_hidden_layers"] // 2) if',
        "layer_types",
    ),
    Planted(GEMMA, "gemma2", 'c["sliding_window"] if', "5 if", "sliding_window"),
    Planted(GEMMA, "gemma", 'rope["rope_theta"] if rope else c["rope_theta"]', "10000.0", "rope_theta"),
    Planted(GEMMA, "gemma2", 'scaling["factor"] if kind == "linear" else 1.0', "1.0", "rope_scaling"),
    Planted(
        GEMMA, "gemma", ' if self.c["tie_word_embeddings"] else self.p["lm_head.weight"]', "", "tie_word_embeddings"
    ),
    Planted(GEMMA, "gemma", 'self.p[f"{name}.bias"] if self.c["attention_bias"] else None', "None", "attention_bias"),
    Planted(
        GEMMA, "gemma", '"gelu_pytorch_tanh" if name == "gelu" and not self.second else name', "name", "hidden_act"
    ),
    Planted(
        GEMMA,
        "gemma2",
        "weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)",
        'weights = F.dropout(scores.masked_fill(hidden, -torch.inf).softmax(-1), self.c.get("attention_dropout", 0.0))',
        "attention_dropout",
    ),
    Planted(BERT, "bert", 'c["hidden_size"], c["layer_norm_eps"]', 'c["hidden_size"], 1e-12', "layer_norm_eps"),
    Planted(BERT, "bert", 'ACTIVATIONS[c["hidden_act"]]', "F.gelu", "hidden_act"),
    Planted(BERT, "roberta", "* real + self.pad", "* real + 1", "pad_token_id"),
    Planted(
        T5,
        "t5",
        'buckets, furthest = self.c["relative_attention_num_buckets"],',
        "buckets, furthest = 8,",
        "relative_attention_num_buckets",
    ),
    Planted(T5, "t5", 'self.c["relative_attention_max_distance"]', "17", "relative_attention_max_distance"),
    Planted(T5, "t5", '"gelu_new" if self.gated and name == "gelu" else name', "name", "feed_forward_proj"),
    Planted(
        T5,
        "t5",
        'c["d_model"] ** -0.5 if c["tie_word_embeddings"] else 1.0',
        'c["d_model"] ** -0.5',
        "tie_word_embeddings",
    ),
    Planted(T5, "t5", ' if c["tie_word_embeddings"] else p["lm_head.weight"]', "", "tie_word_embeddings"),
    Planted(T5, "t5", 'c["num_heads"], c["layer_norm_epsilon"]', 'c["num_heads"], 1e-6', "layer_norm_epsilon"),
    Planted(T5, "t5", 'c.get("scale_decoder_outputs") is not None', "False", "scale_decoder_outputs"),
    Planted(OPT, "opt", "ACTIVATIONS[self.act](", "F.relu(", "activation_function"),
    Planted(
        OPT,
        "opt",
        '            c["do_layer_norm_before"],',
        "            True,",
        "do_layer_norm_before",
    ),
)
"""Fields that are ignored or obeyed wrongly. With the values of the family's small model, most change nothing."""
