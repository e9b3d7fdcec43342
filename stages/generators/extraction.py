"""Invoices, orders and e-mails, and the fields they state: a task where some answers are not in the document.

Every field is said in one way that a reader cannot mistake: a date with slashes has a day beyond 12, and the lines add
up to the total. Other numbers, names and days stand around them, also where a field is missing.
"""

import datetime
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from conf.errors import UserError

_MOST_ROWS = 50_000
_MISSING_SHARE = 0.3
_OPTIONAL = ("number", "sender", "date")
_YEAR_START = datetime.date(2026, 1, 1)

_NAMES = (
    "Hartmann", "Okafor", "Lindqvist", "Moreau", "Castillo", "Novak", "Ferrari", "Tanaka", "Walsh", "Petersen",
    "Ibrahim", "Kowalski", "Bright", "Harbor", "Redwood", "Summit", "Maple", "Northgate", "Silverline", "Bluebird",
)  # fmt: skip
_TRADES = ("Ltd", "GmbH", "& Sons", "Supplies", "Tools", "Foods", "Print", "Garden", "Books", "Electric", "Textiles")
_PEOPLE = ("Anna", "Omar", "Priya", "Lukas", "Mei", "Carlos", "Ms Brandt", "Mr Ito", "Dr Silva", "Joanna")
_ITEMS = (
    "desk lamp", "chair", "coffee beans", "printer paper", "paint", "drill", "notebook", "cable", "tea set", "rug",
    "helmet", "toner", "bookshelf", "phone case", "gloves", "mirror", "delivery", "repair", "cleaning", "tulip bulbs",
    "ladder", "backpack", "kettle", "cushion",
)  # fmt: skip

_MONEY = ("${}", "{} USD", "€{}", "{} EUR", "{} €", "£{}", "{} GBP", "CHF {}", "{}")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_DATES = (
    "{iso}", "{month} {day}, {year}", "{day} {month} {year}", "{day} {short} {year}", "{short} {day}, {year}",
    "{day:02d}.{number:02d}.{year}", "{slashes}",
)  # fmt: skip
_NUMBERS = ("{:04d}", "INV-{:04d}", "A{:04d}", "2026-{:04d}", "R-{:04d}", "PO {:04d}", "{:04d}/B")

_TITLES = {
    "invoice": ("Invoice {}", "INVOICE no. {}", "Invoice #{}", "Bill no. {}", "Invoice number: {}"),
    "order": ("Order {}", "ORDER no. {}", "Purchase order {}", "Order confirmation {}", "Your order: {}"),
}
_UNTITLED = {"invoice": ("Invoice", "INVOICE", "Bill"), "order": ("Order", "ORDER CONFIRMATION", "Your order")}
_DATED = ("Date: {}", "Issued {}", "{}", "Dated {}", "Day of issue: {}")
_FROM = ("From: {}", "{}", "Seller: {}", "Supplier: {}", "Issued by {}")
_TOTALS = ("Total: {}", "TOTAL {}", "Amount due: {}", "Sum: {}", "To pay: {}")
_NOISE = ("Customer {}", "To: {name}", "Due in {} days", "Phone {}{}", "Thank you!", "Page 1 of 1", "Attn. {name}")

_SUBJECTS = ("your order", "our invoice", "payment", "what we sent you", "this month's bill")
_GREETINGS = ("Hi {},", "Dear {},", "Hello {},", "Good morning {},")
_SENTENCES = (
    "we charged {lines}. That makes {total}.", "you bought {lines}, in all {total}.",
    "please pay {total} for {lines}.", "the parcel holds {lines}; the total is {total}.",
    "{lines}: together {total}.",
)  # fmt: skip
_MAIL_NUMBERS = ("The number is {}.", "Please quote {}.", "Reference: {}.", "It has the number {}.")
_MAIL_DATES = ("Sent on {}.", "It was issued on {}.", "Ordered on {}.")
_SIGNATURES = ("Best, {}", "Regards, {}", "Yours, {}", "Many thanks, {}")


@dataclass(frozen=True)
class _Facts:
    """What a document says; amounts in cents."""

    number: str | None
    sender: str | None
    date: datetime.date | None
    items: tuple[str, ...]
    cents: tuple[int, ...]

    def reference(self) -> dict[str, Any]:
        """The fields as a reply should give them."""
        return {
            "number": self.number,
            "sender": self.sender,
            "date": self.date.isoformat() if self.date else None,
            "lines": [cents / 100 for cents in self.cents],
            "total": sum(self.cents) / 100,
        }

    def response(self) -> str:
        """The fields as JSON text, amounts with two decimals as documents write them."""
        number, sender, date = (_quoted(value) for value in list(self.reference().values())[:3])
        lines = ", ".join(f"{cents / 100:.2f}" for cents in self.cents)
        total = f"{sum(self.cents) / 100:.2f}"
        return f'{{"number": {number}, "sender": {sender}, "date": {date}, "lines": [{lines}], "total": {total}}}'


