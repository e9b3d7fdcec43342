"""How unit tests reach a solution in another process: plain values cross, everything else is a handle.

Standard library only: this file is copied into the sandbox with `rewards.judge`.
"""

import builtins
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any


class SolutionEnded(Exception):
    """The solution's process ended instead of answering."""


class SolutionError(Exception):
    """The solution raised an exception of a kind that Python does not have built in."""


def encode(value: Any, keep: Any) -> Any:
    """A value as JSON can hold it; `keep` makes a number of what is not plain."""
    if value is None:
        return None
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, dict):
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in value.items()]}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            items: Any = value
            return {kind.__name__: [encode(item, keep) for item in items]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return {"kept": keep(value)}


def decode(value: Any, kept: Any) -> Any:
    """The value again; `kept` makes something of a number."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {decode(key, kept): decode(item, kept) for key, item in content}
    if kind in ("list", "tuple", "set", "frozenset"):
        return getattr(builtins, kind)(decode(item, kept) for item in content)
    if kind == "bytes":
        return bytes.fromhex(content)
    return complex(*content) if kind == "complex" else kept(content)


def _public(name: Any) -> bool:
    """Whether tests may take a name from the solution: not if they would lose one of Python's own by it."""
    return isinstance(name, str) and not name.startswith("_") and not hasattr(builtins, name)


class Line:
    """One JSON value a line, both ways."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = os.fdopen(source, "rb"), os.fdopen(target, "wb", 0)

    def send(self, message: Any) -> None:
        """Write a message."""
        self.target.write(json.dumps(message).encode() + b"\n")

    def receive(self) -> Any:
        """Read the next message; None at the end."""
        line = self.source.readline()
        return json.loads(line) if line else None


def serve(line: Line, path: str) -> None:
    """Load the solution, say what it defines, then answer calls for ever."""
    objects: list[Any] = [builtins]
    numbers = {id(builtins): 0}

    def keep(value: Any) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(objects)
            objects.append(value)
        return numbers[id(value)]

    def answer(request: dict[str, Any]) -> Any:
        target = objects[request["target"]]
        if request["name"] is not None:
            return {"value": encode(getattr(target, request["name"]), keep)}
        arguments = decode(request["arguments"], objects.__getitem__)
        names = decode(request["names"], objects.__getitem__)
        value = target(*arguments, **names)
        return {"value": encode(value, keep), "arguments": encode(arguments, keep)}

    def load(_: Any) -> Any:
        module = types.ModuleType("solution")
        sys.modules["solution"] = module
        sys.path.append(os.path.dirname(path))
        with open(path, encoding="utf-8") as file:
            exec(compile(file.read(), path, "exec"), module.__dict__)
        names = {name: value for name, value in vars(module).items() if not isinstance(value, types.ModuleType)}
        return {"value": encode({name: value for name, value in names.items() if _public(name)}, keep)}

    action: Callable[[Any], Any] = load
    while (request := line.receive()) is not None:
        try:
            reply = action(request)
        except BaseException as error:
            reply = {"error": type(error).__name__, "message": str(error)}
        action = answer
        line.send(reply)


class Remote:
    """A handle to an object of the solution: attributes, calls, items, arithmetic, order. It equals only itself."""

    def __init__(self, solution: "Solution", number: int) -> None:
        self.__dict__.update(_solution=solution, _number=number)

    def __getattr__(self, name: str) -> Any:
        return self._solution.ask(self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._built_in("setattr", name, value)

    def __call__(self, *arguments: Any, **names: Any) -> Any:  # noqa: D102
        return self._solution.ask(self._number, None, arguments, names)

    def __len__(self) -> int:
        return int(self._built_in("len"))

    def __bool__(self) -> bool:
        return bool(self._built_in("bool"))

    def __str__(self) -> str:
        return str(self._built_in("str"))

    def __iter__(self) -> Any:
        return self._built_in("iter")

    def __next__(self) -> Any:
        return self._built_in("next")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other.__dict__["_number"] == self.__dict__["_number"]

    def __hash__(self) -> int:
        return hash(self.__dict__["_number"])

    def _built_in(self, name: str, *arguments: Any) -> Any:
        """A built-in function of the solution's process, on this object."""
        return getattr(Remote(self._solution, 0), name)(self, *arguments)


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: self.__getattr__(name)(*arguments)


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "neg", "abs")
for _name in ("getitem", "setitem", "delitem", "enter", "exit", "lt", "le", "gt", "ge", *_ARITHMETIC):
    setattr(Remote, f"__{_name}__", _operator(f"__{_name}__"))


class Solution:
    """The solution's process, seen from the tests'."""

    def __init__(self, line: Line) -> None:
        self.line = line

    def load(self) -> dict[str, Any]:
        """Have the solution loaded; its public names. It can define no name that Python has built in."""
        public = self._reply({})
        if not isinstance(public, dict):
            raise SolutionError("the solution's process answered something else")
        return {name: value for name, value in public.items() if _public(name)}

    def ask(self, number: int, name: str | None, arguments: Any = (), names: Any = None) -> Any:
        """Get an attribute, or call; what a call does to lists, dicts and sets among its arguments is done here too."""
        names = {} if names is None else names
        sent = {"arguments": encode(list(arguments), _number), "names": encode(names, _number)}
        reply: dict[str, Any] = {}
        value = self._reply({"target": number, "name": name, **sent}, reply)
        if name is None:
            for before, after in zip(arguments, self._decode(reply["arguments"]), strict=True):
                _update(before, after)
        return value

    def _reply(self, request: Any, into: dict[str, Any] | None = None) -> Any:
        try:
            self.line.send(request)
            reply = self.line.receive()
        except (OSError, ValueError) as error:
            raise SolutionEnded(f"the solution's process broke off: {error}") from None
        if reply is None:
            raise SolutionEnded("the solution ended its process")
        if "error" in reply:
            raise _exception(str(reply["error"]), str(reply["message"]))
        if into is not None:
            into.update(reply)
        return self._decode(reply["value"])

    def _decode(self, value: Any) -> Any:
        return decode(value, lambda number: Remote(self, number))


def _number(value: Any) -> int:
    if isinstance(value, Remote):
        return int(value.__dict__["_number"])
    raise TypeError(f"tests can pass plain values to the solution, not a {type(value).__name__}")


def _update(before: Any, after: Any) -> None:
    if type(before) is not type(after) or before == after:
        return
    if isinstance(before, list):
        before[:] = after
    elif isinstance(before, dict | set):
        before.clear()
        before.update(after)


def _exception(name: str, message: str) -> BaseException:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:  # one that takes more than a message
            pass
    return SolutionError(f"{name}: {message}")
