"""Where files lie in a bundle: at their own place in the project wherever that can be, so that relative paths hold.

Files from outside of the project, and those whose place a bundle needs for itself, get a place below `files`.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from conf.errors import UserError
from flows.bundles.archive import MANIFEST, can_name
from rewards.sources import files_of

RUNS, FILES = "runs", "files"
"""In a bundle: where runs live, and where files lie that have no place of their own."""

EXPERIMENT = "conf/experiment/bundled.yaml"
TAKEN = ("README.md", "run.sh", "config.json", "constraints.txt", EXPERIMENT, MANIFEST)
"""What a bundle has of its own."""


class Places:
    """The files of a project that a bundle takes along.

    Args:
        base_dir: The directory of the project, resolved.
        runs_dir: Where its runs live, which are packed otherwise.

    Attributes:
        files: Place in the bundle to path.
        origins: The files and folders that were asked for, and their places.
    """

    def __init__(self, base_dir: Path, runs_dir: Path) -> None:
        self._base_dir, self._runs_dir = base_dir, runs_dir
        self.files: dict[str, Path] = {}
        self.origins: dict[Path, str] = {}

    def relative(self, path: Path) -> PurePosixPath | None:
        """Where a path lies in the project; None for one outside, or among the runs."""
        absolute = Path(os.path.abspath(self._base_dir / path))
        if not absolute.is_relative_to(self._base_dir) or absolute.is_relative_to(self._runs_dir):
            return None
        relative = PurePosixPath(absolute.relative_to(self._base_dir).as_posix())
        return None if relative.parts[:1] in ((), (RUNS,), (FILES,)) or str(relative) in TAKEN else relative

    def take(self, path: Path, files: Sequence[Path] | None = None) -> str:
        """Take a file or a folder along.

        Args:
            path: The file or folder.
            files: Those of a folder that are needed; all when absent.

        Returns:
            Its place, which is its own wherever that can be.

        Raises:
            UserError: A file has a name that another machine may not know.
        """
        files = files_of(path) if files is None else files
        place = self.relative(path) or PurePosixPath(FILES, path.name)
        number = 1
        while any(self.files.get(str(target), file) != file for target, file in _targets(place, path, files)):
            number += 1
            place = PurePosixPath(FILES, str(number), path.name)
        for target, _ in _targets(place, path, files):
            if not can_name(str(target)):
                raise UserError(f"{str(target)!a}: no other machine may know such a name; rename the file")
        self.files |= {str(target): file for target, file in _targets(place, path, files)}
        self.origins[path.absolute()] = str(place)
        return str(place)

    def take_module(self, module: str, file: Path, beside: Iterable[Path]) -> None:
        """Take the file of a module along, and those beside it that it imports, where Python finds them again.

        Raises:
            UserError: Another file has such a place already.
        """
        package = Path(*module.split("."))
        folder = package if file.name == "__init__.py" else package.parent
        for path in (file, *beside):
            self._add(str(folder / path.name), path)
        above = file.parents[1:] if file.name == "__init__.py" else file.parents
        packages = folder.parents if folder is package else (folder, *folder.parents)
        for inner, directory in zip(packages, above, strict=False):
            if str(inner) != "." and (directory / "__init__.py").is_file():
                self._add(str(inner / "__init__.py"), directory / "__init__.py")

    def _add(self, place: str, path: Path) -> None:
        if self.files.setdefault(place, path) != path:
            raise UserError(f"{path}: another file is packed as {place}, too; rename one of them")


def _targets(place: PurePosixPath, path: Path, files: Iterable[Path]) -> list[tuple[PurePosixPath, Path]]:
    """The places of a folder's files, or that of a file."""
    return [(place / file.relative_to(path).as_posix() if file != path else place, file) for file in files]
