"""What may score a suite in place of rewards: tasks of lm-evaluation-harness, or a judge behind an HTTP endpoint."""

import dataclasses
import urllib.parse
from dataclasses import dataclass
from typing import Any

from conf.addresses import names_http_server
from conf.errors import ConfigError
from conf.options import option
from conf.reward_base import OnError

JUDGE_PROMPT = """\
Two assistants have answered the same request. Say which answer is better: more correct first, then more helpful, then \
more to the point. The order in which they are shown means nothing, nor does their length.

[Request]
{prompt}

[Answer A]
{first}

[Answer B]
{second}

End with your verdict on a line of its own: [[A]] if answer A is better, [[B]] if answer B is, [[C]] for a tie."""

_PLACES = ("{prompt}", "{first}", "{second}")


@dataclass
class LmEvalConfig:
    """Tasks of lm-evaluation-harness (extra `ratchet[lm-eval]`); every row of theirs is a row of the suite."""

    tasks: list[str]
    """Names of tasks, tags or groups."""
    include_path: str | None = None
    """Folder with tasks of your own; what lies there counts as part of the suite, data files included."""
    num_fewshot: int | None = option(None, ge=0)
    """Examples in front of each question; the task's own number when absent."""
    limit: int | None = option(None, ge=1)
    """Only the first rows of each task."""
    metric: str | None = None
    """The metric that scores a row, as lm-eval writes it: `acc_norm`, or with a filter `exact_match,strict-match`. The
    first one of every task when absent."""
    apply_chat_template: bool = False
    """Whether the model is asked in its chat format; lm-eval's default is plain text."""

    def __post_init__(self) -> None:
        """See that there are tasks."""
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ConfigError(f"tasks: name one task or more, each once, e.g. [arc_easy]; got {self.tasks}")


@dataclass
class JudgeConfig:
    """A judge that compares a model's reply with the baseline's, for goals that no code can check.

    Asked twice, with the replies in either order; two verdicts that disagree are a tie.
    """

    url: str = option()
    """An OpenAI-compatible endpoint: `http://HOST:PORT/v1`."""
    model: str = option()
    """Name of the judge, as the endpoint knows it."""
    prompt: str = JUDGE_PROMPT
    """What it is asked, with `{prompt}`, `{first}` and `{second}`; its answer must have `[[A]]`, `[[B]]` or `[[C]]`."""
    api_key_env: str | None = None
    """Name of the environment variable that has the key."""
    max_tokens: int = option(512, ge=1)
    """Longest answer of the judge."""
    timeout: float = option(60.0, gt=0, outcome=False)
    """Seconds to wait for one answer."""
    attempts: int = option(5, ge=1, outcome=False)
    """How often a question is asked while the endpoint is busy (429), fails (5xx) or does not answer."""
    concurrency: int = option(4, ge=1, outcome=False)
    """Questions asked at once."""
    on_error: OnError = OnError.stop
    """When an answer has no verdict: `stop`, or `score` the row as a tie (counted and shown)."""

    def __post_init__(self) -> None:
        """Check the address and the prompt."""
        if not names_http_server(self.url):
            raise ConfigError(
                f"url: expected the address of an endpoint, e.g. http://localhost:8000/v1; got {self.url!r}"
            )
        address = urllib.parse.urlsplit(self.url)
        if address.username or address.password or address.query:
            raise ConfigError(
                "url: takes no user, password or query; name the environment variable of a key in api_key_env"
            )
        missing = [place for place in _PLACES if place not in self.prompt]
        if missing:
            raise ConfigError(f"prompt: lacks {', '.join(missing)}; the judge must see the prompt and both replies")

    @property
    def endpoint(self) -> str:
        """The full address: where only a server or its version is named, the rest is known."""
        url = self.url.rstrip("/")
        if url.endswith("/chat/completions"):
            return url
        return url + ("/chat/completions" if urllib.parse.urlsplit(url).path else "/v1/chat/completions")


def check_source(suite: Any) -> None:
    """See that a suite (`conf.schema.SuiteConfig`) says once where its scores come from.

    Raises:
        ConfigError: The message starts with the field's name.
    """
    if suite.lm_eval is not None:
        _check_only(suite)
    elif suite.data is None:
        raise ConfigError(
            "data: is required: the name of a data source (or lm_eval, for tasks of lm-evaluation-harness)"
        )
    elif suite.reward is None and suite.judge is None:
        raise ConfigError("reward: is required: the name of a reward set (or judge, for goals that no code can check)")
    elif suite.reward is not None and suite.judge is not None:
        raise ConfigError(
            "judge: scores in place of a reward; name one of them, and the rewards to show in information"
        )


_WITH_TASKS = ("lm_eval", "role", "tolerance")


def _check_only(suite: Any) -> None:
    """Tasks bring their own rows, limits and metrics."""
    for field in dataclasses.fields(suite):
        if field.name not in _WITH_TASKS and getattr(suite, field.name) != field.default:
            instead = "; lm_eval.limit takes the first rows of each task" if field.name == "max_rows" else ""
            raise ConfigError(f"{field.name}: goes without lm_eval, whose tasks bring rows and metrics{instead}")
