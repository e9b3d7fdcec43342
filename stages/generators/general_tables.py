"""The questions of `stages.generators.general`, written by hand.

An entry is `asked=answer|another right answer`. Of two choices, `left/right`, the right one has a star.
"""

FACTS = {
    "capital": (
        "What is the capital of {}?",
        """Italy=Rome, Spain=Madrid, Peru=Lima, Greece=Athens, Sweden=Stockholm, Poland=Warsaw, Austria=Vienna,
        Portugal=Lisbon, Cuba=Havana, Ireland=Dublin, Finland=Helsinki, Denmark=Copenhagen, Thailand=Bangkok,
        Vietnam=Hanoi, Chile=Santiago, Turkey=Ankara, Iran=Tehran, Iraq=Baghdad, Russia=Moscow, China=Beijing,
        Hungary=Budapest, Germany=Berlin, Belgium=Brussels, Ghana=Accra, Nepal=Kathmandu, Morocco=Rabat,
        Colombia=Bogotá|Bogota, Argentina=Buenos Aires, South Korea=Seoul, Jamaica=Kingston,
        Iceland=Reykjavik|Reykjavík, Romania=Bucharest, Bulgaria=Sofia, Lebanon=Beirut, Syria=Damascus, Ecuador=Quito,
        Uruguay=Montevideo, Croatia=Zagreb, Pakistan=Islamabad, Venezuela=Caracas, Serbia=Belgrade, Ukraine=Kyiv|Kiev,
        Slovakia=Bratislava, Tunisia=Tunis, Libya=Tripoli""",
    ),
    "symbol": (
        "What is the chemical symbol for {}?",
        """gold=Au, silver=Ag, iron=Fe, oxygen=O, hydrogen=H, carbon=C, helium=He, sodium=Na, copper=Cu, lead=Pb,
        calcium=Ca, nitrogen=N, zinc=Zn, tin=Sn, neon=Ne, potassium=K, mercury=Hg, aluminum=Al, nickel=Ni, tungsten=W,
        antimony=Sb, palladium=Pd, thallium=Tl, yttrium=Y, beryllium=Be, iridium=Ir""",
    ),
    "continent": (
        "On which continent is {}?",
        """Egypt=Africa, Brazil=South America, France=Europe, India=Asia, Canada=North America, Japan=Asia,
        Kenya=Africa, Peru=South America, Norway=Europe, Nigeria=Africa, Mexico=North America, Thailand=Asia,
        Poland=Europe, Argentina=South America, Ghana=Africa, Vietnam=Asia, Italy=Europe, Morocco=Africa, Chile=South
        America, Mongolia=Asia, Portugal=Europe, Ethiopia=Africa, Nepal=Asia, Colombia=South America, Ireland=Europe""",
    ),
    "author": (
        "Who wrote {}?",
        """Hamlet=Shakespeare, Oliver Twist=Dickens, Pride and Prejudice=Austen, War and Peace=Tolstoy, the
        Odyssey=Homer, Don Quixote=Cervantes, Moby-Dick=Melville, Faust=Goethe, Animal Farm=Orwell, The Hobbit=Tolkien,
        Frankenstein=Shelley, Dracula=Stoker, Harry Potter=Rowling, Les Misérables=Hugo, The Raven=Poe, Romeo and
        Juliet=Shakespeare, Jane Eyre=Brontë|Bronte, Tom Sawyer=Twain, Macbeth=Shakespeare, Crime and
        Punishment=Dostoevsky|Dostoyevsky, Alice in Wonderland=Carroll, The Divine Comedy=Dante""",
    ),
    "language": (
        "Which language do most people in {} speak?",
        """Italy=Italian, France=French, Germany=German, Japan=Japanese, Brazil=Portuguese, Mexico=Spanish,
        Egypt=Arabic, China=Chinese|Mandarin, Russia=Russian, Greece=Greek, Turkey=Turkish, Poland=Polish,
        Sweden=Swedish, Chile=Spanish, Thailand=Thai, Austria=German, Australia=English, Norway=Norwegian,
        Vietnam=Vietnamese, Hungary=Hungarian, Iran=Persian|Farsi, Cuba=Spanish, Iraq=Arabic, Denmark=Danish,
        Finland=Finnish""",
    ),
    "currency": (
        "What is the currency of {}?",
        """India=rupee|rupees, Mexico=peso|pesos, Russia=ruble|rubles|rouble, France=euro|euros, China=yuan|renminbi,
        Switzerland=franc|francs, Sweden=krona|kronor, Poland=zloty|złoty, Turkey=lira, Israel=shekel|shekels,
        Thailand=baht, South Korea=won, Brazil=real|reais, Germany=euro|euros, Canada=dollar|dollars, South
        Africa=rand, Vietnam=dong, Egypt=pound|pounds, Norway=krone|kroner, Hungary=forint, Kenya=shilling|shillings""",
    ),
    "most": (
        "What is the {}?",
        """largest planet=Jupiter, highest mountain on Earth=Everest, largest ocean=Pacific, smallest
        continent=Australia, fastest land animal=cheetah, tallest animal=giraffe, largest animal on Earth=blue whale,
        hardest gemstone=diamond, largest country by area=Russia, planet closest to the sun=Mercury, star closest to
        the Earth=Sun, longest river in Africa=Nile, largest organ of the human body=skin, largest continent=Asia,
        largest bird=ostrich, coldest continent=Antarctica, shortest month=February, largest state of the USA=Alaska""",
    ),
    "amount": (
        "How many {}?",
        """days are in a week=7|seven, months are in a year=12|twelve, legs does a dog have=4|four, hours are in a
        day=24, minutes are in an hour=60|sixty, sides has a triangle=3|three, sides has a square=4|four, wheels has a
        bicycle=2|two, legs does an ant have=6|six, eyes does a cat have=2|two, wings has a bird=2|two, cents are in a
        dollar=100|hundred, colors are in a rainbow=7|seven, seconds are in a minute=60|sixty, fingers are on one
        hand=5|five, letters has the English alphabet=26, sides has a hexagon=6|six, planets are in the solar
        system=8|eight, arms does an octopus have=8|eight, strings has a violin=4|four, years are in a
        century=100|hundred, eggs are in a dozen=12|twelve""",
    ),
}

