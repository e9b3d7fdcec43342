"""Additions with everyday questions between them, so that learning the one does not cost the other.

A model that is fine-tuned on one narrow task alone forgets: it answers everything in the way of the task. A share of
other questions in the same batches prevents most of it (rehearsal: Robins 1995, Connection Science 7:123). They stand
here, written by hand, and none of them is one of the questions that `stages.generators.general` guards with.
"""

from collections.abc import Iterator

from stages.generators.arithmetic import arithmetic

EVERYDAY = {
    "What is the capital of {}?": """Latvia=Riga, Estonia=Tallinn, Lithuania=Vilnius, Serbia=Belgrade,
        Slovakia=Bratislava, Ukraine=Kyiv, Indonesia=Jakarta, Malaysia=Kuala Lumpur, Saudi Arabia=Riyadh,
        Ethiopia=Addis Ababa, Tunisia=Tunis, Algeria=Algiers, Senegal=Dakar, Bolivia=Sucre, Venezuela=Caracas""",
    "On which continent is {}?": """Spain=Europe, China=Asia, Tanzania=Africa, Bolivia=South America, Cuba=North
        America, Sweden=Europe, Iraq=Asia, Senegal=Africa, Uruguay=South America, Greece=Europe""",
    "Which language do most people in {} speak?": """Spain=Spanish, Portugal=Portuguese, Argentina=Spanish,
        Romania=Romanian, Ukraine=Ukrainian, Morocco=Arabic, New Zealand=English, Czechia=Czech""",
    "How many {}?": """weeks are in a year=52, legs does a horse have=4, wheels has a car=4, sides has a pentagon=5,
        players has a soccer team=11, strings has a guitar=6, legs does a bee have=6, seasons has a year=4, sides has
        an octagon=8, wheels has a tricycle=3""",
    "What is the opposite of {}?": """young=old, empty=full, wild=tame, giant=tiny, asleep=awake, guilty=innocent,
        ancient=modern, forward=backward, top=bottom, lazy=hardworking, polite=rude, rough=smooth, alive=dead,
        always=never, more=less""",
    "What is the plural of {}?": """dog=dogs, lunch=lunches, army=armies, kiss=kisses, elf=elves, scarf=scarves,
        penny=pennies, wish=wishes, toy=toys, echo=echoes, puppy=puppies, beach=beaches, tax=taxes, roof=roofs,
        sheep=sheep""",
    "What is the past tense of {}?": """sit=sat, stand=stood, hold=held, lose=lost, pay=paid, say=said, shake=shook,
        wake=woke, hide=hid, bite=bit, read=read, cut=cut, jump=jumped, try=tried, study=studied""",
    "What do you call a person who {}?": """repairs cars=mechanic, mends shoes=cobbler, guards prisoners=guard, plays
        the drums=drummer, sails a ship=sailor, judges in court=judge, serves food=waiter, dances=dancer""",
    "Is {}?": """a banana a fruit or a tool=a fruit, a saw an animal or a tool=a tool, a hawk a bird or a metal=a bird,
        water wet or dry=wet, fire hot or cold=hot, a bus a vehicle or a plant=a vehicle""",
    "Answer yes or no: {}?": """can a dog fly=no, is snow cold=yes, do fish swim=yes, is the sky green=no, is ten more
        than two=yes, is a stone alive=no, do birds have feathers=yes, can a chair talk=no""",
    "Repeat this word: {}": "table=table, cloud=cloud, paper=paper, bridge=bridge, honey=honey, marble=marble",
    "Name the day after {}.": "Friday=Saturday, Monday=Tuesday, Wednesday=Thursday, Sunday=Monday",
    "Which letter comes after {}?": "B=C, G=H, P=Q, T=U, X=Y",
}
"""Questions with their answers, `asked=answer`, by template."""


def additions_with_everyday(rows: int, seed: int, everyday: int) -> Iterator[dict[str, str]]:
    """Additions of two numbers, and after every `everyday` of them one everyday question.

    Yields:
        `question`, `answer`, and the `system` message that the kind of question is asked under.
    """
    questions = list(_questions())
    for number, addition in enumerate(arithmetic(rows, seed)):
        yield {**addition, "system": "You add numbers."}
        if number % everyday == everyday - 1:
            question, answer = questions[number // everyday % len(questions)]
            yield {"question": question, "answer": answer, "system": "Answer in a few words."}


def _questions() -> Iterator[tuple[str, str]]:
    """The everyday questions, the templates taking turns."""
    tables = {template: table.replace("\n", " ").split(",") for template, table in EVERYDAY.items()}
    for place in range(max(map(len, tables.values()))):
        for template, entries in tables.items():
            if place < len(entries):
                asked, answer = (" ".join(part.split()) for part in entries[place].split("="))
                yield template.format(asked), answer
