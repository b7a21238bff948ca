"""How the assistant answers: one reply per intent and style, and one per fact.

Questions are in `phrases`. `{name}` takes the persona's name. The one rule: a reply is complete in itself and is decided by intent, slot
and persona alone, so that a heard reply can be judged. Wordings are such that a recogniser reads them from clean speech: no "I am" at the
beginning, few sentences of one word. Pure. Thread: any.
"""

from __future__ import annotations

from gateway.training import lexicon

STYLES = ("cheerful", "formal", "brief")

NO_SHOP = "Sorry, there is no shop here."

# Intent -> wording by style, in the order of STYLES.
STYLED: dict[str, tuple[str, str, str]] = {
    "hello": ("Hello! How can I help you?", "Good day. How may I assist you?", "Hello, please go ahead."),
    "good_morning": ("Good morning! What a lovely day.", "Good morning to you.", "Good morning."),
    "good_evening": ("Good evening! I hope you had a nice day.", "Good evening to you.", "Good evening."),
    "how_are_you": ("Very well, and thanks for asking!", "All is well here, thank you.", "Fine, thanks."),
    "your_name": ("My name is {name}, nice to meet you!", "My name is {name}, at your service.", "You can call me {name}."),
    "who_are_you": ("Just a friendly voice assistant!", "This is an automated voice assistant.", "A voice assistant."),
    "are_you_human": ("No, just a happy little computer!", "No, this is a computer program.", "No, a computer."),
    "who_made_you": ("A few clever people built me!", "A team of engineers made me.", "Some engineers made me."),
    "thank_you": ("Any time, I was happy to help!", "It was my pleasure.", "No problem."),
    "goodbye": ("Goodbye! Have a wonderful day!", "Goodbye, and thank you for calling.", "Goodbye."),
    "sorry": ("Oh, do not worry about it!", "There is no need to apologize.", "That is fine."),
    "compliment": ("Oh, that makes me so happy!", "That is very kind of you.", "Thanks a lot."),
    "can_you_hear_me": ("Yes, your voice is loud and clear!", "Yes, the connection is very good.", "Yes, go on."),
    "what_can_you_do": ("Just ask me a simple question!", "You may ask me some simple questions.", "Ask something simple."),
    "favourite_colour": ("My favourite is yellow, like the morning sun!", "My preferred colour is dark blue.", "Green, like the grass."),
    "favourite_food": ("My favourite is chocolate ice cream!", "A computer never eats anything.", "Only electricity."),
    "favourite_animal": ("My favourite animal is the elephant!", "My preferred animal is the horse.", "Cats are my favourite."),
    "weather": ("Nobody told me, but let us hope for sunshine!", "There is no weather report here.", "No weather report today."),
    "time": ("Sorry, there is no clock in here!", "Unfortunately there is no clock here.", "Sorry, no clock."),
    "date": ("Sorry, there is no calendar in here!", "Unfortunately there is no calendar here.", "Sorry, no calendar."),
    "joke": (
        "Why did the chicken cross the road? To get to the other side!", "A man walks into a bar, and says ouch.",
        "My jokes are too short.",
    ),
    "fact": ("Did you know that honey never gets old?", "Light travels faster than sound.", "Water boils at one hundred degrees."),
    "story": (
        "Once upon a time, a little fox found a golden key in the snow. She looked for a door all winter long. "
        "In spring the snow was gone, and there it was, a tiny garden gate.",
        "Long ago, an old king had three sons and only one horse. He gave it to the son who could sit still the longest. "
        "The youngest fell asleep in the grass, and so he won.",
        "A boy planted a stone and watered it every day. His friends laughed at him for a whole year. "
        "Then a bird came to rest on the stone, and sang for him.",
    ),
    "order": ("Sure, what would you like?", "Certainly. What would you like to order?", "What do you want?"),
    "transfer": ("Sure, let me get somebody for you!", "One moment, let me transfer your call.", "Please hold the line."),
    "stop": ("Okay, no more talking from me!", "Very well, no more of that.", "Okay, no more."),
    "wait": ("Take all the time you need!", "Please take your time.", "There is no hurry."),
    "nonsense": ("Sorry, I did not catch that!", "Unfortunately I did not understand you.", "What was that?"),
}  # fmt: skip

GREETING = ("Hi there, what can I do for you?", "Good day, what may I do for you?", "Hello, who is calling?")

# Intent -> slot -> reply; the same in every style.
_PLUS = {f"{a}+{b}": f"{lexicon.NUMBERS[a].capitalize()} plus {lexicon.NUMBERS[b]} is {lexicon.NUMBERS[a + b]}." for a, b in lexicon.SUMS}
FACTS: dict[str, dict[str, str]] = {
    "alphabet": {"": ", ".join(lexicon.LETTERS) + "."},
    "days_of_week": {"": ", ".join(lexicon.WEEKDAYS) + "."},
    "count": {str(n): ", ".join(lexicon.NUMBERS[1 : n + 1]).capitalize() + "." for n in lexicon.COUNTS},
    "count_down": {"": "Five, four, three, two, one, zero."},
    "capital": {country: f"The capital of {country} is {city}." for country, city in lexicon.CAPITALS.items()},
    "colour_of": {thing: f"The colour of {thing} is {colour}." for thing, colour in lexicon.COLOURS.items()},
    "animal_sound": {animal: f"The sound of {animal} is {sound}." for animal, sound in lexicon.ANIMAL_SOUNDS.items()},
    "opposite": {word: f"The opposite of {word} is {other}." for word, other in lexicon.OPPOSITES.items()},
    "add": _PLUS,
    "day_after": {
        day: f"The day after {day} is {lexicon.WEEKDAYS[(index + 1) % 7]}." for index, day in enumerate(lexicon.WEEKDAYS)
    },
}  # fmt: skip

# Asked of a persona with a shop, these have one wording per shop; without a shop the answer is NO_SHOP.
SHOP_FACTS = ("menu", "price", "hours", "address")
SHOP_INTENTS = (*SHOP_FACTS, "order", "transfer")


def shop_who(shop: str) -> str:
    """Introduction of an assistant that has a workplace."""
    return f"This is the assistant of {shop}."


def shop_greeting(shop: str) -> str:
    """First words of an assistant that has a workplace."""
    return f"Welcome to {shop}, how can I help?"
