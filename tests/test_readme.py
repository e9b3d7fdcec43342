"""Everything in the README is run: files are written as it names them, and its commands are called in its order."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ELSEWHERE = {
    "ratchet run -m experiment=smoke reinforce.beta=0.02,0.1 orchestration.runner=ray "
    "orchestration.ray.address=HEAD:6379": "tests/flows/test_ray.py",
    "make demo": "tests/test_demo.py runs what it runs",
    "make test": "this is it",
    "ratchet run experiment=qa": "tests/test_demo.py",
    "ratchet run experiment=ship": "tests/test_planted.py",
    "prefect server start": "tests/flows/test_schedule.py",
    "export PREFECT_API_URL=http://127.0.0.1:4200/api": "tests/flows/test_schedule.py",
    "prefect worker start --pool ratchet": "tests/flows/test_schedule.py",
}
"""Commands of the README that are run elsewhere, and where."""


def blocks(language: str) -> list[tuple[str, str]]:
    """Title (or nothing) and text of every fenced block in a language."""
    pattern = rf"^```{language}(?: title=(\S+))?\n(.*?)^```"
    return re.findall(pattern, README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for _, text in blocks("bash") for line in text.splitlines()]
    return [line for line in lines if line not in ELSEWHERE]


def write_files(folder: Path) -> None:
    """Write every titled block of the README, and bring the sample data."""
    for language in ("yaml", "json", "python"):
        for title, text in blocks(language):
            if title:
                (folder / title).parent.mkdir(parents=True, exist_ok=True)
                (folder / title).write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "data", folder / "data")


@pytest.mark.slow
def test_every_command_of_the_readme_works(prefect_server, tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATCHET_RUNS_DIR", raising=False)
    for command in commands():
        program, *arguments = shlex.split(command)
        if program == "pytest":
            subprocess.run([sys.executable, "-m", "pytest", *arguments], check=True)
        elif program == "python":
            subprocess.run([sys.executable, *arguments], check=True)
        else:
            assert program == "ratchet", command
            assert main(arguments) == 0, command


def test_the_pipeline_shown_is_the_packaged_one():
    import yaml

    from flows.compose import compose_run

    shown = next(yaml.safe_load(text) for title, text in blocks("yaml") if not title and text.startswith("sft:"))
    steps = compose_run(["experiment=demo"]).sections.pipeline  # as declared: without the checks that are added
    assert list(shown) == list(steps)
    assert all(steps[name][key] == value for name, step in shown.items() for key, value in step.items())


def test_every_file_and_make_target_it_names_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make (\w+)(?:`|$)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile, target
    for path in re.findall(r"`(conf/[\w/]+(?:\.py|/))`", README):
        assert (ROOT / path).exists(), path
