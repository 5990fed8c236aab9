"""`nn.MultiheadAttention` written out, so that its four projections become ordinary linear layers with filters."""

from torch import Tensor, nn
from torch.nn import functional

from task2vec.errors import ProbeError


class ExplicitAttention(nn.Module):
    """Self-attention with the weights of a given `nn.MultiheadAttention`, through two `nn.Linear` layers.

    The original keeps its query, key and value weights in one bare parameter and calls a fused function, so nothing can
    see what enters and leaves them.
    """

    # Read by nn.TransformerEncoderLayer, which then leaves its fused shortcut aside and calls us.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, attention: nn.MultiheadAttention):
        super().__init__()
        if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
            raise ProbeError(
                "the probe has an nn.MultiheadAttention with separate key sizes or extra biases, whose weights "
                "cannot be seen. "
                "Use a network whose attention projects with nn.Linear, such as timm's vision transformers."
            )
        width = attention.embed_dim
        self.heads, self.batch_first = attention.num_heads, attention.batch_first
        self.in_proj = nn.Linear(width, 3 * width, bias=attention.in_proj_bias is not None)
        self.in_proj.weight = attention.in_proj_weight
        if attention.in_proj_bias is not None:
            self.in_proj.bias = attention.in_proj_bias
        self.out_proj = nn.Linear(width, width, bias=attention.out_proj.bias is not None)
        self.out_proj.weight, self.out_proj.bias = attention.out_proj.weight, attention.out_proj.bias

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """The attended values and no attention weights."""
        if query is not key or key is not value or key_padding_mask is not None or attn_mask is not None or is_causal:
            raise ProbeError(
                "the probe uses cross-attention or attention masks, which have no meaning for single images."
            )
        tokens = query if self.batch_first else query.transpose(0, 1)
        count, length, width = tokens.shape
        split = self.in_proj(tokens).view(count, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(split[0], split[1], split[2])
        out = self.out_proj(mixed.transpose(1, 2).reshape(count, length, width))
        return (out if self.batch_first else out.transpose(0, 1)), None


def write_out_attention(network: nn.Module) -> None:
    """Replaces every `nn.MultiheadAttention` of `network` (our own copy) by its explicit form."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.MultiheadAttention:
                setattr(module, name, ExplicitAttention(child).eval())
