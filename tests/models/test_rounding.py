"""Stochastic rounding: right on average, only ever to a neighbour, and with the same noise every time."""

import pytest
import torch

from stages.rounding import rounding_noise, stochastic_round

VALUES = [0.0, 1.0, -1.0, 1.001, -1.001, 0.3, -0.02, 3.14159e-3, 7.7e-5, -6.2e-5, 5.1e-6, -3e-8, 123.456]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", VALUES)
def test_goes_to_a_neighbour_and_is_right_on_average(dtype: torch.dtype, value: float) -> None:
    draws = 40_000
    values = torch.full((draws,), value)
    rounded = stochastic_round(values, dtype, rounding_noise("base", str(value), values.shape)).double()
    neighbours = rounded.unique()
    assert len(neighbours) <= 2
    exact = float(values[0])
    assert neighbours[0] <= exact <= neighbours[-1]
    if len(neighbours) == 2:  # two neighbours: nothing of the coarse type lies between them
        middle = float(neighbours.mean())
        assert float(torch.tensor(middle).to(dtype)) in neighbours.tolist()
    step = float(neighbours[-1] - neighbours[0])
    # A draw varies by at most half a step, so the mean of all by step / 400: five of those.
    assert abs(float(rounded.mean()) - exact) <= step / 2 / draws**0.5 * 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_the_type_holds_exactly_stays(dtype: torch.dtype) -> None:
    values = (torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 1e-3).to(dtype)
    noise = rounding_noise("base", "name", values.shape)
    assert torch.equal(stochastic_round(values.float(), dtype, noise), values)


def test_the_noise_is_uniform_and_keyed_by_base_and_name() -> None:
    size = torch.Size([127, 129])
    noise = rounding_noise("base", "name", size)
    assert noise.shape == size
    assert torch.equal(noise, rounding_noise("base", "name", size))
    assert not torch.equal(noise, rounding_noise("other", "name", size))
    assert not torch.equal(noise, rounding_noise("base", "other", size))
    counts = torch.bincount(noise.flatten() >> 12, minlength=16).double()
    expected = size.numel() / 16
    assert noise.min() >= 0 and noise.max() < 2**16
    assert float(((counts - expected) ** 2 / expected).sum()) < 44  # chi-squared, 15 degrees: p = 0.0001


def test_the_noise_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    rounding_noise("base", "name", torch.Size([8]))
    assert torch.equal(torch.rand(3), expected)
