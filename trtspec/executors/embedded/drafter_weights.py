"""The weights of an engine's drafter: their names in `drafter.safetensors`, and reading them.

Names, where M counts modules and H is the target's hidden size:
- `token_ids` [D] int64: the target's id of each drafted token, ascending; absent where all can be drafted.
- `embedding` [V, H], `head` [D, H]: absent where the target's are used (`own_embedding`, `own_head`).
- `tokens`: as in the target's `weights.safetensors`, with every layer and `norm`.
- `features`: `modules.M.fuse` [H, 2 H] (embedding first), `modules.M.fuse_bias` [H] or absent,
  `modules.M.token_norm` and `.state_norm` [H] where inputs are normalised, `modules.M.layers.N.*` with the parts of
  the target's layers (`input_norm` of layer 0 absent without `first_input_norm`), `modules.M.norm` [H] with `final_norm`.
- `fused_features`: `modules.0.fuse` [H, F], `modules.0.layers.0.*` where `qkv` reads [2 H] (embedding first),
  `input_norm` is the embedding's and `state_norm` the state's; `modules.0.norm`.
- `heads`: `heads.K.blocks.B.weight` [H, H] and `.bias` [H]; `heads.K.head` [D, H] with `own_head`.
"""

from __future__ import annotations

NAME = "drafter.safetensors"
TOKEN_IDS = "token_ids"


def module_name(module: int, part: str) -> str:
    """The stored name of a module's part."""
    return f"modules.{module}.{part}"


def block_name(head: int, block: int, part: str) -> str:
    return f"heads.{head}.blocks.{block}.{part}"


def head_name(head: int) -> str:
    return f"heads.{head}.head"
