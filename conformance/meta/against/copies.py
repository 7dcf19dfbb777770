"""Small models of families of transformers, standalone copies of their modeling files, and runs of both."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto

FAMILIES = {
    "olmo3": "causal",
    "glm4": "causal",
    "stablelm": "causal",
    "starcoder2": "causal",
    "phi": "causal",
    "nemotron": "causal",
    "exaone4": "causal",
    "bloom": "causal",
    "gpt_neo": "causal",
    "codegen": "causal",
    "granitemoe": "causal",
    "deepseek_v2": "causal",
    "apertus": "causal",
    "electra": "masked",
    "roformer": "masked",
    "pegasus": "seq2seq",
    "m2m_100": "seq2seq",
    "dinov2": "base",
    "beit": "base",
    "hubert": "base",
}
"""Model types that no table of checkpoints knows, each with the kind of its class."""

CLASSES: Mapping[str, Mapping[str, Any]] = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "base": modeling_auto.MODEL_MAPPING_NAMES,
}
SIZES = (
    (r"(.*_)?vocab_size", 128),
    (r"(.*_)?layers?|n_layer", 4),
    (r".*attention_heads|n_heads?|num_heads|n_head", 4),
    (r"num_key_value_heads|num_kv_heads", 2),
    (r"(.*_)?hidden_size|d_model|n_embd|embed_dim|embedding_size", 64),
    (r"(.*_)?head_dim", 16),
    (r"(.*_)?intermediate_size|ffn_dim|.*_ffn_dim|d_ff|n_inner", 96),
    (r"num_experts|n_routed_experts|num_local_experts", 4),
    (r"num_experts_per_tok|top_k", 2),
    (r"q_lora_rank", 24),
    (r"kv_lora_rank", 16),
    (r"qk_rope_head_dim|sliding_window|window_size|rotary_dim", 8),
    (r"max_position_embeddings|n_positions|n_ctx", 128),
    (r"image_size", 24),
    (r"patch_size", 6),
    (r"num_conv_pos_embeddings", 8),
    (r"num_conv_pos_embedding_groups", 4),
)
"""Fields of configurations, as patterns, and their largest values in a small model."""

LOAD = '''


def load(folder):
    """Load the model of a folder in float32."""
    from transformers import AutoConfig

    {name}.is_custom_code = classmethod(lambda cls: False)  # rename and pack weights as for the library's class
    config = AutoConfig.from_pretrained(folder)
    model = {name}.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"{experts}
    )
    return model.eval()
'''
"""The end of a port."""
_numbers = itertools.count()


def model_class(family: str) -> Any:
    """Return the class of transformers that is copied for a family."""
    name = CLASSES[FAMILIES.get(family, "causal")][family]
    return getattr(transformers, name if isinstance(name, str) else name[0])


def build(family: str) -> Any:
    """Return a small model of a family, with drawn weights."""
    config = transformers.CONFIG_MAPPING[family]()
    _shrink(config)
    torch.manual_seed(0)
    model = model_class(family)._from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        convolution = isinstance(module, nn.Conv1d | nn.Conv2d)
        for name, weight in module.named_parameters(recurse=False):
            inputs = weight[0].numel() if convolution else weight.shape[-1]
            drawn = torch.randn(weight.shape, generator=generator) * (0.3 if weight.ndim < 2 else inputs**-0.5)
            weight.data.copy_(drawn + (1.0 if weight.ndim < 2 and name.endswith("weight") else 0.0))
    return model


def _shrink(config: Any) -> None:
    for key, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            _shrink(value)
        if value == 1.0 and re.search("multiplier|scaling$", key):
            setattr(config, key, 0.75)
        if isinstance(value, int) and not isinstance(value, bool):
            small = next((size for pattern, size in SIZES if re.fullmatch(pattern, key)), None)
            if small is not None and value > small:
                setattr(config, key, small)
            elif key.endswith("token_id") and value >= 128:
                setattr(config, key, 2)
    if getattr(config, "num_experts_per_tok", 0) is None:
        config.num_experts_per_tok = 2
    if hasattr(config, "stage_names"):  # backbones name the layers whose output they return
        config.stage_names = ["stem", *(f"stage{layer + 1}" for layer in range(config.num_hidden_layers))]
        config._out_features, config._out_indices = [config.stage_names[-1]], [config.num_hidden_layers]
    if getattr(config, "num_key_value_heads", 0) is None or hasattr(config, "kv_lora_rank"):
        config.num_key_value_heads = config.num_attention_heads
    if isinstance(kinds := getattr(config, "layer_types", None), list):
        config.layer_types = (list(dict.fromkeys(kinds)) * config.num_hidden_layers)[: config.num_hidden_layers]
    if isinstance(getattr(config, "attention_types", None), list):  # GPT-Neo's pattern of layers
        config.attention_types = [[["global", "local"], config.num_layers // 2]]
        config.attention_layers = ["global", "local"] * (config.num_layers // 2)
    if hasattr(config, "conv_dim"):  # HuBERT's convolutions over the waveform
        config.conv_dim, config.conv_kernel, config.conv_stride = (16, 16), (10, 3), (5, 2)
        config.num_feat_extract_layers = 2


def example_inputs(model: Any) -> dict[str, dict[str, Tensor]]:
    """Return keyword arguments by name: a batch, a longer single input, and left padding if the model takes it."""
    generator = torch.Generator().manual_seed(2)
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        return {
            name: {"pixel_values": torch.randn(count, 3, size, size, generator=generator)}
            for name, count in (("batch", 2), ("long", 1))
        }
    if model.main_input_name == "input_values":
        shapes = {"batch": (2, 400), "long": (1, 990)}
        return {name: {"input_values": torch.randn(*shape, generator=generator)} for name, shape in shapes.items()}

    def ids(*shape: int) -> Tensor:
        return torch.randint(3, 100, shape, generator=generator)

    calls = {"batch": {"input_ids": ids(2, 11)}, "long": {"input_ids": ids(1, 33)}, "padded": {"input_ids": ids(2, 11)}}
    if model.config.is_encoder_decoder:
        for name, shape in (("batch", (2, 7)), ("long", (1, 19)), ("padded", (2, 7))):
            calls[name]["decoder_input_ids"] = ids(*shape)
    calls["padded"]["attention_mask"] = torch.ones(2, 11, dtype=torch.int64)
    calls["padded"]["attention_mask"][0, :4] = 0
    return calls


def copied(model: Any, folder: Path, changed_text: str | None = None) -> Path:
    """Write `port.py`: the part of a modeling file that a class needs, with absolute imports, and `load(folder)`."""
    path = folder / "port.py"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(standalone(model) if changed_text is None else changed_text)
    return path


def standalone(model: Any) -> str:
    """Return the text of a port that copies what `model` needs from its modeling file."""
    source = Path(inspect.getsourcefile(model) or "").read_text()
    package = model.__module__.split(".")[:-1]

    def absolute(match: re.Match[str]) -> str:
        base = package[: len(package) + 1 - len(match[2])]
        return f"{match[1]}from {'.'.join([*base, *filter(None, [match[3]])])} import"

    text = re.sub(r"(?m)^(\s*)from (\.+)([\w.]*) import", absolute, _needed(source, model.__name__))
    experts = ', experts_implementation="eager"' if "@use_experts_implementation" in text else ""
    return text.rstrip() + LOAD.format(name=model.__name__, experts=experts)


def _needed(source: str, name: str) -> str:
    """Return the source without the functions and classes that nothing reached from `name` uses, and `__all__`."""
    tree = ast.parse(source)
    parts = {part.name: part for part in tree.body if isinstance(part, ast.ClassDef | ast.FunctionDef)}
    others = [part for part in tree.body if part not in parts.values()]
    used, new = set[str](), {name} | {word for part in others for word in _names(part)}
    while new:
        used |= new
        new = {word for known in new if known in parts for word in _names(parts[known])} - used
    dropped: list[ast.stmt] = [part for known, part in parts.items() if known not in used]
    dropped += [part for part in others if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "__all__"]
    lines: list[str | None] = list(source.splitlines())
    for part in dropped:
        first = min([part.lineno, *(each.lineno for each in getattr(part, "decorator_list", []))])
        lines[first - 1 : part.end_lineno] = [None] * ((part.end_lineno or first) - first + 1)
    text = "\n".join(line for line in lines if line is not None)
    return re.sub(r"\n{4,}", "\n\n\n", re.sub(r"\A(#.*\n)+", "", text)).lstrip()


def _names(part: ast.AST) -> set[str]:
    if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "__all__":
        return set()
    return {node.id for node in ast.walk(part) if isinstance(node, ast.Name)} | {
        word
        for node in ast.walk(part)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in re.findall(r"\A\w+\Z", node.value)
    }


def loaded(text: str, folder: Path, **names: object) -> Any:
    """Return the model that a port's text loads from a folder; `names` are set in the port before it runs."""
    module = types.ModuleType(f"port_{next(_numbers)}")
    module.__dict__.update(names)
    sys.modules[module.__name__] = module
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # transformers reads the files of its classes
        file.write(text)
        file.flush()
        module.__file__ = file.name
        try:
            exec(compile(text, file.name, "exec"), module.__dict__)
            return module.load(folder)
        finally:
            del sys.modules[module.__name__]


def outputs(model: Any, calls: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the first output of each call, without the padded positions."""
    found = {}
    with torch.no_grad():
        for name, call in calls.items():
            caches = "use_cache" in inspect.signature(model.forward).parameters
            answer = model(**call, **({"use_cache": False} if caches else {}))
            first = answer.logits if "logits" in answer else answer[0]
            mask = call.get("attention_mask")
            kept = mask is not None and first.shape[:2] == mask.shape
            found[name] = first[mask.bool()] if kept else first  # type: ignore[union-attr]
    return found


def difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the largest difference of each call, relative to its largest expected number."""
    return {
        name: float((found[name] - right).abs().max() / right.abs().max())
        if found[name].shape == right.shape
        else float("inf")
        for name, right in expected.items()
    }
