"""Builds one service: the policy's settings over the catalogue's entry. Called by `build.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.inject.aws_region import region_for, service_for
from keyhole.inject.catalogue import Catalogue, HostTemplate, ServiceTemplate
from keyhole.inject.injection import BasicInjection, Injection, SignatureInjection
from keyhole.inject.prices import PRIORITY, PRIORITY_FACTOR, PriceList
from keyhole.inject.slots import SlotLocation
from keyhole.model.errors import Unparsable
from keyhole.model.glob import Glob
from keyhole.model.repository import Forge, Repository, ignores_case
from keyhole.model.rule import AccessRule
from keyhole.model.secret import SecretScheme
from keyhole.policy.budget import MONEY, Budget, ServiceLimits
from keyhole.policy.github_app import app_grant
from keyhole.policy.kinds import nearest
from keyhole.policy.mcp_grant import McpGrant
from keyhole.policy.policy import GitGrant, RankedRule, Service, ServiceHost, Tier
from keyhole.policy.schema import BY_PATH, SERVICE, ApiAccess
from keyhole.policy.service_login import ServiceLogin

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.inject.prices import ModelPrice
    from keyhole.inject.slots import Slot
    from keyhole.model.host import HostPattern
    from keyhole.model.secret import SecretRef
    from keyhole.policy.document import Path
    from keyhole.policy.reader import PolicySetting

REPO_SEGMENT = "{repo}"
"""A placeholder in a catalogue rule for each repository that the policy grants."""

GIT_KEYS = (
    "repos", "push", "create", "force", "delete", "tags", "protect", "deny_paths", "push_options",
    "api",
)  # fmt: skip

MCP_KEYS = ("tools", "resources", "prompts", "server_requests", "endpoints", "pin")

_GIT_USERS = {
    Forge.GITHUB: "x-access-token",
    Forge.GITLAB: "oauth2",
    Forge.GITEA: "git",
    Forge.BITBUCKET: "x-token-auth",
    Forge.AZURE_DEVOPS: "",
    Forge.GENERIC: "git",
}
"""The Basic user that each forge's git endpoint wants beside a token."""

_REDIRECTING = frozenset({"hosts", "inject", "use"})
"""Keys by which a policy itself chooses the hosts of a secret, or how it is written."""

_NO_TEMPLATE = HostTemplate((), "", (), False, (), (), (), (), (), (), (), False, False)

PLAIN_HTTP_PORT = 80


class ServiceSettings(Struct, frozen=True):
    """The settings of one service, and where to report faults."""

    name: str
    attempted: frozenset[str]
    """Keys present in the file, including those with a faulty value."""
    written: dict[str, PolicySetting]
    user_secret: PolicySetting | None
    user_prices: tuple[ModelPrice, ...]
    """Prices of the user's own defaults."""
    complain: Callable[[Path, str, str | None], None]

    def get(self, key: str) -> Any:  # noqa: ANN401 - of the key's kind
        """The written value, or the key's default."""
        found = self.written.get(key)
        return found.value if found else BY_PATH[("services", SERVICE, *key.split("."))].default

    def fault(self, key: str, message: str, hint: str | None = None, index: int = -1) -> None:
        """A fault at a key, at one item of its list, or at the service where it is absent."""
        path: Path = ("services", self.name)
        names = key.split(".")
        if names[0] in self.attempted:
            path = (*path, *names) if index < 0 else (*path, *names, index)
        self.complain(path, f"services.{self.name}: {message}", hint)


