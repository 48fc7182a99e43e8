"""zenps.torch.elastic(): real ranks, daemons and torch. One launch for all scenarios of cases/torch_elastic.py."""

import json
import subprocess

import pytest
from conftest import CASES, DEADLINE, TORCH_PYTHON, has, running_coordinator

if not has(TORCH_PYTHON, "torch"):
    pytest.skip(f"{TORCH_PYTHON} has no torch", allow_module_level=True)

TRAININGS = ["sync", "compress", "ddp"]
QUORUMS = ["away", "away-cut-joins", "late-cut", "late-delay", "late-joins", "unheard", "unheard-cut", "unheard-cut-delay",
           "unheard-cut-joins-left", "unheard-dies"]  # fmt: skip
SCENARIOS = [*TRAININGS, "few", "last", "outer", "stranger", "odd", "refusals", *(f"quorum-{how}" for how in QUORUMS), "shrinks", "stale"]
KILLED_AT, MORE = 4, 3  # of the cases


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory):
    """seen(scenario): what each of its processes left, None for one that has died; output."""
    folder = tmp_path_factory.mktemp("elastic")
    with running_coordinator(folder) as address:
        run = subprocess.run(
            [TORCH_PYTHON, str(CASES / "torch_elastic.py"), address, str(folder), *SCENARIOS],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            timeout=DEADLINE,
            check=False,
        )

    def seen(scenario, processes):
        files = [folder / f"{scenario}.{process}.json" for process in range(processes)]
        return [json.loads(file.read_text()) if file.exists() else None for file in files], run.stdout

    return seen


@pytest.mark.parametrize("how", TRAININGS)
def test_goes_on_without_a_rank(scenarios, how):
    """Losses are those, bit for bit, of three ranks up to the step in which one dies, and of two from there on."""
    seen, output = scenarios(how, 4)
    assert seen[2] is None and all(seen[process] for process in (0, 1, 3)), output
    for process in (0, 1):
        expected, _ = seen[process]["expected"]
        losses = seen[process]["losses"]
        assert sorted(map(int, expected)) == list(range(KILLED_AT + MORE))
        assert {step: losses[step] for step in expected} == expected
        assert [begin[:3] for begin in seen[process]["begins"][:2]] == [[1, 3, 0], [2, 2, KILLED_AT]]
        assert seen[process]["begins"][1][3] == seen[0]["expected"][1]  # nothing is left of the step that failed


@pytest.mark.parametrize("how", TRAININGS)
def test_a_newcomer_is_let_in(scenarios, how):
    """It begins with the others' state, bit for bit, and in the end all still have the same."""
    seen, output = scenarios(how, 4)
    there = [seen[process] for process in (0, 1, 3)]
    assert all(there), output
    assert len({tuple(each["begins"][-1]) for each in there}) == 1, output
    number, world, step, _ = seen[3]["begins"][0]
    assert number == 3 and world == 3 and step > KILLED_AT + MORE and len(seen[3]["begins"]) == 1
    assert all(each["steps"] == step + MORE for each in there)
    assert len({each["end"] for each in there}) == 1
    assert len(seen[0]["losses"]) == step + MORE and len(seen[3]["losses"]) == MORE


def test_too_few_ranks(scenarios):
    seen, output = scenarios("few", 2)
    assert seen[0] and seen[1] is None, output
    assert "1 ranks were there of the 2 that it needs at least" in seen[0]["error"]
    assert seen[0]["steps"] == 2 and seen[0]["same"] and seen[0]["closed"]


def test_a_rank_dies_after_the_last_step(scenarios):
    seen, output = scenarios("last", 2)
    assert seen == [{"steps": 2, "closed": True}, None], output


