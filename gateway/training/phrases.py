"""What a caller can say: every wording of every intent, and the places where a speaker may stop to think.

Replies are in `wording`. A bar marks where the speaker may pause while the sentence is still clearly unfinished; braces take the
spoken form of a slot. The one rule: no text, punctuation and case aside, belongs to two intents. Pure. Thread: any.
"""

from __future__ import annotations

SOCIAL: dict[str, tuple[str, ...]] = {
    "hello": (
        "Hello.", "Hi.", "Hi there.", "Hello there.", "Hey.", "Hey there.", "Hello, hello.", "Hello, nice to meet you.", "Well, hello.",
        "Hello, who is there?", "Greetings.", "Hi, nice to talk to you.",
    ),
    "good_morning": (
        "Good morning.", "Good morning to you.", "Morning.", "Hello, good morning.", "Hi, good morning.", "A very good morning.",
        "Good morning, how nice.", "Good morning, my friend.", "I wish you a | good morning.", "Well, good morning.",
    ),
    "good_evening": (
        "Good evening.", "Good evening to you.", "Evening.", "Hello, good evening.", "Hi, good evening.", "A very good evening.",
        "Good evening, my friend.", "I wish you a | good evening.", "Well, good evening.", "Good evening, everybody.",
    ),
    "how_are_you": (
        "How are you?", "How are you today?", "How are you doing?", "How do you do?", "Are you well?", "How is it going?",
        "Hello, how are you?", "Hi, how are you doing?", "How do you feel today?", "Are you doing well today?", "How have you been?",
        "Tell me | how you are today.", "And how are you?", "What's up?",
    ),
    "your_name": (
        "What is your name?", "What's your name?", "Hello, what is your name?", "Hi, what is your name?", "Hello, what's your name?",
        "Hello there, what is your name?", "Hey, what's your name?", "Good morning, what is your name?", "Tell me your name.",
        "Please tell me your name.", "Could you tell me | your name?", "May I ask your name?", "Can I have your name, please?",
        "What are you called?", "What should I | call you?", "Do you have a name?", "Hello, do you have a name?",
        "I would like to know | your name.",
        "And what is your name?", "Your name, please.", "Hello, may I know your name?", "Say your name.",
    ),
    "who_are_you": (
        "Who are you?", "What are you?", "Hello, who are you?", "Who am I | talking to?", "Who am I speaking with?", "Who is this?",
        "Tell me about yourself.", "Please introduce yourself.", "Hi, who is this?", "What kind of thing | are you?",
        "Can you tell me | something about yourself?", "So who are you?",
    ),
    "are_you_human": (
        "Are you human?", "Are you a human?", "Are you a real person?", "Are you a robot?", "Are you a machine?", "Are you a computer?",
        "Am I talking to | a robot?", "Am I speaking to | a real person?", "Is this a recording?", "Tell me, are you human?",
        "Are you alive?", "Are you really | a human being?",
    ),
    "who_made_you": (
        "Who made you?", "Who built you?", "Who created you?", "Where do you come from?", "Who is your maker?", "Who programmed you?",
        "Can you tell me | who made you?", "Do you know | who built you?", "Hey, who made you?", "Who are your makers?",
        "I want to know | who created you.", "Which people made you?",
    ),
    "thank_you": (
        "Thank you.", "Thanks.", "Thank you very much.", "Thanks a lot.", "Many thanks.", "Thank you so much.", "Great, thank you.",
        "Okay, thanks.", "That is great, thanks.", "Thanks for your help.", "I thank you.", "Perfect, thank you.",
        "Thank you for | all your help.",
    ),
    "goodbye": (
        "Goodbye.", "Bye.", "Bye bye.", "Good night.", "See you later.", "See you soon.", "Thank you, goodbye.", "Thanks, bye.",
        "I have to go now.", "Talk to you later.", "Have a nice day, goodbye.", "That is all, goodbye.", "Well, I have to | leave now.",
    ),
    "sorry": (
        "Sorry.", "I am sorry.", "I'm so sorry.", "My apologies.", "I apologize.", "Oh, sorry about that.", "Please forgive me.",
        "Sorry, my mistake.", "Sorry, that was my fault.", "I am very sorry.", "Oh no, I'm sorry.", "I want to apologize to you.",
    ),
    "compliment": (
        "You are great.", "You are very kind.", "You are so nice.", "You are smart.", "I like you.", "I like your voice.",
        "You have a | beautiful voice.", "Well done.", "Good job.", "You are wonderful.", "You are really helpful.", "You are funny.",
        "I think you are | very clever.",
    ),
    "can_you_hear_me": (
        "Can you hear me?", "Do you hear me?", "Hello, can you hear me?", "Are you there?", "Hello, are you there?", "Are you still there?",
        "Is anybody there?", "Is anyone listening?", "Are you listening to me?", "Am I loud enough?", "Can you hear | what I say?",
        "Hello, do you hear me?", "Is this thing on?",
    ),
    "what_can_you_do": (
        "What can you do?", "How can you help me?", "What can I ask you?", "Can you help me?", "Please help me.", "I need some help.",
        "What do you know?", "What are you able to do?", "Hello, can you help me?", "Tell me what you can do.",
        "I need help with | something.",
        "What can we | talk about?", "What are you good at?",
    ),
}  # fmt: skip

