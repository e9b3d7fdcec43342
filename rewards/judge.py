"""Runs unit tests on a solution that may try anything to pass them; executed inside the sandbox, on its own.

Two processes. The solution lives in one, the tests in the other, and only plain values cross between them. So a
solution that exits with status 0, replaces `assertEqual`, returns an object that equals everything or reads the test
file gains nothing: it has no tests in reach, and what it returns arrives as numbers, texts and containers. Any other
object stays where it is; the tests hold a handle to it, which has its attributes and methods and equals only itself.

Ends with status 0 when every test passed, 1 when not, 2 when the tests themselves cannot be run; prints the fraction
that passed to standard output, and the first failure to standard error.
"""

import ast
import asyncio
import builtins
import ctypes
import inspect
import json
import os
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

_PLAIN = (bool, int, float, str)


class SolutionEnded(Exception):
    """The solution's process ended instead of answering."""


class SolutionError(Exception):
    """The solution raised an exception of a kind that Python does not have built in."""


def encode(value: Any, keep: Any) -> Any:
    """A value as JSON can hold it; `keep` makes a number of what is not plain."""
    if value is None:
        return None
    for kind in _PLAIN:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, dict):
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in value.items()]}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(item, keep) for item in value]}
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


# --- the solution's process ---------------------------------------------------------------------------------------


def serve(line: Line, path: str) -> None:
    """Load the solution, say what it defines, then answer calls for ever."""
    objects: list[Any] = []

    def keep(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

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
        with open(path, encoding="utf-8") as file:
            exec(compile(file.read(), path, "exec"), module.__dict__)
        names = {name: value for name, value in vars(module).items() if not isinstance(value, types.ModuleType)}
        return {"value": encode({name: value for name, value in names.items() if _public(name)}, keep)}

    action = load
    while (request := line.receive()) is not None:
        try:
            reply = action(request)
        except BaseException as error:
            reply = {"error": type(error).__name__, "message": str(error)}
        action = answer
        line.send(reply)


# --- the tests' process -------------------------------------------------------------------------------------------


class Remote:
    """A handle to an object of the solution: its attributes, calling it, length, items and iteration."""

    def __init__(self, solution: "Solution", number: int) -> None:
        self.__dict__.update(_solution=solution, _number=number)

    def __getattr__(self, name: str) -> Any:
        return self._solution.ask(self._number, name)

    def __call__(self, *arguments: Any, **names: Any) -> Any:
        return self._solution.ask(self._number, None, arguments, names)

    def __len__(self) -> int:
        return int(self.__getattr__("__len__")())

    def __getitem__(self, key: Any) -> Any:
        return self.__getattr__("__getitem__")(key)

    def __iter__(self) -> Iterator[Any]:
        following = self.__getattr__("__iter__")().__getattr__("__next__")
        while True:
            try:
                yield following()
            except StopIteration:
                return


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


def run(tests: list[ast.Module], solution: Solution) -> list[str | None]:
    """What became of every test, in order: None when it passed, else why not."""
    try:
        names = solution.load()
    except Exception as error:
        return [f"the solution cannot be loaded: {_described(error)}"]
    module = types.ModuleType("solution")
    module.__dict__.update(names)
    sys.modules["solution"] = module
    return [result for tree in tests for result in _results(tree, dict(names))]


def _results(tree: ast.Module, space: dict[str, Any]) -> Iterator[str | None]:
    """Execute one text of tests, then the functions and test cases it defines."""
    space["__name__"] = "tests"
    problem = _attempt(lambda: exec(compile(tree, "tests", "exec"), space))
    if problem or not _defines(tree) or _statements(tree, ast.Assert):
        yield problem
    for name, value in [] if problem else list(space.items()):
        if isinstance(value, types.FunctionType) and name.startswith("test"):
            yield _attempt(lambda test=value: asyncio.run(test()) if inspect.iscoroutinefunction(test) else test())
        elif isinstance(value, type) and issubclass(value, unittest.TestCase):
            yield from _case_results(value)


def _case_results(case: type[unittest.TestCase]) -> Iterator[str | None]:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    problems = [text.strip().rpartition("\n")[2] for _, text in result.failures + result.errors]
    problems += ["an expected failure passed" for _ in result.unexpectedSuccesses]
    yield from problems
    yield from [None] * (result.testsRun - len(result.skipped) - len(problems))


def _attempt(test: Any) -> str | None:
    try:
        test()
    except (Exception, SystemExit) as error:
        return _described(error)
    return None


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def checked(texts: list[str]) -> list[ast.Module]:
    """The tests, parsed.

    Raises:
        ValueError: They are not Python, or would pass whatever the solution does.
    """
    try:
        trees = [ast.parse(text) for text in texts]
    except SyntaxError as error:
        raise ValueError(f"the tests are not Python: {error}") from None
    for tree in trees:
        for test in _defines(tree):
            if isinstance(test, ast.FunctionDef) and len(test.args.args) > len(test.args.defaults):
                raise ValueError(f"the function {test.name!r} takes arguments; pytest's fixtures are not known here")
    if not all(_defines(tree) or _statements(tree, ast.Assert | ast.Expr) for tree in trees) or not trees:
        raise ValueError("the tests test nothing: no function test_*, no TestCase, and nothing is asserted or called")
    return trees


def _defines(tree: ast.Module) -> list[ast.stmt]:
    """The functions `test*` and the classes of a text."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        statement
        for statement in tree.body
        if isinstance(statement, ast.ClassDef) or (isinstance(statement, functions) and statement.name[:4] == "test")
    ]


def _statements(tree: ast.Module, kind: Any) -> bool:
    """Whether a statement of a kind is executed outside functions and classes; a docstring is none."""
    inside = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(
        isinstance(node, kind) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for statement in tree.body
        if not isinstance(statement, inside)
        for node in ast.walk(statement)
    )


def main() -> int:
    """Start the solution's process, then read the tests, so that they were never in its memory."""
    (out, out_end), (back, back_end) = os.pipe(), os.pipe()
    if os.fork() == 0:
        for end in (out_end, back):
            os.close(end)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        serve(Line(out, back_end), sys.argv[1])
        os._exit(0)
    for end in (out, back_end):
        os.close(end)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the solution, of the same user, cannot look in here
    try:
        tests = checked(json.load(sys.stdin))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    results = run(tests, Solution(Line(back, out_end)))
    if not results:
        print("the tests test nothing: no test was found in them", file=sys.stderr)
        return 2
    failures = [result for result in results if result is not None]
    passed = len(results) - len(failures)
    sys.stderr.write(f"\n{passed} of {len(results)} tests passed{f'; {failures[0]!r}' if failures else ''}\n")
    sys.stdout.write(f"\n{passed / len(results)}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.set_int_max_str_digits(0)
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
