"""Plugins that fail in every way we know: each has its own verdict, and no other plugin is affected."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.zoo.animals import ANIMALS, BROKEN, TAME
from tests.zoo.species import TIME_LIMIT, WORKS, Animal
from tests.zoo.visits import Visit, Zoo

SUMS = [6.0, 24.0]  # what the visitor computes
NAMES = [animal.name for animal in ANIMALS]


def all_but(animal: Animal) -> list[str]:
    """The packages of all other plugins, including hotshoe's own except the CPU's."""
    return [*(other.distribution for other in ANIMALS if other is not animal), "mlx", "ggml-rpc"]


def check_verdict(visit: Visit, animal: Animal) -> None:
    """The verdict on the animal is one of the allowed ones, and its text names what is wrong."""
    about = visit.about(animal)
    plugins = [verdict for verdict in about if verdict["kind"] == "plugin"]
    assert len(plugins) == 1, f"{animal.name} ({animal.what}) must have exactly one verdict as a plugin: {about}"
    assert plugins[0]["outcome"] in animal.outcomes, f"{animal.name}, which {animal.what}: {about}"
    text = " ".join(str(verdict) for verdict in about)
    for words in animal.says if plugins[0]["outcome"] == animal.outcomes[0] else ():
        assert words in text, f"the verdict on {animal.name} does not say {words!r}: {about}"
    if plugins[0]["outcome"] not in WORKS:
        assert plugins[0]["reason"]
        assert plugins[0]["hint"] or plugins[0]["outcome"] == "no-device", (
            f"{animal.name} has no next step: {plugins[0]}"
        )


def check_unharmed(visit: Visit) -> None:
    """The user's process is not changed, nothing is printed, and nothing is left."""
    assert visit.code == 0
    assert visit.report["printed"] == ["", ""]
    assert visit.report["changed"] == {}
    assert visit.left == []
    assert visit.alive == []
    assert visit.report["answers"] == {"cpu": SUMS, "reference": SUMS}


@pytest.mark.parametrize("animal", ANIMALS, ids=NAMES)
def test_every_animal_has_its_own_verdict(day: Visit, animal: Animal) -> None:
    check_verdict(day, animal)


@pytest.mark.parametrize("animal", ANIMALS, ids=NAMES)
def test_what_works_is_used_and_what_is_broken_is_not(day: Visit, animal: Animal) -> None:
    works = any(verdict["outcome"] in WORKS for verdict in day.about(animal) if verdict["kind"] == "plugin")
    assert (animal.name in day.report["devices"]) == works


@pytest.mark.parametrize("animal", TAME, ids=[animal.name for animal in TAME])
def test_what_works_computes(zoo: Zoo, tmp_path: Path, animal: Animal) -> None:
    """Whatever else the animal does: opened, it computes the right numbers."""
    visit = zoo.visit(tmp_path, compute=[animal.name], block=all_but(animal))
    assert visit.report["answers"] == {animal.name: SUMS}


def test_what_the_magpie_changes_is_restored(zoo: Zoo, tmp_path: Path) -> None:
    """After the user has opened one of its devices, so its code is in the user's process."""
    others = [other.distribution for other in ANIMALS if other.name != "magpie"]
    visit = zoo.visit(tmp_path, compute=["magpie"], block=others)
    assert visit.report["changed"] == {}
    later = visit.report["changed later"]
    assert set(later) == {"environment"}
    before, after = later["environment"]
    assert after == {**before, "ZOO_MAGPIE": "was here"}, "a variable that nobody had set before stays"


def test_all_of_them_at_once_leave_the_user_unharmed(day: Visit) -> None:
    check_unharmed(day)


def test_probes_run_side_by_side(day: Visit) -> None:
    """Each plugin that hangs uses its whole time limit, while the others that hang do the same."""
    hanging = [day.about(animal)[0]["elapsed"] for animal in BROKEN if animal.hangs]
    assert len(hanging) > 2
    assert min(hanging) >= TIME_LIMIT
    assert day.report["most at once"] > 2


def test_a_second_program_remembers(zoo: Zoo, day: Visit, place_of_day: Path) -> None:
    """The second program uses the reports of the first: it waits for no plugin and gives the same verdicts."""
    first, second = day, zoo.visit(place_of_day)

    def outcomes(visit: Visit) -> dict[str, str]:
        return {verdict["origin"]: verdict["outcome"] for verdict in visit.report["verdicts"]}

    assert outcomes(second) == outcomes(first)
    assert second.report["most at once"] == 0
    check_unharmed(second)


@pytest.fixture(scope="module")
def of_those_that_hang(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Visit]]]:
    """One program for each animal, all started together, because they mostly wait."""
    with ThreadPoolExecutor() as pool:
        yield {
            animal.name: pool.submit(zoo.visit, tmp_path_factory.mktemp(animal.name), block=all_but(animal))
            for animal in BROKEN
            if animal.hangs
        }


@pytest.mark.parametrize("animal", ANIMALS, ids=NAMES)
def test_one_alone(zoo: Zoo, tmp_path: Path, animal: Animal, request: pytest.FixtureRequest) -> None:
    """Each animal alone, with the others blocked, so that they cannot hide what it does."""
    if animal.hangs:
        visit = request.getfixturevalue("of_those_that_hang")[animal.name].result()
    else:
        visit = zoo.visit(tmp_path, block=all_but(animal))
    if animal.name != "twin_b":  # which works where its twin is not
        check_verdict(visit, animal)
    check_unharmed(visit)
