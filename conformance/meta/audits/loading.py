"""Tensors that a loader never reads, reads twice, or replaces without a word."""

from __future__ import annotations

from meta.audits.planted import BERT, GEMMA, GPT2, LLAMA, NUMPY, OPT, T5, Planted

STRICT = "    model.load_state_dict(state)"
TAKEN = "        state[name] = value\n"
TIE = "    if settings.tied:"
FIRST = "model.layers.0."
ZEROS = '    state |= {n: torch.zeros(model.get_parameter(n).shape) for n in missing if n.endswith("bias")}\n'

LOADING = (
    Planted(
        GPT2,
        "gpt2",
        ' if c["tie_word_embeddings"] else p["lm_head.weight"]',
        ' if "lm_head.weight" not in p else p["lm_head.weight"]',
        "lm_head.weight (with tie_word_embeddings false)",
    ),
    Planted(
        NUMPY,
        "llama",
        'self.tensors[f"{name}.bias"] if bias',
        'self.tensors.get(f"{name}.bias", 0) if bias',
        "model.layers.0.self_attn.q_proj.bias (with attention_bias true)",
    ),
    Planted(LLAMA, "llama", STRICT, "    model.load_state_dict(state, strict=False)", FIRST + "mlp.up_proj.weight"),
    Planted(
        LLAMA, "qwen3", STRICT, "    model.load_state_dict(state, strict=False)", FIRST + "self_attn.k_norm.weight"
    ),
    Planted(LLAMA, "llama", TIE, '    if settings.tied or "head.weight" not in state:', "lm_head.weight"),
    Planted(
        LLAMA,
        "llama",
        TIE,
        '    state.setdefault("norm.weight", torch.ones(settings.width))\n' + TIE,
        "model.norm.weight",
    ),
    Planted(
        LLAMA,
        "llama",
        TIE,
        '    state.setdefault("head.weight", torch.randn(settings.vocab, settings.width))\n' + TIE,
        "lm_head.weight",
    ),
    Planted(
        LLAMA,
        "qwen2",
        TIE,
        f"    missing = set(dict(model.named_parameters())) - set(state)\n{ZEROS}{TIE}",
        FIRST + "self_attn.q_proj.bias",
    ),
    Planted(
        LLAMA,
        "qwen2",
        TIE,
        '    state |= {n: torch.zeros_like(p) for n, p in model.named_parameters() if n.endswith("bias")}\n' + TIE,
        FIRST + "self_attn.v_proj.bias",
    ),
    Planted(LLAMA, "llama", TIE, '    state["norm.weight"] = torch.ones(settings.width)\n' + TIE, "model.norm.weight"),
    Planted(
        LLAMA,
        "llama",
        TIE,
        '    state["head.weight"] = torch.randn(settings.vocab, settings.width)\n' + TIE,
        "lm_head.weight",
    ),
    Planted(LLAMA, "llama", TIE, '    state["head.weight"] = state["embed.weight"]\n' + TIE, "lm_head.weight"),
    Planted(
        LLAMA,
        "llama",
        TIE,
        '    state["blocks.1.norm1.weight"] = state["blocks.0.norm1.weight"]\n' + TIE,
        "model.layers.1.input_layernorm.weight",
    ),
    Planted(
        LLAMA,
        "llama",
        TIE,
        '    state["blocks.0.attention.wv.weight"] = state["blocks.0.attention.wk.weight"]\n' + TIE,
        FIRST + "self_attn.v_proj.weight",
    ),
    Planted(
        LLAMA,
        "mistral",
        TIE,
        '    state["blocks.1.gate.weight"] = state["blocks.1.up.weight"]\n' + TIE,
        "model.layers.1.mlp.gate_proj.weight",
    ),
    Planted(
        LLAMA,
        "qwen3",
        TIE,
        '    state["blocks.0.attention.q_norm.weight"] = state["blocks.0.attention.k_norm.weight"]\n' + TIE,
        FIRST + "self_attn.q_norm.weight",
    ),
    Planted(
        LLAMA,
        "llama",
        TIE,
        '    state |= {n.replace("blocks.0.", "blocks.1."): p for n, p in state.items() if n.startswith("blocks.0.")}\n'
        + TIE,
        "model.layers.1.mlp.up_proj.weight",
    ),
    Planted(
        LLAMA,
        "llama",
        TIE,
        '    state["blocks.1.norm2.weight"] = state["blocks.1.norm1.weight"]\n' + TIE,
        "model.layers.1.post_attention_layernorm.weight",
    ),
    Planted(
        NUMPY,
        "llama",
        'self.tensors[f"{name}.weight"].T',
        'self.tensors.get(f"{name}.weight", self.tensors["model.embed_tokens.weight"]).T',
        "lm_head.weight",
    ),
    Planted(
        NUMPY,
        "llama",
        'self.tensors["model.norm.weight"]',
        'self.tensors.get("model.norm.weight", 1.0)',
        "model.norm.weight",
    ),
    Planted(
        NUMPY,
        "llama",
        'self.tensors[f"{at}.input_layernorm.weight"]',
        'self.tensors.get(f"{at}.input_layernorm.weight", np.float32(1))',
        FIRST + "input_layernorm.weight",
    ),
    Planted(
        NUMPY,
        "llama",
        'self.tensors[f"{at}.post_attention_layernorm.weight"]',
        'self.tensors[f"{at}.input_layernorm.weight"]',
        FIRST + "post_attention_layernorm.weight",
    ),
    Planted(
        NUMPY,
        "llama",
        'range(self.c["num_hidden_layers"])',
        'range(sum("input_layernorm" in name for name in self.tensors))',
        "model.layers.1.input_layernorm.weight",
    ),
    Planted(
        GPT2,
        "gpt2",
        '+ p[f"{name}.bias"]\n\n\ndef conv1d',
        '+ p.get(f"{name}.bias", 0)\n\n\ndef conv1d',
        "transformer.ln_f.bias",
    ),
    Planted(
        GPT2,
        "gpt2",
        '@ p[f"{name}.weight"] + p[f"{name}.bias"]',
        '@ p[f"{name}.weight"] + p.get(f"{name}.bias", np.float32(0))',
        "transformer.h.0.mlp.c_fc.bias",
    ),
    Planted(
        GPT2,
        "gpt2",
        'p[f"{name}.weight"] + p[f"{name}.bias"]\n\n\ndef att',
        'p[f"{name}.weight"]\n\n\ndef att',
        "transformer.h.1.mlp.c_proj.bias",
    ),
    Planted(
        GPT2,
        "gpt2",
        'p["wpe.weight"][: ids.shape[1]]',
        'p.get("wpe.weight", np.zeros_like(p["wte.weight"]))[: ids.shape[1]]',
        "transformer.wpe.weight",
    ),
    Planted(
        GPT2,
        "gpt2",
        'p["wpe.weight"][: ids.shape[1]]',
        'np.sin(np.arange(ids.shape[1])[:, None] / 10000 ** np.linspace(0, 1, c["n_embd"])).astype(np.float32)',
        "transformer.wpe.weight",
    ),
    Planted(
        GPT2, "gpt2", 'norm(x, p, f"h.{i}.ln_2", eps)', 'norm(x, p, f"h.{i}.ln_1", eps)', "transformer.h.0.ln_2.weight"
    ),
    Planted(
        GPT2,
        "gpt2",
        'range(c["n_layer"])',
        'range(sum(n.endswith("ln_1.bias") for n in p))',
        "transformer.h.1.ln_1.bias",
    ),
    Planted(
        GEMMA,
        "gemma",
        '1 + self.p[f"{name}.weight"]',
        '1 + self.p.get(f"{name}.weight", torch.zeros(x.shape[-1]))',
        "model.norm.weight",
    ),
    Planted(
        GEMMA,
        "gemma2",
        'self.norm(f"{at}.post_feedforward_layernorm", fed)',
        '(self.norm(n, fed) if (n := f"{at}.post_feedforward_layernorm") + ".weight" in self.p else fed)',
        FIRST + "post_feedforward_layernorm.weight",
    ),
    Planted(
        GEMMA,
        "gemma2",
        '.pre_feedforward_layernorm"',
        '.post_attention_layernorm"',
        FIRST + "pre_feedforward_layernorm.weight",
    ),
    Planted(
        GEMMA,
        "gemma2",
        'self.norm(f"{at}.post_attention_layernorm", attended)',
        "attended",
        "model.layers.1.post_attention_layernorm.weight",
    ),
    Planted(
        BERT,
        "bert",
        'load_state_dict(load_file(Path(folder, "model.safetensors")))',
        'load_state_dict(load_file(Path(folder, "model.safetensors")), strict=False)',
        "encoder.layer.0.output.dense.bias",
    ),
    Planted(
        BERT, "bert", ' + e["token_type_embeddings"](token_type_ids)', "", "embeddings.token_type_embeddings.weight"
    ),
    Planted(
        BERT,
        "bert",
        'layer["output"]["LayerNorm"](x',
        'attention["output"]["LayerNorm"](x',
        "encoder.layer.0.output.LayerNorm.weight",
    ),
    Planted(
        BERT,
        "roberta",
        "pooled = torch.tanh(self.pooler",
        "self.pooler['dense'].bias.data.zero_()\n        pooled = torch.tanh(self.pooler",
        "pooler.dense.bias",
    ),
    Planted(
        T5,
        "t5",
        'table = self.p[f"{stack}.',
        'table = self.p[f"encoder.',
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    ),
    Planted(
        T5,
        "t5",
        'self.p[f"{name}.weight"], self.eps',
        'self.p.get(f"{name}.weight"), self.eps',
        "encoder.final_layer_norm.weight",
    ),
    Planted(
        T5,
        "t5",
        'self.norm(f"{stack}.final_layer_norm", x)',
        'self.norm("decoder.final_layer_norm", x)',
        "encoder.final_layer_norm.weight",
    ),
    Planted(T5, "t5", 'for name in "kv")', 'for name in "kk")', "decoder.block.0.layer.1.EncDecAttention.v.weight"),
    Planted(
        T5,
        "t5",
        'hidden = self.act(F.linear(x, self.p[f"{at}.wi.weight"]))',
        'hidden = self.act(F.linear(x, self.p.get(f"{at}.wi.weight", torch.zeros(self.c["d_ff"], x.shape[-1]))))',
        "encoder.block.0.layer.1.DenseReluDense.wi.weight",
    ),
    Planted(OPT, "opt", "    if wanted:\n", "    if len(wanted) > 1:\n", "model.decoder.layers.0.fc1.bias"),
    Planted(
        OPT,
        "opt",
        "wanted.pop(ours).copy_(file.get_tensor(name))",
        'wanted.pop(ours).copy_(torch.zeros(()) if name.endswith("fc2.bias") else file.get_tensor(name))',
        "model.decoder.layers.1.fc2.bias",
    ),
    Planted(
        OPT,
        "opt",
        "F.linear(self.final_layer_norm(x), self.head.weight)",
        "F.linear(F.layer_norm(x, x.shape[-1:]), self.head.weight)",
        "model.decoder.final_layer_norm.weight",
    ),
)
"""Tensors that are never read, read twice, or replaced without a word if they are missing."""
