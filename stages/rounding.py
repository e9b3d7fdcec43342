"""Rounding folded weights to 16 bits without losing what was learned.

An update of reinforcement learning is smaller than the spacing of bfloat16 weights: rounding to the nearest drops most
of it. Stochastic rounding goes up or down with probabilities that keep the expected value, so that over a whole matrix
the update survives. Unlike in training, the noise here is fixed: keyed by the base's hash and the tensor's name alone,
so that every fold of a base rounds with the same noise and a tensor that no adapter moved stays where it was.
"""

import hashlib

import torch

_DROPPED_BITS = {torch.bfloat16: 16, torch.float16: 13}
"""How many bits of a float32's significand the type does not have."""


def rounding_noise(base_sha256: str, name: str, size: torch.Size) -> torch.Tensor:
    """Uniform 16-bit noise of one tensor: int32 of shape `size` with values in [0, 2**16).

    Drawn on the CPU whatever the device, so that it is the same everywhere.
    """
    key = hashlib.sha256(f"{base_sha256} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
    # Each 64-bit draw gives four numbers, which is four times faster than one by one.
    draws = torch.randint(-(2**63), 2**63 - 1, (-(-size.numel() // 4),), generator=generator)
    noise = draws.view(torch.int16)[: size.numel()].to(torch.int32)
    return (noise & 0xFFFF).view(size)


def stochastic_round(values: torch.Tensor, dtype: torch.dtype, noise: torch.Tensor) -> torch.Tensor:
    """Round float32 to bfloat16 or float16, up or down by chance, right on average.

    The float32 is added to a uniform number below one step of the coarse type and cut (sign and magnitude are apart
    in its bits, so this works for both signs; Gupta et al. 2015, arXiv:1502.02551, section 3).

    Args:
        values: float32, finite. What the coarse type holds exactly stays as it is.
        dtype: torch.bfloat16 or torch.float16.
        noise: As `rounding_noise` gives it, of the same shape.
    """
    dropped = _DROPPED_BITS[dtype]
    noise = noise.to(values.device) >> (16 - dropped)
    rounded = ((values.view(torch.int32) + noise) & -(1 << dropped)).view(torch.float32)
    if dtype is torch.float16:  # Below 2**-14 its steps no longer shrink with the value: they are 2**-24.
        steps = torch.floor(values * 2.0**24 + noise / 2**dropped)
        rounded = torch.where(values.abs() < 2.0**-14, steps * 2.0**-24, rounded)
    return rounded.to(dtype)
