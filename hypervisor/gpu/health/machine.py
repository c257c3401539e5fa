"""The health of one card: what stands against it, how that comes and how it goes. Pure; times are given.

A state read must say the same twice before it counts, and must have been good for a while before it counts no more; the
while doubles with each relapse. What is no fault of the card, and only not ready yet, counts and goes at once. An Xid
counts at once. It is forgotten by a restart of the machine, by a reset that was seen, by the driver asking no more for
what it asked for, or, where it is not one that only a restart or a human heals, after a long silence in which the card
worked and the driver asked for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hypervisor.gpu.health.facts import HealthFacts, Sign, known_keys
from hypervisor.gpu.health.policy import XidClass, XidPolicy, tells_fatal
from hypervisor.model.health import HealthCode, HealthState

# A second ECC report that says "contained" comes within this time of the first, before or after it.
PAIR_SECONDS = 2.0
# This many programs that fail on one card in so many seconds are the card's fault until proven otherwise.
MANY_OWNERS = 3
OWNERS_SECONDS = 600.0
UNCONTAINED, CONTAINED = 48, 94
_PAIR_MARK = "contained"
_SEVERITY = {HealthState.HEALTHY: 0, HealthState.DEGRADED: 1, HealthState.UNHEALTHY: 2}
_STATE_OF = {
    XidClass.LINK: HealthState.DEGRADED,
    XidClass.DEGRADED: HealthState.DEGRADED,
    XidClass.RESET: HealthState.UNHEALTHY,
    XidClass.REBOOT: HealthState.UNHEALTHY,
    XidClass.HARDWARE: HealthState.UNHEALTHY,
}
_REMEDY = {
    XidClass.LINK: "the links are watched",
    XidClass.DEGRADED: "the card is watched",
    XidClass.RESET: "reset the card",
    XidClass.REBOOT: "restart the machine",
    XidClass.HARDWARE: "have power, slot and card inspected",
}
_STICKY = frozenset({XidClass.REBOOT, XidClass.HARDWARE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How quickly what counts. hold_seconds: how long a sign must be gone; quiet_seconds: how long an Xid silent."""

    raise_reads: int = 2
    clear_reads: int = 3
    hold_seconds: float = 30.0
    quiet_seconds: float = 600.0
    most_hold_seconds: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An Xid of a card. at is CLOCK_MONOTONIC; owner: whose program it was, "" when that is not known."""

    number: int
    at: float
    text: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Something that stands against a card. Times are CLOCK_MONOTONIC, comparable within one boot.

    reads: how often in a row a state read said it; good: how often in a row one said that it is gone. asked: the driver
    has asked for an action while it stood.
    """

    key: str
    code: HealthCode
    state: HealthState
    text: str
    since: float
    last: float
    confirmed: bool = False
    sticky: bool = False
    pulse: bool = False  # an Xid or the like: it happens and is not read
    reads: int = 0
    good: int = 0
    asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHealth:
    """What is held against one card, and its last relapses."""

    standings: tuple[Standing, ...] = ()
    relapses: tuple[float, ...] = ()
    failed_owners: tuple[tuple[float, str], ...] = ()

    @property
    def state(self) -> HealthState:
        """The worst of what counts."""
        states = [each.state for each in self.standings if each.confirmed]
        return max(states, key=lambda state: _SEVERITY[state], default=HealthState.HEALTHY)

    @property
    def confirmed(self) -> tuple[Standing, ...]:
        """What counts, the worst first."""
        return tuple(
            sorted((each for each in self.standings if each.confirmed), key=lambda each: -_SEVERITY[each.state])
        )


def on_xid(health: CardHealth, xid: Xid, policy: XidPolicy) -> CardHealth:
    """The health after an Xid. Ignored ones and those of a program change nothing, unless they become many."""
    kind = policy.class_of(xid.number)
    if xid.number == CONTAINED and kind not in _STATE_OF:
        health = _without_pair(health, xid)
    if kind is XidClass.APPLICATION:
        return _on_failed_owner(health, xid)
    if kind not in _STATE_OF or (xid.number == UNCONTAINED and _was_contained(health, xid)):
        return health
    state = _STATE_OF[kind]
    if kind is XidClass.LINK and tells_fatal(xid.text):
        state = HealthState.UNHEALTHY
    detail = f": {xid.text}" if xid.text else ""
    return _with(
        health,
        Standing(
            key=f"xid-{xid.number}",
            code=HealthCode.XID_ERROR,
            state=state,
            text=f"{policy.meaning(xid.number)}{detail}; {_REMEDY[kind]}",
            since=xid.at,
            last=xid.at,
            confirmed=True,
            sticky=kind in _STICKY,
            pulse=True,
        ),
    )


def on_pulse(health: CardHealth, key: str, code: HealthCode, text: str, *, at: float, sticky: bool) -> CardHealth:
    """The health after something else that makes a card unhealthy when it happens."""
    return _with(
        health,
        Standing(
            key=key,
            code=code,
            state=HealthState.UNHEALTHY,
            text=text,
            since=at,
            last=at,
            confirmed=True,
            sticky=sticky,
            pulse=True,
        ),
    )


def on_reset(health: CardHealth) -> CardHealth:
    """The health after a reset that was seen: nothing from before says anything of the card now."""
    return CardHealth(relapses=health.relapses)


