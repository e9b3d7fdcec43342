"""Removes a directory that its last user did not want removed."""

import os


def remove(folder: str) -> None:
    """Remove a directory, whatever was made unreadable in it and however deep it is; follows no link.

    Walks with one directory open at a time and relative names: neither paths nor the stack can grow too long.
    """
    os.chmod(folder, 0o700)
    here, names = os.open(folder, os.O_RDONLY), list[str]()
    while True:
        below = _remove_files(here)
        if below is not None:
            os.chmod(below, 0o700, dir_fd=here)
            names.append(below)
        elif not names:
            break
        above, here = here, os.open(below or "..", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=here)
        os.close(above)
        if below is None:
            os.rmdir(names.pop(), dir_fd=here)
    os.close(here)
    os.rmdir(folder)


def _remove_files(directory: int) -> str | None:
    """Remove files up to the first directory, and return its name; None when nothing is left."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                return entry.name
            os.unlink(entry.name, dir_fd=directory)
    return None
