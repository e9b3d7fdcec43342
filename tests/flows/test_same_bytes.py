"""The same pipeline twice, by different processes in different directories, leaves the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

from prefect.settings import PREFECT_API_URL

from tests.flows.outcomes import outcome

ROOT = Path(__file__).parents[2]


def test_another_process_another_directory_and_another_hash_seed(smoke: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": str(ROOT),
        "PREFECT_API_URL": PREFECT_API_URL.value(),
    }
    command = [sys.executable, "-m", "flows", "run", "experiment=smoke", "name=another"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = outcome(smoke), outcome(tmp_path / "runs")
    assert second == first
    assert sum(name.endswith("adapter_model.safetensors") for name in first) == 3
    assert sum(name.endswith("scores.parquet") for name in first) == 1
