"""Where Hydra looks for configuration: in the user's own directory first, then in the packaged one, with the schema."""

from functools import cache
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from conf.errors import ConfigError
from conf.schema import RatchetConfig


class UserDirectory(SearchPathPlugin):
    """Puts the user's own configuration directory in front of the packaged one."""

    directory: Path | None = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it builds its search path."""
        if self.directory is not None:
            search_path.prepend(provider="user", path=f"file://{self.directory}")


def register(config_dir: str | None) -> None:
    """Tell Hydra the schema and where the user's own configuration lives.

    Raises:
        ConfigError: `config_dir` is no directory.
    """
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir: there is no directory {config_dir}")
    directory = Path(config_dir or "conf").resolve()
    UserDirectory.directory = directory if directory.is_dir() else None
    _register_schema()


@cache
def _register_schema() -> None:
    Plugins.instance().register(UserDirectory)
    ConfigStore.instance().store(name="schema", node=RatchetConfig)
