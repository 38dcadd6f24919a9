"""Stories about animals, built by a small grammar from a plan, and facts about the animals. Used by tasks.py."""

# animal: (plural, looks, home, food, sound, young, legs, can)
ANIMALS = {
    "fox": ("foxes", "a red coat and a bushy tail", "a den", "mice and berries", "barks", "a cub", 4, "hear a mouse under the snow"),
    "owl": ("owls", "big round eyes", "a hollow tree", "mice", "hoots", "an owlet", 2, "see well at night"),
    "rabbit": ("rabbits", "long ears and soft fur", "a burrow", "grass and carrots", "squeaks", "a kitten", 4, "run very fast"),
    "bear": ("bears", "thick brown fur", "a cave", "fish and honey", "growls", "a cub", 4, "sleep through the winter"),
    "frog": ("frogs", "smooth green skin", "a pond", "flies", "croaks", "a tadpole", 4, "jump far"),
    "mouse": ("mice", "small paws and a thin tail", "a hole in the wall", "seeds and cheese", "squeaks", "a pup", 4, "hide in small places"),
    "dog": ("dogs", "a wet nose and a wagging tail", "a kennel", "meat and bones", "barks", "a puppy", 4, "follow a smell"),
    "cat": ("cats", "whiskers and soft paws", "a warm house", "fish and mice", "meows", "a kitten", 4, "climb trees"),
    "duck": ("ducks", "a flat bill and webbed feet", "a pond", "bread and water plants", "quacks", "a duckling", 2, "swim and fly"),
    "horse": ("horses", "a long mane and strong legs", "a stable", "grass and hay", "neighs", "a foal", 4, "run very far"),
    "wolf": ("wolves", "grey fur and sharp teeth", "a den", "deer", "howls", "a cub", 4, "hunt in a pack"),
    "squirrel": ("squirrels", "a big fluffy tail", "a tree", "nuts and acorns", "chatters", "a kitten", 4, "jump from tree to tree"),
    "hedgehog": ("hedgehogs", "sharp little spines", "a pile of leaves", "beetles and worms", "snuffles", "a hoglet", 4, "roll up into a ball"),
    "crow": ("crows", "shiny black feathers", "a nest", "seeds and insects", "caws", "a chick", 2, "use sticks as tools"),
    "bee": ("bees", "yellow and black stripes", "a hive", "nectar", "buzzes", "a larva", 6, "make honey"),
    "otter": ("otters", "brown fur and webbed feet", "a river bank", "fish", "whistles", "a pup", 4, "swim under the water"),
}
NAMES = ("Rusty Pip Luna Bruno Daisy Finn Hazel Milo Ruby Oscar Willow Toby Poppy Max Ivy Felix Nora Sam Bella Leo Lily Hugo "
         "Clara Ben Olive Jack Rosie Theo Molly Gus").split()
PLACES = ["the forest", "a quiet valley", "the green hills", "a small village", "the old woods", "the high mountains",
          "an old garden", "the meadow"]
TRAITS = ["brave", "clever", "kind", "shy", "curious", "lazy", "little", "proud", "hungry", "gentle"]
WEATHER = ["One sunny morning", "One cold morning", "One rainy day", "One warm evening", "One windy day", "One winter day"]
FOODS = ["berries", "apples", "nuts", "honey", "bread", "cheese", "carrots", "mushrooms"]
OBJECTS = ["golden key", "red ball", "silver bell", "blue feather", "small lamp", "warm scarf", "shiny stone", "old map"]

