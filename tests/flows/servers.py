"""Real servers that a test stops and starts while a run goes on."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


class Server:
    """A server process, on the same port and with the same data every time it is started.

    Args:
        folder: Where it keeps its data, and its log.
        module: The Python module and its arguments; `{port}` is filled in.
        environment: Variables beside those of this process.
    """

    def __init__(self, folder: Path, module: str, environment: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._command = [sys.executable, "-m", *module.format(port=self.port).split()]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, health: str = "/health") -> None:
        """Start it, and wait until it answers."""
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        for _ in range(600):
            try:
                with urllib.request.urlopen(self.url + health, timeout=5):
                    return
            except OSError:
                assert self._process.poll() is None, (self._folder / "server.log").read_text()
                time.sleep(0.2)
        raise TimeoutError(f"no answer at {self.url}")

    def stop(self) -> None:
        """End it at once, with all its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def free_port() -> int:
    """A port for a server, below those that the system itself gives to others, also while the server is stopped."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)  # workers share the seed of `random`
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
