"""Models, and all that a training stage is given, as plain JSON: for the store, and for other processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.loader import dump, load
from conf.rewards import load_rewards
from conf.schema import ModelConfig
from conf.steps import STAGES
from stages.contract import Adapter, Hardware, ModelRef, StageContext

_ANYWHERE = Path("/")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every rank runs: a stage, its settings, and its context without anybody who listens."""

    stage: str
    settings: Any
    context: StageContext


def write_job(job: Job) -> dict[str, Any]:
    """A job of a training stage as plain JSON."""
    context = job.context
    return {
        "stage": job.stage,
        "settings": dump(job.settings),
        "models": {label: write_model(ref, _ANYWHERE) for label, ref in context.models.items()},
        "out_dir": str(context.out_dir.absolute()),
        "seed": context.seed,
        "hardware": vars(context.hardware),
        "data": {split: str(path.absolute()) for split, path in context.data.items()},
        "rewards": dump(context.rewards),
    }


def read_job(saved: Mapping[str, Any]) -> Job:
    """The inverse of `write_job`."""
    context = StageContext(
        models={label: read_model(model, _ANYWHERE) for label, model in saved["models"].items()},
        out_dir=Path(saved["out_dir"]),
        seed=saved["seed"],
        hardware=Hardware(**saved["hardware"]),
        data={split: Path(path) for split, path in saved["data"].items()},
        rewards=load_rewards(saved["rewards"]) if saved["rewards"] else {},
    )
    settings: Any = load(STAGES[saved["stage"]].config, saved["settings"], saved["stage"])
    return Job(stage=saved["stage"], settings=settings, context=context)


def write_model(model: ModelRef, root: Path) -> dict[str, Any]:
    """A model as plain JSON; its adapters are in the store at `root`."""
    adapters = [{"path": str(adapter.path.relative_to(root)), "sha256": adapter.sha256} for adapter in model.adapters]
    return {
        "config": dump(model.config),
        "revision": model.revision,
        "sha256": model.sha256,
        "dtype": model.dtype,
        "adapters": adapters,
    }


def read_model(saved: Mapping[str, Any], root: Path) -> ModelRef:
    """The inverse of `write_model`; whether the adapters are there is not looked at."""
    return ModelRef(
        config=load(ModelConfig, saved["config"], "model"),
        revision=saved["revision"],
        sha256=saved["sha256"],
        dtype=saved["dtype"],
        adapters=tuple(Adapter(path=root / item["path"], sha256=item["sha256"]) for item in saved["adapters"]),
    )
