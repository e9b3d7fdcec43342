"""The command line: what can be asked, and the one place that turns an outcome into an exit code.

Exit codes: 0 done or ship, 1 failed, 2 bad input, 3 held, 4 inconclusive, 5 stopped by an audit or a
probe, 130 interrupted by Ctrl-C, 143 interrupted by SIGTERM or cancelled. Nothing heavy is imported before it is known
which command runs.
"""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from conf.errors import DiskError, OutageError, UserError
from flows.stop import Stopped

Options = Callable[[argparse.ArgumentParser], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = build_parser()
    parsed, rest = parser.parse_known_args(arguments)
    if rest:
        unknown = [item for item in rest if item.startswith("-") or not hasattr(parsed, "overrides")]
        if unknown:
            parser.error(f"unrecognised: {' '.join(unknown)}; see ratchet {parsed.command} -h")
        parsed.overrides += rest
    try:
        return int(importlib.import_module(f"flows.commands.{parsed.command}").main(parsed))
    except UserError as error:
        return _report(error, 2, parsed.debug)
    except (Stopped, KeyboardInterrupt) as error:
        stopped = error if isinstance(error, Stopped) else Stopped("SIGINT")
        print(f"ratchet: {stopped}", file=sys.stderr)
        return stopped.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from stages.disk import disk_error

        return _report(disk_error(error, Path()) or error, 1, parsed.debug)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="ratchet", description="Multi-stage post-training of small language models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (help_text, options) in _COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        for option in options:
            option(command)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _report(error: Exception, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    explained = isinstance(error, UserError | DiskError | OutageError)
    print(f"ratchet: {'' if explained else f'{type(error).__name__}: '}{error}", file=sys.stderr)
    if not explained and not debug:
        print("ratchet: --debug shows where; log.txt in the step's store entry has more", file=sys.stderr)
    return code


def _overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides, e.g. experiment=demo")
    _config_dir(parser)


def _config_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-dir", metavar="DIR", help="your own configuration, searched first (default: ./conf)")


def _probe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--start", metavar="RUN", default="base", help="model to sample: a run, or base (default)")


def _multirun(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--multirun", action="store_true", help="sweep over comma-separated values")


def _detach(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--detach", action="store_true", help="run in the background; survives the terminal")
    parser.add_argument("--run-id", help=argparse.SUPPRESS)  # what a detached run is told of itself


def _wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", action="store_true", help="return when the run has ended")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _runs_dir(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get("RATCHET_RUNS_DIR", "runs")
    parser.add_argument("--runs-dir", metavar="DIR", default=default, help="where runs live (default: %(default)s)")


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="<pipeline-run>[/<step>], latest[/<step>], or a store id's prefix")


def _pipeline_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="<pipeline-run>, or latest")


_MODELS = "a run as for generate, base, champion, a hub id, or a directory"


def _model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=_MODELS)


def _several_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="+", help=f"each {_MODELS}; of a whole pipeline every trained step")
    parser.add_argument("--known", action="store_true", help="show what is known, compute nothing")


def _suites(parser: argparse.ArgumentParser) -> None:
    text = "suite to score, of the run or of conf/suite; may be repeated (default: all of the first run's)"
    parser.add_argument("--suite", metavar="NAME", action="append", default=[], help=text)
    _config_dir(parser)


def _preview(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=3, metavar="N", help="rows to show per source (default: 3)")


def _score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rewards", required=True, metavar="FILE", help="a reward set, e.g. conf/reward/qa.yaml")
    parser.add_argument(
        "--rows", required=True, metavar="FILE", help="JSON lines: completion, and columns the rewards need"
    )
    parser.add_argument("--out", metavar="FILE", help="also write the scores there, one JSON object per line")


def _generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the user's message")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--start", action="store_true", help="answer with what the stage started from")
    which.add_argument("--base", action="store_true", help="answer with the original base model")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="longest reply (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="seed for sampling (default: 0)")


def _out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="new directory for the folded model")