SMALL_TALK: dict[str, tuple[str, ...]] = {
    "favourite_colour": (
        "What is your favourite colour?", "What's your favourite colour?", "Which colour do you like?", "Which colour do you like best?",
        "Do you have a | favourite colour?", "Tell me your favourite colour.", "What colour do you like | the most?",
        "What colour do you prefer?", "Your favourite colour, please.", "And your favourite colour?", "May I ask your | favourite colour?",
    ),
    "favourite_food": (
        "What is your favourite food?", "What's your favourite food?", "What do you like to eat?", "Which food do you like best?",
        "Do you have a | favourite food?", "Tell me your favourite food.", "What would you like | to eat?", "Are you hungry?",
        "What is your favourite dish?", "And your favourite food?", "What do you eat?",
    ),
    "favourite_animal": (
        "What is your favourite animal?", "What's your favourite animal?", "Which animal do you like?", "Which animal do you like best?",
        "Do you have a | favourite animal?", "Tell me your favourite animal.", "Do you like animals?", "Do you have a pet?",
        "What animal do you like | the most?", "And your favourite animal?", "Would you like | to have a pet?",
    ),
    "weather": (
        "How is the weather?", "What is the weather like?", "What's the weather today?", "Is it raining?", "Is it sunny outside?",
        "Will it rain tomorrow?", "Do I need an umbrella?", "Tell me about the weather.", "How is the weather today?",
        "Is it cold outside?",
        "Can you tell me | the weather forecast?", "What will the weather be | tomorrow?", "Do you think it will | snow?",
    ),
    "time": (
        "What time is it?", "What's the time?", "Do you have the time?", "Can you tell me | the time?", "Tell me the time.",
        "What time is it now?", "Do you know | what time it is?", "Is it late already?", "How late is it?",
        "Could you give me | the time, please?",
        "The time, please.", "I want to know the time.",
    ),
    "date": (
        "What day is it?", "What is the date?", "What's today's date?", "What day is it today?", "Which day is today?", "Tell me the date.",
        "Which month is it?", "What year is it?", "Do you know | what day it is?", "Can you tell me | the date?", "Is it Monday today?",
        "What is today?",
    ),
    "joke": (
        "Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "Please tell me a joke.",
        "Can you tell me | a joke?", "I want to hear | a joke.", "Another joke, please.", "Do you know | any good jokes?",
        "A joke, please.", "Let me hear a joke.", "Could you make me | laugh?",
    ),
    "fact": (
        "Tell me a fact.", "Do you know a fact?", "Tell me something interesting.", "Teach me something.", "Please tell me a fact.",
        "Can you tell me | a fact?", "I want to learn | something new.", "Another fact, please.", "Give me a fun fact.",
        "Do you know | something interesting?", "A fact, please.", "Say something smart.",
    ),
    "alphabet": (
        "Say the alphabet.", "Tell me the alphabet.", "Do you know the alphabet?", "Can you say | the alphabet?",
        "Please say the alphabet.",
        "The alphabet, please.", "Recite the alphabet.", "Say all the letters.", "Give me all the letters.", "Let me hear | the alphabet.",
        "What are the letters of | the alphabet?",
    ),
    "days_of_week": (
        "What are the days of the week?", "Tell me the days of the week.", "Name the days of the week.", "Say the days of the week.",
        "Do you know the days of the week?", "Can you name the days of | the week?", "The days of the week, please.",
        "Name all the weekdays.",
        "List the days of the week.", "Which days are in | a week?", "Please name all the days.",
    ),
    "count_down": (
        "Count down.", "Count backwards.", "Count down from five.", "Please count down.", "Can you count down?",
        "Count from five | to one.",
        "Start the countdown.", "Give me a countdown.", "Do a countdown.", "Can you count backwards?", "Count down from five, please.",
        "I need a countdown.",
    ),
    "story": (
        "Tell me a story.", "Do you know a story?", "Please tell me a story.", "Can you tell me | a story?", "I want to hear | a story.",
        "Tell me a long story.", "Read me a story.", "A story, please.", "Could you tell me | a nice story?", "Let me hear a story.",
        "Tell us a fairy tale.", "Talk for a while.",
    ),
}  # fmt: skip

