"""The transformer of `torch.blog`, optimized: query, key and value in one product, and PyTorch's fused attention."""

import torch
from benchmarks.peers.torch.blog import Attention, Transformer, model_of
from benchmarks.peers.torch.tasks import tasks
from benchmarks.workloads import Run, Task
from torch import Tensor, nn
from torch.nn import functional as F


class FusedAttention(Attention):
    """Attention that loads four linear maps; `pack` then joins the maps of query, key and value."""

    packed: nn.Linear
    packed_memory: nn.Linear

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if memory is x:
            query, key, value = self.packed(x).chunk(3, -1)
            return query, key, value
        key, value = self.packed_memory(memory).chunk(2, -1)
        return self.query(x), key, value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=mask is not None)

    def pack(self, *, cross: bool) -> None:
        """Join the matrices of query, key and value; in cross-attention, only of key and value."""
        if cross:
            self.packed_memory = _side_by_side(self.key, self.value)
            del self.key, self.value
        else:
            self.packed = _side_by_side(self.query, self.key, self.value)
            del self.query, self.key, self.value


def _side_by_side(*linears: nn.Linear) -> nn.Linear:
    joined = nn.Linear(linears[0].in_features, sum(linear.out_features for linear in linears))
    joined.weight = nn.Parameter(torch.cat([linear.weight for linear in linears]).detach())
    joined.bias = nn.Parameter(torch.cat([linear.bias for linear in linears]).detach())
    return joined


def fused_model_of(task: Task) -> Transformer:
    model = model_of(task, FusedAttention)
    for name, module in model.named_modules():
        if isinstance(module, FusedAttention):
            module.pack(cross=name.endswith("cross_attention"))
    return model


def build(task: Task, *, compiled: bool = False, autocast: bool = False) -> Run:
    """Build a run that is eager, compiled, or eager with PyTorch's autocast to bfloat16."""
    model = fused_model_of(task)
    if not autocast:
        return tasks(task, model, torch.compile(model) if compiled else model)
    model.float()

    def in_bfloat16(*arguments: Tensor, **named: Tensor) -> Tensor:
        with torch.autocast(task.device, torch.bfloat16):
            logits: Tensor = model(*arguments, **named)
            return logits

    return tasks(task, model, in_bfloat16)
