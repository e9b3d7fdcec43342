"""Questions to an OpenAI-compatible endpoint: asked until they are answered, and none asked twice.

The key comes from the environment, goes into one header, and is struck out of everything that is said or kept.
"""

import hashlib
import json
import os
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from conf.errors import OutageError, UnreachableError, UserError
from conf.suites import JudgeConfig

_LONGEST_WAIT = 60.0
_EXCERPT = 200
"""Characters of what an endpoint answered that a message shows."""


class EndpointError(Exception):
    """An endpoint answered something else than was asked; says what."""


class EndpointAwayError(EndpointError, OutageError):
    """An endpoint is not there, or too busy, however often it is asked."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the key along to wherever it points."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Endpoint:
    """A model behind HTTP.

    Args:
        where: The configuration's key, for messages.
        config: Address, model, limits.
        folder: Where answers are kept and found again.

    Raises:
        UserError: The key is not in the environment.
    """

    def __init__(self, where: str, config: JudgeConfig, folder: Path) -> None:
        self._where, self._config = where, config
        self._key = _key(where, config)
        self._open = urllib.request.build_opener(_NoRedirects).open
        self._ended = threading.Event()
        self._failure: EndpointError | None = None
        self._answers = KeptAnswers(
            folder, {"url": config.endpoint, "model": config.model, "tokens": config.max_tokens}
        )

    def check(self) -> None:
        """See that something answers at the address, and takes the key; nothing is asked.

        Raises:
            UserError: The key is refused; UnreachableError where nobody answers.
        """
        try:
            self._open(self._request(None), timeout=min(self._config.timeout, 10.0)).close()
        except HTTPError as error:  # whoever only takes questions refuses this with 404 or 405
            if error.code in (401, 403):
                raise UserError(f"{self._where}.api_key_env: {self._said(error)}") from None
        except (OSError, HTTPException) as error:
            raise UnreachableError(
                f"{self._where}.url: nobody answers at {self._config.endpoint}: {_reason(error)}; start the server, or "
                "correct the address"
            ) from None

    def answers(
        self, questions: Sequence[str], answered: Callable[[int], None], is_kept: Callable[[str], bool]
    ) -> list[str]:
        """The answers, in order; those that are known are not asked for, and nothing more is once a question failed.

        Args:
            questions: What to ask.
            answered: Called with the number of answers so far; what it raises ends the work.
            is_kept: Whether an answer is one to keep; any other is asked for again the next time.

        Raises:
            EndpointError: A question is not answered; EndpointAwayError where it may be later.
        """
        self._failure = None
        pool = ThreadPoolExecutor(self._config.concurrency)
        futures = [pool.submit(self._answer, question, is_kept) for question in questions]
        found = []
        try:
            for future in futures:
                found.append(future.result())
                answered(len(found))
        finally:
            self._ended.set()
            pool.shutdown(cancel_futures=True)
            self._ended.clear()
        return found

    def _answer(self, question: str, is_kept: Callable[[str], bool]) -> str:
        known = self._answers.get(question)
        if known is not None and is_kept(known):
            return known
        if self._failure is not None:
            raise self._failure
        try:
            answer = self._text(self._ask(question))
        except EndpointError as error:
            self._failure = error
            raise
        if is_kept(answer):
            self._answers.add(question, answer)
        return answer

    def _ask(self, question: str) -> bytes:
        settings = {"model": self._config.model, "max_tokens": self._config.max_tokens, "temperature": 0}
        body = json.dumps({**settings, "messages": [{"role": "user", "content": question}]}).encode()
        said = "nothing"
        for attempt in range(self._config.attempts):
            pause = min(2.0**attempt, _LONGEST_WAIT)
            try:
                with self._open(self._request(body), timeout=self._config.timeout) as response:
                    return bytes(response.read())
            except HTTPError as error:
                said = self._said(error)
                if error.code != 429 and error.code < 500:
                    raise EndpointError(f"{self._where}: {said}") from None
                pause = _asked_pause(error, pause)
            except (OSError, HTTPException) as error:
                said = f"{self._config.endpoint} does not answer: {_reason(error)}"
            if attempt + 1 == self._config.attempts or self._ended.wait(pause):
                break
        raise EndpointAwayError(
            f"{self._where}: {said} (attempt {attempt + 1} of {self._config.attempts}); answers "
            "so far are kept, and the same command asks for the others"
        )

    def _request(self, body: bytes | None) -> urllib.request.Request:
        headers = {"Content-Type": "application/json", "User-Agent": "ratchet"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return urllib.request.Request(self._config.endpoint, body, headers)

    def _text(self, body: bytes) -> str:
        with suppress(ValueError, LookupError, TypeError):
            content = json.loads(body)["choices"][0]["message"]["content"]
            if isinstance(content, str):
                return self._without_key(content)
        raise EndpointError(
            f"{self._where}: {self._config.endpoint} answered something else than a chat completion: "
            f"{self._excerpt(body)}"
        )

    def _said(self, error: HTTPError) -> str:
        with suppress(OSError, HTTPException):
            return f"{self._config.endpoint} answered {error.code}: {self._excerpt(error.read())}"
        return f"{self._config.endpoint} answered {error.code}"

    def _excerpt(self, body: bytes) -> str:
        return self._without_key(" ".join(body.decode(errors="replace").split()))[:_EXCERPT] or "an empty text"

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


class KeptAnswers:
    """Answers by question, one JSON object per line; several processes may add to the file.

    Args:
        folder: Where the file is.
        asked: Who is asked, and how: part of every question.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        self._asked, self._lock = asked, threading.Lock()
        self._path = folder / f"answers-{self._hash('')[:16]}.jsonl"
        self._known: dict[str, str] = {}
        if self._path.is_file():
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, LookupError, TypeError):  # a line that is not whole
                    saved = json.loads(line)
                    self._known[saved["question"]] = saved["answer"]

    def get(self, question: str) -> str | None:
        """The answer, if it is known."""
        return self._known.get(self._hash(question))

    def add(self, question: str, answer: str) -> None:
        """Keep an answer."""
        line = "\n" + json.dumps({"question": self._hash(question), "answer": answer})  # after one that may be torn
        with self._lock:
            self._known[self._hash(question)] = answer
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)

    def _hash(self, question: str) -> str:
        return hashlib.sha256(json.dumps([self._asked, question], sort_keys=True).encode()).hexdigest()


def _key(where: str, config: JudgeConfig) -> str | None:
    if config.api_key_env is None:
        return None
    key = os.environ.get(config.api_key_env, "").strip()
    if not key:
        raise UserError(
            f"{where}.api_key_env: the environment has no {config.api_key_env}; export the key under that name"
        )
    return key


def _asked_pause(error: HTTPError, pause: float) -> float:
    """What the endpoint asks to wait, where it does so in seconds."""
    with suppress(ValueError, TypeError):
        return min(max(float(error.headers["Retry-After"]), 0.0), _LONGEST_WAIT)
    return pause


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", error)) or type(error).__name__
