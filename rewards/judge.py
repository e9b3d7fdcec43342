"""Runs unit tests on a solution that may try anything to pass them; executed inside the sandbox, on its own.

Two processes. The solution lives in one, the tests in the other, and only plain values cross between them. So a
solution that exits with status 0, replaces `assertEqual`, returns an object that equals everything or reads the test
file gains nothing: it has no tests in reach, and what it returns arrives as numbers, texts and containers. Any other
object stays where it is; the tests hold a handle to it, which has its attributes and methods and equals only itself.

Ends with status 0 when every test passed, 1 when not, 2 when the tests themselves cannot be run; prints the fraction
that passed to standard output, and the first failure to standard error.
"""

import ast
import ctypes
import functools
import json
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from rewards.remote import Line, Solution, serve


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
            yield _attempt(functools.partial(_call, value))
        elif isinstance(value, type) and issubclass(value, _case_type()):
            yield from _case_results(value)


def _call(test: Any) -> None:
    running = test()
    if isinstance(running, types.CoroutineType):
        import asyncio  # slow to import, and rarely needed

        asyncio.run(running)


def _case_type() -> Any:
    """`unittest.TestCase` where the tests have imported it: it is slow to import."""
    return getattr(sys.modules.get("unittest"), "TestCase", ())


def _case_results(case: Any) -> Iterator[str | None]:
    import unittest

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
    sys.set_int_max_str_digits(0)
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
        print(error, file=sys.stderr, flush=True)
        return 2
    results = run(tests, Solution(Line(back, out_end)))
    if not results:
        print("the tests test nothing: no test was found in them", file=sys.stderr, flush=True)
        return 2
    failures = [result for result in results if result is not None]
    passed = len(results) - len(failures)
    sys.stderr.write(f"\n{passed} of {len(results)} tests passed{f'; {failures[0]!r}' if failures else ''}\n")
    sys.stdout.write(f"\n{passed / len(results)}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    return 1 if failures else 0
