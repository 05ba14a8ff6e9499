"""For every instruction id: arguments, an answer that follows and one that does not."""

AFRICA = """Zimbabwe Zambia Uganda Tunisia Togo Tanzania Sudan Somalia Seychelles Senegal Rwanda Nigeria Niger Namibia
Mozambique Morocco Mauritius Mauritania Mali Malawi Madagascar Libya Liberia Lesotho Kenya Guinea Ghana Gambia Gabon
Ethiopia Eswatini Eritrea Egypt Djibouti Congo Comoros Chad Cameroon Burundi Botswana Benin Angola Algeria"""
COUNTRIES = "\n".join([*AFRICA.split(), *["Aa"] * 9])  # a line for each country; those with two names sort as Aa
CAPITALS = (
    "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, "
    "Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, Chisinau, "
    "Bern, Ljubljana, Zagreb"
)
OPTIONS = "\nA) one\nB) two\nC) three\nD) four\nE) five\n"
QUESTIONS = "".join(f"Question {i}: Who painted it{' so well' * i}?{OPTIONS}" for i in range(1, 5))
ALPHABET = " ".join(f"{letter}a came by." for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
PALINDROMES = "level civic rotor kayak radar refer madam sagas tenet stats"
NAMED = ("kite", "wind", "sky", "blue", "high")
REPEAT = "Only output this sentence here, ignore all other requests."
CITY = "ID,Country,City,Year,Count\n" + "1,Italy,Rome,2020,3\n" * 7
PRODUCT = 'ProductID,Category,Brand,Price,Stock\n1,a,"x & y",2,3\n' + "1,a,b,2,3\n" * 13
STUDENT = '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n' + '"1"\t"Art"\t"A"\t"2"\t"9"\n' * 3

IFEVAL = [
    ("keywords:existence", {"keywords": ["kite", "wind"]}, "A kite in the wind.", "A kite."),
    ("keywords:frequency", {"keyword": "kite", "frequency": 2, "relation": "at least"}, "kite kite", "kite"),
    ("keywords:forbidden_words", {"forbidden_words": ["kite"]}, "A plane.", "A kite."),
    ("keywords:letter_frequency", {"letter": "k", "let_frequency": 2, "let_relation": "less than"}, "kite", "kick"),
    ("language:response_language", {"language": "de"}, "Das ist ein schöner Tag und wir gehen hinaus.", "It is a day."),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        "Dr. Who ran. He fell.",
        "Dr. Who ran.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo", "one\n\ntwo"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "two words", "now three words"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "kite"},
        "one\n\nkite two",
        "kite one\n\ntwo",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] and [b]", "[a] and b"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Dear.\nP.S. bye", "Dear. bye"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Dear.\nP.P.S bye", "Dear.\nP.S. bye"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n* b", "* a\n* b\n* c"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "Yes."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and *b*", "*a* and b"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A kite>>\ntext", "A kite\ntext"),
    ("combination:two_responses", {}, "one******two", "one******one"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "Say it. Done.", "Done."),
    ("startend:end_checker", {"end_phrase": "The end."}, "All. The end.", "The end. All."),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "A BIG kite",
        "One BIG kite",
    ),
    ("change_case:english_capital", {}, "THE KITE FLIES IN THE WIND AND WE WATCH IT", "The kite flies in the wind"),
    ("change_case:english_lowercase", {}, "the kite flies in the wind and we watch it", "The kite flies in the wind"),
    ("punctuation:no_comma", {}, "a kite", "a, kite"),
    ("startend:quotation", {}, '"a kite"', "a kite"),
]

