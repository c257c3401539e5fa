"""What stands against a card, how it comes and how it goes; on a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.gpu.health import machine, policy
from hypervisor.gpu.health.facts import HealthFacts, signs
from hypervisor.gpu.health.machine import CardHealth, Rules, Xid
from hypervisor.model import HealthCode, HealthState

POLICY = policy.load()
RULES = Rules(hold_seconds=30.0, quiet_seconds=600.0)
WELL = HealthFacts(
    recovery_action=0, remap_pending=False, remap_failed=False, ecc_uncorrected_volatile=0, unrepairable=False
)
HEALTHY, DEGRADED, UNHEALTHY = HealthState.HEALTHY, HealthState.DEGRADED, HealthState.UNHEALTHY


@dataclass
class Card:
    """One card over time: reads come each second."""

    health: CardHealth = field(default_factory=CardHealth)
    now: float = 1000.0
    works: bool = True
    most_links: int = 0

    def read(self, facts: HealthFacts, times: int = 1) -> HealthState:
        for _ in range(times):
            self.now += 1.0
            found = signs(facts, most_links=self.most_links)
            self.health = machine.on_facts(self.health, facts, found, now=self.now, rules=RULES)
            self.wait(0.0)
        return self.health.state

    def xid(self, number: int, text: str = "", owner: str = "") -> HealthState:
        self.health = machine.on_xid(self.health, Xid(number=number, at=self.now, text=text, owner=owner), POLICY)
        return self.health.state

    def wait(self, seconds: float) -> HealthState:
        self.now += seconds
        self.health = machine.settle(self.health, works=self.works, now=self.now, rules=RULES)
        return self.health.state


@pytest.mark.parametrize(
    ("changed", "code", "state"),
    [
        ({"recovery_action": 1}, HealthCode.RECOVERY_NEEDED, UNHEALTHY),
        ({"recovery_action": 2}, HealthCode.RECOVERY_NEEDED, UNHEALTHY),
        ({"recovery_action": 4}, HealthCode.RECOVERY_NEEDED, UNHEALTHY),
        ({"recovery_action": 5}, HealthCode.RECOVERY_NEEDED, DEGRADED),
        ({"remap_pending": True}, HealthCode.ROW_REMAP_PENDING, DEGRADED),
        ({"remap_failed": True}, HealthCode.ROW_REMAP_FAILED, UNHEALTHY),
        ({"unrepairable": True}, HealthCode.MEMORY_UNREPAIRABLE, UNHEALTHY),
        ({"ecc_uncorrected_volatile": 2}, HealthCode.ECC_UNCORRECTED, DEGRADED),
        ({"ecc_uncorrected_volatile": 2, "recovery_action": None}, HealthCode.ECC_UNCORRECTED, UNHEALTHY),
        ({"retire_pending": True, "retired_double": 3}, HealthCode.PAGES_RETIRED, DEGRADED),
        ({"retired_double": 40, "retired_single": 20}, HealthCode.PAGES_RETIRED, UNHEALTHY),
        ({"links_up": (True, False, True)}, HealthCode.NVLINK_DOWN, DEGRADED),
        ({"fabric_state": 3, "fabric_status": 999}, HealthCode.FABRIC_NOT_READY, UNHEALTHY),
        ({"fabric_state": 3, "fabric_status": 0, "fabric_health": 0x1A9}, HealthCode.FABRIC_DEGRADED, DEGRADED),
        ({"fabric_state": 3, "fabric_status": 0, "fabric_health": 0x4AA}, HealthCode.FABRIC_DEGRADED, DEGRADED),
        ({"licensed": False}, HealthCode.VGPU_UNLICENSED, DEGRADED),
    ],
)
def test_a_state_read_counts_when_it_is_said_twice(changed: dict, code: HealthCode, state: HealthState) -> None:
    card = Card(most_links=3)
    ill = replace(WELL, **changed)
    assert card.read(ill) is HEALTHY
    assert card.read(ill) is state
    (standing,) = card.health.confirmed
    assert standing.code is code
    assert "\n" not in standing.text


@pytest.mark.parametrize("state", [1, 2])
def test_a_fabric_that_is_not_joined_yet_is_no_fault_and_counts_and_goes_at_once(state: int) -> None:
    """nvidia-stack.md 1.5: below 3 on a machine with NVSwitches is not schedulable yet, and not broken."""
    card = Card()
    for _ in range(3):
        assert card.read(replace(WELL, fabric_state=state)) is HEALTHY
        (standing,) = card.health.confirmed
        assert standing.code is HealthCode.FABRIC_NOT_READY
        assert card.read(replace(WELL, fabric_state=3, fabric_status=0, fabric_health=0x1AA)) is HEALTHY
        assert card.health == CardHealth()


@pytest.mark.parametrize("facts", [{"fabric_state": 0}, {"fabric_state": 3, "fabric_status": 0}, {"licensed": True}])
def test_no_fabric_one_that_is_joined_and_a_licence_are_no_signs(facts: dict) -> None:
    assert list(signs(replace(WELL, **facts), most_links=0)) == []


def test_what_is_said_once_and_never_again_was_nothing() -> None:
    card = Card()
    for _ in range(20):
        assert card.read(replace(WELL, recovery_action=1)) is HEALTHY
        assert card.read(WELL) is HEALTHY
    assert card.health.standings == ()


def test_a_sign_goes_after_good_reads_and_a_while_and_later_each_time() -> None:
    card = Card()
    for hold in (30, 60, 120, 240):
        card.read(replace(WELL, recovery_action=1), 2)
        begun = card.now
        while card.read(WELL) is not HEALTHY:
            assert card.now - begun < 2 * hold + 10
        assert card.now - begun >= hold
    # An hour without a relapse, and the next one is the first again.
    card.wait(RULES.most_hold_seconds + 1)
    card.read(replace(WELL, recovery_action=1), 2)
    begun = card.now
    while card.read(WELL) is not HEALTHY:
        assert card.now - begun < 40


def test_not_reading_clears_nothing() -> None:
    card = Card()
    card.read(replace(WELL, remap_failed=True), 2)
    assert card.read(HealthFacts(), 200) is UNHEALTHY
    assert card.wait(100_000) is UNHEALTHY


@pytest.mark.parametrize(
    ("number", "text", "state"),
    [
        (13, "", HEALTHY),
        (31, "", HEALTHY),
        (43, "", HEALTHY),
        (45, "", HEALTHY),
        (63, "", HEALTHY),
        (69, "", HEALTHY),
        (94, "", HEALTHY),
        (121, "", HEALTHY),
        (48, "", UNHEALTHY),
        (62, "", UNHEALTHY),
        (64, "", UNHEALTHY),
        (79, "", UNHEALTHY),
        (95, "", UNHEALTHY),
        (109, "", UNHEALTHY),
        (119, "", UNHEALTHY),
        (54, "", UNHEALTHY),
        (74, "", DEGRADED),
        (149, "NETIR_LINK_EVT  Nonfatal XC0", DEGRADED),
        (149, "NETIR_LINK_EVT  Non-Fatal XC0", DEGRADED),
        (149, "NETIR_LINK_EVT  Fatal   XC0", UNHEALTHY),
        (154, "", HEALTHY),
        (999, "", DEGRADED),
    ],
)
def test_an_xid_counts_at_once(number: int, text: str, state: HealthState) -> None:
    assert Card().xid(number, text) is state


@pytest.mark.parametrize("order", [(48, 94), (94, 48)])
def test_a_contained_memory_error_leaves_the_card_well(order: tuple[int, int]) -> None:
    card = Card()
    card.xid(order[0])
    card.now += 1.0
    assert card.xid(order[1]) is HEALTHY


def test_a_double_bit_error_that_nothing_contained_stands() -> None:
    card = Card()
    card.xid(94)
    card.now += 5.0
    assert card.xid(48) is UNHEALTHY


def test_an_xid_goes_when_the_driver_asks_no_more() -> None:
    card = Card()
    card.xid(48)
    card.read(replace(WELL, recovery_action=1), 2)
    begun = card.now
    while card.read(WELL) is not HEALTHY:
        assert card.now - begun < 40
    assert card.now - begun >= 29


def test_an_xid_goes_after_long_silence_of_a_card_that_works() -> None:
    card = Card()
    card.xid(62)
    assert card.wait(599) is UNHEALTHY
    assert card.wait(2) is HEALTHY


def test_silence_of_a_card_that_does_not_work_is_no_sign() -> None:
    card = Card(works=False)
    card.xid(62)
    assert card.wait(100_000) is UNHEALTHY


def test_silence_clears_nothing_that_the_driver_asks_for() -> None:
    card = Card()
    card.xid(62)
    card.read(replace(WELL, recovery_action=2), 2)
    assert card.wait(100_000) is UNHEALTHY


@pytest.mark.parametrize("number", [79, 54])
def test_what_only_a_restart_heals_waits_for_it(number: int) -> None:
    card = Card()
    card.xid(number)
    card.read(WELL, 10)
    assert card.wait(1_000_000) is UNHEALTHY
    card.health = machine.on_reset(card.health)
    assert card.health.state is HEALTHY


def test_programs_of_many_owners_are_the_card_s_fault() -> None:
    card = Card()
    for owner in ("a", "b", "a", "b", "b"):
        assert card.xid(13, owner=owner) is HEALTHY
    assert card.xid(31, owner="") is HEALTHY
    assert card.xid(31, owner="c") is DEGRADED
    (standing,) = card.health.confirmed
    assert standing.code is HealthCode.APPLICATION_FAULTS
    assert card.wait(700) is HEALTHY


def test_one_owner_that_fails_again_and_again_is_its_own_fault() -> None:
    card = Card()
    for _ in range(100):
        card.now += 1
        assert card.xid(13, owner="a") is HEALTHY


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("xid"), st.sampled_from([13, 48, 62, 74, 79, 94, 149, 154, 500])),
            st.tuples(st.just("read"), st.sampled_from([0, 1, 2, 5])),
            st.tuples(st.just("wait"), st.integers(0, 5000)),
            st.tuples(st.just("reset"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_nothing_is_forgotten_without_a_reason_and_nothing_stands_for_ever(steps: list[tuple[str, int]]) -> None:
    card, sticky = Card(), False
    for kind, value in steps:
        if kind == "xid":
            card.xid(value)
            sticky = sticky or value == 79
        elif kind == "read":
            card.read(replace(WELL, recovery_action=value))
        elif kind == "wait":
            card.wait(float(value))
        else:
            card.health, sticky = machine.on_reset(card.health), False
        assert not sticky or card.health.state is UNHEALTHY
    card.read(WELL, 5)
    card.wait(10 * RULES.most_hold_seconds)
    card.read(WELL, 5)
    card.wait(10 * RULES.most_hold_seconds)
    assert (card.health.state is HEALTHY) is not sticky