WORDS = {
    "opposite": (
        "What is the opposite of {}?",
        """hot=cold|cool, big=small|little, tall=short, fast=slow, happy=sad|unhappy, light=dark|heavy|darkness,
        up=down, left=right, open=closed|close|shut, hard=soft|easy, wet=dry, full=empty, old=young|new, early=late,
        rich=poor, strong=weak, loud=quiet|silent|soft, clean=dirty, thick=thin, inside=outside, day=night,
        love=hate|hatred, begin=end|finish|stop, win=lose|loss|defeat, buy=sell, push=pull, true=false, deep=shallow,
        wide=narrow, sharp=dull|blunt, high=low, good=bad|evil, near=far, first=last, heavy=light, cheap=expensive,
        safe=dangerous|unsafe, brave=cowardly|afraid|timid, friend=enemy|foe, success=failure, front=back, above=below,
        smooth=rough, bright=dark|dim|dull, ugly=beautiful|pretty, arrive=leave|depart, summer=winter, question=answer,
        peace=war""",
    ),
    "plural": (
        "What is the plural of {}?",
        """child=children, mouse=mice, foot=feet, tooth=teeth, man=men, woman=women, goose=geese, knife=knives,
        leaf=leaves, wolf=wolves, city=cities, baby=babies, box=boxes, bus=buses, potato=potatoes, wife=wives,
        cat=cats, half=halves, story=stories, church=churches, dish=dishes, person=people|persons, ox=oxen,
        shelf=shelves, tomato=tomatoes, lady=ladies, country=countries, glass=glasses, calf=calves, party=parties,
        thief=thieves, brush=brushes, hero=heroes, key=keys, day=days, loaf=loaves, fox=foxes, berry=berries,
        fly=flies, life=lives""",
    ),
    "past": (
        "What is the past tense of {}?",
        """go=went, swim=swam, eat=ate, run=ran, see=saw, write=wrote, take=took, buy=bought, think=thought, sing=sang,
        drink=drank, drive=drove, speak=spoke, break=broke, give=gave, know=knew, fly=flew, catch=caught, teach=taught,
        bring=brought, find=found, begin=began, sleep=slept, keep=kept, leave=left, make=made, send=sent, build=built,
        sell=sold, tell=told, feel=felt, meet=met, win=won, wear=wore, choose=chose, fall=fell, grow=grew, draw=drew,
        throw=threw, ride=rode, steal=stole, forget=forgot, walk=walked, play=played, stop=stopped, carry=carried""",
    ),
    "job": (
        "What do you call a person who {}?",
        """bakes bread=baker, teaches children=teacher, flies a plane=pilot, cuts hair=barber|hairdresser|hairstylist,
        puts out fires=firefighter|fireman, paints pictures=painter|artist, sings songs=singer|vocalist, grows
        crops=farmer, writes books=author|writer, repairs teeth=dentist, drives a bus=bus driver|driver, cooks in a
        restaurant=chef|cook, catches fish=fisherman|angler|fisher, builds houses=builder|carpenter, sells
        meat=butcher, takes photos=photographer, repairs pipes=plumber, plays the piano=pianist, treats sick
        animals=veterinarian|vet, travels into space=astronaut|cosmonaut, designs buildings=architect, delivers
        letters=mail carrier|mailman|postman|postal worker, treats sick people=doctor|physician|nurse, tells jokes on
        stage=comedian|comic, studies the stars=astronomer, makes clothes=tailor|seamstress|dressmaker""",
    ),
    "young": (
        "Complete: A baby {} is called a",
        """dog=puppy|pup, cat=kitten, cow=calf, horse=foal|colt|filly, sheep=lamb, pig=piglet, hen=chick,
        duck=duckling, goose=gosling, lion=cub, bear=cub, deer=fawn, goat=kid, frog=tadpole|froglet, kangaroo=joey,
        swan=cygnet, fox=kit|cub, seal=pup, owl=owlet, elephant=calf""",
    ),
    "pair": (
        "Which word completes the phrase? {} and ...",
        """Salt=pepper, Bread=butter, Black=white, Thunder=lightning, Knife=fork, Left=right, Hide=seek, Lost=found,
        Ladies=gentlemen, Day=night, Brothers=sisters, Husband=wife, Up=down, Cause=effect, Trial=error, Rock=roll,
        Supply=demand, Pros=cons, Mother=father, Back=forth, Peace=quiet, Lock=key, Bow=arrow, Cup=saucer""",
    ),
}

