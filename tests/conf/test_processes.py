"""A step is divided without a rest, and stays what was written."""

import pytest

from conf.errors import ConfigError
from conf.processes import check_processes, share
from conf.steps import Step
from conf.training import ReinforceConfig, SFTConfig


@pytest.mark.parametrize("processes", range(1, 25))
def test_the_shares_make_up_the_step(processes: int) -> None:
    for batch_size in range(1, 13):
        for grad_accum in range(1, 13):
            if batch_size * grad_accum % processes == 0:
                mine = share(SFTConfig(batch_size=batch_size, grad_accum=grad_accum), processes)
                assert mine.batch_size * mine.grad_accum * processes == batch_size * grad_accum
                assert mine.batch_size * mine.together == batch_size


def test_micro_batches_are_dealt_out_before_one_is_divided() -> None:
    mine = share(SFTConfig(batch_size=6, grad_accum=2), 4)
    assert (mine.batch_size, mine.grad_accum, mine.together) == (3, 1, 2)


def test_a_step_that_cannot_be_divided_says_what_can() -> None:
    steps = {"warm": Step(stage="sft", data="qa"), "rl": Step(stage="reinforce", data="qa", reward="right")}
    settings = {"warm": SFTConfig(batch_size=6), "rl": ReinforceConfig(batch_size=5, grad_accum=2)}
    check_processes(steps, settings, 2)
    with pytest.raises(ConfigError) as caught:
        check_processes(steps, settings, 6)
    assert str(caught.value) == (
        "hardware.num_processes: 6 processes cannot divide the 10 prompts that an optimiser step of 'rl' takes "
        "(reinforce.batch_size 5 x reinforce.grad_accum 2); set hardware.num_processes=5, or e.g. "
        "reinforce.batch_size=6"
    )