def build_service(words: ServiceSettings, catalogue: Catalogue) -> Service | None:
    """The service, or None when a fault leaves nothing to build on."""
    template = _template(words, catalogue)
    if template is None and not _stands_alone(words, catalogue):
        return None
    git = _git_grant(words, template)
    hosts = tuple(
        _host(words, template, index, entry, git) for index, entry in _entries(words, template)
    )
    env = words.get("env") or (template.env if template else ())
    shapes = template.placeholders if template else ()
    service = Service(
        name=words.name,
        title=template.title if template else words.name,
        template=template.name if template else None,
        hosts=hosts,
        secret=_secret(words),
        env=env,
        placeholder=words.get("placeholder") or (template.placeholder if template else None),
        placeholders=tuple((variable, shape) for variable, shape in shapes if variable in env),
        passthrough=words.get("unsafe_passthrough"),
        returned=words.get("unsafe_return"),
        git=git,
        mcp=_mcp_grant(words, template),
        unsafe_keep=words.get("unsafe_keep"),
        chose_hosts=template is None or bool({"hosts", "inject"} & words.attempted),
        limits=_limits(words),
        secret_life=_secret_life(words),
        http=words.get("http"),
        features=words.get("features"),
        models=words.get("models"),
        max_tokens=words.get("max_tokens"),
        operations=words.get("operations"),
        prices=_prices(words, template),
        login=_login(words),
    )
    _check(words, service)
    return service


def _prices(words: ServiceSettings, template: ServiceTemplate | None) -> PriceList:
    listed = template.prices if template else PriceList()
    found = listed.under((*words.get("prices"), *words.user_prices))
    # A budget may stop early, never late: which requests used a dearer tier is not known.
    return found.times(PRIORITY_FACTOR) if PRIORITY in words.get("features") else found


def _template(words: ServiceSettings, catalogue: Catalogue) -> ServiceTemplate | None:
    name = words.get("use") or words.name
    if name in catalogue:
        template = catalogue[name]
        if template.needs_hosts and "hosts" not in words.attempted:
            words.fault(
                "use",
                "each user has a host of their own there; name yours",
                f'hosts = ["{template.hosts[0].example}"]',
            )
        return template
    if "use" in words.attempted:
        close = nearest(name, list(catalogue))
        hint = f"did you mean '{close}'?" if close else "`keyhole services` lists them"
        words.fault("use", f"the catalogue has no '{name}'", hint)
    return None


def _stands_alone(words: ServiceSettings, catalogue: Catalogue) -> bool:
    """Check that a service without a catalogue entry has all required keys."""
    if "use" in words.attempted:
        return False
    if "hosts" not in words.attempted:
        close = nearest(words.name, list(catalogue))
        hint = f"did you mean [services.{close}]?" if close else 'hosts = ["api.corp.example"]'
        words.fault("hosts", "not in the catalogue, so it must name its hosts", hint)
        return False
    if "allow" not in words.attempted and "forge" not in words.attempted:
        words.fault("allow", "a service of your own says what it allows", 'allow = ["GET /**"]')
    if "secret" in words.attempted and not {"inject", "forge"} & words.attempted:
        words.fault(
            "secret",
            "how is the secret written?",
            'inject = { header = "Authorization", value = "Bearer {secret}" }',
        )
    return True


def _entries(
    words: ServiceSettings, template: ServiceTemplate | None
) -> list[tuple[int, HostTemplate]]:
    if template is None:
        return [(0, _NO_TEMPLATE)]
    if "hosts" in words.attempted:
        return [(0, template.hosts[0])]
    return list(enumerate(template.hosts))


def _host(
    words: ServiceSettings,
    template: ServiceTemplate | None,
    index: int,
    entry: HostTemplate,
    git: GitGrant | None,
) -> ServiceHost:
    inject = _injections(words, template, entry, git)
    returned: tuple[Slot, ...] = words.get("unsafe_return")
    return ServiceHost(
        patterns=words.get("hosts") or entry.hosts,
        rules=_rules(words, template, index, entry, git),
        inject=inject,
        # Forges refuse from git what their REST takes.
        git_inject=(BasicInjection(git.user),) if git and template and inject else inject,
        strip=(*entry.strip, *(words.get("strip") or ())),
        keep=(
            *entry.keep,
            *words.get("unsafe_keep"),
            *(slot for slot in returned if slot.place is SlotLocation.COOKIE),
        ),
        merge=entry.merge,
        # The lines of a secret that the policy injects in its own way may all be secret (I7).
        names=entry.names if inject == entry.inject else (),
        git=git is not None and (entry.git or template is None),
        encoded_slash=_either(words.get("encoded_slash"), entry.encoded_slash),
        ranges=entry.ranges,
        usage=entry.usage,
        returned=(*entry.returned, *returned),
        bodies=entry.bodies,
        judged=entry.judged,
        operations=entry.operations,
        catalogued=all(map(entry.knows, words.get("hosts") or entry.hosts)),
    )


