"""The tree of prefixes: which nodes it has, and who sees whom in it."""

import random

import pytest
import torch

from stages import prefix_tree as module
from stages.prefix_tree import common_prefix, prefix_tree

CPU = torch.device("cpu")


def sequences(seed: int) -> list[list[int]]:
    """Sequences over few tokens, so that they share much; some are prefixes of others, some are equal."""
    generator = random.Random(seed)
    found = [[generator.randrange(3) for _ in range(generator.randint(1, 12))] for _ in range(12)]
    return [*found, found[0], found[1][:1], [*found[2], 1, 2]]


@pytest.mark.parametrize("seed", range(5))
def test_every_distinct_prefix_is_one_node(seed: int) -> None:
    given = sequences(seed)
    tree = prefix_tree(given, CPU)
    prefixes = {tuple(sequence[:length]) for sequence in given for length in range(1, len(sequence) + 1)}
    assert len(tree.ids) == len(prefixes)
    seen: dict[int, tuple[int, ...]] = {}
    for path, sequence in zip(tree.paths, given, strict=True):
        assert tree.ids[list(path)].tolist() == sequence
        assert tree.positions[list(path)].tolist() == list(range(len(sequence)))
        for length, node in enumerate(path, start=1):
            assert seen.setdefault(node, tuple(sequence[:length])) == tuple(sequence[:length])


@pytest.mark.parametrize("block", [1, 2, 5, 100])
@pytest.mark.parametrize("window", [None, 3])
def test_a_node_sees_its_own_prefix_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, block: int, window: int | None
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    given = sequences(7)
    tree = prefix_tree(given, CPU)
    path_to = {path[length]: path[: length + 1] for path in tree.paths for length in range(len(path))}
    node = 0
    for part in tree.blocks:
        keys = list(range(part.keys.start, part.keys.stop)) if isinstance(part.keys, slice) else part.keys.tolist()
        for row in part.visible(window)[0, 0]:
            seen = [key for key, visible in zip(keys, row.tolist(), strict=True) if visible]
            assert seen == list(path_to[node])[-window if window else 0 :]
            node += 1
    assert node == len(tree.ids) and all(len(part.mask) <= block for part in tree.blocks)


def test_a_lone_chain_is_read_in_place() -> None:
    (first, *_) = prefix_tree([list(range(50))], CPU).blocks
    assert first.keys == slice(0, 50)


@pytest.mark.parametrize(
    ("one", "other", "length"), [([], [1], 0), ([1, 2], [1, 3], 1), ([1, 2], [1, 2], 2), ([1], [1, 2], 1)]
)
def test_common_prefix(one: list[int], other: list[int], length: int) -> None:
    assert common_prefix(one, other) == common_prefix(other, one) == length