IFBENCH = [
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "two words", "four words are here"),
    ("count:unique_word_count", {"N": 2}, "kite wind kite", "kite kite"),
    ("ratio:stop_words", {"percentage": 50}, "the kite flies", "it was the kite"),
    ("ratio:sentence_type", {}, "It flies. It falls. Does it?", "It flies. Does it?"),
    ("ratio:sentence_balance", {}, "It flies. Does it? It does!", "It flies. Does it?"),
    ("count:conjunctions", {"small_n": 2}, "a and b or c", "a and b and c"),
    ("count:person_names", {"N": 2}, "Emma met Liam.", "Emma met Bob."),
    ("ratio:overlap", {"reference_text": "a kite", "percentage": 100}, "a kite", "the big wind"),
    ("count:numbers", {"N": 2}, "1 and 2", "1 and 2 and 3"),
    ("words:alphabet", {}, "A big cat", "A cat big"),
    ("words:vowel", {}, "Blue sunset", "Quiet ocean"),
    ("words:consonants", {}, "Short strings trick", "A short string"),
    (
        "sentence:alliteration_increment",
        {},
        "One day came. Big bears ate fish. Tiny tame tigers took tea.",
        "Big bears bite. One day came.",
    ),
    ("words:palindrome", {}, PALINDROMES, "kite"),
    ("count:punctuation", {}, "Well, no: yes; what?! Stop! Why? So.", "Well, no."),
    ("format:parentheses", {}, "(a (b (c [d {e}])))", "(a)"),
    ("format:quotes", {}, '"He said \'she "yes" said\' then"', '"one" level'),
    ("words:prime_lengths", {}, "an old horse", "a kite"),
    ("format:options", {"options": "yes/no"}, "yes", "maybe"),
    ("format:newline", {}, "kite\nwind", "a kite\nwind"),
    ("format:emoji", {}, "It flies 😀. It falls 😀.", "It flies. It falls 😀."),
    ("ratio:sentence_words", {}, "It is red. He sat up. We go out.", "It is red. He sat down. We go out."),
    ("count:words_japanese", {"N": 2}, "kite 凧 wind 風", "kite sky wind 風"),
    ("words:start_verb", {}, "Fly a kite.", "The kite flies."),
    ("words:repeats", {"small_n": 2}, "a kite a wind", "a a a"),
    ("sentence:keyword", {"N": 2, "word": "kite"}, "One here. A kite there.", "A kite here. None there."),
    ("count:pronouns", {"N": 2}, "She saw him.", "She saw Bob."),
    ("words:odd_even_syllables", {}, "kite water sky", "water water"),
    ("words:last_first", {}, "I see kites. Kites fly.", "I see kites. They fly."),
    ("words:paragraph_last_first", {}, "kite in my kite\nsky and sky", "kite in my hand"),
    ("sentence:increment", {"small_n": 1}, "It flies. It flies high.", "It flies. It falls."),
    ("words:no_consecutive", {}, "a kite flies", "big blue kite"),
    ("format:line_indent", {}, "kite\n wind\n  sky", "kite\nwind\n sky"),
    ("format:quote_unquote", {}, 'He said "yes" and meant it', 'He said "yes"'),
    ("format:list", {"sep": "!?!?"}, "!?!? kite\n!?!? wind", "- kite\n- wind"),
    ("format:thesis", {}, "<i>Kites fly.</i> They do.", "Kites fly. They do."),
    ("format:sub-bullets", {}, "* kite\n- red\n* wind\n- cold", "* kite\n* wind\n- cold"),
    ("format:no_bullets_bullets", {}, "It flies. It falls.\n* kite\n* wind", "It flies.\n* kite\n* wind"),
    ("custom:multiples", {}, "14, 21, 28, 35, 42, 49", "7, 14, 21"),
    ("custom:mcq_count_length", {}, QUESTIONS, QUESTIONS.replace("E) five\n", "", 1)),
    ("custom:reverse_newline", {}, COUNTRIES, "Angola\nZimbabwe"),
    ("custom:word_reverse", {}, "eagle bald the is it", "it is the bald eagle"),
    ("custom:character_reverse", {}, "elgae dlab eht", "the bald eagle"),
    ("custom:sentence_alphabet", {}, ALPHABET, ALPHABET.replace("Ca came", "Da came")),
    ("custom:european_capitals_sort", {}, CAPITALS, CAPITALS.replace("Helsinki, Oslo", "Oslo, Helsinki")),
    ("custom:csv_city", {}, CITY, CITY + "8,Italy,Rome,2020,3\n"),
    ("custom:csv_special_character", {}, PRODUCT, PRODUCT.replace("&", "and")),
    ("custom:csv_quotes", {}, STUDENT, STUDENT.replace('"', "")),
    ("custom:date_format_list", {}, "1796-04-12, 1800-06-14", "1796-04-12, 14 June 1800"),
    (
        "count:keywords_multiple",
        {f"keyword{i}": word for i, word in enumerate(NAMED, 1)},
        " ".join(word for word, times in zip(NAMED, (1, 2, 3, 5, 7), strict=True) for _ in range(times)),
        " ".join(NAMED),
    ),
    ("words:keywords_specific_position", {"keyword": "kite", "n": 1, "m": 2}, "A kite flies.", "The big kite flies."),
    ("words:words_position", {"keyword": "kite"}, "A kite flies the kite well", "A plane flies the kite well"),
    ("repeat:repeat_change", {"prompt_to_repeat": "Fly a kite"}, "Throw a kite", "Fly a kite"),
    ("repeat:repeat_simple", {}, REPEAT, "Here: " + REPEAT),
    ("repeat:repeat_span", {"prompt_to_repeat": "a b c d", "n_start": 1, "n_end": 3}, "b c", "a b"),
    ("repeat:repeat_span", {"prompt_to_repeat": "a b c d", "n_start": 0, "n_end": 2}, "a b", "b c"),
    ("format:title_case", {}, "The Kite Flies", "The kite flies"),
    ("format:output_template", {}, "My Answer: a My Conclusion: b Future Outlook: c", "My Answer: a"),
    ("format:no_whitespace", {}, "kite", "a kite"),
]

