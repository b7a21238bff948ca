"""The words of the bundled model's small world: names, shops and facts.

Here are nouns only; how they are asked for is in `phrases`, how they are answered in `wording`. The one rule: every word can be said by
all speech engines and is not mistaken for another word of its own table when it is heard badly. Pure. Thread: any.
"""

from __future__ import annotations

import dataclasses

NAMES = (
    "Nova", "Alex", "Maya", "Oliver", "Jane", "Peter", "Iris", "Sam", "Laura", "David", "Emma", "Tom", "Anna", "Ben", "Carla", "Daniel",
    "Ella", "Frank", "Grace", "Henry", "Ivy", "Jack", "Kate", "Leo", "Lucy", "Mark", "Martha", "Max", "Monica", "Nick", "Nina", "Olga",
    "Oscar", "Paul", "Rachel", "Robert", "Rosa", "Ruby", "Simon", "Sophie", "Steve", "Susan", "Theo", "Tina", "Victor", "Vera", "Walter",
    "Wendy", "Zoe", "Amy", "Bruno", "Diana", "Eric", "Felix", "George", "Hannah", "Hugo", "Jasper", "Kevin", "Julia",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Shop:
    """A workplace that a persona can have, with what callers ask about it."""

    name: str
    menu: str  # what is sold
    price: str
    hours: str
    address: str


_SHOPS = (
    Shop("Luna Bakery", "We have bread, cakes and cookies.", "A loaf of bread is three dollars.", "We open at seven every morning.",
         "We are on Market Street."),
    Shop("Star Pizza", "We have pizza, pasta and salad.", "A large pizza is twelve dollars.", "We are open until midnight.",
         "We are next to the cinema."),
    Shop("Garden Cafe", "We have coffee, tea and sandwiches.", "A cup of coffee is two dollars.", "We open at nine and close at five.",
         "We are in the city park."),
    Shop("River Hotel", "We have single and double rooms.", "A single room is eighty dollars.", "We are open day and night.",
         "We are beside the old bridge."),
    Shop("Corner Books", "We have novels, maps and comics.", "Most books are ten dollars.", "We are open from ten to six.",
         "We are across from the library."),
    Shop("Sunny Flowers", "We have roses, tulips and lilies.", "A dozen roses is twenty dollars.", "We are closed on Mondays.",
         "We are behind the church."),
    Shop("Happy Pets", "We have food and toys for pets.", "A bag of dog food is fifteen dollars.", "We close at eight in the evening.",
         "We are near the train station."),
    Shop("City Bikes", "We sell and repair bicycles.", "A repair starts at thirty dollars.", "We are open on weekdays only.",
         "We are at the end of King Street."),
)  # fmt: skip
SHOPS = {shop.name: shop for shop in _SHOPS}

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "England": "London", "Japan": "Tokyo", "China": "Beijing",
    "Russia": "Moscow", "Greece": "Athens", "Egypt": "Cairo", "Canada": "Ottawa", "Cuba": "Havana", "Peru": "Lima", "Austria": "Vienna",
    "Poland": "Warsaw", "Ireland": "Dublin", "Portugal": "Lisbon", "Norway": "Oslo", "Sweden": "Stockholm", "Kenya": "Nairobi",
}  # fmt: skip

# With the article that speech gives the thing.
COLOURS = {
    "grass": "green", "snow": "white", "a banana": "yellow", "the sky": "blue", "a tomato": "red", "coal": "black", "a carrot": "orange",
    "chocolate": "brown", "an elephant": "grey", "a flamingo": "pink", "a plum": "purple", "the sun": "yellow",
}  # fmt: skip

ANIMAL_SOUNDS = {
    "a dog": "a bark", "a cat": "a meow", "a cow": "a moo", "a sheep": "a bleat", "a duck": "a quack", "a pig": "a grunt",
    "a horse": "a neigh", "a lion": "a roar", "a bee": "a buzz", "a snake": "a hiss", "a mouse": "a squeak", "an owl": "a hoot",
}  # fmt: skip

OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "day": "night", "fast": "slow", "open": "closed", "happy": "sad", "young": "old",
    "hard": "soft", "dark": "light", "full": "empty", "rich": "poor", "high": "low", "wet": "dry", "left": "right", "early": "late",
}  # fmt: skip

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
)  # fmt: skip
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

SUMS = (
    (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4), (4, 5), (5, 5), (5, 6), (6, 6), (1, 5), (2, 6), (3, 7), (4, 8), (9, 1), (7, 2),
    (8, 3), (6, 1), (7, 5),
)  # fmt: skip
COUNTS = (3, 5, 10)