def _bundle(parser: argparse.ArgumentParser) -> None:
    text = "a pipeline run, latest, or Hydra overrides, e.g. experiment=demo"
    parser.add_argument("overrides", nargs="+", metavar="RUN|KEY=VALUE", help=text)
    parser.add_argument("--out", required=True, metavar="FILE", help="the bundle, NAME.tar.zst")
    _config_dir(parser)


def _import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", metavar="FILE", help="a bundle")
    text = "do not import it, but unpack it into a new directory, to run its pipeline there"
    parser.add_argument("--unpack", metavar="DIR", help=text)


def _reason(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; it is kept with who and when")


def _anchor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--anchor", action="store_true", help="the anchor is moved to it, too")


def _registry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="of the registered model (default: the run's registry.name, or ratchet)")
    parser.add_argument("--tracking-uri", metavar="URI", help="MLflow (default: as for a run)")


def _schedule(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--cron", metavar="CRON", help='when, e.g. "0 2 * * *": minute, hour, day, month, day of week')
    what.add_argument("--list", action="store_true", help="show what is deployed")
    what.add_argument("--remove", metavar="NAME", help="end a schedule; what its runs left stays")
    parser.add_argument("--timezone", default="UTC", metavar="ZONE", help="of the schedule (default: %(default)s)")
    parser.add_argument("--name", help="of the deployment (default: the configuration's name)")
    overlap = "what a run does that is due while the one before it goes on (default: %(default)s)"
    parser.add_argument("--on-overlap", choices=("wait", "skip"), default="wait", help=overlap)
    retries = "how often a run that crashes goes on; interruptions do not count (default: %(default)s)"
    parser.add_argument("--retries", type=int, default=3, metavar="N", help=retries)
    parser.add_argument("--pool", metavar="NAME", help="work pool (default: ratchet, made when it is not there)")
    variable = "of the pool's jobs, e.g. env.CUDA_VISIBLE_DEVICES=0; may be repeated"
    parser.add_argument("--job-variable", metavar="KEY=VALUE", action="append", default=[], help=variable)
    parser.add_argument("--serve", action="store_true", help="keep the schedule and run it here, until Ctrl-C")


_PERSON = (_reason, _registry, _runs_dir, _json)
"""Options of what a person does with the registry."""

_COMMANDS: dict[str, tuple[str, tuple[Options, ...]]] = {
    "run": ("run a pipeline, or sweep over several", (_overrides, _multirun, _detach, _json)),
    "plan": ("print the steps, what is cached and what would run", (_overrides, _json)),
    "probe": ("sample a start model: is there anything to reinforce?", (_overrides, _probe, _json)),
    "preview": ("show rows as the model will see them", (_overrides, _preview)),
    "audit": ("score policies that do not do the job by a pipeline's rewards, with no model", (_overrides, _json)),
    "score": ("apply rewards to a file of completions, with no model", (_score, _json)),
    "deploy": ("run a pipeline on a schedule", (_overrides, _schedule, _json)),
    "status": ("show what runs now, and what was interrupted", (_runs_dir, _json)),
    "cancel": ("ask a run to keep what it has done and end", (_pipeline_run, _wait, _runs_dir)),
    "runs": ("list the runs of pipelines", (_runs_dir, _json)),
    "progress": ("print what a step logged", (_run, _runs_dir, _json)),
    "generate": ("answer a prompt with the model a run left", (_run, _generate, _runs_dir)),
    "evaluate": ("score a model on suites; what is known is not computed again", (_model, _suites, _runs_dir, _json)),
    "compare": ("put runs side by side, scored on the same suites", (_several_models, _suites, _runs_dir, _json)),
    "promote": ("make a run's model the champion, whatever its gate said", (_run, _anchor, *_PERSON)),
    "rollback": ("make the previous champion the champion again", _PERSON),
    "bundle": ("pack a pipeline into one file for another machine", (_bundle, _runs_dir, _json)),
    "import": ("take back what was computed from a bundle elsewhere, checked", (_import, _runs_dir, _json)),
    "export": ("write the folded model for plain transformers", (_run, _out, _runs_dir)),
}