def on_started_anew(health: CardHealth) -> CardHealth:
    """The health after the driver has started the card anew, which is less than a reset: what only a restart of the
    machine or a human heals stands."""
    kept = tuple(each for each in health.standings if each.sticky or not each.pulse)
    return replace(health, standings=kept, failed_owners=())


def on_facts(health: CardHealth, facts: HealthFacts, signs: Iterable[Sign], *, now: float, rules: Rules) -> CardHealth:
    """The health after a state read."""
    said = {sign.key: sign for sign in signs}
    known = known_keys(facts)
    standings = []
    for standing in health.standings:
        if standing.pulse:
            standings.append(_asked(standing, facts))
        elif standing.key in said:
            standings.append(_seen_again(standing, said.pop(standing.key), now, rules))
        elif standing.key not in known:
            standings.append(standing)
        elif standing.confirmed:
            standings.append(replace(standing, good=standing.good + 1, reads=0))
        # One read that no second one confirms was nothing.
    for sign in said.values():
        first = Standing(key=sign.key, code=sign.code, state=sign.state, text=sign.text, since=now, last=now)
        standings.append(_seen_again(first, sign, now, rules))
    return replace(health, standings=tuple(standings))


def settle(health: CardHealth, *, works: bool, now: float, rules: Rules) -> CardHealth:
    """The health at a moment: what has been good for long enough goes. works: the card answers, and readings come."""
    relapses = tuple(at for at in health.relapses if now - at < rules.most_hold_seconds)
    owners = tuple((at, owner) for at, owner in health.failed_owners if now - at < OWNERS_SECONDS)
    factor = 2 ** min(len(relapses), 16)
    gone = [each for each in health.standings if each.confirmed and _is_over(each, now, rules, factor, works=works)]
    kept = tuple(each for each in health.standings if each not in gone)
    if any(_SEVERITY[each.state] for each in gone) and not any(each.confirmed for each in kept):
        relapses = (*relapses, now)  # it counts as well from now on; the next time it takes longer
    return CardHealth(standings=kept, relapses=relapses, failed_owners=owners)


def _is_over(standing: Standing, now: float, rules: Rules, factor: int, *, works: bool) -> bool:
    hold = min(rules.hold_seconds * factor, rules.most_hold_seconds)
    if not standing.pulse:
        if standing.state is HealthState.HEALTHY:
            return standing.good > 0
        return standing.good >= rules.clear_reads and now - standing.last >= hold
    if not works or standing.sticky:
        return False
    if standing.asked and standing.good >= rules.clear_reads:
        return now - standing.last >= hold
    # Silence is a sign only while the driver does not ask for anything.
    silent = now - standing.last >= min(rules.quiet_seconds * factor, 6 * rules.most_hold_seconds)
    return silent and not (standing.asked and standing.good == 0)


def _asked(standing: Standing, facts: HealthFacts) -> Standing:
    """An Xid beside what the driver asks for now."""
    if facts.recovery_action is None:
        return standing
    if facts.recovery_action:
        return replace(standing, asked=True, good=0)
    return replace(standing, good=standing.good + 1)


def _seen_again(standing: Standing, sign: Sign, now: float, rules: Rules) -> Standing:
    reads = standing.reads + 1
    return replace(
        standing,
        code=sign.code,
        state=sign.state,
        text=sign.text,
        last=now,
        reads=reads,
        good=0,
        confirmed=standing.confirmed or reads >= rules.raise_reads or sign.state is HealthState.HEALTHY,
    )


def _with(health: CardHealth, new: Standing) -> CardHealth:
    before = next((each for each in health.standings if each.key == new.key), None)
    others = tuple(each for each in health.standings if each.key != new.key)
    if before is not None:
        worse = max(before, new, key=lambda each: _SEVERITY[each.state])
        new = replace(new, since=before.since, state=worse.state, asked=before.asked)
    return replace(health, standings=(*others, new))


def _without_pair(health: CardHealth, contained: Xid) -> CardHealth:
    """A contained error takes back the double bit error that it explains, and is remembered for one that follows."""
    kept = tuple(
        each
        for each in health.standings
        if each.key != f"xid-{UNCONTAINED}" or abs(each.last - contained.at) > PAIR_SECONDS
    )
    return replace(health, standings=kept)


def _was_contained(health: CardHealth, xid: Xid) -> bool:
    return any(owner == _PAIR_MARK and abs(at - xid.at) <= PAIR_SECONDS for at, owner in health.failed_owners)


def _on_failed_owner(health: CardHealth, xid: Xid) -> CardHealth:
    failed = health.failed_owners
    if xid.number == CONTAINED:
        failed = (*failed, (xid.at, _PAIR_MARK))
    if xid.owner:
        failed = (*failed, (xid.at, f"of {xid.owner}"))
    recent = tuple((at, owner) for at, owner in failed if xid.at - at < OWNERS_SECONDS)
    health = replace(health, failed_owners=recent)
    owners = {owner for _, owner in recent if owner != _PAIR_MARK}
    if len(owners) < MANY_OWNERS:
        return health
    text = f"programs of {len(owners)} owners failed on this card within {OWNERS_SECONDS / 60:g} minutes"
    return _with(
        health,
        Standing(
            key="applications",
            code=HealthCode.APPLICATION_FAULTS,
            state=HealthState.DEGRADED,
            text=text,
            since=xid.at,
            last=xid.at,
            confirmed=True,
            pulse=True,
        ),
    )
