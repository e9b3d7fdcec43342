"""The leaderboard: who leads, whether that may be chance, and how it is shown."""

import csv
import json
from xml.etree import ElementTree

import pytest

from flows.sweeps.cells import Cell
from flows.sweeps.leaderboard import CellResult, leaderboard, settings_of
from flows.sweeps.leaderboard_files import leaderboard_text, leaderboard_values, write_leaderboard
from flows.sweeps.report import write_report


def cell(number: int, beta: str, size: str, seed: int, right: int, **values) -> CellResult:
    """A cell that has so many of 60 rows right."""
    rows = [1.0] * right + [0.0] * (60 - right)
    made: dict = {
        "state": "completed",
        "score": sum(rows) / 60,
        "rows": rows,
        "guards": {"general": 0.5 + seed / 100},
        "kl": 0.01,
        "tokens": 1000,
        "steps": {"sft-1": 10.0, f"reinforce-{number}": 5.0},
        "seconds": 15.0,
        "curves": {"reward": [0.1, 0.2, right / 60], "kl": [0.0, 0.01, 0.02]},
        **values,
    }
    return CellResult(number=number, settings={"reinforce.beta": beta, "reinforce.group_size": size}, seed=seed, **made)


CELLS = [
    cell(1, "0.02", "4", 1, 20),
    cell(2, "0.02", "4", 2, 22),
    cell(3, "0.02", "8", 1, 50),
    cell(4, "0.02", "8", 2, 52),
    cell(5, "0.1", "4", 1, 30),
    cell(6, "0.1", "4", 2, 0, score=None, rows=(), state="failed", error="RewardError: no <number>", steps={}),
]


def test_the_best_is_named_only_where_it_cannot_be_chance():
    found = leaderboard(CELLS)
    assert [group.settings["reinforce.group_size"] for group in found.groups] == ["8", "4", "4"]
    assert found.winner is not None and found.winner.settings["reinforce.group_size"] == "8"
    assert found.why.endswith(
        "before reinforce.beta=0.1 reinforce.group_size=4 (95% over rows; one seed says nothing of others)"
    )
    close = leaderboard([cell(1, "0.02", "4", 1, 40), cell(2, "0.1", "4", 1, 42)])
    assert close.winner is None and "which may be chance (rows; one seed says nothing of others)" in close.why
    two = [cell(1, beta, "4", seed, 40 + n) for beta, n in (("0.02", 0), ("0.1", 2)) for seed in (1, 2)]
    assert leaderboard(two).winner is None and "(rows and 2 seeds; a third would make" in leaderboard(two).why
    three = [*two, *(cell(1, beta, "4", 3, 40) for beta in ("0.02", "0.1"))]
    assert leaderboard(three).winner is None and leaderboard(three).why.endswith("(rows and 3 seeds)")


def test_a_cell_that_is_repeated_is_one_seed():
    found = leaderboard([cell(number, "0.02", "4", seed, 40) for number, seed in enumerate((1, 1, 2, 1), 1)])
    assert leaderboard_text(found).splitlines()[2].split()[3] == "2"
    assert leaderboard_values(found)["groups"][0]["seeds"] == [1, 2]


def test_what_cannot_be_compared_has_no_winner():
    assert leaderboard(CELLS[:2]).why == "no winner: nothing to compare"
    assert leaderboard(CELLS[-1:]).why == "no winner: no cell has a score"
    apart = leaderboard([CELLS[0], CELLS[3]])
    assert apart.winner is None and "have no seed in common" in apart.why


def test_the_best_must_lead_every_other_not_just_the_second():
    right = {"0.1": (42, 43, 44), "0.2": (36, 37, 38), "0.3": (12, 42, 54)}
    cells = [cell(1, beta, "4", seed, n) for beta, each in right.items() for seed, n in enumerate(each)]
    found = leaderboard(cells)
    assert [group.settings["reinforce.beta"] for group in found.groups] == ["0.1", "0.2", "0.3"]
    assert found.winner is None and "leads reinforce.beta=0.3" in found.why and "may be chance" in found.why
    assert leaderboard(cells[:6]).winner is not None


def test_what_failed_with_other_seeds_does_not_win():
    failed = [cell(n, "0.3", "4", n, 0, score=None, rows=(), state="failed", seconds=99.0) for n in (2, 3)]
    cells = [cell(1, "0.3", "4", 1, 58), *failed, *(cell(n + 3, "0.1", "4", n, 10 + n) for n in (1, 2, 3))]
    found = leaderboard(cells)
    assert found.winner is None
    assert found.why == "no winner: reinforce.beta=0.3 reinforce.group_size=4 leads, but 2 of its 3 cells have no score"
    assert found.groups[0].average("seconds") == 15.0  # that of the one that came to its end