def _injections(
    words: ServiceSettings,
    template: ServiceTemplate | None,
    entry: HostTemplate,
    git: GitGrant | None,
) -> tuple[Injection, ...]:
    own = words.get("inject")
    if own is None:
        # For a git host of the user's own, the kind of forge is enough.
        return (BasicInjection(git.user),) if git and template is None else entry.inject
    # Hosts that the catalogue leaves without a credential take pre-signed addresses only.
    return (own,) if template is None or entry.inject else ()


def _rules(
    words: ServiceSettings,
    template: ServiceTemplate | None,
    index: int,
    entry: HostTemplate,
    git: GitGrant | None,
) -> tuple[RankedRule, ...]:
    origin = f"catalogue.{template.name if template else ''}.host[{index}]"
    rules = [
        RankedRule(rule, Tier.DENY, f"services.{words.name}.deny[{i}]", folds=True)
        for i, rule in enumerate(words.get("deny"))
    ]
    rules += [
        RankedRule(rule, Tier.GUARD, f"{origin}.deny[{i}]", folds=True)
        for i, rule in enumerate(entry.deny)
    ]
    own, also = words.get("allow"), words.get("allow_also")
    if template is not None and not _gets_credential(template, entry):
        own, also = None, ()  # rules of a policy are not meant for the storage hosts of a service
    if own is None:
        rules += [
            RankedRule(rule, Tier.ALLOW, f"{origin}.allow[{i}]")
            for i, rule in enumerate(entry.allow)
        ]
    for key, listed in (("allow", own or ()), ("allow_also", also)):
        for i, rule in enumerate(listed):
            opens = any(guard.covers(rule) for guard in entry.deny)
            tier = Tier.OPENING if opens else Tier.ALLOW
            rules.append(RankedRule(rule, tier, f"services.{words.name}.{key}[{i}]"))
    if git:
        rules += _api_rules(origin, entry, git)
    return tuple(rules)


def _gets_credential(template: ServiceTemplate, entry: HostTemplate) -> bool:
    """Whether this is one of the service's own hosts; others are storage."""
    return bool(entry.inject) or not any(other.inject for other in template.hosts)


def _api_rules(origin: str, entry: HostTemplate, git: GitGrant) -> list[RankedRule]:
    """The forge's REST rules at the granted level, once for each granted repository."""
    levels: list[tuple[str, ApiAccess, tuple[AccessRule, ...]]] = []
    for key, level, rules in (
        ("api_read", ApiAccess.READ, entry.api_read),
        ("api_write", ApiAccess.PULL_REQUESTS, entry.api_write),
    ):
        if git.api.covers(level):
            levels.append((key, level, rules))
    folds = ignores_case(git.forge)
    return [
        RankedRule(expanded, _tier(entry, expanded), f"{origin}.{key}[{i}]", folds, level)
        for key, level, rules in levels
        for i, rule in enumerate(rules)
        for expanded in _expand(rule, git, opaque=entry.encoded_slash)
    ]


def _tier(entry: HostTemplate, rule: AccessRule) -> Tier:
    """A level opens what the catalogue guards where its rule lies wholly inside the guard."""
    return Tier.OPENING if any(guard.covers(rule) for guard in entry.deny) else Tier.ALLOW


def _expand(rule: AccessRule, git: GitGrant, *, opaque: bool) -> list[AccessRule]:
    segments = rule.path.segments
    if REPO_SEGMENT not in segments:
        return [rule]
    at = segments.index(REPO_SEGMENT)
    paths = [repo.path for repo in sorted(git.repos)]
    if opaque:
        paths += [(str(repo),) for repo in sorted(git.repos)]
    return [
        AccessRule(rule.methods, Glob((*segments[:at], *path, *segments[at + 1 :])), rule.text)
        for path in paths
    ]


