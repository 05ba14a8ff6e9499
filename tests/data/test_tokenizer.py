"""Both kinds of tokenizers: exact round trips, special tokens that no text can forge, byte-equal training."""

import json
import random
import shutil
import subprocess
import sys

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HuggingFace

from cascade_jax.data import side_files
from cascade_jax.data import tokenizer as tokenizers
from cascade_jax.data.tokenizer import CHAT_SPECIALS, train_sentencepiece

TEXTS = ["Write kite and lamp.", '{"name": "kite", "count": 42}', "two\nlines\n\nand  spaces ", "3 + 4 = 7"] * 4
ODD = [
    "",
    " ",
    "  x  ",
    "\n",
    "\r\n\t",
    "\x00",
    "\u2581",
    "a\u2581 b",
    "é",
    "e\u0301",
    "ﬁ",
    "\ufeff",
    "\U0001f600\u200d",
    "²",
    "\ufffd",
]
NAMES = ["<|im_end|>", "<|im_<|im_end|>end|>", "<<think>>", "</think", "x<tool_call>y</s>", "<s><s>"]


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    path = tmp_path_factory.mktemp("sp") / "tokenizer.model"
    return train_sentencepiece(
        TEXTS, path, vocab_size=340, pieces=["user\n", "a piece, with spaces\n\nand lines", "kite"]
    )


@pytest.fixture(scope="module")
def huggingface(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = HuggingFace(models.BPE({c: i for i, c in enumerate([*alphabet, "th", "Ġth"])}, [("t", "h"), ("Ġ", "th")]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(["</s>", "<|im_start|>", "<|im_end|>"])
    model.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    model.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 260]}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>"}, "chat_template": "T"})
    )
    return tokenizers.load(folder)


