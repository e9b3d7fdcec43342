"""`ratchet score`: rewards applied to a file of completions, so that rewards are tested like code."""

import argparse
import json
from pathlib import Path

from omegaconf import OmegaConf
from yaml import YAMLError

from conf.errors import UserError
from conf.rewards import load_rewards
from flows.scores.reward_report import report
from rewards.scoring import RewardSet, score_file


def main(arguments: argparse.Namespace) -> int:
    """Score the rows; returns the exit code.

    Raises:
        UserError: A file cannot be read or used.
    """
    path = Path(arguments.rewards)
    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"--rewards: {path}: cannot be read: {reason}; give the path of a YAML file, e.g. conf/reward/qa.yaml"
        ) from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as YAML ({' '.join(str(error).split())})") from error
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply, or holds itself by an anchor") from None
    with RewardSet(load_rewards(values, str(path)), path.parent) as rewards:
        scored = list(score_file(rewards, Path(arguments.rows)))
    lines = _encodable("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in scored))
    if arguments.out:
        try:
            Path(arguments.out).write_text(lines, encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out: cannot write {arguments.out} ({error.strerror})") from error
    print(lines if arguments.json else f"{_encodable(report(scored))}\n", end="")
    return 0


def _encodable(text: str) -> str:
    """Lone surrogates, which UTF-8 cannot hold, as the escapes that they are in JSON."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