def _git_grant(words: ServiceSettings, template: ServiceTemplate | None) -> GitGrant | None:
    forge: Forge | None = words.get("forge") or (template.forge if template else None)
    if forge is None:
        for key in GIT_KEYS:
            if key in words.attempted:
                words.fault(key, f"'{key}' is for git services", 'forge = "github"')
        return None
    inject = words.get("inject")
    user = template.git_user if template else None
    if isinstance(inject, BasicInjection):
        user = inject.user
    return GitGrant(
        forge=forge,
        user=_GIT_USERS[forge] if user is None else user,
        repos=_repositories(words, forge),
        push=words.get("push"),
        tags=words.get("tags"),
        protect=words.get("protect"),
        deny_paths=tuple(Glob(segments) for segments in words.get("deny_paths")),
        push_options=frozenset(words.get("push_options")),
        create=words.get("create"),
        force=words.get("force"),
        delete=words.get("delete"),
        api=words.get("api"),
    )


def _mcp_grant(words: ServiceSettings, template: ServiceTemplate | None) -> McpGrant | None:
    if template is None or not template.mcp:
        for key in MCP_KEYS:
            if key in words.attempted:
                words.fault(key, f"'{key}' is for servers of MCP", 'use = "mcp"')
        return None
    return McpGrant(
        tools=words.get("tools"),
        resources=words.get("resources"),
        prompts=words.get("prompts"),
        server_requests=frozenset(words.get("server_requests")),
        endpoints=words.get("endpoints"),
        pin=words.get("pin"),
    )


def _repositories(words: ServiceSettings, forge: Forge) -> frozenset[Repository]:
    found: set[Repository] = set()
    for index, text in enumerate(words.get("repos")):
        try:
            repository = Repository.parse(forge, text)
        except Unparsable as error:
            words.fault("repos", f"repos: {error.message}", error.hint, index)
            continue
        if repository in found:
            words.fault("repos", "repos: named twice", None, index)
        found.add(repository)
    return frozenset(found)


def _secret_life(words: ServiceSettings) -> float | None:
    life: float | None = words.get("secret_life")
    secret: SecretRef | None = words.get("secret")
    if life is not None and (secret is None or secret.source is not SecretScheme.EXEC):
        words.fault("secret_life", "only what an `exec:` command of this service prints has one")
    return life


def _secret(words: ServiceSettings) -> SecretRef | None:
    own: SecretRef | None = words.get("secret")
    if own or words.user_secret is None:
        return own
    # Attack: a cloned policy names a service whose secret the user keeps as a default, and gives it
    # a host of its own (I1). A default goes only where the catalogue sends it.
    changed = sorted(_REDIRECTING & words.attempted)
    if changed:
        words.fault(
            changed[0],
            f"'{changed[0]}' is changed here, so your default secret is not used for it",
            "name the secret here only if you mean it to go there",
        )
        return None
    default: SecretRef = words.user_secret.value
    return default


def _limits(words: ServiceSettings) -> ServiceLimits | None:
    """The service's own limits, if the policy sets one."""
    limits = ServiceLimits(
        requests_per_second=words.get("requests_per_second"),
        concurrent_requests=words.get("concurrent_requests"),
        bodies=words.get("bodies"),
        budget=Budget(**{name: words.get(f"budget.{name}") for name in Budget.__struct_fields__}),
    )
    return None if limits == ServiceLimits() else limits


def _login(words: ServiceSettings) -> ServiceLogin:
    found = {name: words.get(f"login.{name}") for name in ServiceLogin.__struct_fields__}
    secret: SecretRef | None = words.get("secret")
    if "login" in words.attempted and (secret is None or secret.source is not SecretScheme.LOGIN):
        words.fault("login", "only a login is logged in to", f'secret = "login:{words.name}"')
    if found["client_secret"] is not None and found["client"] is None:
        words.fault("login.client_secret", "whose secret is it?", 'login.client = "ID"')
    return ServiceLogin(**found)


def _check_login(words: ServiceSettings, service: Service) -> None:
    """The token is for the URL and goes to the hosts: they must be the same."""
    url = service.login.url
    if url is None:
        return
    ours = (p for host in service.hosts for p in host.patterns if host.inject)
    if not any(p.port == url.port and p.matches(url.host) for p in ours):
        words.fault("login.url", f"{url.host} is not one of its hosts that get the secret")