# problem: (what the plan says, beats); a beat is a list of ways to say it
PROBLEMS = {
    "lost": ("{N} loses the {obj}", [
        ["{when}, {N} could not find {his} {obj}.", "{when}, {N} saw that {his} {obj} was gone."],
        ["{He} looked under the leaves and behind the stones, but it was not there.", "{He} looked everywhere, but {he} could not find it.",
         "{He} searched all day and found nothing."],
        ["{N} sat down and felt very sad.", "\"Where is my {obj}?\" said {N}."],
        ["Then {N} met {fa} named {F}.", "Soon {fa} named {F} came by."],
        ["\"Do not worry,\" said {F}. \"I will help you look.\"", "\"I can help you,\" said {F}. \"Two pairs of eyes are better than one.\""],
        ["Together they looked near the old bridge, and there was the {obj}.", "They walked along the stream until they saw the {obj} in the grass."],
        ["{N} was so happy that {he} danced.", "\"Thank you!\" said {N}. \"You are a good friend.\""]],
        ["A friend makes every search shorter.", "Two friends see more than one."]),
    "hungry": ("{N} is hungry and {F} has {food}", [
        ["{when}, {N} was very hungry.", "{when}, {N} woke up with an empty belly."],
        ["{He} had eaten nothing since the day before.", "There was nothing to eat at home."],
        ["{He} walked for a long time and smelled something sweet.", "{He} followed a sweet smell through the grass."],
        ["Under a tall tree sat {fa} named {F} with a basket of {food}.", "There {he} found {fa} named {F}, who had a basket full of {food}."],
        ["\"May I have some {food}?\" asked {N}.", "\"Please,\" said {N}, \"will you share your {food} with me?\""],
        ["{F} smiled and gave {N} half of the {food}.", "\"Of course,\" said {F}. \"There is enough for two.\""],
        ["They ate together until the sun went down.", "They sat side by side and ate until they were full."]],
        ["Food tastes better when it is shared.", "Those who share are never alone."]),
    "storm": ("a storm comes and {N} helps {F}", [
        ["{when}, dark clouds came over {place}.", "{when}, a big storm began."],
        ["The wind blew and the rain fell hard.", "The wind was so strong that the trees began to shake."],
        ["{N} ran home as fast as {he} could.", "{N} wanted to go home and stay dry."],
        ["On the way {he} heard a small voice. \"Help me!\" it cried.", "Then {he} heard someone call for help."],
        ["It was {fa} named {F}, who was stuck under a branch.", "It was {fa} named {F}, who had lost the way."],
        ["{N} was afraid, but {he} did not run away.", "{N} thought about {his} warm home, but {he} stayed."],
        ["{He} pulled {F} out and took {F} home.", "{He} went in front and showed {F} the way home."],
        ["They sat by the fire and listened to the rain.", "When the storm was over, they saw a rainbow."]],
        ["To be brave is to be afraid and to help all the same.", "A kind heart is stronger than a storm."]),
    "race": ("{N} and {F} have a race", [
        ["{when}, {N} met {fa} named {F}.", "{when}, {fa} named {F} came to {place}."],
        ["\"I am faster than you,\" said {F}.", "\"No one can run as fast as I can,\" said {F}."],
        ["\"Then let us have a race to the big oak tree,\" said {N}.", "\"We will see,\" said {N}. \"Let us run to the old mill.\""],
        ["They ran and ran, and {F} was far ahead.", "At first {F} was in front."],
        ["But {F} stopped to rest and fell asleep.", "But {F} stopped to laugh and did not look at the path."],
        ["{N} did not stop. {He} ran on, step by step.", "{N} kept going and never looked back."],
        ["So {N} won the race.", "In the end {N} was the first to arrive."],
        ["\"Well done,\" said {F}, and they were friends from that day on.", "{F} laughed and said, \"Next time I will not sleep.\""]],
        ["Slow and steady is better than fast and proud.", "It is not wise to laugh too soon."]),
    "gift": ("{N} makes a gift for {F}", [
        ["{when}, {N} wanted to make a gift.", "{when}, {N} remembered that it was a special day."],
        ["It was the birthday of {F}, {fa} who lived nearby.", "{His} friend {F}, {fa}, had a birthday."],
        ["{N} had no money, but {he} had a {obj}.", "All that {N} had was a {obj}."],
        ["{He} loved the {obj} very much.", "It was the best thing that {he} had."],
        ["{He} put it in a box and walked to the house of {F}.", "{He} wrapped it in a big leaf and went to see {F}."],
        ["\"This is for you,\" said {N}.", "\"Happy birthday!\" said {N}."],
        ["{F} opened it and began to cry with joy.", "\"A {obj}!\" said {F}. \"It is the best gift of all.\""],
        ["Then they ate cake and sang songs until night.", "They shared a cake with {food} and laughed a lot."]],
        ["A gift from the heart is the best gift.", "To give is to be happy twice."]),
    "moon": ("{N} wants to touch the moon", [
        ["{when}, {N} looked up and saw the moon.", "{when}, {N} saw the moon over {place}."],
        ["\"I want to touch it,\" said {N}.", "\"How lovely it is,\" said {N}. \"I want to have it.\""],
        ["{He} climbed the highest hill, but the moon was still too far.", "{He} jumped as high as {he} could, but the moon did not come closer."],
        ["{fA} named {F} saw this and asked, \"What are you doing?\"", "Then {fa} named {F} came and sat down beside {N}."],
        ["\"Come with me,\" said {F}, and they walked to the lake.", "{F} thought for a while and led {N} to the lake."],
        ["There, in the still water, was the moon.", "The moon was shining on the water, round and bright."],
        ["{N} leaned over the water and touched it.", "{N} touched the water, and the moon danced."],
        ["\"Now the moon is yours,\" said {F}.", "\"Thank you,\" said {N}. \"Now I can see it every night.\""]],
        ["Some things are near when you look in a new way.", "A wise friend shows you what you could not see."]),
    "trick": ("{F} has {food} and {N} tries a trick", [
        ["{when}, {N} saw {fa} named {F} with some {food}.", "{when}, {fa} named {F} sat on a branch with some {food}."],
        ["{N} wanted the {food} and thought of a trick.", "\"I want that,\" thought {N}, and {he} made a plan."],
        ["\"What a lovely voice you have,\" said {N}. \"Please sing for me.\"", "\"They say that you sing well,\" said {N}. \"Will you sing a song?\""],
        ["{F} was proud and began to sing, and the {food} fell to the ground.", "{F} opened wide and sang, and down fell the {food}."],
        ["{N} took the {food} and ran away.", "{N} picked up the {food} and ran."],
        ["But alone in {his} home, {N} did not feel happy.", "But the {food} did not taste good, for {he} felt bad."],
        ["So {he} went back and said, \"I am sorry. Let us share.\"", "The next day {he} came back and said, \"I am sorry.\""],
        ["{F} nodded, and they ate together.", "{F} forgave {N}, and they became friends."]],
        ["Do not trust those who praise you too much.", "A trick may fill the belly, but not the heart."]),
    "friend": ("{N} is alone and finds a friend", [
        ["{when}, {N} felt lonely.", "{when}, {N} had no one to play with."],
        ["{He} asked the birds, but they flew away.", "{He} asked the bees, but they were too busy."],
        ["{He} walked to {place2} and sat on a stone.", "So {he} went to {place2} alone."],
        ["There {he} saw {fa} who sat alone too.", "Behind a bush {he} heard someone cry. It was {fa}."],
        ["\"Hello,\" said {N}. \"What is your name?\"", "\"Why are you sad?\" asked {N}. \"And what is your name?\""],
        ["\"My name is {F},\" said the {f}. \"I have no one to play with.\"", "\"I am {F},\" said the {f}. \"I am new here.\""],
        ["\"Then play with me,\" said {N}.", "\"We can play together,\" said {N}."],
        ["They played with a {obj} until the stars came out.", "They played all day, and they shared some {food}."]],
        ["The best way to find a friend is to be one.", "No one is alone who says hello."]),
}


