"""A response costs what its provider says, and never less for what the client can write."""

from __future__ import annotations

import pytest

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.inject.prices import (
    UNKNOWN_FACTOR,
    Charge,
    PriceList,
    TokenCount,
    TokenPrice,
    parse_price,
)
from keyhole.model.errors import Unparsable
from keyhole.model.money import NANO

CHEAP = parse_price("cheap", {"input": "1 USD", "output": "2 USD", "cached": "0.1 USD"})
DEAR = parse_price("dear", {"input": "10 USD", "output": "50 USD"})
LIST = PriceList((CHEAP, DEAR))


def test_each_kind_of_token_has_its_price() -> None:
    table: dict[str, object] = {
        "input": "3 USD",
        "output": "15 USD",
        "cached": "0.30 USD",
        "cache_write": "3.75 USD",
        "cache_write_long": "6 USD",
    }
    price = parse_price("m", table)
    million = 1_000_000
    assert price.cost(TokenCount(million, 0, 0, 0, 0)) == 3 * NANO
    assert price.cost(TokenCount(0, million, 0, 0, 0)) == 300_000_000
    assert price.cost(TokenCount(0, 0, million, million, 0)) == 9_750_000_000
    assert price.cost(TokenCount(output=million)) == 15 * NANO
    # A tenth of a billionth is rounded up: a million small requests are not free.
    assert parse_price("m", {"input": "0.0001 USD", "output": "1 USD"}).cost(TokenCount(1)) == 1


def test_what_a_price_does_not_say_is_not_cheaper() -> None:
    assert DEAR.price == TokenPrice(10 * NANO, 50 * NANO, 10 * NANO, 20 * NANO, 20 * NANO)
    dear = parse_price("m", {"input": "1 USD", "output": "1 USD", "cache_write": "9 USD"})
    assert dear.price.written_long == 9 * NANO


def test_a_long_request_has_another_price_as_a_whole() -> None:
    table: dict[str, object] = {"input": "1 USD", "output": "2 USD"}
    long = {"long_from": 100, "long_input": "2 USD", "long_output": "4 USD", "long_cached": "1 USD"}
    price = parse_price("m", table | long)
    assert price.cost(TokenCount(input=100, output=10)) == 120_000
    assert price.cost(TokenCount(input=61, cached=40, output=10)) == 61 * 2000 + 40 * 1000 + 40_000


def test_a_model_is_found_by_its_name_its_day_or_its_beginning() -> None:
    rows = [{"input": f"{n} USD", "output": "1 USD"} for n in range(4)]
    names = ("claude-opus-4", "claude-opus-4-5", "gpt-5*", "gpt-5.5*")
    prices = PriceList(tuple(parse_price(n, r) for n, r in zip(names, rows, strict=True)))

    def found(model: str) -> str | None:
        price = prices.find(model)
        return price.model if price else None

    assert found("claude-opus-4-5-20251101") == "claude-opus-4-5"
    assert found("claude-opus-4-20250514") == "claude-opus-4"
    assert found("claude-opus-4-5-latest") == "claude-opus-4-5"
    assert found("claude-opus-4-9") is None
    assert found("gpt-5.5-2026-04-01") == "gpt-5.5*"
    assert found("gpt-5-nano") == "gpt-5*"
    assert found("") is None
    assert PriceList((parse_price("*", rows[1]),)).find("") is not None
    own = parse_price("gpt-5.5", rows[3])
    assert prices.under((own,)).find("gpt-5.5") is own


def test_of_several_named_models_the_dearest_counts() -> None:
    """Attack: have the model write the name of a cheaper one."""
    tokens = TokenCount(input=1_000_000)
    assert LIST.charge(("cheap",), tokens) == Charge(NANO, "cheap", known=True)
    assert LIST.charge(("cheap", "dear"), tokens) == Charge(10 * NANO, "dear", known=True)


def test_a_model_without_a_price_costs_more_than_any_that_has_one_and_says_so() -> None:
    tokens = TokenCount(input=1_000_000)
    unknown = Charge(UNKNOWN_FACTOR * 10 * NANO, "new", known=False)
    assert LIST.charge(("cheap", "new"), tokens) == unknown
    assert LIST.charge((), tokens) == Charge(UNKNOWN_FACTOR * 10 * NANO, "", known=False)
    assert PriceList().charge(("new",), tokens) == Charge(0, "new", known=False)


@pytest.mark.parametrize(
    ("model", "table"),
    [
        ("", {"input": "1 USD", "output": "1 USD"}),
        ("a*b", {"input": "1 USD", "output": "1 USD"}),
        ("a b", {"input": "1 USD", "output": "1 USD"}),
        ("a", {"input": "1 USD"}),
        ("a", {"input": 1, "output": "1 USD"}),
        ("a", {"input": "1 EUR", "output": "1 USD"}),
        ("a", {"input": "1 USD", "output": "1 USD", "reasoning": "1 USD"}),
        ("a", {"input": "1 USD", "output": "1 USD", "long_from": "many"}),
        ("a", {"input": "1 USD", "output": "1 USD", "long_from": 0}),
        ("a", {"input": "1 USD", "output": "1 USD", "long_from": 5}),
        ("a", {"input": "1 USD", "output": "1 USD", "long_input": "1 USD"}),
    ],
)
def test_a_price_that_cannot_be_meant_is_refused(model: str, table: dict[str, object]) -> None:
    with pytest.raises(Unparsable):
        parse_price(model, table)


def test_tokens_are_added_and_compared_by_kind() -> None:
    one, other = TokenCount(1, 20, 3), TokenCount(10, 2, 0, 4, 5)
    assert one.at_least(other) == TokenCount(10, 20, 3, 4, 5)
    assert one.plus(other) == TokenCount(11, 22, 3, 4, 5)


def test_every_price_of_the_catalogue_has_a_source_and_a_day() -> None:
    priced = [each for each in FileCatalogue().values() if each.prices.models]
    assert {each.name for each in priced} >= {"anthropic", "openai", "gemini", "xai"}
    for each in priced:
        assert each.prices.source.startswith("https://")
        assert each.prices.day
        assert any(host.usage for host in each.hosts), "a price without tokens is never used"


def test_prices_of_the_catalogue_are_plausible() -> None:
    """No provider has sold answers cheaper than questions, a cache dearer than both, or a long
    request cheaper than a short one: a digit that slipped shows here."""
    models = [each for entry in FileCatalogue().values() for each in entry.prices.models]
    assert len(models) > 30
    for each in models:
        short, long = each.price, each.long_price or each.price
        for price in (short, long):
            assert price.cached <= price.input <= price.output, each.model
            assert price.input <= price.written <= price.written_long, each.model
        assert all(getattr(short, k) <= getattr(long, k) for k in short.__struct_fields__)