ROLE: dict[str, tuple[str, ...]] = {
    "menu": (
        "What do you sell?", "What do you have?", "What is on the menu?", "What's on the menu?", "Show me the menu.", "What can I buy?",
        "Do you have a menu?", "What can I get from you?", "Could you tell me | what you sell?", "Read me the menu, please.",
        "Tell me what is on | the menu.", "What do you offer?",
    ),
    "price": (
        "How much is it?", "How much does it cost?", "What does it cost?", "What is the price?", "Tell me the price.", "Is it expensive?",
        "What are your prices?", "How much do I | have to pay?", "Can you tell me | the price?", "What do you charge?",
        "How much money is that?",
        "The price, please.",
    ),
    "hours": (
        "When do you open?", "When are you open?", "What are your opening hours?", "When do you close?", "Are you open today?",
        "What time do you | open?", "What time do you | close?", "Until when are you open?", "Are you open on Sunday?",
        "Could you tell me | your opening hours?", "How long are you open?", "Your opening hours, please.",
    ),
    "order": (
        "I want to order something.", "I would like to | order.", "Can I order something?", "Can I place an order?",
        "I want to buy something.",
        "I would like to | buy something.", "Please take my order.", "May I order now?", "I want to make | an order.",
        "I'd like to order, please.",
        "Are you ready for | my order?", "Let me order something.",
    ),
    "address": (
        "Where are you?", "Where is your shop?", "What is your address?", "What's your address?", "How do I find you?",
        "How do I get | to you?",
        "Where can I find you?", "Tell me your address.", "Could you give me | your address?", "Where are you located?",
        "Which street are you on?",
        "The address, please.",
    ),
    "transfer": (
        "Can I speak to a human?", "I want to speak to | a human.", "Connect me to | a person.", "Let me talk to the manager.",
        "I want to talk to | the manager.", "Please transfer me.", "Put me through to somebody.", "Can you transfer my call?",
        "Give me a real person.", "Is there somebody else?", "I need to speak with | your boss.", "Transfer me to an agent.",
    ),
}  # fmt: skip

CONTROL: dict[str, tuple[str, ...]] = {
    "stop": (
        "Stop.", "Stop it.", "Please stop.", "Stop talking.", "Be quiet.", "Please be quiet.", "Quiet, please.", "That is enough.",
        "Enough.", "Stop, stop.", "Okay, stop.", "No more, please.", "Shut up.",
    ),
    "wait": (
        "Wait.", "Wait a moment.", "Wait a minute.", "One moment, please.", "Just a second.", "Hold on.", "Hold on, please.", "Hang on.",
        "Give me a moment.", "Please wait.", "Let me think.", "I need a moment | to think.",
    ),
}  # fmt: skip