def article(noun):
    """The noun with `a` or `an` before it."""
    return ("an " if noun[0] in "aeio" else "a ") + noun


def plan(r, animal=None, name=None, trait=None, friend=None):
    """What a story is about: the slots of its sentences. `r` is a `random.Random`."""
    a = animal or ("fox" if r.random() < 0.3 else r.choice(list(ANIMALS)))
    f = friend or r.choice([x for x in ANIMALS if x != a])
    n = name or r.choice(NAMES)
    friend_name = r.choice([x for x in NAMES if x != n])
    he = r.choice(["he", "she"])
    his = {"he": "his", "she": "her"}[he]
    place = r.choice(PLACES)
    return {"a": a, "A": article(a), "N": n, "F": friend_name, "f": f, "fa": article(f), "fA": article(f).capitalize(), "he": he,
            "He": he.capitalize(), "his": his, "His": his.capitalize(), "place": place, "place2": r.choice([p for p in PLACES if p != place]),
            "trait": trait or r.choice(TRAITS), "obj": r.choice(OBJECTS), "food": r.choice(FOODS), "when": r.choice(WEATHER),
            "problem": r.choice(list(PROBLEMS))}


def thought(p):
    """The plan in words, as the model thinks before it tells the story."""
    what = PROBLEMS[p["problem"]][0].format(**p)
    return f"A story about {article(p['trait'] + ' ' + p['a'])}. Name: {p['N']}. Friend: {p['F']} the {p['f']}. Place: {p['place']}. What happens: {what}."


def tell(r, p, short=False):
    """The story of a plan."""
    home, young = ANIMALS[p["a"]][2], ANIMALS[p["a"]][1]
    ta = article(p["trait"] + " " + p["a"])
    opening = r.choice([
        f"Once upon a time there was {ta} named {p['N']} who lived in {p['place']}.",
        f"In {p['place']} there lived {ta} named {p['N']}.",
        f"{p['N']} was {ta} who lived in {p['place']}.",
        f"Long ago, {ta} named {p['N']} lived in {p['place']}."])
    if not short and r.random() < 0.5:
        opening += r.choice([f" {p['He']} had {young}.", f" {p['His']} home was {home}."])
    _, beats, morals = PROBLEMS[p["problem"]]
    body = " ".join(r.choice(b).format(**p) for b in beats)
    end = r.choice(morals) if r.random() < 0.7 else r.choice([f"And {p['N']} and {p['F']} were friends ever after.", "That night they slept well."])
    sep = " " if short or r.random() < 0.4 else "\n\n"
    return opening + sep + body + sep + end
