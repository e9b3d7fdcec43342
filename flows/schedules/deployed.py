"""What was deployed, as the machine that runs it remembers it, and what a run of it may ask for.

The overrides of a deployment stand among its parameters, where people see and change them in Prefect's pages. So they
cannot say which of them a person at the machine has written. That is written down here, in Prefect's home of the user
who deployed, out of reach of those pages: what was deployed is taken as it is, and a run may differ from it, by what it
adds and by what it leaves out, only in what `conf.editable` lists.

This keeps parameters in their bounds. It does not make Prefect's server a safe thing to share: whoever may change a
deployment's or a work pool's *job variables* (`command`, `env`), or call the server's API, runs what he likes as the
worker's user. Keep such people out with the server's own means (PREFECT_SERVER_API_AUTH_STRING, listen on 127.0.0.1).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prefect.settings import PREFECT_HOME

from conf.editable import check_editable, check_editable_key
from conf.errors import ConfigError, UserError
from flows.store import write_json

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """A deployment.

    Attributes:
        id: Prefect's id of it.
        name: Its name.
        directory: The project's: where its configuration is composed, and relative paths begin.
        config_dir: The user's own configuration, if it is not `conf` in there.
        overrides: What was deployed.
        timezone: In which the schedule is meant.
    """

    id: str
    name: str
    directory: str
    config_dir: str | None
    overrides: Sequence[str]
    timezone: str

    def asked(self, overrides: Iterable[str]) -> list[str]:
        """The overrides of a run: those that were deployed, in their order, and then what the run adds.

        Raises:
            ConfigError: The run adds or leaves out what it may not.
        """
        wanted = list(overrides)
        added = [override for override in wanted if override not in self.overrides]
        for override in added:
            check_editable(override)
        for override in self.overrides:
            if override not in wanted:
                self._check_left_out(override)
        return [override for override in self.overrides if override in wanted] + added

    def _check_left_out(self, override: str) -> None:
        try:
            check_editable_key(override.partition("=")[0])
        except ConfigError as error:
            raise ConfigError(f"{override}: belongs to the deployment and may not be left out; {error}") from error

    def write(self) -> None:
        """Remember the deployment, in place of what was deployed under its id before."""
        path = _path(self.id)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, {"format": FORMAT, **asdict(self)})

    def forget(self) -> None:
        """The deployment is gone."""
        _path(self.id).unlink(missing_ok=True)

    @classmethod
    def find(cls, deployment_id: str) -> "Deployed | None":
        """What this machine remembers of a deployment."""
        try:
            values = json.loads(_path(deployment_id).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(**{key: value for key, value in values.items() if key != "format"})

    @classmethod
    def read(cls, deployment_id: str) -> "Deployed":
        """What this machine remembers of a deployment.

        Raises:
            UserError: Nothing.
        """
        found = cls.find(deployment_id)
        if found is None:
            raise UserError(
                f"{_path(deployment_id)} is not there: nobody deployed this on this machine as this user; start the "
                "worker where `ratchet deploy` was called (or with the same PREFECT_HOME), or deploy again"
            )
        return found


def _path(deployment_id: str) -> Path:
    return Path(PREFECT_HOME.value()) / "ratchet" / "deployments" / f"{deployment_id}.json"