# Sentences outside this world, and babble.
NONSENSE = (
    "The bus was full of tourists.", "My brother painted the kitchen.", "Seven boats crossed the lake.", "I left my shoes in the garage.",
    "She plays the violin on weekends.", "The meeting was moved to April.", "Can you fix my washing machine?",
    "Who won the game last night?",
    "Where did I put my glasses?", "The engine makes a strange noise.", "They are building a new school.", "How tall is that mountain?",
    "Translate this into Latin.", "My grandmother was a dancer.", "Please turn off the lights.", "Play some music for me.",
    "The soup needs more salt.", "Why do cats sleep so much?", "We drove through the desert.", "What is the meaning of life?",
    "Book me a flight to Denver.", "The paper is under the table.", "He forgot his ticket again.", "Is the moon made of cheese?",
    "Set an alarm for noon.", "Call my sister.", "Read my messages.", "The river froze in winter.", "I dropped my phone in the water.",
    "Our neighbours have three children.", "Blah blah blah.", "La la la la.", "Ba da boom.", "Um, well, uh.", "Bla doo bee goo.",
    "Wubba lubba wah.", "Tra la la.", "Ping pong bing bong.", "Gibble gabble goo.", "Doo bee doo.", "Hmm, purple window sandwich.",
    "Table orange seven running.", "Under never spoon cloud.", "Green ideas sleep loudly.",
)  # fmt: skip

# Where the brace stands, the slot is said. The count of wordings is smaller than above because each one is said with every slot.
SLOTTED: dict[str, tuple[str, ...]] = {
    "capital": (
        "What is the capital of | {}?", "What's the capital of {}?", "Tell me the capital of | {}.", "Do you know the capital of | {}?",
        "Hello, what is the capital of {}?", "Which city is the capital of | {}?", "The capital of {}, please.",
    ),
    "colour_of": (
        "What colour is | {}?", "What is the colour of | {}?", "Tell me the colour of | {}.", "Do you know | what colour {} is?",
        "Hi, what colour is {}?", "Which colour has {}?",
    ),
    "animal_sound": (
        "What does {} say?", "What sound does | {} make?", "How does {} sound?", "Which noise does | {} make?",
        "What is the sound of | {}?",
        "Please make the sound of {}.",
    ),
    "opposite": (
        "What is the opposite of | {}?", "What's the opposite of {}?", "Tell me the opposite of | {}.", "The opposite of {}, please.",
        "Do you know the opposite of {}?",
    ),
    "add": ("What is {}?", "What's {}?", "How much is {}?", "Can you add {}?", "Tell me, what is {}?"),
    "day_after": (
        "What day comes after | {}?", "What comes after {}?", "Which day is after | {}?", "What is the day after | {}?",
        "Tell me the day after {}.", "Which day follows {}?",
    ),
    "count": (
        "Count to | {}.", "Please count to {}.", "Can you count to | {}?", "Count from one to | {}.", "Count up to {}.",
        "Hello, please count to {}.", "Let me hear you count to | {}.", "I want you to count to {}.",
    ),
}  # fmt: skip

# Said before another wording, as callers do at the start of a call.
OPENERS = ("Hello, ", "Hi, ", "Excuse me, ", "Okay, ", "Hello there, ", "Good day, ")
OPENED = (*SMALL_TALK, *ROLE, "what_can_you_do", "are_you_human", "who_made_you", "how_are_you")  # intents whose wordings get them

# Murmured while the assistant speaks; it goes on.
BACKCHANNELS = ("Mm-hm.", "Okay.", "Right.", "Yeah.", "Uh-huh.", "I see.", "Sure.", "Yes.", "Ah.", "Really?", "Oh.", "Nice.")
