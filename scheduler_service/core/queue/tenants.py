"""Tenants: how many GPUs each may hold at once, and whose turn it is by the GPU time that each has had.

What a tenant has had fades: GPU time of one half-life ago counts half. The tenant that has had least for its weight
comes first. Where several GPUs are free at once they are dealt out one by one, each counting in advance as
1/`DEALT_PER_HALF_LIFE` of a half-life, so that an idle cluster is not given to one tenant.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from cotenant.names import NAME_PATTERN
from scheduler_service.core.errors import TenantRulesError
from scheduler_service.core.queue.queue_terms import PRIORITY_MAX

DEALT_PER_HALF_LIFE = 24
HALF_LIFE_HOURS = 24.0
HALF_LIFE_HOURS_MAX = 24.0 * 365
TENANTS_MAX = 1_000
USERS_MAX = 10_000
"""Users that the rules may name, of all tenants together."""
USED_TENANTS_MAX = 2_000
"""Tenants of which is kept what they have had, beyond those that hold GPUs."""
GPUS_MAX = 1_000_000
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1_000.0
DEFAULT_TENANT = "default"
"""The name of the rules for tenants that have none of their own."""
_HOUR_MS = 3_600_000
_KEYS = frozenset({"gpus", "weight", "priority_max", "users"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRule:
    """What one tenant may have.

    Attributes:
        gpus_max: GPUs that its jobs may hold at once; a shared GPU counts in full for each. 0 = no limit.
        weight: Its part of the GPU time in relation to the others.
        priority_max: The highest class that its jobs may have; operators may give a higher one.
        is_closed: None of its jobs starts; what runs goes on.
        users: Whose jobs are its own; none = those of the user with its name.
    """

    gpus_max: int = 0
    weight: float = 1.0
    priority_max: int = PRIORITY_MAX
    is_closed: bool = False
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRules:
    """What all tenants may have.

    Attributes:
        rules: By tenant.
        default: Of a tenant without a rule.
        half_life_ms: After this time GPU time counts half.
    """

    rules: Mapping[str, TenantRule] = field(default_factory=dict)
    default: TenantRule = TenantRule()
    half_life_ms: int = int(HALF_LIFE_HOURS * _HOUR_MS)

    def of(self, tenant: str) -> TenantRule:
        """Return the rule of a tenant."""
        return self.rules.get(tenant, self.default)

    def quota_of(self, tenant: str) -> int | None:
        """Return how many GPUs a tenant may hold at once; None = any number."""
        rule = self.of(tenant)
        return 0 if rule.is_closed else rule.gpus_max or None

    def tenants_of(self, user: str) -> Sequence[str]:
        """Return whose jobs a user may submit, the usual tenant first; none = another tenant has this name."""
        return self.naming(user) or ([] if self.of(user).users else [user])

    def naming(self, user: str) -> Sequence[str]:
        """Return the tenants that name a user, in the order of the rules."""
        return [tenant for tenant, rule in self.rules.items() if user in rule.users]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedTime:
    """What a tenant had had, faded, at one instant."""

    gpu_ms: float = 0.0
    at_ms: int = 0


def parse_tenants(text: str) -> TenantRules:
    """Read rules from TOML.

        half_life_hours = 24
        [tenants.vision]
        users = ["alice", "bob"]
        gpus = 16
        weight = 3
        [tenants.default]
        weight = 1

    Raises:
        TenantRulesError: It is no TOML, has an unknown key, or a value out of its range.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TenantRulesError(f"it is not TOML: {error}") from error
    unknown = sorted(content.keys() - {"half_life_hours", "tenants"})
    if unknown:
        raise TenantRulesError(f"unknown key {unknown[0]!r}; known are half_life_hours and tenants")
    tenants = content.get("tenants", {})
    if not isinstance(tenants, dict) or len(tenants) > TENANTS_MAX:
        raise TenantRulesError(f"tenants must be at most {TENANTS_MAX:,} tables, e.g. [tenants.vision]")
    hours = _number(content, "half_life_hours", HALF_LIFE_HOURS, least=1 / 60, most=HALF_LIFE_HOURS_MAX)
    rules = {name: _rule(name, table) for name, table in tenants.items()}
    default = rules.pop(DEFAULT_TENANT, TenantRule())
    if default.users:
        raise TenantRulesError(f"tenant {DEFAULT_TENANT!r} is every user that no tenant names; leave its users out")
    if sum(len(rule.users) for rule in rules.values()) > USERS_MAX:
        raise TenantRulesError(f"the tenants name more than {USERS_MAX:,} users together")
    return TenantRules(rules=rules, default=default, half_life_ms=round(hours * _HOUR_MS))


def _rule(name: str, table: object) -> TenantRule:
    if not NAME_PATTERN.fullmatch(name):
        raise TenantRulesError(f"{name[:63]!r} is no name that a tenant can have: 1 to 63 letters, digits or . _ -")
    if not isinstance(table, dict):
        raise TenantRulesError(f"tenant {name!r} must be a table, e.g. [tenants.{name}] and weight = 1 below it")
    unknown = sorted(table.keys() - _KEYS)
    if unknown:
        known = ", ".join(sorted(_KEYS))
        raise TenantRulesError(f"tenant {name!r}: unknown key {unknown[0]!r}; known are {known}")
    gpus = _number(table, "gpus", 0, least=0, most=GPUS_MAX)
    priority = _number(table, "priority_max", PRIORITY_MAX, least=-PRIORITY_MAX, most=PRIORITY_MAX)
    if gpus != int(gpus) or priority != int(priority):
        raise TenantRulesError(f"tenant {name!r}: gpus and priority_max must be whole numbers")
    return TenantRule(
        gpus_max=int(gpus),
        weight=_number(table, "weight", 1.0, least=WEIGHT_MIN, most=WEIGHT_MAX),
        priority_max=int(priority),
        is_closed=table.get("gpus") == 0,
        users=_users(name, table.get("users", [])),
    )


