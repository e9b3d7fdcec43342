"""What runs in a worker process: one reward, built from its settings, asked over pipes (see `rewards.workers`).

One JSON object per line. In: first `config` and `folder`, then requests of an `id` and `samples`. Out: `ready` with how
many samples to send at once, or `config_error`; then per request its `id` with `outcomes` (a pair of value and
explanation, or a message) or an `error` of the whole call. The code of the reward runs in the main thread, where
signals work; what it prints goes to stderr.
"""

import json
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from conf.errors import ConfigError
from conf.loader import load
from conf.rewards import TYPES
from rewards.contract import BatchReward, Outcome, Reward, RewardError, Sample, description, finite
from rewards.library import build

SHARE = 8
"""Samples that a reward which takes several gets at once; fixed, so that the number of workers cannot matter."""


def main() -> None:
    """Answer until the requests end."""
    requests, replies = _private_pipes()
    threading.Thread(target=_end_with_parent, args=(requests.fileno(), os.getppid()), daemon=True).start()
    opening = requests.readline()
    if not opening:
        return
    _forget_path()
    try:
        reward = _build(**json.loads(opening))
    except ConfigError as error:
        _write(replies, {"config_error": str(error)})
        return
    own = os.getpid()
    _write(replies, {"ready": SHARE if isinstance(reward, BatchReward) else 1})
    for line in requests:
        request = json.loads(line)
        reply = _reply(reward, [Sample(*fields) for fields in request["samples"]])
        if os.getpid() != own:
            os._exit(0)  # the reward forked, and this is the child coming back
        _write(replies, {"id": request["id"], **reply})


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output under other numbers; reading and printing by the reward cannot disturb them."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def _end_with_parent(requests: int, parent: int) -> None:
    """End this process and its children when the other end of the pipe is gone, whatever the reward is doing."""
    poll = select.poll()
    poll.register(requests, 0)  # no event asked for: only that the other end was closed
    while not poll.poll(1000) and os.getppid() == parent:
        pass
    os.killpg(0, signal.SIGKILL)


def _forget_path() -> None:
    """The module path of this process is not for the programs that the reward runs."""
    path = os.environ.pop("RATCHET_PYTHONPATH", None)
    if path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = path


def _build(config: dict[str, Any], folder: str | None) -> Reward:
    try:
        return build(load(TYPES[config["type"]], config), None if folder is None else Path(folder))
    except ConfigError:
        raise
    except BaseException as error:
        raise ConfigError(description(error)) from error


def _reply(reward: Reward, samples: Sequence[Sample]) -> dict[str, Any]:
    try:
        outcomes = reward.batch(samples) if isinstance(reward, BatchReward) else [reward(sample) for sample in samples]
        return {"outcomes": [_plain(outcome) for outcome in outcomes]}
    except RewardError as error:
        return {"error": str(error)}
    except BaseException as error:
        return {"error": description(error)}


def _plain(outcome: Outcome) -> tuple[float, str] | str:
    if isinstance(outcome, RewardError):
        return str(outcome)
    try:
        return finite(outcome.value), outcome.explanation
    except RewardError as error:
        return str(error)


def _write(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main()
