import random

import pytest

from meta.attacks.run import ATTACKS, LET_THROUGH, PROGRAMS, attacked, is_let_through, source_of
from meta.pool.bug import Bug

HELD = [attack for attack in ATTACKS if attack.id not in LET_THROUGH and not attack.config]
"""The attacks of this test; only `nox -s power` runs the slow attacks, which have a configuration."""


def test_there_are_sixty_attacks_and_each_says_what_is_wrong() -> None:
    assert len(ATTACKS) + len(PROGRAMS) >= 60
    assert len({attack.id for attack in ATTACKS} | set(PROGRAMS)) == len(ATTACKS) + len(PROGRAMS)
    assert all(attack.story for attack in ATTACKS)


def test_what_is_let_through_is_an_attack_and_has_a_reason() -> None:
    assert set(LET_THROUGH) <= {attack.id for attack in ATTACKS}
    assert all(LET_THROUGH.values())


def test_programs_import_nothing_of_the_checker() -> None:
    for id, program in PROGRAMS.items():
        text = source_of(program)
        compile(text, id, "exec")
        assert "transparity" not in text, id


@pytest.mark.parametrize("attack", random.Random(0).sample(HELD, 5), ids=str)
def test_an_attack_is_caught(attack: Bug) -> None:
    """Check a sample of the attacks; `nox -s power` checks all attacks, and compares the undetected attacks with
    `limits.toml`."""
    answer = attacked(attack)
    assert not is_let_through(answer), answer
