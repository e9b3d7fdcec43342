"""What may be changed from Prefect's pages, and all that may not."""

import pytest

from conf.editable import ALLOWED, check_editable, editable
from conf.errors import ConfigError

FINE = [
    "seed=7",
    "name=nightly-2",
    "experiment=tool_calls",
    "reinforce.beta=0.05",
    "reinforce.beta=5e-2",
    "reinforce.group_size=16",
    "reinforce.mask_truncated=true",
    "reinforce.difficulty.min_success=.1",
    "sft.max_steps=null",
    "sft.lora.r=8",
    "sft.schedule=cosine_with_restarts",
    "preference.method=orpo",
    "pairs.min_gap=0.2",
]

KEYS = [
    "reward.arithmetic.numeric.type=command",
    "reward.arithmetic.numeric.weight=2",
    "+reward.arithmetic.mine={type: custom, path: /tmp/mine.py}",
    "++reward.arithmetic.mine.command=[rm,-rf,/]",
    "reward=[mine]",
    "data.qa.source=/etc/passwd",
    "data.qa.source=python:os.system",
    "data=[qa]",
    "model=champion",
    "model.id=/home/somebody/model",
    "model.trust_remote_code=true",
    "model.chat_template=/etc/passwd",
    "runs_dir=/elsewhere",
    "tracking.uri=http://elsewhere",
    "tracking.experiment=other",
    "registry.name=other",
    "hardware.device=cpu",
    "suite.qa.tolerance=1",
    "suite.qa.judge.url=http://elsewhere",
    "gate.min_gain=0",
    "gate.confidence=0.51",
    "gate.register=true",
    "audit.stop=10",
    "probe.force=true",
    "held_out=0.01",
    "pipeline.gate.set.register=true",
    "~pipeline.gate",
    "pipeline=full",
    "reinforce.trainer={output_dir: /elsewhere}",
    "+reinforce.trainer.hub_token=x",
    "sft.lora.target_modules=[q_proj]",
    "reinforce.vllm.mode=server",
    "reinforce.vllm.server_port=1",
    "reinforce.vllm.max_divergence=100",
    "reinforce.difficulty.success=other",
    "reinforce.beta@elsewhere=1",
    "+reinforce.beta=1",
    "hydra.run.dir=/elsewhere",
    "--config-dir",
    "",
]

VALUES = [
    "name=../elsewhere",
    "name=a/b",
    "name=${oc.env:HOME}",
    "experiment=../../elsewhere",
    "experiment=/elsewhere",
    "experiment=[a,b]",
    "seed=1,2",
    "seed=${oc.env:TOKEN}",
    "seed=",
    "seed",
    "reinforce.beta=high",
    "reinforce.beta=inf",
    "reinforce.beta=0.1 runs_dir=/elsewhere",
    "reinforce.beta=0.1\nruns_dir=/elsewhere",
    "reinforce.beta={a: 1}",
    "reinforce.beta=null",
    "reinforce.mask_truncated=maybe",
    "sft.schedule=other",
    "sft.max_steps=\uff11\uff12",
]


@pytest.mark.parametrize("override", FINE)
def test_what_may_be_changed(override):
    check_editable(override)


@pytest.mark.parametrize("override", KEYS)
def test_what_may_not_be_changed(override):
    with pytest.raises(ConfigError) as refused:
        check_editable(override)
    assert str(refused.value).startswith(f"{override.partition('=')[0]}: may not be changed")
    assert ALLOWED in str(refused.value)


@pytest.mark.parametrize("override", VALUES)
def test_values_are_literals(override):
    with pytest.raises(ConfigError, match="takes a plain value"):
        check_editable(override)


def test_a_key_nearby_is_named():
    with pytest.raises(ConfigError, match=r"did you mean 'reinforce\.beta'"):
        check_editable("reinforce.betta=1")


def test_no_key_on_the_list_is_text_of_any_kind():
    free = [key for key, pattern in editable().items() if "\\w" in pattern]
    assert free == ["name", "experiment"]
