"""Mistakes in rewards, in their files, and in what `ratchet score` is given."""

from tests.flows.mistakes.project import Mistake, command, override


def reward(name: str, settings: str, *, says: list[str], schema: str | None = None, code: str | None = None) -> Mistake:
    """A mistake in one more reward, `mine`, or in its files."""
    return Mistake(
        name, tuple(says), (f"+reward.right.mine={{{settings}}}",), {"schema.json": schema, "reward.py": code}
    )


def custom(name: str, code: str | None, *, says: list[str]) -> Mistake:
    """A mistake in the file of a custom reward."""
    return reward(name, "type: custom, path: reward.py", says=["reward 'mine': path: ", *says], code=code)


SETTINGS = [
    reward("unknown type", "type: nummeric", says=["reward.right.mine: needs a type, one of command", "'nummeric'"]),
    reward("bad regex", "type: regex, pattern: '(a'", says=["reward.right.mine.pattern: '(a' is not a regular", "at"]),
    reward("bad schema", "type: json, schema: {type: thing}", says=["reward 'mine': schema: ", "'thing' is not valid"]),
    reward("broken schema", "type: json, schema: schema.json", schema="{", says=["schema.json: is not a valid JSON"]),
    reward(
        "no function", "type: custom, function: json.nope", says=["reward 'mine': function: ", "no function 'nope'"]
    ),
    override(
        "all weights 0", "+reward.right.numeric.weight=0", says=["reward.right: every weight is zero", "give one"]
    ),
    override("no such success", "probe.success=exact", says=["probe.success: ", "no reward 'exact'", "numeric"]),
    Mistake(
        "two of one name",
        ("conf/reward/twice.yaml", "line 3", "duplicate key exact"),
        ("+reward@reward=twice",),
        {"conf/reward/twice.yaml": "# @package reward.twice\nexact: {type: exact}\nexact: {type: exact}\n"},
    ),
]

CUSTOM = [
    custom("missing file", None, says=["there is no ", "reward.py"]),
    custom("no function", "x = 1", says=["reward.py has no function 'reward'"]),
    custom("constant", "reward = 1", says=["reward.py has no function 'reward'"]),
    custom("syntax error", "def reward(completion) return 1", says=["SyntaxError: expected ':' (reward.py, line 1)\n"]),
    custom("raises at import", "x = 1\n1 / 0", says=["cannot be imported: ZeroDivisionError", "(reward.py, line 2)"]),
    custom("missing import", "import torhc", says=["cannot be imported: ModuleNotFoundError: No module named 'torhc'"]),
    custom(
        "wrong signature", "def reward(answer, **rest): pass", says=["asks for 'answer'", "prompt, completion, ref"]
    ),
    custom("by position", "def reward(completion, /): pass", says=["asks for 'completion'; it is called by keyword"]),
    custom(
        "asynchronous", "async def reward(completion): pass", says=["'reward.py' is asynchronous", "plain function"]
    ),
]

RIGHT = "right: {type: exact}\n"
REPLY = '{"completion": "69", "reference": "69"}\n'


def score(name: str, rewards: str | None = RIGHT, replies: str | bytes | None = REPLY, *, says: list[str]) -> Mistake:
    """A mistake in what `ratchet score` is given."""
    arguments = ("score", "--rewards", "rewards.yaml", "--rows", "replies.jsonl")
    return command(name, *arguments, files={"rewards.yaml": rewards, "replies.jsonl": replies}, says=says)


SCORE = [
    score("no rewards", None, says=["rewards.yaml: cannot be read", "give the path of a YAML file"]),
    score("empty rewards", "", says=["rewards.yaml: expected a mapping of names to rewards"]),
    score("tab in rewards", "right:\n\ttype: exact\n", says=["rewards.yaml: cannot be read as YAML", "line 2"]),
    score("one name twice", RIGHT * 2, says=["rewards.yaml", "line 2", "duplicate key right"]),
    score("unknown reward", "right: {type: exakt}\n", says=["rewards.yaml.right: needs a type, one of "]),
    score("no replies", replies=None, says=["replies.jsonl: cannot be read: No such file", "(looked for /"]),
    score(
        "empty replies", replies="", says=["replies.jsonl: has no rows; each line is a JSON object with a completion"]
    ),
    score("broken reply", replies=REPLY + "{", says=["replies.jsonl, line 2: is not JSON"]),
    score(
        "no completion", replies='{"reply": "69"}\n', says=["replies.jsonl, line 1: has no 'completion'; columns: re"]
    ),
    score("UTF-16", replies=REPLY.encode("utf-16"), says=["replies.jsonl: the file is UTF-16; save it as UTF-8"]),
]
