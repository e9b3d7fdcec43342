"""Registration: a model becomes a version in the registry, whole before anyone can see it, and once however often.

First its files, as a logged model of MLflow; then the version with everything that is known of it. What an attempt that
was killed has left is taken up by the next one with the same id.
"""

import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from mlflow.entities import LoggedModelStatus
from mlflow.models import Model

from flows.registry.registered_model import Registry
from flows.registry.versions import ID, Version
from flows.tracking import Tracker
from stages.contract import Hardware, ModelRef

_LIBRARIES = ("torch", "transformers")
"""What a registered model needs to be loaded."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What is to ship.

    Attributes:
        id: Of what it ships for: the store id of the gate's entry, or of the run that a person promotes.
        model: The model.
        tags: What is known of it, for the version.
        description: Why it is there, in words.
        parent: The MLflow run of its pipeline run, if there is one.
    """

    id: str
    model: ModelRef
    tags: Mapping[str, str]
    description: str
    parent: str | None = None


def register(registry: Registry, tracker: Tracker, candidate: Candidate, hardware: Hardware, runs_dir: Path) -> Version:
    """Make a version of a model, or find the one that an earlier attempt made; to be called with the lock held."""
    made = registry.tagged(ID, candidate.id)
    if made:
        return made[0]
    client = registry.client
    parent = {"mlflow.parentRunId": candidate.parent} if candidate.parent else {}
    now = round(datetime.now(UTC).timestamp() * 1000)
    run = tracker.open(f"registry/{candidate.id}", f"register {candidate.id}", parent, now)
    logged = _logged_model(registry, tracker.experiment, run, candidate)
    if logged.status != LoggedModelStatus.READY:
        folder = runs_dir / f".ship-{candidate.id}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            write_model(candidate, hardware, folder, Model(run_id=run, model_id=logged.model_id))
            client.log_model_artifacts(logged.model_id, str(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    tracker.status(run, "FINISHED")
    tags = {ID: candidate.id, **candidate.tags}
    return registry.create(logged.artifact_location, run, logged.model_id, tags, candidate.description)


def _logged_model(registry: Registry, experiment: str, run: str, candidate: Candidate) -> Any:
    """MLflow's place for the files; that of an attempt that was killed, if there is one."""
    query = f"tags.`{ID}` = '{candidate.id}'"
    found = registry.client.search_logged_models([experiment], query, max_results=1)
    if found:
        return found[0]
    return registry.client.create_logged_model(
        experiment, registry.name, run, tags={ID: candidate.id}, model_type="text-generation"
    )


def write_model(candidate: Candidate, hardware: Hardware, folder: Path, metadata: Model) -> None:
    """Write a model in the form that `mlflow.transformers.load_model` reads.

    Its folder `model` has the tokenizer as well, and so is what `ratchet export` writes.
    """
    from stages.export import exported  # loads torch

    ref = candidate.model
    model, tokenizer = exported(ref, hardware)
    model.name_or_path = f"{ref.config.id} with {len(ref.adapters)} adapters folded in"
    with _quiet("mlflow"):
        from mlflow.transformers import save_model

        save_model(
            {"model": model, "tokenizer": tokenizer},
            str(folder),
            task="text-generation",
            mlflow_model=metadata,
            model_card=ModelCard(f"---\n{{}}\n---\n{candidate.description}\n"),
            pip_requirements=[f"{name}=={installed(name).split('+')[0]}" for name in _LIBRARIES],
        )
    (folder / "LICENSE.txt").unlink(missing_ok=True)  # it would say that one is to be looked for on a hub
    tokenizer.save_pretrained(folder / "model")


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """A library says nothing for a while: MLflow warns of itself, and of a card and a licence that no hub has."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