def _check_app(words: ServiceSettings, service: Service) -> None:
    if service.secret is not None and service.secret.source is SecretScheme.GITHUB_APP:
        try:
            app_grant(service)
        except Unparsable as error:
            words.fault("secret", error.message, error.hint)


def _check_features(words: ServiceSettings, service: Service) -> None:
    """What a policy opens of a model's API must be known, or have the form of what is not."""
    apis = [judged.api for host in service.hosts for judged in host.judged if judged.api]
    for key in ("features", "models", "max_tokens"):
        if key in words.attempted and not apis:
            words.fault(key, f"'{key}' is for services of models that the catalogue knows")
            return
    known = list(service.known_features)
    kinds = {kind for api in apis for kind in api.kinds}
    for index, word in enumerate(service.features):
        if word not in known and word.partition(":")[0] not in kinds:
            close = nearest(word, known)
            hint = f"did you mean '{close}'?" if close else f"known: {', '.join(known)}"
            words.fault("features", f"features: there is no '{word}'", hint, index)


def _check_operations(words: ServiceSettings, service: Service) -> None:
    """A word that opens nothing would be a grant that does not hold (I10)."""
    tables = [table for host in service.hosts for table in host.operations]
    if "operations" in words.attempted and not tables:
        words.fault("operations", "'operations' is for services of which the catalogue knows some")
        return
    known = list(service.known_operations)
    kinds = {kind for table in tables for kind in table.kinds}
    for index, word in enumerate(service.operations):
        kind, parts, _ = word.partition(":")
        if word in known or kind in kinds or (service.names_operations and not parts):
            continue
        close = nearest(word, known)
        hint = f"did you mean '{close}'?" if close else f"known: {', '.join(known)}"
        words.fault("operations", f"operations: there is no '{word}'", hint, index)


def _check_budget(words: ServiceSettings, service: Service) -> None:
    """If these were accepted, the budget would never be used up (I10)."""
    budget = service.limits.budget if service.limits else Budget()
    first = next((name for name in MONEY if getattr(budget, name) is not None), "tokens")
    if budget.counts_tokens and not any(host.usage for host in service.hosts):
        words.fault(
            f"budget.{first}",
            "it is not known how its answers say their tokens",
            'use = "openai" for a server that answers as OpenAI\'s does',
        )
    elif budget.is_money and not service.prices.models:
        words.fault(
            f"budget.{first}",
            "no price of its models is known",
            'prices = { "*" = { input = "3 USD", output = "15 USD" } }, or a budget of tokens',
        )
    if budget.ask is not None and not budget.is_money:
        words.fault("budget.ask", "it is a share of session, day or month", 'day = "20 USD"')


def _check(words: ServiceSettings, service: Service) -> None:
    _check_login(words, service)
    _check_app(words, service)
    _check_features(words, service)
    _check_operations(words, service)
    _check_budget(words, service)
    for index, pattern in enumerate(service.passthrough):
        if not any(_within(pattern, own) for own in service.patterns):
            words.fault("unsafe_passthrough", f"{pattern} is not one of its hosts", None, index)
    if service.secret:
        for index, pattern in enumerate(service.patterns):
            if pattern.port == PLAIN_HTTP_PORT:
                message = "a credential is never sent over plain HTTP (port 80)"
                words.fault("hosts", message, None, index)
    for host in service.hosts:
        for injection in host.inject:
            if isinstance(injection, SignatureInjection):
                _check_regions(words, injection, host.patterns)


def _check_regions(
    words: ServiceSettings, injection: SignatureInjection, patterns: tuple[HostPattern, ...]
) -> None:
    """Checked here rather than at the first request: the region, and that keys are not minted."""
    for index, pattern in enumerate(patterns):
        try:
            region_for(injection, pattern.host.name)
            service_for(injection, pattern.host.name)
        except Unparsable as error:
            words.fault("hosts", error.message, error.hint, index)


def _within(inner: HostPattern, outer: HostPattern) -> bool:
    if inner.port != outer.port:
        return False
    return inner == outer or outer.matches(inner.host)


def _either(own: bool | None, other: bool) -> bool:
    return other if own is None else own
