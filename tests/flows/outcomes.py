"""What two runs of the same pipeline must have in common, to the bit."""

import json
from pathlib import Path
from typing import Any

from stages.cache import file_sha256

_CLOCKS = ("time", "timestamp")


def outcome(runs_dir: Path) -> dict[str, Any]:
    """Adapters, rows but for their clocks, pairs, scores and samples of every finished store entry."""
    found: dict[str, Any] = {}
    for entry in sorted(path.parent for path in (runs_dir / "store").glob("*/result.json")):
        for path in sorted(entry.rglob("*")):
            name = str(path.relative_to(runs_dir / "store"))
            if path.name == "progress.jsonl":
                rows = [json.loads(line) for line in path.read_text().splitlines()]
                found[name] = [{key: row[key] for key in row if key not in _CLOCKS} for row in rows]
            elif path.suffix == ".safetensors" or path.name in ("scores.parquet", "samples.jsonl", "train.jsonl"):
                found[name] = file_sha256(path)
    return found
