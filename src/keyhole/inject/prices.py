"""Prices of language models, as data: what a million tokens of each kind cost.

The catalogue has lists with their source and day (`catalogue.py`), a policy adds its own. A price
is an upper bound where a provider does not report what it depends on: a budget may stop early,
never late.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.model.errors import Unparsable
from keyhole.model.money import parse_money

if TYPE_CHECKING:
    from collections.abc import Mapping

MILLION = 10**6

UNKNOWN_FACTOR = 2
"""A model without a price is charged at the dearest one that is known for its service, times this:
new models have cost up to twice as much as the dearest before, and the person is told."""

PRIORITY = "priority"
"""The feature that opens tiers, speeds and regions that cost more."""

PRIORITY_FACTOR = 6
"""What a token then costs at most, in standard prices: Anthropic's fast mode of Opus 4.6. Others
cost up to two and a half times as much, and answers do not say reliably which tier served them."""

MAX_MODEL = 128
"""Characters of a model's name."""

# A name with its day, as in `claude-opus-4-5-20251101` and `gpt-4o-2024-08-06`.
_DATED = re.compile(r"(.{1,120})-(?:[0-9]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}|latest)")
_NAME = re.compile(r"[!-~]{1,128}")


class TokenCount(Struct, frozen=True):
    """Tokens of one response, by how they are billed."""

    input: int = 0
    """Those that no cache has."""
    cached: int = 0
    """Read from the provider's cache."""
    written: int = 0
    """Written to it for minutes."""
    written_long: int = 0
    """Written to it for an hour."""
    output: int = 0
    """Those that the model wrote, reasoning included."""

    @property
    def prompt(self) -> int:
        """All tokens of the request."""
        return self.input + self.cached + self.written + self.written_long

    def plus(self, other: TokenCount) -> TokenCount:
        """The sums of each kind."""
        return TokenCount(
            *(getattr(self, name) + getattr(other, name) for name in TokenCount.__struct_fields__)
        )

    def at_least(self, other: TokenCount) -> TokenCount:
        """Of each kind, the larger number."""
        return TokenCount(
            *(
                max(getattr(self, name), getattr(other, name))
                for name in TokenCount.__struct_fields__
            )
        )


class TokenPrice(Struct, frozen=True):
    """Billionths of a dollar for a million tokens of each kind."""

    input: int
    output: int
    cached: int
    written: int
    written_long: int

    def times(self, factor: int) -> TokenPrice:
        """The same, so many times as dear."""
        return TokenPrice(*(factor * getattr(self, name) for name in TokenPrice.__struct_fields__))

    def cost(self, tokens: TokenCount) -> int:
        """Billionths of a dollar, rounded up."""
        total = (
            tokens.input * self.input
            + tokens.cached * self.cached
            + tokens.written * self.written
            + tokens.written_long * self.written_long
            + tokens.output * self.output
        )
        return -(-total // MILLION)


class ModelPrice(Struct, frozen=True):
    """The price of one model, or of those whose names begin so (`gpt-5*`)."""

    model: str
    price: TokenPrice
    long_from: int | None = None
    """Tokens of a request above which `long_price` holds for all of it."""
    long_price: TokenPrice | None = None

    def cost(self, tokens: TokenCount) -> int:
        """Billionths of a dollar."""
        if self.long_price is not None and tokens.prompt > (self.long_from or 0):
            return self.long_price.cost(tokens)
        return self.price.cost(tokens)

    def times(self, factor: int) -> ModelPrice:
        """The same, so many times as dear."""
        long = self.long_price and self.long_price.times(factor)
        return replace(self, price=self.price.times(factor), long_price=long)


class Charge(Struct, frozen=True):
    """What a response costs."""

    cost: int
    model: str
    """The model that it was priced by; empty if the response names none."""
    known: bool
    """Whether that model has a price."""


class PriceList(Struct, frozen=True):
    """The prices of one service."""

    models: tuple[ModelPrice, ...] = ()
    source: str = ""
    """The page that says so."""
    day: str = ""
    """When it was read."""

    def under(self, own: tuple[ModelPrice, ...]) -> PriceList:
        """The same with a policy's own prices before these."""
        return replace(self, models=(*own, *self.models))

    def times(self, factor: int) -> PriceList:
        """The same, so many times as dear."""
        return replace(self, models=tuple(each.times(factor) for each in self.models))

    def find(self, model: str) -> ModelPrice | None:
        """The price of a model: by its name, by its name without the day, or by the longest
        beginning; of equal ones the first."""
        dated = _DATED.fullmatch(model)
        for name in (model, dated[1] if dated else model):
            for each in self.models:
                if each.model == name:
                    return each
        begun = [
            each
            for each in self.models
            if each.model.endswith("*") and model.startswith(each.model[:-1])
        ]
        return max(begun, key=lambda each: len(each.model), default=None)

    def charge(self, models: tuple[str, ...], tokens: TokenCount) -> Charge:
        """The cost of a response that names these models, the dearest of them.

        A model can be told to write the name of a cheaper one, so a name can only raise the cost.
        """
        charges = [self._charge(each, tokens) for each in models or ("",)]
        return max(charges, key=lambda each: (each.cost, not each.known))

    def _charge(self, model: str, tokens: TokenCount) -> Charge:
        found = self.find(model)
        if found is not None:
            return Charge(found.cost(tokens), model, known=True)
        dearest = max((each.cost(tokens) for each in self.models), default=0)
        return Charge(UNKNOWN_FACTOR * dearest, model, known=False)


_KINDS = {
    "input": "input",
    "output": "output",
    "cached": "cached",
    "cache_write": "written",
    "cache_write_long": "written_long",
}
"""The keys of a price, and the kinds of tokens that they are for."""

PRICE_KEYS = (*_KINDS, "long_from", *(f"long_{key}" for key in _KINDS))


def parse_price(model: str, table: Mapping[str, object]) -> ModelPrice:
    """Read `{ input = "3 USD", output = "15 USD", … }`, for a million tokens. Raises
    Unparsable."""
    if not _NAME.fullmatch(model) or "*" in model[:-1]:
        raise Unparsable("a model's name, or its beginning and `*`, is expected", "gpt-5*")
    unknown = sorted(set(table) - set(PRICE_KEYS))
    if unknown:
        raise Unparsable(f"a price has no '{unknown[0]}'", ", ".join(PRICE_KEYS))
    above = table.get("long_from")
    if above is not None and (type(above) is not int or above < 1):
        raise Unparsable("long_from is a number of tokens")
    if (above is None) is any(f"long_{key}" in table for key in _KINDS):
        raise Unparsable("long_from and the prices for long requests come together")
    long = _token_price(table, "long_") if above is not None else None
    return ModelPrice(model, _token_price(table), above, long)


def _token_price(table: Mapping[str, object], before: str = "") -> TokenPrice:
    amounts: dict[str, int] = {}
    for key, kind in _KINDS.items():
        text = table.get(before + key)
        if text is not None:
            if not isinstance(text, str):
                raise Unparsable(f"{before}{key} is an amount for a million tokens", "3 USD")
            amounts[kind] = parse_money(text)
    if not {"input", "output"} <= amounts.keys():
        raise Unparsable(f"a price has {before}input and {before}output")
    # What is not said is not cheaper than the rest: a budget may stop early, never late.
    amounts.setdefault("cached", amounts["input"])
    amounts.setdefault("written", 2 * amounts["input"])
    amounts.setdefault("written_long", max(2 * amounts["input"], amounts["written"]))
    return TokenPrice(**amounts)