def test_outer_steps_go_on(scenarios):
    """A rank dies at an outer step. The others keep what they have trained since the last one. A newcomer begins at the
    start, and the start always has the same bits on all ranks."""
    seen, output = scenarios("outer", 4)
    there = [seen[process] for process in (0, 1, 3)]
    assert seen[2] is None and all(there), output
    for each in there[:2]:
        assert [begin[:3] for begin in each["begins"][:2]] == [[1, 3, 0], [2, 2, 5]], output
        assert each["begins"][1][4] == each["begins"][1][5]  # the parameters of the step that failed
    assert there[0]["begins"][1][4] != there[1]["begins"][1][4]
    number, world, _, start, parameters, _ = there[2]["begins"][0]
    assert number == 3 and world == 3 and start == parameters, output
    for at in range(-1, -3, -1):
        assert len({each["begins"][at][3] for each in there if len(each["begins"]) >= -at}) == 1, output
    assert set(there[0]["starts"]) == set(there[1]["starts"]) > set(there[2]["starts"])
    for step, start in there[0]["starts"].items():
        assert {each["starts"].get(step, start) for each in there} == {start}, (step, output)
    assert len({each["steps"] for each in there}) == 1


def test_strangers_leave(scenarios):
    """Newcomers that train something else get an error of their own. Two ranks go on meanwhile, and a third one comes."""
    seen, output = scenarios("stranger", 6)
    assert all(seen), output
    assert "this process has average False, values None" in seen[2]["error"] and "rank 0 has average True" in seen[2]["error"]
    assert "this process has model.weight: float32 [2, 2], rank 0 has model.table.weight: float32 [500, 8]" in seen[3]["error"]
    assert "dense=\"torch\", which cannot be" in seen[5]["error"] and 'rank 0 has dense="zenps"' in seen[5]["error"], seen[5]
    assert all(seen[process]["closed"] for process in (2, 3, 5))
    there = [seen[process] for process in (0, 1, 4)]
    assert there == [there[0]] * 3 and there[0]["world"] == 3, output


@pytest.mark.parametrize("how", QUORUMS)
def test_outer_steps_with_a_quorum_go_on(scenarios, how):
    """Rank 0 misses outer steps. Then a rank dies, or comes. All go on from the furthest rank, and no outer step is lost, but with
    all ranks that have it. The processes have compared what they gave with what they applied."""
    seen, output = scenarios(f"quorum-{how}", 4)
    joins, dies = "joins" in how, "dies" in how
    assert [bool(each) for each in seen] == [True, not dies, joins, True], output
    there = [each for each in seen if each]
    assert seen[0]["begins"][0][:2] == [1, 3] and seen[0]["lates"]["1"] == [2] and seen[0]["lates"]["2"] == [0], output
    _, world, source, furthest, steps, _, committed, _ = seen[0]["begins"][1]
    if dies:
        assert (world, steps) == (2, 2) and seen[0]["lates"]["3"] == [], output
    else:
        assert world == (4 if joins else 2) and steps >= 5, output
        assert "left" in how or furthest in ([1, 2] if joins else [1]), output
        assert joins or (steps == 5 and "3" not in seen[0]["lates"]), output
        assert seen[1]["lates"]["3"] == [2 if "unheard" in how else 0] and seen[1]["lates"]["4"] == [0], output
    if how == "away":
        assert source == 0 and committed > 40, output
    for each in there:
        counted = [begin[4] for begin in each["begins"]]
        assert counted == sorted(counted) and each["begins"][-1][2:] == there[0]["begins"][-1][2:], output
        assert [begin[7] for begin in each["begins"]] == sorted(begin[7] for begin in each["begins"]), output
        for other in there:
            assert {step: other["starts"].get(step, start) for step, start in each["starts"].items()} == each["starts"], output
    assert len({each["steps"] for each in there}) == 1, output


def test_fewer_ranks_than_the_quorum(scenarios):
    """All are needed then."""
    seen, output = scenarios("shrinks", 3)
    assert seen == [{"worlds": [3, 2], "steps": 6, "late": 0}] * 2 + [None], output


def test_a_rank_is_too_late_for_a_quorum(scenarios):
    """It gets Stale, and the start of the others in the next generation."""
    seen, output = scenarios("stale", 3)
    assert all(seen) and seen[0]["error"] == "Stale", output
    assert len({(each["steps"], each["start"]) for each in seen}) == 1 and seen[0]["steps"] >= 40, output


def test_ranks_begin_differently(scenarios):
    seen, output = scenarios("odd", 2)
    assert seen == [{"ok": True}] * 2, output


def test_refusals(scenarios):
    seen, output = scenarios("refusals", 1)
    assert seen == [{"ok": True}], output