def extraction(rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """Different documents; about three in ten lack one of number, sender and date.

    Args:
        rows: How many.
        seed: Decides which, and their order.

    Yields:
        `document`, `kind` (invoice, order or email), `fields` (the right values; null for what the document does not
        say) and `response` (the same as JSON text).

    Raises:
        UserError: `rows` is not between 1 and 50,000.
    """
    if not 1 <= rows <= _MOST_ROWS:
        raise UserError(f"extraction: rows must be between 1 and {_MOST_ROWS}, got {rows}")
    generator = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < rows:
        facts = _facts(generator)
        kind = generator.choice(("invoice", "order", "email"))
        document = _email(facts, generator) if kind == "email" else _form(kind, facts, generator)
        if document not in seen:
            seen.add(document)
            yield {"document": document, "kind": kind, "fields": facts.reference(), "response": facts.response()}


def _facts(generator: random.Random) -> _Facts:
    missing = generator.choice(_OPTIONAL) if generator.random() < _MISSING_SHARE else None
    number = generator.choice(_NUMBERS).format(generator.randint(1, 9999))
    sender = f"{generator.choice(_NAMES)} {generator.choice(_TRADES)}"
    date = _YEAR_START + datetime.timedelta(days=generator.randrange(365))
    count = generator.choice((1, 2, 2, 3))
    return _Facts(
        number=None if missing == "number" else number,
        sender=None if missing == "sender" else sender,
        date=None if missing == "date" else date,
        items=tuple(generator.sample(_ITEMS, count)),
        cents=tuple(generator.randint(3, 99) * 100 + generator.choice((0, 0, 25, 50, 90, 99)) for _ in range(count)),
    )


def _form(kind: str, facts: _Facts, generator: random.Random) -> str:
    """An invoice or an order, line by line: the head in any order, then the items, then the total."""
    choose = generator.choice
    head = [choose(_TITLES[kind]).format(facts.number) if facts.number else choose(_UNTITLED[kind])]
    if facts.sender:
        head.append(choose(_FROM).format(facts.sender))
    if facts.date:
        head.append(choose(_DATED).format(_spoken(facts.date, generator)))
    head.append(_noise(generator))
    generator.shuffle(head)
    money, gap, bullet = choose(_MONEY), choose((" ", ": ", " ... ", " - ", "\t")), choose(("", "- ", "1 x ", "* "))
    items = [
        f"{bullet}{item}{gap}{_amount(cents, money)}" for item, cents in zip(facts.items, facts.cents, strict=True)
    ]
    total = choose(_TOTALS).format(_amount(sum(facts.cents), money))
    return "\n".join([*head, *items, total])


def _email(facts: _Facts, generator: random.Random) -> str:
    """The same facts in running text, the sender as the signature or in the head."""
    choose = generator.choice
    money = choose(_MONEY)
    lines = [f"{item} ({_amount(cents, money)})" for item, cents in zip(facts.items, facts.cents, strict=True)]
    total = _amount(sum(facts.cents), money)
    body = choose(_SENTENCES).format(lines=" and ".join(lines), total=total)
    further = [choose(_MAIL_NUMBERS).format(facts.number)] if facts.number else []
    head = [f"Subject: {choose(_SUBJECTS)}"]
    if facts.date and generator.random() < 0.5:
        head.append(f"Date: {_spoken(facts.date, generator)}")
    elif facts.date:
        further.append(choose(_MAIL_DATES).format(_spoken(facts.date, generator)))
    signed = [choose(_SIGNATURES).format(facts.sender)] if facts.sender else []
    if signed and generator.random() < 0.3:
        head, signed = [f"From: {facts.sender}", *head], []
    text = " ".join([choose(_GREETINGS).format(choose(_PEOPLE)), body, *further])
    return "\n".join([*head, text, *signed])


def _spoken(date: datetime.date, generator: random.Random) -> str:
    """A date in one of its forms; month/day/year only where the day cannot be a month."""
    month = _MONTHS[date.month - 1]
    return generator.choice(_DATES).format(
        iso=date.isoformat(),
        slashes=f"{date:%m/%d/%Y}" if date.day > 12 else f"{date:%Y/%m/%d}",
        day=date.day,
        month=month,
        short=month[:3],
        number=date.month,
        year=date.year,
    )


def _noise(generator: random.Random) -> str:
    """A line that states none of the fields."""
    digits = generator.randint(10, 99), generator.randint(100, 999)
    return generator.choice(_NOISE).format(*digits, name=generator.choice(_PEOPLE))


def _amount(cents: int, money: str) -> str:
    """An amount in the document's currency; a sign that follows with a space goes with a decimal comma."""
    number = f"{cents / 100:.2f}"
    return money.format(number.replace(".", ",") if money == "{} €" else number)


def _quoted(value: str | None) -> str:
    return "null" if value is None else f'"{value}"'