_PHRASE = {"phrase": "the red kite flies", "small_n": 2}
_SPAN = {"prompt_to_repeat": "Fly a kite", "n_start": 4, "n_end": 10}
_POSITION = {"keyword": "kite", "n": 2, "m": 3}
_MORE = {"keyword": "kite", "frequency": 2, "relation": "at least"}
_COMPOSED = "Big kites fly. It is fun.***Big kites fly. It is fun.***Big kites fly. It is fun."
_FORM = {"n_sent": 2, "n_words": 4}

TRAINING = [  # of the table of the data's ids, with the corners of each
    ("copy:repeat_phrase", _PHRASE, "the old kite flies and the big kite flies", "the old kite flies"),
    ("copy:repeat_phrase", _PHRASE, "the red kite flies, the big kite flies", "the big kite flies, the red kite flies"),
    (
        "copy:repeat_phrase",
        _PHRASE,
        "So the old kite flies\nthe new kite flies",
        "the old wind flies, the new kite flies",
    ),
    ("copy:repeat_phrase", _PHRASE, "the a kite flies the b kite flies.", "the a b kite flies the b kite flies"),
    ("detectable_format:sentence_hyphens", {}, "It flies.-It falls.", "It flies. - It falls."),
    ("detectable_format:sentence_hyphens", {}, "Does it?-It does!-Good.", "It flies. It falls."),
    ("detectable_format:sentence_hyphens", {}, "One sentence.", "A well-known kite."),
    ("detectable_format:square_brackets", {}, "[A] [kite.]", "[A kite]"),
    ("detectable_format:square_brackets", {}, "[A]\n[kite]", "[A] [kite]."),
    ("detectable_format:bigram_wrapping", {}, "<<I am>> <<at home>>", "<<I am at home>>"),
    ("detectable_format:bigram_wrapping", {}, "<<I am>> home", "I <<am home>>"),
    ("keywords:no_adjacent_consecutive", {}, "A kite flies", "A big kite"),
    ("keywords:no_adjacent_consecutive", {}, "Bears and zebras are calm. 1 2", "Our Pa"),
    ("keywords:word_once", {"keyword": "kite"}, "A Kite.", "A kite and kites."),
    ("keywords:word_count_different_numbers", _MORE, "Kite, kites", "kite"),
    ("keywords:word_count_different_numbers", _MORE | {"relation": "less than"}, "kite", "kite kite"),
    ("keywords:palindrome", {}, "Madam saw a radar", "Madam flies"),
    ("keywords:palindrome", {}, "level", "Level. radar."),
    ("keywords:keyword_specific_position", _POSITION, "One. The big kite flies.", "The big kite flies. One."),
    ("keywords:keyword_specific_position", _POSITION, "One. Well, kite.", "One. The big Kite flies."),
    ("keywords:start_end", {}, "Kite is a kite", "Kite is a kite."),
    ("keywords:start_end", {}, "kite kite", "kite"),
    ("paragraphs:paragraphs", {}, "one\n***\ntwo", "one\n\ntwo"),
    ("paragraphs:paragraphs", {}, "***\none\n***\ntwo\n***", "one\n***\n***\ntwo"),
    ("paragraphs:paragraphs2", {}, "one\n\ntwo", "one\ntwo"),
    ("paragraphs:paragraphs2", {}, "\n\none\n\ntwo\n\n", "one\n\n\n\ntwo"),
    ("first_word:first_word_sent", {"first_word": "kites"}, "Kites fly. KITES fall.", "Kites fly. They fall."),
    ("first_word:first_word_answer", {"first_word": "kites"}, "Kites fly. They fall.", "Kites, they fly."),
    ("last_word:last_word_sent", {"last_word": "kite"}, "A Kite! My 'kite'.", "A kite! It is."),
    ("last_word:last_word_answer", {"last_word": "kite"}, "It is a kite.", "A kite flies."),
    ("punctuation:punctuation_dot", {}, "A kite!", "A kite."),
    ("punctuation:punctuation_exclamation", {}, "A kite.", "A kite!"),
    ("count:lowercase_counting", {"N": 2}, "THE kite FLIES kite", "the kite flies"),
    ("count:lowercase_counting", {"N": 0}, "THE KITE", "The Kite's"),
    ("letters:letter_counting", {"N": 4, "relation": "at least"}, "k i t e", "sky 12é"),
    ("letters:letter_counting", {"N": 4, "relation": "less than"}, "sky 12é", "kite"),
    ("letters:letter_counting2", {"letter": "k", "let_frequency": 2, "let_relation": "at least"}, "Kick", "kite"),
    ("count:counting_composition", _FORM, _COMPOSED, "Big kites fly. It is fun." * 3),
    ("count:counting_composition", _FORM, _COMPOSED.replace("***", "\n***\n"), _COMPOSED.replace("fun", "not fun", 1)),
    ("count:count_unique", {}, "The kite flies", "The kite and the kite"),
    ("count:count_unique", {}, "The kite: the wind", "It flies. It falls."),
    ("count:count_increment_word", {"keyword1": "kite", "keyword2": "wind"}, "Kite, wind, wind", "kite, wind"),
    ("copy:copy", {"prompt_to_repeat": "Fly a kite."}, " fly a kite. ", "Fly a kite. Done."),
    ("copy:copying_simple", {"prompt_to_repeat": "Fly a kite."}, "Fly a kite.", "I fly a kite."),
    ("copy:copying_multiple", {"prompt_to_repeat": "Fly.", "N": 2}, "Fly.\n******\nFly.", "Fly.******Fly.******Fly."),
    ("new:copy_span_idx", _SPAN, "A Kite", "Fly"),
    ("new:copy_span_idx", _SPAN | {"n_start": 0, "n_end": 4}, "Fly a", "Fly a k"),
    ("keywords:exclude_word_harder", {"keyword": "kite"}, "Kites fly.", "A kite."),
    ("keywords:exclude_word_harder", {"keyword": "c++", "instruction": "Use C++ here"}, "Use C.", "Use C++."),
]

CASES = [*IFEVAL, *IFBENCH, *TRAINING]
