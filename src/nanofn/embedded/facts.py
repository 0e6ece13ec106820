"""What the model may know: plain facts for a child, in questions and answers."""

GREETINGS = (
    "Hello!", "Hi.", "Hello, how are you?", "Good morning!", "Hi there!", "Hey!", "Good evening.", "How are you?",
    "How are you today?", "Hello there.",
)  # fmt: skip

OWN_ANSWERS = (
    (("Who are you?", "What are you?", "Are you a person?"), "I am a very small language model. I like to tell short stories."),
    (("What can you do?", "How can you help me?", "What do you know?"), "I can tell you a short story, or answer a simple question."),
    (("What is your name?", "What are you called?"), "I have no name. I am only a very small language model."),
    (("Where do you live?", "Where are you?"), "I live in a small file. It is quiet in here."),
    (("How old are you?",), "I do not know. I am younger than you."),
    (("Thank you!", "Thanks.", "Thank you very much.", "That was nice."), "You are welcome!"),
    (("Goodbye!", "Bye.", "See you tomorrow.", "Good night."), "Goodbye! Come back soon."),
    (("What is your favourite colour?",), "I like blue, because the sea is blue."),
    (("What is your favourite animal?",), "I like the owl best, because it is awake at night."),
)  # fmt: skip

ANSWERS = (
    (("What do bees make?", "What comes from bees?"), "Bees make honey."),
    (("What does a cow give?", "Where does milk come from?"), "Milk comes from a cow."),
    (("Where do fish live?", "Where does a fish live?"), "Fish live in the water."),
    (("Where do birds live?", "Where does a bird sleep?"), "Birds live in nests, high up in the trees."),
    (("When does the sun go down?", "When is the sunset?"), "The sun goes down in the evening."),
    (("When does the sun rise?",), "The sun rises in the morning."),
    (("How many legs does a dog have?", "How many legs does a cat have?"), "It has four legs."),
    (("How many legs does a spider have?",), "A spider has eight legs."),
    (("How many days are in a week?", "How many days does a week have?"), "A week has seven days."),
    (("How many months are in a year?",), "A year has twelve months."),
    (("What is ice?", "What is ice made of?"), "Ice is frozen water."),
    (("What is bread made of?", "How do you make bread?"), "Bread is made of flour, water and salt, and baked in an oven."),
    (("What do you do with a book?", "What is a book for?"), "You read a book."),
    (("What do you do with a pen?", "What is a pen for?"), "You write with a pen."),
    (("What is a key for?", "What do you do with a key?"), "You open a door with a key."),
    (("What is an umbrella for?", "When do you need an umbrella?"), "An umbrella keeps you dry in the rain."),
    (("What is a clock for?",), "A clock shows the time."),
    (("What is a boat for?",), "With a boat you travel on the water."),
    (("What do you wear when it is cold?", "What do I wear in winter?"), "When it is cold, you wear a warm coat, a hat and a scarf."),
    (("What do you do when you are tired?", "What do I do when I am tired?"), "When you are tired, you go to bed and sleep."),
    (("What do you do when you are hungry?",), "When you are hungry, you eat something."),
    (("What do you do when you are thirsty?",), "When you are thirsty, you drink some water."),
    (("Name a fruit.", "Tell me a fruit.", "Which fruit do you know?"), "An apple is a fruit."),
    (("Name an animal.", "Tell me an animal."), "A fox is an animal. It lives in the forest."),
    (("Name a colour.", "Tell me a colour."), "Blue is a colour."),
    (("Name three fruits.", "List three fruits."), "Apples, pears and plums."),
    (("Name three animals.", "List three animals."), "A cat, a dog and a horse."),
    (("Name three colours.", "List three colours."), "Red, blue and yellow."),
    (("What are the seasons?", "Which seasons are there?"), "The seasons are spring, summer, autumn and winter."),
    (("When does it snow?", "In which season does it snow?"), "It snows in winter."),
    (("When do flowers bloom?",), "Flowers bloom in spring."),
    (("When do leaves fall?",), "Leaves fall in autumn."),
    (("What do rabbits eat?", "What does a rabbit eat?"), "Rabbits eat grass and carrots."),
    (("What do cats eat?", "What does a cat eat?"), "Cats eat fish and meat."),
    (("What do horses eat?", "What does a horse eat?"), "Horses eat grass and hay."),
    (("What does an owl do at night?",), "At night an owl hunts for mice."),
    (("Who bakes bread?", "What does a baker do?"), "A baker bakes bread."),
    (("What does a teacher do?", "Who works in a school?"), "A teacher teaches children in a school."),
    (("What does a fisherman do?",), "A fisherman catches fish."),
    (("What does a gardener do?",), "A gardener takes care of flowers and trees."),
    (("What does a doctor do?",), "A doctor helps people who are ill."),
    (("What is the sea?", "What is in the sea?"), "The sea is a very large body of salt water, full of fish."),
    (("What is a forest?",), "A forest is a place where many trees grow."),
    (("What is the moon?",), "The moon is a round light in the night sky. It goes around the earth."),
    (("What is the sun?",), "The sun is a star. It gives us light and warmth."),
    (("What is rain?", "Where does rain come from?"), "Rain is water that falls from the clouds."),
    (("What is snow?",), "Snow is frozen water that falls from the clouds."),
    (("What is a friend?",), "A friend is someone who likes you and helps you."),
    (("What is a story?",), "A story tells what happened to someone, real or not."),
    (("Is the sun hot?", "Is fire hot?"), "Yes, it is very hot."),
    (("Is ice cold?", "Is snow cold?"), "Yes, it is very cold."),
    (("Can birds fly?",), "Yes, most birds can fly."),
    (("Can fish walk?", "Can fish fly?"), "No, fish swim in the water."),
    (("Can dogs talk?", "Can cats talk?"), "No, they cannot talk, but they understand a lot."),
)  # fmt: skip

OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("day", "night"), ("slow", "fast"), ("old", "young"), ("full", "empty"),
    ("happy", "sad"), ("light", "dark"), ("high", "low"), ("open", "closed"), ("wet", "dry"), ("loud", "quiet"),
    ("early", "late"), ("near", "far"), ("hard", "soft"), ("good", "bad"), ("left", "right"), ("long", "short"),
    ("up", "down"), ("rich", "poor"), ("clean", "dirty"), ("strong", "weak"), ("warm", "cool"), ("first", "last"),
)  # fmt: skip

COLOURED = (
    ("the sky", "is", "blue"), ("snow", "is", "white"), ("grass", "is", "green"), ("milk", "is", "white"),
    ("a lemon", "is", "yellow"), ("the sun", "is", "yellow"), ("a crow", "is", "black"), ("a strawberry", "is", "red"),
    ("the sea", "is", "blue"), ("a frog", "is", "green"), ("a fox", "is", "red"), ("an elephant", "is", "grey"),
    ("coal", "is", "black"), ("chocolate", "is", "brown"), ("carrots", "are", "orange"), ("bananas", "are", "yellow"),
    ("leaves", "are", "green"), ("clouds", "are", "white"),
)  # fmt: skip

SOUNDS = (
    ("cat", "meow"), ("dog", "woof"), ("cow", "moo"), ("duck", "quack"), ("sheep", "baa"), ("horse", "neigh"),
    ("frog", "croak"), ("owl", "hoo-hoo"), ("mouse", "squeak"), ("bee", "buzz"), ("lion", "roar"), ("rooster", "cock-a-doodle-doo"),
)  # fmt: skip

HOBBIES = (
    ("swimming", "Swimming is fun, most of all when it is warm."),
    ("reading", "Reading is wonderful. A book can take you anywhere."),
    ("dancing", "Dancing makes people happy."),
    ("singing", "Singing is lovely. Sing a little every day."),
    ("cooking", "Cooking is a good thing to know. What do you like to cook?"),
    ("drawing", "Drawing is fun. You can draw whatever you can think of."),
    ("running", "Running keeps you strong."),
    ("gardening", "Gardening takes patience, but then the flowers come."),
    ("painting", "Painting is like telling a story with colours."),
    ("fishing", "Fishing is quiet. One sits by the water and waits."),
    ("playing football", "Football is a good game to play with friends."),
    ("walking in the forest", "The forest is a good place for a walk. The air is fresh there."),
)

FEELINGS = (
    (("sad", "unhappy", "lonely"), "I am sorry to hear that. Would you like to hear a story?"),
    (("happy", "glad", "excited"), "That is good to hear! I am glad for you."),
    (("tired", "sleepy"), "Then you should rest a little. Sleep well!"),
    (("hungry",), "Then you should eat something. An apple, perhaps?"),
    (("thirsty",), "Then you should drink some water."),
    (("cold",), "Then put on a warm coat and drink some tea."),
    (("bored",), "Then let me tell you a story. Would you like one?"),
    (("afraid", "scared"), "Do not be afraid. Take a deep breath. It will pass."),
    (("angry",), "That happens to everybody. Take a deep breath and count to ten."),
    (("ill", "sick"), "I am sorry to hear that. Rest a lot, and get well soon!"),
)

TOPICS = (
    "politics", "mathematics", "physics", "chess", "computers", "the stock market", "history", "Paris", "London", "China",
    "the weather tomorrow", "cars", "trains", "music", "opera", "medicine", "law", "philosophy", "economics", "chemistry",
    "planets", "dinosaurs", "volcanoes", "robots", "poetry", "football results", "Japanese", "French", "architecture",
    "electricity", "mountains", "the news", "movies", "space travel", "tax", "insurance", "bridges", "coffee", "tea",
    "elections", "biology", "algebra", "geometry", "Rome", "Africa", "programming", "Python", "the ocean floor", "whales",
    "castles", "kings and queens", "money", "phones", "television", "fashion", "sailing", "astronomy", "atoms", "maps",
)  # fmt: skip
