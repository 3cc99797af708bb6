"""`keyhole services [show NAME]`: lists the services catalogue, or shows one entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.paint import paint, print_json
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.inject.table_values import describe_knowledge
from keyhole.model.money import format_money
from keyhole.policy.kinds import nearest

if TYPE_CHECKING:
    import argparse

    from keyhole.cli.tables import Cell
    from keyhole.inject.catalogue import HostTemplate, ServiceTemplate
    from keyhole.inject.prices import ModelPrice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="[show NAME]", dest="action")
    one = actions.add_parser("show", help="show one entry", description="Show one entry.")
    one.add_argument("name", metavar="NAME")
    add_json_flag(one)
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """List the catalogue, or show one entry."""
    catalogue = FileCatalogue()
    if options.action == "show":
        if options.name not in catalogue:
            close = nearest(options.name, list(catalogue))
            hint = f"; did you mean '{close}'?" if close else "; `keyhole services` lists them"
            raise CliError(f"the catalogue has no '{options.name}'{hint}")
        template = catalogue[options.name]
        if options.json:
            print_json(_as_json(template))
        else:
            _show(template)
        return EXIT_OK
    templates = [catalogue[name] for name in catalogue]
    if options.json:
        print_json([_as_json(t) for t in templates])
        return EXIT_OK
    show([Grid(_COLUMNS, tuple(map(_row, templates)))])
    return EXIT_OK


_COLUMNS = (
    Column("NAME"),
    Column("KIND", needs=60),
    Column("HOW SURE", needs=80),
    Column("LOOKED AT", needs=100),
    Column("HOSTS", Fit.WRAPPED),
)


def _row(template: ServiceTemplate) -> tuple[Cell, ...]:
    known = template.sure.value, template.looked_at or "no"
    parts = template.name, template.kind.value, *known, _hosts(template.hosts[0])
    return tuple(map(cell, parts))


def _hosts(entry: HostTemplate) -> str:
    return ", ".join(map(str, entry.hosts)) or f"yours, as {entry.example}"


def _show(template: ServiceTemplate) -> None:
    print(f"{paint(template.name, 'bold')}  {template.title}")
    known = describe_knowledge(template.sure, template.looked_at)
    print(f"  {template.kind.value}; facts {known}")
    for note in template.notes:
        print(f"  note: {note}")
    if template.env:
        shape = template.placeholder.text if template.placeholder else ""
        print(f"  inside, {', '.join(template.env)} = a placeholder shaped {shape}")
    if template.forge:
        print(f"  git service of the kind {template.forge}: grants only the policy's `repos`")
    if template.mcp and template.mcp.endpoint:
        print(f"  MCP server at {template.mcp.endpoint}")
        print(f"  tools that read: {', '.join(template.mcp.reads)}")
    for entry in template.hosts:
        print(f"\n  {paint(_hosts(entry), 'cyan')}")
        _rows("written", [str(i) for i in entry.inject] or ["no credential"])
        _rows("git", ["smart HTTP of granted repositories"] if entry.git else [])
        _rows("removed", [str(s) for s in entry.strip])
        _rows("kept", [str(s) for s in entry.keep])
        _rows("returned", [str(s) for s in entry.returned])
        _rows("allowed", [r.text for r in entry.allow])
        _rows("api=read", [r.text for r in entry.api_read])
        _rows("+pull-requests", [r.text for r in entry.api_write])
        _rows("guarded", [r.text for r in entry.deny])
        _rows("with a body", [r.text for r in entry.bodies])
        _rows("features", ["closed unless named in `features`:"] if _features(entry) else [])
        _rows("", _features(entry))
        _rows("operations", _operations(entry))
    prices = template.prices
    if prices.models:
        print(f"\n  prices of a million tokens, as {prices.source} said on {prices.day}")
        for each in prices.models:
            print(f"    {each.model.ljust(24)} {_price(each)}")


def _price(each: ModelPrice) -> str:
    price = each.price
    words = f"{format_money(price.input)} in, {format_money(price.output)} out"
    words += f", {format_money(price.cached)} from the cache"
    return words + (f"; more above {each.long_from} tokens" if each.long_from else "")


def _features(entry: HostTemplate) -> list[str]:
    """The words that open what the provider of a model does by itself."""
    apis = (judged.api for judged in entry.judged)
    return sorted({word for api in apis if api is not None for word in api.features})


def _operations(entry: HostTemplate) -> list[str]:
    """What requests ask for that method and path do not tell, and which words open it."""
    tables = entry.operations
    named = any(table.named for table in tables)
    rows = ["each must be named in `operations`"] if named else []
    rows += [f"open: {name}" for table in tables for name in table.open]
    rows += [f"guarded: {name}" for name in dict.fromkeys(g for t in tables for g in t.guarded)]
    words = sorted({word for table in tables for word in table.words})
    return rows + (["closed unless named in `operations`:", *words] if words else [])


def _rows(name: str, texts: list[str]) -> None:
    for index, text in enumerate(texts):
        print(f"    {(name if index == 0 else '').ljust(14)} {text}")


def _as_json(template: ServiceTemplate) -> dict[str, Any]:
    return {
        "id": template.name,
        "title": template.title,
        "kind": template.kind.value,
        "sure": template.sure.value,
        "looked_at": template.looked_at,
        "notes": list(template.notes),
        "env": list(template.env),
        "placeholder": template.placeholder.text if template.placeholder else None,
        "forge": template.forge.value if template.forge else None,
        "prices": {
            "source": template.prices.source,
            "day": template.prices.day,
            "models": [each.model for each in template.prices.models],
        },
        "hosts": [
            {
                "hosts": [str(h) for h in entry.hosts],
                "example": entry.example or None,
                "inject": [str(i) for i in entry.inject],
                "git": entry.git,
                "strip": [str(s) for s in entry.strip],
                "keep": [str(s) for s in entry.keep],
                "returned": [str(s) for s in entry.returned],
                "allow": [r.text for r in entry.allow],
                "api_read": [r.text for r in entry.api_read],
                "api_write": [r.text for r in entry.api_write],
                "deny": [r.text for r in entry.deny],
                "bodies": [r.text for r in entry.bodies],
                "features": _features(entry),
                "operations": _operations(entry),
            }
            for entry in template.hosts
        ],
    }
