"""Every YAML file of `conf/` is composed and parsed, and Hydra's own errors come out as one clear line."""

import re
from pathlib import Path

import pytest

import conf
from conf.errors import ConfigError
from flows.compose import compose_run

CONF = Path(conf.__file__).parent


def names(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.mark.parametrize("experiment", names("experiment"))
def test_every_experiment_composes(experiment):
    config = compose_run([f"experiment={experiment}"])
    assert config.steps
    assert config.sections.name == experiment


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group in ("model", "data", "reward", "suite") for name in names(group)],
)
def test_every_choice_of_every_group_composes(group, name):
    several = group != "model"
    everything = [f"{other}=[{','.join(names(other))}]" for other in ("data", "reward", "suite")]
    config = compose_run(["experiment=smoke", *everything, *([] if several else [f"model={name}"])])
    chosen = {"data": config.data, "reward": config.rewards, "suite": config.suites}
    assert not several or _package(group, name) in chosen[group]


def _package(group, name):
    """The name under which a file puts its content: its own, unless it takes the place of another."""
    return re.match(rf"# @package {group}\.(\w+)\n", (CONF / group / f"{name}.yaml").read_text())[1]


FILES = {
    "tab": ("name: x\nsft:\n\tmax_steps: 1\n", "cannot be read as YAML: "),
    "typo": ("# @package _global_\nstf: {max_steps: 1}\n", "stf: unknown key; did you mean 'sft'?"),
    "circle": ("# @package _global_\ndefaults:\n  - circle\n", "include each other in a cycle"),
    "bare": ("defaults:\n  - override /data: [arithmetic]\n", "starts with the line '# @package _global_'"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_of_the_users_is_one_clear_line(name, tmp_path):
    text, message = FILES[name]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        compose_run([f"experiment={name}"], str(tmp_path))
    assert message in str(caught.value) and "\n" not in str(caught.value)


BAD = [
    (["experiment=demmo"], "experiment: there is no 'experiment/demmo'; available: demo,"),
    (["nosuch=1"], "nosuch: unknown key; allowed:"),
    (["data.arithmetic.rows=1"], "data.arithmetic.rows: is not set, so there is nothing to override"),
    (["+data.arithmetic.rows=1"], "data.arithmetic.rows: unknown key"),
    (["~pipeline.warmup"], "pipeline.warmup: unknown key; allowed: evaluate,"),
    (["~pipeline.pairs"], "takes its rows from 'pairs', which is left out"),
    (["reward=[arithmetic]"], "no reward is named 'exact_number'"),
    (["reinforce.beta=="], "reinforce.beta=="),
    (["~sft"], "~sft: a section cannot be left out; a step can: ~pipeline.sft"),
    (["data=[nope]"], "data: there is no 'nope'; available: arithmetic,"),
    (["pipeline=3"], "a group takes the name of one of its files"),
]


@pytest.mark.parametrize(("overrides", "message"), BAD, ids=[" ".join(overrides) for overrides, _ in BAD])
def test_a_bad_override_is_one_clear_line(overrides, message):
    experiment = [] if overrides[0].startswith("experiment") else ["experiment=smoke"]
    with pytest.raises(ConfigError) as caught:
        compose_run([*experiment, *overrides])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_leaving_out_a_step_closes_the_gap():
    steps = compose_run(["experiment=smoke", "~pipeline.preference"]).steps
    assert (steps["reinforce"].start, steps["reinforce_probe"].start) == ("reinforce_probe", "sft")


def test_a_directory_of_ones_own_is_searched_first(tmp_path, monkeypatch):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    experiment = "# @package _global_\ndefaults:\n  - smoke\nname: mine\nseed: 5\n"
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(experiment)
    monkeypatch.chdir(tmp_path)
    assert compose_run(["experiment=mine"]).sections.seed == 5
    monkeypatch.chdir(tmp_path / "conf")
    assert compose_run(["experiment=mine"], str(tmp_path / "conf")).sections.name == "mine"
    with pytest.raises(ConfigError, match=r"--config-dir: there is no directory"):
        compose_run(["experiment=mine"], "nowhere")