def _users(name: str, users: object) -> tuple[str, ...]:
    if not isinstance(users, list) or not all(isinstance(user, str) and NAME_PATTERN.fullmatch(user) for user in users):
        raise TenantRulesError(f'tenant {name!r}: users must be a list of names, e.g. users = ["alice", "bob"]')
    if len(set(users)) < len(users):
        twice = next(user for user in users if users.count(user) > 1)
        raise TenantRulesError(f"tenant {name!r}: {twice!r} is named twice among its users")
    return tuple(users)


def _number(table: Mapping[str, object], key: str, default: float, *, least: float, most: float) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise TenantRulesError(f"{key} must be a number from {least:g} to {most:g}, not {value!r}")
    return float(value)


class TenantUse:
    """What tenants hold and have had, while there are rules for them.

    Attributes:
        rules: None = there are none, and nothing is counted.
    """

    def __init__(self) -> None:
        self.rules: TenantRules | None = None
        self._held: dict[str, int] = {}
        self._used: dict[str, UsedTime] = {}

    def choose(self, rules: TenantRules | None, held: Mapping[str, int], now_ms: int) -> None:
        """Go by other rules; what tenants have had is kept, and forgotten without rules."""
        used = {tenant: self.used_gpu_ms(tenant, now_ms) for tenant in self._used} if rules is not None else {}
        self.rules = rules
        self._held = dict(held) if rules is not None else {}
        self._used = {tenant: UsedTime(gpu_ms=used.get(tenant, 0.0), at_ms=now_ms) for tenant in (*used, *self._held)}

    def held_gpus(self, tenant: str) -> int:
        """Return how many GPUs the jobs of a tenant hold."""
        return self._held.get(tenant, 0)

    def change(self, tenant: str, gpus: int, now_ms: int) -> None:
        """Note that the jobs of a tenant hold so many GPUs more, or fewer, from now on."""
        self._used[tenant] = UsedTime(gpu_ms=self.used_gpu_ms(tenant, now_ms), at_ms=now_ms)
        self._held[tenant] = self._held.get(tenant, 0) + gpus
        if not self._held[tenant]:
            del self._held[tenant]
            self._forget_least(now_ms)

    def _forget_least(self, now_ms: int) -> None:
        """Keep what only so many tenants have had: where callers are not known, any of them may invent one."""
        if len(self._used) > USED_TENANTS_MAX:
            idle = (tenant for tenant in self._used if tenant not in self._held)
            del self._used[min(idle, key=lambda tenant: (self.used_gpu_ms(tenant, now_ms), tenant))]

    def used_gpu_ms(self, tenant: str, now_ms: int) -> float:
        """Return the GPU time that a tenant has had, faded."""
        used = self._used.get(tenant) or UsedTime(at_ms=now_ms)
        half_life_ms = self.rules.half_life_ms if self.rules is not None else 1
        kept_ratio = math.exp2((used.at_ms - now_ms) / half_life_ms)
        return used.gpu_ms * kept_ratio + self.held_gpus(tenant) * half_life_ms / math.log(2) * (1 - kept_ratio)

    def known(self) -> list[str]:
        """Return the tenants that hold GPUs, have had some, or have a rule of their own."""
        named = self.rules.rules if self.rules is not None else ()
        return sorted({*self._held, *self._used, *named})

    def gpus_left(self, tenant: str) -> int | None:
        """Return how many GPUs more a tenant may hold; None = any number."""
        quota = self.rules.quota_of(tenant) if self.rules is not None else None
        return None if quota is None else max(quota - self.held_gpus(tenant), 0)

    def in_turn(self, tenants: Iterable[str], now_ms: int) -> list[str]:
        """Return tenants in the order of their turns: the one that has had least for its weight first."""
        return sorted(tenants, key=lambda tenant: (self._debt_ms(tenant, now_ms), tenant))

    def deal(self, tenants: Iterable[str], gpus_free: int, now_ms: int) -> dict[str, int]:
        """Deal free GPUs out one by one, each to the tenant whose turn it is by then."""
        if self.rules is None:
            return {}
        dealt = dict.fromkeys(tenants, 0)
        price_ms = self.rules.half_life_ms / DEALT_PER_HALF_LIFE
        heap = [(self._debt_ms(tenant, now_ms), tenant) for tenant in dealt]
        heapify(heap)
        for _ in range(gpus_free if heap else 0):
            debt_ms, tenant = heap[0]
            dealt[tenant] += 1
            heapreplace(heap, (debt_ms + price_ms / self.rules.of(tenant).weight, tenant))
        return dealt

    def _debt_ms(self, tenant: str, now_ms: int) -> float:
        weight = self.rules.of(tenant).weight if self.rules is not None else 1.0
        return self.used_gpu_ms(tenant, now_ms) / weight

    def stored(self) -> dict[str, UsedTime]:
        """Return what each tenant had had when it was last counted, for a snapshot."""
        return dict(self._used)

    def load(self, rules: TenantRules | None, used: Mapping[str, UsedTime], held: Mapping[str, int]) -> None:
        """Replace everything by what a snapshot holds."""
        self.rules, self._used, self._held = rules, dict(used), dict(held)
