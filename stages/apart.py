"""What a gate decides from must be new to the model: no stage may have trained on a prompt of its suites.

Within one source the split sees to that, and between sources that hold out alike. A source that is held out whole may
still have prompts that another one trains on.
"""

from collections.abc import Iterator, Sequence

from conf.errors import UserError
from conf.steps import STAGES
from stages.preflight import PlannedStep, Sources
from stages.splits import normalised_prompt


def check_apart(steps: Sequence[PlannedStep], sources: Sources) -> None:
    """See that no step learns from a prompt of a gate's suites.

    Args:
        steps: The pipeline's.
        sources: Their rows.

    Raises:
        UserError: One does; names the suite, the step and the first row of both.
    """
    gates = [step for step in steps if step.stage == "gate"]
    if not gates:
        return
    learnt: dict[str, tuple[str, str]] = {}
    for prompt, where in (found for step in steps for found in _learnt(step, sources)):
        learnt.setdefault(prompt, where)
    for name, suite in {name: suite for gate in gates for name, suite in gate.suites.items()}.items():
        if suite.lm_eval:
            continue
        rows = sources.rows(suite.rows)[: suite.max_rows]
        known = [row for row in rows if normalised_prompt(row) in learnt]
        if known:
            step, place = learnt[normalised_prompt(known[0])]
            raise UserError(
                f"suite.{name}: {len(known)} of its {len(rows)} rows ask what step {step!r} learns from, first "
                f"{sources.place(suite.rows, known[0])}, which is {place} there; a gate decides from prompts that are "
                "new to the model: take them out of one of the two, or give both sources the same held_out"
            )


def _learnt(step: PlannedStep, sources: Sources) -> Iterator[tuple[str, tuple[str, str]]]:
    """Every prompt that a step, or a later one by the rows it makes, learns from; and the step, and where it stands."""
    kind = STAGES[step.stage]
    if step.data and (kind.trains or kind.makes_data):
        path = step.data["train"]
        for row in sources.rows(path):
            yield normalised_prompt(row), (step.name, sources.place(path, row))