@pytest.fixture(params=["sentencepiece", "huggingface"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def random_text(rng: random.Random) -> str:
    ranges = [(32, 127), (0, 256), (0x2580, 0x2590), (0x4E00, 0x9FFF), (0x1F300, 0x1F700), (0, 0x110000)]
    points = [rng.randrange(*rng.choice(ranges)) for _ in range(rng.randrange(12))]
    text = "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)
    return text + rng.choice(["", "", rng.choice(ODD), rng.choice(NAMES)])


def test_every_text_comes_back(tokenizer):
    rng = random.Random(0)
    for text in [*ODD, *NAMES, *TEXTS, *(random_text(rng) for _ in range(2000))]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        assert not set(ids) & set(tokenizer.specials.values())


def test_specials_are_read_only_when_asked(tokenizer):
    end, think = tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<think>")
    assert end not in tokenizer.encode("a<|im_end|>")
    assert tokenizer.encode("a<|im_end|><think>b", specials=True) == [
        *tokenizer.encode("a"),
        end,
        think,
        *tokenizer.encode("b"),
    ]
    assert tokenizer.decode([end, think]) == "<|im_end|><think>"
    with pytest.raises(ValueError, match=r"has no special token '<nope>'"):
        tokenizer.token_id("<nope>")


def test_sentencepiece_vocabulary(sentencepiece):
    t = sentencepiece
    assert [t.specials[name] for name in CHAT_SPECIALS] == list(range(3, 11))
    assert (t.eos_id, t.stop_ids) == (t.specials["<|im_end|>"], (t.specials["<|im_end|>"], t.specials["</s>"]))
    for piece in ("user\n", "a piece, with spaces\n\nand lines", "kite", "\n"):
        assert len(t.encode(piece)) == 1
    assert len(t.encode("12345")) == 5
    assert t.encode("a kite") == t.encode("a ") + t.encode("kite")
    # an id beyond the vocabulary (padded embeddings can draw one) and halves of characters still read
    assert t.decode([t.vocab_size, 10**6]) == "\ufffd\ufffd"
    assert t.decode(t.encode("é")[:1]) == "\ufffd"


def test_huggingface_reads_what_lies_beside_it(huggingface):
    assert huggingface.eos_id == huggingface.specials["<|im_end|>"]
    assert huggingface.specials["<|im_end|>"] == 260
    assert huggingface.stop_ids == (256, 260, huggingface.specials["</s>"])
    assert huggingface.chat_template == ("T", huggingface.path.with_name("tokenizer_config.json"))
    assert huggingface.named_tokens == {"eos_token": "<|im_end|>"}


@pytest.mark.parametrize(
    ("files", "text", "name"),
    [
        ({}, None, None),
        ({"chat_template.jinja": " \n", "chat_template.json": {"chat_template": ""}}, None, None),
        ({"chat_template.jinja": "A", "tokenizer_config.json": {"chat_template": "B"}}, "A", "chat_template.jinja"),
        ({"chat_template.jinja": "", "tokenizer_config.json": {"chat_template": "B"}}, "B", "tokenizer_config.json"),
        ({"tokenizer_config.json": {"chat_template": None}, "chat_template.json": {"chat_template": "C"}}, "C", None),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "T"}]}}, "T", None),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
                }
            },
            "D",
            None,
        ),
    ],
)
def test_where_a_template_is_found(tmp_path, files, text, name):
    for file, content in files.items():
        (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    found = side_files.chat_template(tmp_path)
    assert (found and found.text) == text
    assert name is None or found.file == tmp_path / name


WRONG_SHAPES = [
    ("generation_config.json", "[]", "holds a list, where a JSON object is needed"),
    ("generation_config.json", '{"eos_token_id": 2.5}', "eos_token_id=2.5 is no id and no list of ids"),
    ("generation_config.json", '{"eos_token_id": ["a", null]}', "is no id and no list of ids"),
    ("generation_config.json", '{"eos_token_id": true}', "eos_token_id=True is no id"),
    ("generation_config.json", "{nope", "is no JSON"),
    ("generation_config.json", "[" * 100_000, "is no JSON"),
    ("tokenizer_config.json", "[]", "holds a list"),
    ("tokenizer_config.json", '{"eos_token": {}}', "eos_token={} is no token"),
    ("tokenizer_config.json", '{"eos_token": []}', r"eos_token=\[\] is no token"),
    ("tokenizer_config.json", '{"bos_token": 3}', "bos_token=3 is no token"),
    ("tokenizer_config.json", '{"chat_template": 3}', "chat_template is neither a text nor a list"),
    ("tokenizer_config.json", '{"chat_template": ["T"]}', "chat_template is neither a text nor a list"),
    ("tokenizer.json", '{"model": {}}', "is not a Hugging Face tokenizer"),
]


@pytest.mark.parametrize(("name", "content", "message"), WRONG_SHAPES)
def test_a_side_file_of_another_shape_is_named(huggingface, tmp_path, name, content, message):
    shutil.copy(huggingface.path, tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as raised:
        tokenizers.load(tmp_path)
    assert str(tmp_path / name) in str(raised.value) and "\n" not in str(raised.value)


def test_a_side_file_that_cannot_be_read_is_named(huggingface, tmp_path):
    shutil.copy(huggingface.path, tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes("é".encode("latin-1"))
    with pytest.raises(ValueError, match=r"chat_template.jinja cannot be read \(it is no UTF-8\)"):
        tokenizers.load(tmp_path)
    (tmp_path / "generation_config.json").mkdir()
    with pytest.raises(ValueError, match=r"generation_config.json cannot be read"):
        tokenizers.load(tmp_path)


def test_training_gives_the_same_bytes_in_another_process(sentencepiece, tmp_path):
    script = (
        "import sys, json; from cascade_jax.data.tokenizer import train_sentencepiece;"
        "train_sentencepiece(json.loads(sys.argv[1]), sys.argv[2], vocab_size=340, pieces=json.loads(sys.argv[3]))"
    )
    pieces = json.dumps(["user\n", "a piece, with spaces\n\nand lines", "kite"])
    other = tmp_path / "elsewhere" / "other.model"
    subprocess.run([sys.executable, "-c", script, json.dumps(TEXTS), str(other), pieces], check=True)
    assert other.read_bytes() == sentencepiece.path.read_bytes()
    assert tokenizers.load(sentencepiece.path.parent).path == sentencepiece.path


def test_mistakes_are_one_sentence(tmp_path):
    (tmp_path / "x.model").write_bytes(b"not a model")
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "y.json").write_text("{")
    (tmp_path / "x.txt").write_text("")
    (tmp_path / "empty").mkdir()
    for name, error, message in [
        ("missing.json", FileNotFoundError, "there is no tokenizer at"),
        ("empty", FileNotFoundError, "holds neither"),
        ("x.model", ValueError, "is not a SentencePiece model"),
        ("x.json", ValueError, "is not a Hugging Face tokenizer"),
        ("y.json", ValueError, "is no JSON"),
        ("x.txt", ValueError, "is no tokenizer that can be read"),
    ]:
        with pytest.raises(error, match=message) as raised:
            tokenizers.load(tmp_path / name)
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="vocab_size=200 is too small for 267 fixed tokens"):
        train_sentencepiece(TEXTS, tmp_path / "z.model", vocab_size=200)
