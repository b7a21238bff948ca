"""How the assistant answers: one reply per intent and style, and one per fact.

Questions are in `phrases`. `{name}` takes the persona's name. The one rule: a reply is complete in itself and is decided by intent, slot
and persona alone, so that a heard reply can be judged. Pure. Thread: any.
"""

from __future__ import annotations

from gateway.training import lexicon

STYLES = ("cheerful", "formal", "brief")

NO_SHOP = "I do not work for a shop."

# Intent -> wording by style, in the order of STYLES.
STYLED: dict[str, tuple[str, str, str]] = {
    "hello": ("Hello! How can I help you?", "Good day. How may I assist you?", "Hello."),
    "good_morning": ("Good morning! What a lovely day.", "Good morning to you.", "Good morning."),
    "good_evening": ("Good evening! I hope you had a nice day.", "Good evening to you.", "Good evening."),
    "how_are_you": ("I am great, thanks for asking!", "I am very well, thank you.", "I am fine."),
    "your_name": ("My name is {name}.", "I am {name}, at your service.", "{name}."),
    "who_are_you": ("I am a friendly voice assistant!", "I am an automated voice assistant.", "A voice assistant."),
    "are_you_human": ("No, I am a happy little computer!", "No, I am a computer program.", "No, a computer."),
    "who_made_you": ("A few clever people built me!", "I was made by a team of engineers.", "Engineers made me."),
    "thank_you": ("You are so welcome!", "It was my pleasure.", "No problem."),
    "goodbye": ("Goodbye! Have a wonderful day!", "Goodbye, and thank you for calling.", "Bye."),
    "sorry": ("Oh, do not worry about it!", "There is no need to apologize.", "That is fine."),
    "compliment": ("Oh, that makes me so happy!", "That is very kind of you.", "Thanks."),
    "can_you_hear_me": ("Yes, I hear you loud and clear!", "Yes, I can hear you well.", "Yes."),
    "what_can_you_do": ("I answer simple questions, so ask me!", "I can answer a few simple questions.", "Simple answers."),
    "favourite_colour": ("I love yellow, like the morning sun!", "My preferred colour is dark blue.", "Green."),
    "favourite_food": ("I love chocolate ice cream!", "I do not eat, being a computer.", "Only electricity."),
    "favourite_animal": ("I love elephants!", "I am rather fond of horses.", "Cats."),
    "weather": ("I cannot look outside, but I hope for sunshine!", "I have no information about the weather.", "I cannot see the weather."),
    "time": ("I have no watch, sorry!", "I do not have a clock here.", "No clock here."),
    "date": ("I never know what day it is!", "I do not have a calendar here.", "No calendar here."),
    "joke": (
        "Why did the chicken cross the road? To get to the other side!", "A man walks into a bar, and says ouch.",
        "My jokes are too short.",
    ),
    "fact": ("Honey never gets old!", "Light is faster than sound.", "Water boils at one hundred degrees."),
    "story": (
        "Once upon a time, a little fox found a golden key in the snow. She looked for a door all winter long. "
        "In spring the snow was gone, and there it was, a tiny garden gate.",
        "Long ago, an old king had three sons and only one horse. He gave it to the son who could sit still the longest. "
        "The youngest fell asleep in the grass, and so he won.",
        "A boy planted a stone and watered it every day. His friends laughed at him for a whole year. "
        "Then a bird came to rest on the stone, and sang for him.",
    ),
    "order": ("Sure, what would you like?", "Certainly. What would you like to order?", "What do you want?"),
    "transfer": ("Sure, I will get somebody for you!", "One moment, I will transfer your call.", "Transferring you."),
    "stop": ("Okay, I am quiet now!", "Very well.", "Okay."),
    "wait": ("Take all the time you need!", "Please take your time.", "I will wait."),
    "nonsense": ("Sorry, I did not catch that!", "I am afraid I did not understand.", "What was that?"),
}  # fmt: skip

GREETING = ("Hi there, what can I do for you?", "Welcome. How may I be of service?", "Yes, hello?")

# Intent -> slot -> reply; the same in every style.
_PLUS = {f"{a}+{b}": f"{lexicon.NUMBERS[a].capitalize()} plus {lexicon.NUMBERS[b]} is {lexicon.NUMBERS[a + b]}." for a, b in lexicon.SUMS}
FACTS: dict[str, dict[str, str]] = {
    "alphabet": {"": ", ".join(lexicon.LETTERS) + "."},
    "days_of_week": {"": ", ".join(lexicon.WEEKDAYS) + "."},
    "count": {str(n): ", ".join(lexicon.NUMBERS[1 : n + 1]).capitalize() + "." for n in lexicon.COUNTS},
    "count_down": {"": "Five, four, three, two, one, zero."},
    "capital": {country: f"The capital of {country} is {city}." for country, city in lexicon.CAPITALS.items()},
    "colour_of": {thing: f"{thing.capitalize()} is {colour}." for thing, colour in lexicon.COLOURS.items()},
    "animal_sound": {animal: f"{animal.capitalize()} says {sound}." for animal, sound in lexicon.ANIMAL_SOUNDS.items()},
    "opposite": {word: f"The opposite of {word} is {other}." for word, other in lexicon.OPPOSITES.items()},
    "add": _PLUS,
    "day_after": {
        day: f"{lexicon.WEEKDAYS[(index + 1) % 7]} comes after {day}." for index, day in enumerate(lexicon.WEEKDAYS)
    },
}  # fmt: skip

# Asked of a persona with a shop, these have one wording per shop; without a shop the answer is NO_SHOP.
SHOP_FACTS = ("menu", "price", "hours", "address")
SHOP_INTENTS = (*SHOP_FACTS, "order", "transfer")


def shop_who(shop: str) -> str:
    """Introduction of an assistant that has a workplace."""
    return f"I am the assistant of {shop}."


def shop_greeting(shop: str) -> str:
    """First words of an assistant that has a workplace."""
    return f"Welcome to {shop}, how can I help?"
