"""Every effective value and its origin: the file, the user's defaults, the catalogue, a default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.money import format_money
from keyhole.model.quantity import format_duration, format_size
from keyhole.policy import kinds
from keyhole.policy.policy import OF_PRESETS, Service, Tier
from keyhole.policy.schema import KEYS, SERVICE, PolicyKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.policy.document import Path
    from keyhole.policy.load import LoadedPolicy
    from keyhole.policy.policy import Policy


class EffectiveValue(Struct, frozen=True):
    """One value in force."""

    key: str
    text: str
    source: str


def effective_values(loaded: LoadedPolicy, policy: Policy) -> tuple[EffectiveValue, ...]:
    """All of them, in the order of the reference; services one after the other."""
    values = [_plain(loaded, key) for key in KEYS if SERVICE not in key.path]
    for service in policy.services:
        values += _service(loaded, service)
    return tuple(values)


def _plain(loaded: LoadedPolicy, key: PolicyKey) -> EffectiveValue:
    path: Path = key.path
    setting = loaded.project.get(path) or loaded.user.get(path)
    if setting:
        return EffectiveValue(key.dotted, _text(key, setting.value), setting.place)
    return EffectiveValue(key.dotted, key.shown.replace("`", ""), "default")


def _service(loaded: LoadedPolicy, service: Service) -> list[EffectiveValue]:
    if service.name.startswith(OF_PRESETS):
        source = ", ".join(service.sources) or "this host"
        return [EffectiveValue(service.name, ", ".join(map(str, service.patterns)), source)]
    values = []
    catalogue = f"catalogue {service.template}" if service.template else "default"
    for key in (k for k in KEYS if SERVICE in k.path):
        name = ".".join(key.path[2:])
        path: Path = ("services", service.name, *key.path[2:])
        setting = loaded.project.get(path) or loaded.user.get(path)
        if setting:
            values.append(
                EffectiveValue(".".join(map(str, path)), _text(key, setting.value), setting.place)
            )
        elif name in _FROM_CATALOGUE and service.template:
            text = describe(_FROM_CATALOGUE[name](service))
            if name in _PER_HOST and len(service.hosts) > 1:
                text = f"by host: `keyhole services show {service.template}`"
            values.append(EffectiveValue(".".join(map(str, path)), text, catalogue))
        elif service.git and key.default is not None:
            values.append(
                EffectiveValue(".".join(map(str, path)), key.shown.replace("`", ""), "default")
            )
    return values


def _catalogue_allow(service: Service) -> tuple[str, ...]:
    rules = (r for host in service.hosts for r in host.rules if r.tier is Tier.ALLOW)
    return tuple(dict.fromkeys(r.rule.text for r in rules if r.id.startswith("catalogue.")))


_FROM_CATALOGUE: dict[str, Callable[[Service], tuple[object, ...]]] = {
    "hosts": lambda service: service.patterns,
    "inject": lambda service: tuple(dict.fromkeys(i for h in service.hosts for i in h.inject)),
    "allow": _catalogue_allow,
    "env": lambda service: service.env,
}
"""The catalogue's value, where the file has none."""

_PER_HOST = frozenset({"inject", "allow"})


def _text(key: PolicyKey, value: object) -> str:
    if key.kind is kinds.SIZE and isinstance(value, int):
        return format_size(value)
    if key.kind is kinds.DURATION and isinstance(value, float):
        return format_duration(value)
    if key.kind is kinds.MONEY and isinstance(value, int):
        return format_money(value)
    if key.kind is kinds.PERCENT:
        return f"{value}%"
    if key.kind is kinds.PRICES and isinstance(value, tuple):
        return describe(tuple(each.model for each in value))
    if key.kind is kinds.BODIES and isinstance(value, tuple):
        return describe(tuple(f"{rule.text}: {format_size(size)}" for rule, size in value))
    return describe(value)


def describe(value: object) -> str:
    """A value as a person would write it."""
    if isinstance(value, tuple):
        return "[" + ", ".join(describe(v) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(getattr(value, "text", value))
