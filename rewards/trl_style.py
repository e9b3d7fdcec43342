"""Reward functions written for TRL's trainers, called as TRL calls them: with lists, once for several samples.

They get `prompts` and `completions`, `trainer_state` (None), `log_extra` and `log_metric` (which do nothing), and
every column of the rows as a list under its own name (see `GRPOTrainer._calculate_rewards` of TRL 1.16). They return a
list of one number per sample. None, by which TRL means that the reward does not apply, is an error here: a sum with a
term missing is not comparable within a group.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from conf.errors import ConfigError
from rewards.contract import BatchReward, Outcome, RewardError, Sample, Value, description, shown

_MARKS = ("prompts", "completions", "completion_ids")
_GIVEN = ("prompts", "completions", "trainer_state", "log_extra", "log_metric")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def is_trl_style(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter that only functions for TRL have."""
    return any(name in _MARKS for name in inspect.signature(function).parameters)


class TrlReward(BatchReward):
    """A TRL-style reward function.

    Args:
        function: The function.
        where: What messages call it.
        key: The setting it comes from, for messages.
        conversational: Whether prompts and completions are lists of messages, or texts; None takes it from the
            annotation of `completions`.

    Raises:
        ConfigError: The function asks for token ids, which rewards do not have, or its form is unknown.
    """

    def __init__(self, function: Callable[..., Any], where: str, key: str, conversational: bool | None) -> None:
        self.function, self.where = function, where
        parameters = inspect.signature(function).parameters
        named = {name: parameter for name, parameter in parameters.items() if parameter.kind in _NAMED}
        required = [name for name, parameter in named.items() if parameter.default is parameter.empty]
        if "completion_ids" in required:
            raise ConfigError(f"{key}: {where} asks for completion_ids; rewards see text, and have no token ids")
        self._columns = [name for name in required if name not in _GIVEN]
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self._names = None if takes_all else set(named)
        self._messages = _takes_messages(parameters, where) if conversational is None else conversational

    def batch(self, samples: Sequence[Sample]) -> list[Outcome]:
        """One call for all samples whose rows have the columns that the function requires."""
        lacking = [self._lacking(sample) for sample in samples]
        called = [sample for sample, error in zip(samples, lacking, strict=True) if error is None]
        outcomes = iter(self._call(called) if called else [])
        return [error or next(outcomes) for error in lacking]

    def _lacking(self, sample: Sample) -> RewardError | None:
        missing = [name for name in self._columns if name not in sample.row]
        if not missing:
            return None
        columns = ", ".join(sample.row) or "none"
        return RewardError(f"{self.where} asks for the column {missing[0]!r}, which the row lacks; columns: {columns}")

    def _call(self, samples: Sequence[Sample]) -> list[Outcome]:
        try:
            values = list(self.function(**self._arguments(samples)))
        except (Exception, SystemExit) as error:
            raise RewardError(description(error)) from error
        if len(values) != len(samples):
            raise RewardError(f"{self.where} returned {len(values)} values for {len(samples)} completions")
        return [self._outcome(value) for value in values]

    def _arguments(self, samples: Sequence[Sample]) -> dict[str, Any]:
        columns = dict.fromkeys(name for sample in samples for name in sample.row)
        arguments: dict[str, Any] = {
            **{name: [sample.row.get(name) for sample in samples] for name in columns},
            "prompts": [self._form("user", sample.prompt) for sample in samples],
            "completions": [self._form("assistant", sample.completion) for sample in samples],
            "trainer_state": None,
            "log_extra": _ignore,
            "log_metric": _ignore,
        }
        for name in ("prompt", "completion", "completion_ids"):  # as TRL, which has the plurals in their place
            arguments.pop(name, None)
        return {name: value for name, value in arguments.items() if self._names is None or name in self._names}

    def _form(self, role: str, text: str) -> str | list[dict[str, str]]:
        return [{"role": role, "content": text}] if self._messages else text

    def _outcome(self, value: Any) -> Outcome:
        if value is None:
            return RewardError(
                f"{self.where} returned None, TRL's way to say that it does not apply to this sample; "
                "an error_value gives such samples a value"
            )
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            value = value.item()  # a number of numpy or torch
        return Value(value, f"{self.where} returned {shown(value, 40)}")


def _takes_messages(parameters: Any, where: str) -> bool:
    """From the annotation of what the function reads; a wrong guess would score the wrong thing without an error."""
    for name in ("completions", "prompts"):
        annotation = str(parameters[name].annotation) if name in parameters else ""
        if "dict" in annotation.lower():
            return True
        if "str" in annotation:
            return False
    raise ConfigError(
        f"conversational: say whether {where} takes completions as messages, [[{{role, content}}], ...] (true), "
        "or as texts (false)"
    )


def _ignore(*_: Any, **__: Any) -> None:
    """Stand in for the trainer's logging."""