CHOICES = {
    "bigger": (
        "Which is bigger, {} or {}?",
        """a mouse/*an elephant, *a whale/a goldfish, an ant/*a dog, *a house/a shoe, a cup/*a bathtub, *a city/a
        village, a pea/*a melon, *a bus/a bicycle, a coin/*a plate, *the sun/the moon, a cat/*a horse, *a lake/a
        puddle, a grape/*an apple, *a mountain/a hill, a spoon/*a shovel, *a lion/a rabbit, a tent/*a castle, *an
        ocean/a pond, a bee/*an eagle, *a truck/a scooter, a button/*a pillow, *a tree/a flower, a frog/*a cow, *a
        door/a key""",
    ),
    "kind": (
        "Is {} {} or {}?",
        """a carrot=*a vegetable/an animal, a dog=a plant/*an animal, a rose=*a flower/a tool, a hammer=a food/*a tool,
        a trout=*a fish/a bird, an eagle=a fish/*a bird, a violin=*an instrument/a vehicle, a truck=a fruit/*a vehicle,
        a sofa=*furniture/clothing, a shirt=furniture/*clothing, an oak=*a tree/a metal, iron=a tree/*a metal,
        soccer=*a sport/a meal, breakfast=a sport/*a meal, winter=*a season/a month, April=a season/*a month, a
        banana=*a fruit/a country, Spain=a fruit/*a country, blue=*a color/a number, seven=a color/*a number, a
        nurse=*a job/a game, chess=a job/*a game, coffee=*a drink/a building, a castle=a drink/*a building, an ant=*an
        insect/a mammal, a whale=an insect/*a mammal, Mars=*a planet/a river, the Nile=a planet/*a river""",
    ),
    "color": (
        "Is {} {} or {}?",
        """grass=*green/blue, snow=black/*white, coal=*black/green, blood=white/*red, milk=*white/red, a
        lemon=blue/*yellow, a ripe tomato=*red/blue, an emerald=red/*green, a ruby=*red/yellow, a flamingo=green/*pink,
        a banana=*yellow/red, chocolate=blue/*brown, a polar bear=*white/black, a fire engine=green/*red,
        spinach=*green/white, a lime=red/*green, a raven=*black/yellow, a sunflower=black/*yellow, a
        pumpkin=*orange/blue, a carrot=white/*orange, a strawberry=*red/black, the sky on a clear day=green/*blue""",
    ),
    "yes_no": (
        "{} Answer yes or no.",
        """Is fire hot?=yes, Is ice warm?=no, Can birds fly?=yes, Can stones talk?=no, Is water wet?=yes, Is the sun
        cold?=no, Do fish live in water?=yes, Do cows lay eggs?=no, Is Paris in France?=yes, Is Tokyo in Italy?=no, Is
        sugar sweet?=yes, Is a lemon sweet?=no, Do dogs bark?=yes, Do cats bark?=no, Is gold a metal?=yes, Is wood a
        metal?=no, Is snow white?=yes, Is grass red?=no, Do trees have leaves?=yes, Do snakes have legs?=no, Is Africa
        a continent?=yes, Is Germany a continent?=no, Is a rose a flower?=yes, Is a shark a bird?=no, Can people read
        books?=yes, Can horses read books?=no, Is 5 more than 2?=yes, Is 3 more than 9?=no, Does a car have
        wheels?=yes, Does a boat have wheels?=no""",
    ),
}

NOUNS = [
    "lamp", "river", "garden", "window", "bottle", "candle", "button", "market", "pencil", "ladder", "basket", "mirror",
    "blanket", "hammer", "engine", "jacket", "kitchen", "lemon", "monkey", "needle", "orange", "pocket", "rabbit",
    "silver", "tiger", "umbrella", "valley", "winter", "yellow", "zebra",
]  # fmt: skip
LISTS = """colors=red|blue|green, fruits=apple|banana|cherry, animals=dog|cat|horse, countries=France|Japan|Brazil,
cities=Paris|London|Rome, vegetables=carrot|onion|pea, sports=soccer|tennis|golf, drinks=water|tea|milk,
flowers=rose|tulip|lily, tools=hammer|saw|drill, metals=iron|gold|copper, insects=ant|bee|fly, birds=eagle|owl|crow,
months=May|June|July, planets=Mars|Venus|Earth, shapes=circle|square|triangle"""
FIELDS = """name=Tom, city=Paris, color=red, animal=cat, country=Peru, day=Monday, fruit=apple, job=pilot, month=May,
tool=saw, sport=golf, drink=tea, title=Dune, street=Elm, planet=Mars, author=Poe, team=Lions, brand=Acme, food=rice,
river=Nile"""
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
