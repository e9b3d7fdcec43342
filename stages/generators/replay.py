"""A stand-in for production prompts with the replies that were accepted: a shop's desk answers from a note.

The situations below are templates written by hand, filled with values drawn from a fixed seed; the accepted reply says
what the note says. A team replays its own prompts by naming its own file in `data.replay.source`.
"""

import random
import re
from collections.abc import Iterator

_SEED = 7
_EACH = 24
"""Rows of each situation."""

_VALUES = {
    "item": ("lamp", "chair", "kettle", "jacket", "tent", "camera", "backpack", "mirror", "guitar", "heater", "rug"),
    "furniture": ("chair", "desk", "table", "shelf", "bench", "wardrobe", "stool", "bed frame"),
    "device": ("camera", "drill", "radio", "phone", "shaver", "tablet", "scooter", "speaker"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "morning": ("7:30", "8:00", "8:30", "9:00", "9:30", "10:00"),
    "evening": ("5:00", "5:30", "6:00", "6:30", "7:00"),
    "days": ("3", "5", "7", "10", "14", "21", "30", "60"),
    "price": ("4", "9", "12", "15", "19", "25", "39", "49", "80"),
    "percent": ("5", "10", "15", "20", "25", "30"),
    "size": ("30", "45", "60", "75", "90", "120"),
    "color": ("red", "blue", "green", "black", "white", "yellow", "brown", "gray"),
    "material": ("oak", "steel", "pine", "plastic", "walnut", "bamboo", "aluminum"),
    "country": ("Italy", "Japan", "Poland", "Spain", "Sweden", "Canada", "Turkey"),
    "language": ("English", "French", "German", "Spanish", "Dutch", "Greek"),
    "name": ("Anna", "Omar", "Priya", "Lukas", "Mei", "Carlos", "Joanna", "Peter"),
    "place": ("station", "library", "bakery", "town hall", "museum", "hotel", "pharmacy"),
    "way": ("card", "cash", "bank transfer", "voucher", "invoice"),
    "floor": ("first", "second", "third", "fourth", "fifth"),
    "group": ("students", "seniors", "families", "members", "teachers"),
}

_SITUATIONS = """
We open at {morning} and close at {evening}. | When do you close? | We close at *{evening}*.
Opening hours: {morning} to {evening}. | When do you open? | We open at *{morning}*.
We are closed on {day}. The {item} is back soon. | On which day are you closed? | We are closed on *{day}*.
The {item} can be returned within {days} days. | How long can I return it? | You can return it within *{days}* days.
Delivery of the {item} takes {days} days. | How long does delivery take? | Delivery takes *{days}* days.
Shipping costs {price} dollars. The {item} is in stock. | How much is shipping? | Shipping costs *{price}* dollars.
The {color} {item} costs {price} dollars. | How much is the {color} {item}? | It costs *{price}* dollars.
The {item} comes in {color}. Warranty: {days} months. | Which color does it have? | The {item} comes in *{color}*.
The {item} has a warranty of {days} months. | How long is the warranty? | The warranty is *{days}* months.
The {item} was shipped on {day} for {price} dollars. | When was my {item} shipped? | It was shipped on *{day}*.
We accept {way} only. The {item} is ready. | How can I pay for the {item}? | You can pay by *{way}*.
{name} repairs every {item}. | Who repairs my {item}? | *{name}* repairs your {item}.
The {item} is on the {floor} floor, beside the {color} door. | Where is the {item}? | It is on the *{floor}* floor.
The {furniture} is {size} cm wide and {price} cm thick. | How wide is the {furniture}? | It is *{size}* cm wide.
There is a discount of {percent} percent for {group}. | Who gets a discount? | We give a discount to *{group}*.
For {group} the {item} is {percent} percent off. | What is the discount? | You get *{percent}* percent off.
The battery of the {device} lasts {days} hours. | How long does the battery last? | It lasts *{days}* hours.
The {color} {furniture} is made of {material}. | What is the {furniture} made of? | It is made of *{material}*.
A new {item} will arrive on {day}. | When do you get the {item} again? | It will arrive on *{day}*.
The {item} comes from {country}. | Where does the {item} come from? | It comes from *{country}*.
The {furniture} weighs {price} kilos. | How heavy is the {furniture}? | It weighs *{price}* kilos.
The manual of the {device} is in {language}. | Which language is the manual in? | The manual is in *{language}*.
Parking is behind the {place}, for {price} dollars. | Where can I park? | You can park behind the *{place}*.
{name} has a meeting on {day} at {morning}. | It's {name}. When can I come? | Please come on *{day}* at *{morning}*.
You can pick up the {item} at the {place}. | Where can I pick up the {item}? | You can pick it up at the *{place}*.
The {item} is sold out. Ask for the {color} one. | Can I buy the {item}? | No, the {item} is *sold out*.
{name} is the manager. The {item} is new. | Who is the manager? | *{name}* is the manager.
""".strip().splitlines()
"""Note, what the customer asks, the accepted reply; between stars stands what no good reply lacks."""


def replay() -> Iterator[dict[str, str]]:
    """All rows, situations mixed, always in the same order.

    Yields:
        `request`, `reply` (the accepted one), `pattern` (what no good reply lacks, in any case) and `situation` (its
        number, from 1).
    """
    generator = random.Random(_SEED)
    rows: dict[str, dict[str, str]] = {}
    for number, situation in enumerate(_SITUATIONS, start=1):
        while len(rows) < _EACH * number:
            values = {name: generator.choice(choices) for name, choices in _VALUES.items()}
            note, question, reply = situation.format(**values).split(" | ")
            needed = [rf"(?=.*\b{re.escape(part)}(?!\d))" for part in reply.split("*")[1::2]]
            row = {"request": f"{note}\n{question}", "reply": reply.replace("*", ""), "pattern": "".join(needed)}
            rows[row["request"]] = {**row, "situation": str(number)}
    mixed = list(rows.values())
    generator.shuffle(mixed)
    yield from mixed
