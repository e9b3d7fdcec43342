"""Callers' sentences and the tool call that serves each: a task with a form to keep and a decision to take.

A quarter are hand-offs. Many of them name an order too, so that a number in the sentence gives nothing away: what the
caller wants decides.
"""

import datetime
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from conf.errors import UserError

SCHEMA = {"type": "object", "required": ["tool", "args"]}
_KINDS = ("lookup_order",) * 3 + ("reschedule",) * 3 + ("handoff",) * 2
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_YEAR_START = datetime.date(2026, 1, 1)
_MOST_ROWS = 50_000

_OPENINGS = (
    "", "", "", "Hi, ", "Hello, ", "Good morning, ", "Hey there, ", "Excuse me, ", "Hi, quick question: ",
    "Good afternoon, ", "Sorry to bother you, ", "Hello, me again, ",
)  # fmt: skip
_CLOSINGS = ("", "", "", " Thanks!", " Thank you.", " Please.", " I'm in a hurry.", " Much appreciated.", " Cheers.")

_ORDERS = (
    "order {id}", "my order {id}", "order number {id}", "order no. {id}", "order #{id}", "parcel {id}",
    "my package no. {id}", "shipment {id}", "purchase {id}",
)  # fmt: skip

_LOOKUPS = (
    "where is {order}?", "can you tell me where {order} is right now?", "has {order} shipped yet?",
    "what is the status of {order}?", "I'm still waiting for {order}, where is it?", "could you track {order} for me?",
    "when will {order} arrive?", "any news about {order}?", "I'd like to know how far {order} has got.",
    "please check {order}, it should have been here by now.", "is {order} out for delivery today?",
    "did {order} already leave your warehouse?",
)  # fmt: skip

_RESCHEDULES = (
    "can you move {order} to {date}?", "please deliver {order} on {date} instead.",
    "I won't be home, could {order} come on {date}?", "I need {order} on {date}, not earlier.",
    "we are away this week, bring {order} on {date}.", "is it possible to get {order} on {date} instead?",
    "change the delivery of {order} to {date}.", "{date} would suit me better for {order}.",
    "could you push {order} back to {date}?", "let's say {date} for {order}, that works for me.",
)  # fmt: skip

_DATES = (
    "{iso}",
    "{month} {day}",
    "{day} {month}",
    "{weekday}, {month} {day}",
    "{month} {day}, 2026",
    "{weekday}, {day} {month}",
)

_HANDOFFS_WITH_ORDER = (
    "{order} arrived broken and I want my money back.", "I'd like a refund for {order}.",
    "you charged me twice for {order}.", "{order} was not what I bought, I want to complain.",
    "the driver who brought {order} was rude to my mother.", "I want to speak to a manager about {order}.",
    "please cancel {order}.", "half of the things in {order} are missing.",
    "can I still add a gift note to {order}?", "I need an invoice with our tax number for {order}.",
    "{order} leaked all over my carpet, who pays for that?", "how do I send {order} back?",
)  # fmt: skip

_HANDOFFS_WITHOUT = (
    "I want to talk to a {person}.", "put me through to a {person}.", "could a {person} call me back {when}?",
    "I can't find my order number, my {item} was due {before}.", "where is my {item}? I don't have the number here.",
    "please deliver my {item} {when}, I have lost the number.", "my {item} came damaged, what now?",
    "do you sell a {item} in another colour?", "what does it cost to ship a {item} abroad?",
    "I forgot my password and need a {person} {when}.", "can I pick up my {item} at the shop {when}?",
    "my neighbour got a {item} that is mine, I need a {person}.", 
    "a {person} promised to ring me {before} and never did.",
    "is the {item} covered by your warranty?",
)  # fmt: skip
_PEOPLE = ("person", "human", "manager", "supervisor", "real person", "member of staff", "colleague of yours")
_ITEMS = (
    "lamp", "coffee machine", "bookshelf", "winter coat", "keyboard", "bicycle helmet", "rice cooker", "garden chair",
    "toy train", "mirror", "pair of boots", "backpack", "desk", "phone case", "tea set", "printer",
)  # fmt: skip
_TIMES = ("today", "tomorrow", "this afternoon", "on Monday", "this week", "before noon", "tonight", "next week")
_PAST = ("yesterday", "on Monday", "last week", "last night", "this morning", "two days ago", "in March")


def tool_calls(rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """Different sentences: about three in eight for `lookup_order` and for `reschedule` each, a quarter for `handoff`.

    Args:
        rows: How many.
        seed: Decides which, and their order.

    Yields:
        `caller` (the sentence), `schema` (JSON Schema of a call), `expected` (the tool, and its arguments beside it)
        and `response` (the right call as JSON text).

    Raises:
        UserError: `rows` is not between 1 and 50,000.
    """
    if not 1 <= rows <= _MOST_ROWS:
        raise UserError(f"tool_calls: rows must be between 1 and {_MOST_ROWS}, got {rows}")
    generator = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < rows:
        tool = generator.choice(_KINDS)
        sentence, arguments = _SENTENCES[tool](generator)
        caller = _dressed(sentence, generator)
        if caller not in seen:
            seen.add(caller)
            response = json.dumps({"tool": tool, "args": arguments})
            yield {"caller": caller, "schema": SCHEMA, "expected": {"tool": tool, **arguments}, "response": response}


def _lookup(generator: random.Random) -> tuple[str, dict[str, str]]:
    order, number = _order(generator)
    return generator.choice(_LOOKUPS).format(order=order), {"order_id": number}


def _reschedule(generator: random.Random) -> tuple[str, dict[str, str]]:
    order, number = _order(generator)
    day = _YEAR_START + datetime.timedelta(days=generator.randrange(365))
    spoken = generator.choice(_DATES).format(
        iso=day.isoformat(), day=day.day, month=_MONTHS[day.month - 1], weekday=_WEEKDAYS[day.weekday()]
    )
    sentence = generator.choice(_RESCHEDULES).format(order=order, date=spoken)
    return sentence, {"order_id": number, "date": day.isoformat()}


def _handoff(generator: random.Random) -> tuple[str, dict[str, str]]:
    if generator.random() < 0.5:
        return generator.choice(_HANDOFFS_WITH_ORDER).format(order=_order(generator)[0]), {}
    words = {"person": _PEOPLE, "item": _ITEMS, "when": _TIMES, "before": _PAST}
    chosen = {name: generator.choice(choices) for name, choices in words.items()}
    return generator.choice(_HANDOFFS_WITHOUT).format(**chosen), {}


_SENTENCES: dict[str, Callable[[random.Random], tuple[str, dict[str, str]]]] = {
    "lookup_order": _lookup,
    "reschedule": _reschedule,
    "handoff": _handoff,
}


def _order(generator: random.Random) -> tuple[str, str]:
    number = str(generator.randint(10_000, 99_999))
    return generator.choice(_ORDERS).format(id=number), number


def _dressed(sentence: str, generator: random.Random) -> str:
    """The sentence with an opening and a closing, starting with a capital."""
    text = generator.choice(_OPENINGS) + sentence + generator.choice(_CLOSINGS)
    return text[0].upper() + text[1:]
