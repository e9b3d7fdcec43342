"""What token sequences have in common is computed once: their prefixes form a tree, and one forward pass runs over it.

The completions of a group share their prompt, prompts share their system message, and completions share what they agree
on. A transformer's state at a token depends on the tokens before it and on nothing else, so one computation per
distinct prefix gives every sequence exactly what it would have had alone, gradients included. Nothing is padded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "prefix_tree"
"""The attention implementation by which a model understands a tree; without one it is `sdpa`."""

BLOCK, GPU_BLOCK = 128, 1024
"""Nodes that attend together: more mean fewer and larger products, of which more is masked."""


@dataclass(frozen=True)
class Block:
    """Nodes that follow each other, and all that they attend to: their common ancestors, and each other.

    Attributes:
        keys: The nodes attended to: a slice where they follow each other, too.
        mask: Which node attends to which: (nodes, keys).
        distance: How many tokens later than the key the node is: (nodes, keys).
    """

    keys: slice | torch.Tensor
    mask: torch.Tensor
    distance: torch.Tensor

    def visible(self, window: int | None) -> torch.Tensor:
        """The mask of a layer that sees the last `window` tokens, or all of them: (1, 1, nodes, keys)."""
        mask = self.mask if window is None else self.mask & (self.distance < window)
        return mask[None, None]


@dataclass(frozen=True)
class PrefixTree:
    """The distinct prefixes of token sequences, depth first. A node stands for a prefix and holds its last token.

    Attributes:
        ids: (nodes,).
        positions: Depth of every node: (nodes,).
        paths: Per sequence the nodes of its prefixes, from the shortest to the longest.
        blocks: All nodes, `block_size` by `block_size`.
        block_size: Nodes of a block; the last may have fewer.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    paths: Sequence[Sequence[int]]
    blocks: Sequence[Block]
    block_size: int


def prefix_tree(sequences: Sequence[Sequence[int]], device: torch.device) -> PrefixTree:
    """The tree of sequences of token ids, none of them empty."""
    ids: list[int] = []
    positions: list[int] = []
    ends: list[int] = []  # of every node's descendants
    paths: list[list[int]] = [[] for _ in sequences]
    previous: Sequence[int] = ()
    path: list[int] = []
    # Sorted, a sequence shares with its predecessor all that it shares with any before it.
    for index in sorted(range(len(sequences)), key=lambda index: list(sequences[index])):
        sequence = sequences[index]
        shared = common_prefix(previous, sequence)
        for node in path[shared:]:
            ends[node] = len(ids)
        new = range(len(ids), len(ids) + len(sequence) - shared)
        path, previous = [*path[:shared], *new], sequence
        ids += sequence[shared:]
        positions += range(shared, len(sequence))
        ends += [0] * len(new)
        paths[index] = path
    for node in path:
        ends[node] = len(ids)
    depth = torch.tensor(positions, device=device)
    size = BLOCK if device.type == "cpu" else GPU_BLOCK
    blocks = list(_blocks(depth, torch.tensor(ends, device=device), size))
    return PrefixTree(torch.tensor(ids, device=device), depth, paths, blocks, size)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal elements two sequences begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def _blocks(depth: torch.Tensor, ends: torch.Tensor, size: int) -> Iterator[Block]:
    """Depth first, the descendants of a node follow it: those up to its end.

    Whoever is an ancestor of some node of a block and stands before it is an ancestor of the block's first node.
    """
    nodes = torch.arange(len(depth), device=depth.device)
    for start in range(0, len(nodes), size):
        own = nodes[start : start + size]
        keys = torch.cat([nodes[:start][ends[:start] > start], own])
        mask = (keys <= own[:, None]) & (own[:, None] < ends[keys])
        first, last = int(keys[0]), int(keys[-1])
        neighbours = last - first + 1 == len(keys)
        yield Block(slice(first, last + 1) if neighbours else keys, mask, depth[own][:, None] - depth[keys])


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: PrefixTree | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention along the paths of a tree, as transformers calls it; without a tree, its `sdpa`.

    Queries, keys and values are (1, heads, nodes, size); the result is (1, nodes, heads, size).
    """
    if tree is None:
        whole: torch.Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0]
        return whole, None
    outputs = [
        sdpa_attention_forward(
            module, own, key[:, :, block.keys], value[:, :, block.keys], block.visible(sliding_window), **options
        )[0]
        for own, block in zip(torch.split(query, tree.block_size, 2), tree.blocks, strict=True)
    ]
    return torch.cat(outputs, 1), None


AttentionInterface.register(ATTENTION, tree_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
