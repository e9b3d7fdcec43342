"""Rows from a dataset of the Hugging Face hub, always at a commit.

A branch is resolved to its commit first, with one request that fails at once: `datasets` alone retries for half a
minute when there is no network, with a line per attempt. Offline, `datasets` takes whichever commit it downloaded last,
so that is checked.
"""

import re
from collections.abc import Iterator

from conf.errors import UnreachableError, UserError
from conf.schema import DataConfig
from stages.sources.record import Record, numbered, without_nulls

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_SECONDS = 10


def read_hub(config: DataConfig) -> Iterator[Record]:
    """The rows of one split, in their order.

    Raises:
        UserError: The hub cannot be reached, or has no such dataset, configuration, split or revision.
    """
    from huggingface_hub import constants

    commit = resolve_revision(config)
    if not constants.HF_HUB_OFFLINE:
        _commit_on_hub(config.source, commit)
    import datasets

    try:
        rows = datasets.load_dataset(config.source, config.name, split=config.split, revision=commit)
    except Exception as error:
        raise UserError(f"{config.source}: the hub dataset cannot be loaded: {_first_line(error)}") from error
    if constants.HF_HUB_OFFLINE and not any(commit in file["filename"] for file in rows.cache_files):
        raise UserError(f"{config.source}: commit {commit} was not downloaded before HF_HUB_OFFLINE was set")
    yield from numbered(config.source, map(without_nulls, rows))


def resolve_revision(config: DataConfig) -> str:
    """The commit that `revision` (the main branch when absent) stands for; asks the hub unless it is one already.

    Raises:
        UserError: The hub cannot be reached, or has no such dataset or revision.
    """
    if config.revision and _COMMIT.fullmatch(config.revision):
        return config.revision
    return _commit_on_hub(config.source, config.revision)


def _commit_on_hub(name: str, revision: str | None) -> str:
    from huggingface_hub import HfApi, errors

    try:
        commit = HfApi().dataset_info(name, revision=revision, timeout=_TIMEOUT_SECONDS).sha
    except errors.GatedRepoError:
        raise UserError(f"{name}: this hub dataset is gated; accept its terms and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"{name}: is neither a file here nor a dataset on the hub that you may read") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: the hub dataset has no revision {revision!r}") from None
    except errors.HfHubHTTPError as error:
        raise UserError(f"{name}: the hub refuses this dataset: {_first_line(error)}") from None
    except Exception as error:
        raise UnreachableError(
            f"{name}: is no file here, and the hub cannot be reached ({_first_line(error)}); use a local file, "
            "or, for a dataset downloaded before, its commit as revision with HF_HUB_OFFLINE=1"
        ) from None
    return str(commit)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