def test_scores_of_other_rows_are_not_compared():
    cells = [cell(1, "0.1", "4", 1, 58, scored_on="a"), cell(2, "0.3", "4", 1, 2, scored_on="b")]
    found = leaderboard(cells)
    assert found.winner is None and found.why == "no winner: cells were scored on different rows, or in different ways"
    fewer = [cell(1, "0.1", "4", 1, 58, scored_on="a"), cell(2, "0.1", "4", 2, 2, scored_on="b", rows=[1.0, 0.0])]
    (group,) = leaderboard(fewer).groups
    assert group.mean == pytest.approx((58 / 60 + 0.5) / 2) and group.low is None
    assert "0.733  " in leaderboard_text(leaderboard([*fewer, cells[1]]))


def test_the_order_of_cells_does_not_matter():
    assert leaderboard(CELLS[::-1]).why == leaderboard(CELLS).why


def test_it_is_shown_with_what_failed_and_what_was_shared(tmp_path):
    found = leaderboard(CELLS)
    text = leaderboard_text(found)
    assert "cell 6 (reinforce.beta=0.1 reinforce.group_size=4 seed=2): failed: RewardError: no <number>" in text
    assert "1/2" in text and "computing: 0:35; without shared steps it would be 1:15 (47%)" in text
    paths = {path.name: path for path in write_leaderboard(tmp_path, found, sweep="s-1")}
    values = json.loads(paths["leaderboard.json"].read_text())
    assert values["sharing"] == {"once": 35.0, "alone": 75.0} and values["sweep"] == "s-1"
    assert "rows" not in values["cells"][0]
    with paths["cells.csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert [row["number"] for row in rows] == list("123456") and rows[0]["general"] == "0.51"


def test_the_report_is_one_whole_page(tmp_path):
    page = write_report(tmp_path / "report.html", "s-1 <&>", leaderboard(CELLS)).read_text()
    root = ElementTree.fromstring(page.removeprefix("<!doctype html>"))
    assert [each.text for each in root.iter("th")] == [None, "4", "8", "0.02", "0.1"]
    assert [each.text for each in root.iter("td")] == ["0.350", "0.850", "0.500", "-"]
    lines = [each for each in root.iter("polyline")]
    assert len(lines) == 2 * len(CELLS)
    assert "no <number>" in "".join(root.itertext())
    assert "src=" not in page and "href=" not in page and "<script" not in page


def test_a_setting_that_some_cells_leave_alone_has_its_place_in_the_heat_map(tmp_path):
    found = leaderboard([cell(1, "0.02", "", 1, 30), cell(2, "0.02", "8", 1, 60)])
    page = write_report(tmp_path / "report.html", "s", found).read_text()
    root = ElementTree.fromstring(page.removeprefix("<!doctype html>"))
    assert [each.text for each in root.iter("td")] == ["1.000", "0.500"]


def test_settings_are_what_cells_do_not_have_in_common():
    cells = [
        Cell(number=1, overrides=[], chosen=["sft.lr=1", "+new.key='a=b'", "seed=1", "same=3"]),
        Cell(number=2, overrides=[], chosen=["sft.lr=2", "+new.key=c", "seed=2", "same=3"]),
    ]
    assert settings_of(cells) == [{"sft.lr": "1", "new.key": "'a=b'"}, {"sft.lr": "2", "new.key": "c"}]


@pytest.mark.parametrize("scores", [(0.9, 0.1)])
def test_a_clear_lead_over_several_seeds_wins(scores):
    good, bad = (round(60 * score) for score in scores)
    cells = [cell(seed, "0.02", "4", seed, good + seed) for seed in (1, 2, 3)]
    cells += [cell(seed + 3, "0.1", "4", seed, bad + seed) for seed in (1, 2, 3)]
    found = leaderboard(cells)
    assert found.winner is not None and found.winner.settings["reinforce.beta"] == "0.02"
    assert found.why.startswith("winner: reinforce.beta=0.02 reinforce.group_size=4, +0.800 (")
    assert found.why.endswith("before reinforce.beta=0.1 reinforce.group_size=4 (95% over rows and 3 seeds)")
