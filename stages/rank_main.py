"""One of several processes that train together, as torchrun starts it: `python -m stages.rank_main JOB ADDRESS`.

JOB is what `stages.handover` wrote. ADDRESS is a socket of the process that runs the flow. Over it a rank says who it
is and how it ended, and rank 0 whatever a stage says; each message is answered when it has been dealt with, so that a
checkpoint is never ahead of the rows before it. A rank whose socket closes has lost the flow, and ends.
"""

import os
import sys
import threading
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from socket import AF_UNIX, socket
from typing import Any

from rewards.namespaces import die_with_parent

STOP, DONE = "stop", "done"
"""What the flow sends: the stage should end early; the last message has been dealt with."""


class Flow:
    """The process that runs the flow, as a rank sees it."""

    def __init__(self, address: str) -> None:
        connected = socket(AF_UNIX)
        connected.connect(address)
        self._connection = Connection(connected.detach())
        self._dealt_with: SimpleQueue[str] = SimpleQueue()
        self.stops = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, *message: Any) -> None:
        """Send a message, and wait until it has been dealt with."""
        self._connection.send(message)
        self._dealt_with.get()

    def _listen(self) -> None:
        try:
            while True:
                if self._connection.recv() == STOP:
                    self.stops.set()
                else:
                    self._dealt_with.put(DONE)
        except (EOFError, OSError):
            os._exit(1)  # whatever the other threads wait for


def main(job_path: Path, address: str) -> int:
    """Run the stage; returns the exit code."""
    if sys.platform == "linux":
        die_with_parent()
    number = int(os.environ["RANK"])
    _write_to(job_path.with_name(f"rank-{number}.log"))
    flow = Flow(address)
    flow.tell("begun", number, os.getpid())
    try:
        result = _run(job_path, flow, number)
    except Exception as error:
        traceback.print_exc()
        flow.tell("failed", type(error).__module__, type(error).__name__, str(error), getattr(error, "full", None))
        return 1
    flow.tell("finished", result if number == 0 else None)
    return 0


def _run(job_path: Path, flow: Flow, number: int) -> Any:
    import importlib
    import json

    from stages.handover import read_job

    job = read_job(json.loads(job_path.read_text(encoding="utf-8")))
    os.environ.update(job.context.hardware.accelerate)
    from stages import ranks
    from stages.disk import clear_disk_errors

    ranks.join(job.context.hardware)
    context = replace(job.context, stopping=lambda: ranks.any_of(flow.stops.is_set()))
    if number == 0:
        context = replace(
            context,
            log_metrics=lambda row: flow.tell("log_metrics", dict(row)),
            progress=lambda what, done, total: flow.tell("progress", what, done, total),
            say=lambda text: flow.tell("say", text),
        )
    stage = getattr(importlib.import_module(f"stages.{job.stage}"), f"run_{job.stage}")
    with clear_disk_errors(context.out_dir):
        return stage(job.settings, context)


def _write_to(path: Path) -> None:
    """Whatever is printed from here on, by whatever library, goes to a file of this rank."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.argv[2])
    sys.stdout.flush()
    os._exit(code)  # at once: threads of a process group that has failed wait for ever
