"""What a person reads at the end of a run."""

from flows.outcome import outcome_text


def record(**metrics):
    """A run of one evaluation."""
    step = {"stage": "evaluate", "start": "sft", "state": "completed", "seconds": 1.0, "error": None, "report": ""}
    return {"steps": {"evaluate": {**step, "metrics": metrics}}, "verdict": None}


SCORES = {"task.base": 0.25, "task.base.stderr": 0.125, "task.sft": 0.5, "task.sft.stderr": 0.1, "rows.task": 8.0}
SCORES |= {"tokens.task.base": 4.0, "tokens.task.sft": 4.0}


def test_drift_is_a_column_where_it_was_measured():
    drift = {"drift.base": 0.0, "drift.base.stderr": 0.0, "drift.sft": 0.25, "drift.sft.stderr": 0.0625}
    lines = outcome_text(record(**SCORES, **drift)).splitlines()
    assert lines[-4].split() == ["step", "suite", "model", "score", "stderr", "rows", "gain", "drift"]
    assert lines[-2].split()[2:] == ["base", "0.250", "0.125", "8", "0.000", "±0.000"]
    assert lines[-1].split()[2:] == ["sft", "0.500", "0.100", "8", "0.250", "±0.062"]
    assert "drift" not in outcome_text(record(**SCORES))


def test_a_suite_of_one_row_is_shown_without_a_standard_error():
    lines = outcome_text(record(**{"one.sft": 1.0, "rows.one": 1.0, "tokens.one.sft": 4.0})).splitlines()
    assert lines[-1].split() == ["evaluate", "one", "sft", "1.000", "1"]
