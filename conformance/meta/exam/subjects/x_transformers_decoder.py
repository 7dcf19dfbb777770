"""x-transformers: a decoder with RMSNorm, SwiGLU and learned positions."""

from typing import Any

import torch
from x_transformers import Decoder, TransformerWrapper

from meta.exam.subjects import tables
from transparity import TransformerConfig

CONFIG = TransformerConfig(**tables("x_transformers_decoder")["config"], pad_id=None)


def build(config: TransformerConfig, parameters: dict[str, Any]) -> Any:
    c, p = config, {name: torch.tensor(value) for name, value in parameters.items()}
    layers = Decoder(
        dim=c.embed_dim,
        depth=c.num_decoder_layers,
        heads=c.num_heads,
        attn_dim_head=c.head_dim,
        use_rmsnorm=True,
        norm_add_unit_offset=False,
        ff_glu=True,
        ff_swish=True,
        ff_mult=c.feed_forward_dim / c.embed_dim,
    )
    model = TransformerWrapper(num_tokens=c.target_vocab_size, max_seq_len=c.max_length, attn_layers=layers)
    state = {
        "token_emb.emb.weight": p["decoder.token_embedding.weight"],
        "pos_emb.emb.weight": p["decoder.position_embedding.weight"] * c.embed_dim**0.5,
        "attn_layers.final_norm.g": p["decoder.final_norm.weight"],
        "to_logits.weight": p["head.weight"],
    }
    for i in range(c.num_decoder_layers):
        at, attn, ff = f"decoder.layers.{i}", f"attn_layers.layers.{2 * i}", f"attn_layers.layers.{2 * i + 1}"
        for theirs, ours in {"q": "query", "k": "key", "v": "value", "out": "output"}.items():
            state[f"{attn}.1.to_{theirs}.weight"] = p[f"{at}.self_attention.{ours}.weight"]
        state[f"{attn}.0.0.g"] = p[f"{at}.self_attention_norm.weight"]
        state[f"{ff}.0.0.g"] = p[f"{at}.feed_forward_norm.weight"]
        for leaf in ("weight", "bias"):
            up, gate = p[f"{at}.feed_forward.up.{leaf}"], p[f"{at}.feed_forward.gate.{leaf}"]
            state[f"{ff}.1.ff.0.proj.{leaf}"] = torch.cat([up, gate])
            state[f"{ff}.1.ff.2.{leaf}"] = p[f"{at}.feed_forward.down.{leaf}"]
    model.load_state_dict(state)
    return lambda tokens: model.eval()(torch.tensor(tokens))
