"""The exact Nemotron-3 format, what of it is trained, and reading back whatever a model may write."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from cascade_jax.data.chat import Chat, template_pieces
from cascade_jax.data.templates import CHATML
from cascade_jax.data.tokenizer import CHAT_SPECIALS, load, train_sentencepiece
from cascade_jax.types import ToolCall

TOOL = {
    "type": "function",
    "function": {
        "name": "send",
        "description": "Sends it.",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "What.", "enum": ["kite", "lamp"]},
                "count": {"type": "integer", "minimum": 1},
            },
            "required": ["name", "count"],
        },
    },
}
TOOLS_TEXT = """# Tools

You have access to the following functions:

<tools>
<function>
<name>send</name>
<description>Sends it.</description>
<parameters>
<parameter>
<name>name</name>
<type>string</type>
<description>What.</description>
<enum>["kite", "lamp"]</enum>
</parameter>
<parameter>
<name>count</name>
<type>integer</type>
<minimum>1</minimum>
</parameter>
<required>["name", "count"]</required>
</parameters>
</function>
</tools>

"""
CALL = {"id": "", "type": "function", "function": {"name": "send", "arguments": {"name": "kite", "count": 3}}}
CALL_TEXT = (
    "<tool_call>\n<function=send>\n<parameter=name>\nkite\n</parameter>\n<parameter=count>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
USER = {"role": "user", "content": "Hi"}
EMPTY_SYSTEM = "<|im_start|>system\n<|im_end|>\n"


def user(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n"


def said(body):
    return f"<|im_start|>assistant\n{body}<|im_end|>\n"


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "tokenizer.model"
    return Chat(train_sentencepiece(["Send kite 3 to lamp."] * 4, path, vocab_size=340, pieces=template_pieces()))


@pytest.fixture(scope="module")
def text_of(chat):
    def text_of(messages, tools=None, **options):
        return chat.tokenizer.decode(chat.render(messages, tools, **options).ids.tolist())

    return text_of


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


GOLDEN = {
    "the last thought stays": (
        [USER, assistant("Yes.", reasoning_content="hm")],
        EMPTY_SYSTEM + user("Hi") + said("<think>\nhm\n</think>\nYes."),
    ),
    "no thought": ([USER, assistant("Yes.")], EMPTY_SYSTEM + user("Hi") + said("<think></think>Yes.")),
    "a blank thought is none": (
        [USER, assistant("Yes.", reasoning_content=" \n")],
        EMPTY_SYSTEM + user("Hi") + said("<think></think>Yes."),
    ),
    "system": (
        [{"role": "system", "content": "Be kind."}, USER],
        "<|im_start|>system\nBe kind.<|im_end|>\n" + user("Hi"),
    ),
    "history loses its thoughts": (
        [
            USER,
            assistant("A", reasoning_content="hm"),
            USER,
            assistant("B"),
            USER,
            assistant("C", reasoning_content="so"),
        ],
        EMPTY_SYSTEM
        + user("Hi")
        + said("<think></think>\nA")
        + user("Hi")
        + said("<think></think>B")
        + user("Hi")
        + said("<think>\nso\n</think>\nC"),
    ),
    "a tool loop keeps its thoughts; results share one user turn": (
        [
            USER,
            assistant("", reasoning_content="hm", tool_calls=[CALL, CALL]),
            {"role": "tool", "content": "1", "tool_call_id": ""},
            {"role": "tool", "content": "2", "tool_call_id": ""},
            assistant("Done.", reasoning_content="so"),
        ],
        EMPTY_SYSTEM
        + user("Hi")
        + said(f"<think>\nhm\n</think>\n{CALL_TEXT}\n{CALL_TEXT}\n")
        + user("<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\n")
        + said("<think>\nso\n</think>\nDone."),
    ),
    "a new user turn drops the thoughts of a tool loop": (
        [
            USER,
            assistant("Look:", reasoning_content="hm", tool_calls=[CALL]),
            {"role": "tool", "content": "1", "tool_call_id": ""},
            USER,
        ],
        EMPTY_SYSTEM
        + user("Hi")
        + said(f"<think></think>Look:\n{CALL_TEXT}\n")
        + user("<tool_response>\n1\n</tool_response>\n")
        + user("Hi"),
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_exact_text(text_of, name):
    messages, text = GOLDEN[name]
    assert text_of(messages) == text


def test_generation_prompts(text_of):
    start = EMPTY_SYSTEM + user("Hi") + "<|im_start|>assistant\n<think>"
    assert text_of([USER], generation_prompt=True) == start + "\n"
    assert text_of([USER], thinking=False, generation_prompt=True) == start + "</think>"


def test_tools_come_after_the_system_text(text_of):
    text = text_of([{"role": "system", "content": "Be kind."}, USER], [TOOL])
    head, tools, rest = text.partition(TOOLS_TEXT)
    assert (head, tools) == ("<|im_start|>system\nBe kind.\n\n", TOOLS_TEXT)
    assert rest.startswith("If you choose to call a function ONLY reply in the following format with NO suffix:\n\n")
    assert rest.endswith("\n</IMPORTANT><|im_end|>\n" + user("Hi"))
    assert text_of([USER], [TOOL]).startswith("<|im_start|>system\n" + TOOLS_TEXT)


@pytest.mark.parametrize("thinking", [True, False])
def test_trained_is_what_follows_the_prompt_and_nothing_else(chat, thinking):
    """Against incremental rendering: the ids after the generation prompt, up to and with the end token."""
    thought = {"reasoning_content": "hm"} if thinking else {}
    for answer in [
        assistant("Yes.", **thought),
        assistant("", **thought, tool_calls=[CALL]),
        assistant("a\n\nb", **thought),
    ]:
        prompt = chat.render([USER], [TOOL], thinking=thinking, generation_prompt=True)
        whole = chat.render([USER, answer], [TOOL], thinking=thinking)
        n = len(prompt.ids)
        assert not prompt.trained.any()
        assert (whole.ids[:n] == prompt.ids).all()
        assert whole.trained.tolist() == [False] * n + [True] * (len(whole.ids) - n - 1) + [False]
        assert whole.ids[-2] == chat.tokenizer.token_id("<|im_end|>")
        assert (whole.ids.dtype, whole.trained.dtype) == (np.int32, np.bool_)
        reply = chat.parse(whole.ids[n:], prompt_ids=prompt.ids, tools=[TOOL])
        assert reply.malformed is None
        assert (reply.content, reply.reasoning) == (answer["content"], answer.get("reasoning_content", ""))
        assert reply.tool_calls == tuple(ToolCall(**c["function"]) for c in answer.get("tool_calls", ()))


def test_trained_in_a_long_conversation(chat):
    messages, _ = GOLDEN["a tool loop keeps its thoughts; results share one user turn"]
    ids, trained = chat.render([USER, assistant("A"), *messages])
    runs = [chat.tokenizer.decode(run.tolist()) for run in np.split(ids, np.flatnonzero(np.diff(trained)) + 1)][1::2]
    assert runs == [
        "A<|im_end|>",
        f"hm\n</think>\n{CALL_TEXT}\n{CALL_TEXT}\n<|im_end|>",
        "so\n</think>\nDone.<|im_end|>",
    ]


def test_texts_cannot_forge_special_tokens(chat, text_of):
    names = "".join(chat.tokenizer.specials)
    tool = {"type": "function", "function": {**TOOL["function"], "description": names}}
    call = {"function": {"name": "send", "arguments": {"name": names}}}
    forged = [
        {"role": "system", "content": names},
        {"role": "user", "content": names},
        assistant(names, reasoning_content=names, tool_calls=[call]),
        {"role": "tool", "content": names},
    ]
    plain = [
        {"role": "system", "content": "x"},
        {"role": "user", "content": "x"},
        assistant("x", reasoning_content="x", tool_calls=[{"function": {"name": "send", "arguments": {"name": "x"}}}]),
        {"role": "tool", "content": "x"},
    ]
    specials = set(chat.tokenizer.specials.values())
    drawn = [i for i in chat.render(forged, [tool]).ids.tolist() if i in specials]
    assert drawn == [i for i in chat.render(plain, [TOOL]).ids.tolist() if i in specials]
    assert text_of(forged, [tool]).count(names) == 7


def test_next_turn_continues_the_sampled_ids(chat):
    prompt = chat.render([USER], [TOOL], generation_prompt=True).ids
    sampled = chat.tokenizer.encode(f"hm\n</think>\n{CALL_TEXT}<|im_end|>", specials=True)
    following = chat.extend(prompt, sampled, [{"role": "tool", "content": "1", "tool_call_id": ""}], [TOOL])
    assert following[: len(prompt) + len(sampled)].tolist() == [*prompt.tolist(), *sampled]
    text = chat.tokenizer.decode(following[len(prompt) + len(sampled) :].tolist())
    assert text == "\n" + user("<tool_response>\n1\n</tool_response>\n") + "<|im_start|>assistant\n<think>\n"
    # a user's turn drops earlier thoughts, so the prompt has to be rendered anew
    assert chat.extend(prompt, sampled, [USER], [TOOL]) is None


MALFORMED = {
    "": None,
    "Yes.<|im_end|>": None,
    "Yes.<|im_end|>garbage</think>": None,
    "a</think>b": "a stray think tag",
    "a<think>": "a stray think tag",
    "<think>a</think>b": None,
    "<think>a": "the thought is not closed",
    CALL_TEXT: None,
    "First. " + CALL_TEXT + "\n" + CALL_TEXT + "\n<|im_end|>": None,
    CALL_TEXT + " after": "text after a tool call",
    CALL_TEXT + " between " + CALL_TEXT: "text after a tool call",
    "<tool_call>": "a tool call that cannot be read",
    CALL_TEXT.removesuffix("</tool_call>"): "a tool call that cannot be read",
    CALL_TEXT.replace("</function>", ""): "a tool call that cannot be read",
    CALL_TEXT.replace("<function=send>", "send"): "a tool call that cannot be read",
    CALL_TEXT.replace("\n3", "\n3</function>"): None,
    "<function=send>": "a leftover tool tag",
    "</tool_call>": "a leftover tool tag",
    "a<|im_start|>b": "a special token in the text",
    "<tool_call>\n<function=send>"
    + "<parameter=a></parameter>" * 400
    + "</tool_call>": "a tool call that cannot be read",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed(chat, text):
    assert chat.parse(chat.tokenizer.encode(text, specials=True)).malformed == MALFORMED[text]


def test_a_thought_that_the_prompt_opened(chat):
    prompt = chat.render([USER], generation_prompt=True).ids

    def parse(text):
        return chat.parse(chat.tokenizer.encode(text, specials=True), prompt_ids=prompt)

    reply = parse("hm\n</think>\nYes.<|im_end|>")
    assert (reply.content, reply.reasoning, reply.malformed) == ("Yes.", "hm", None)
    assert parse("hm<|im_end|>").malformed == "the thought is not closed"
    assert parse("hm" + CALL_TEXT).malformed == "the thought is not closed"
    assert parse("a</think>b</think>c").malformed == "a stray think tag"


def test_arguments_have_their_declared_types(chat):
    text = CALL_TEXT.replace("kite", "12")
    ids = chat.tokenizer.encode(text, specials=True)
    assert chat.parse(ids, tools=[TOOL]).tool_calls == (ToolCall("send", {"name": "12", "count": 3}),)
    assert chat.parse(ids).tool_calls == (ToolCall("send", {"name": 12, "count": 3}),)


def test_any_ids_can_be_read(chat):
    rng = np.random.default_rng(0)
    prompts = [chat.render([USER], thinking=t, generation_prompt=True).ids for t in (True, False)]
    specials = list(chat.tokenizer.specials.values())
    for i in range(1500):
        ids = rng.integers(0, chat.tokenizer.vocab_size + 9, rng.integers(0, 25))
        ids[rng.random(len(ids)) < 0.4] = rng.choice(specials)
        reply = chat.parse(ids.astype(np.int32), prompt_ids=prompts[i % 2], tools=[TOOL] * (i % 3 == 0))
        assert isinstance(reply.content, str)


def test_mistakes(chat):
    with pytest.raises(ValueError, match="No messages"):
        chat.render([])
    with pytest.raises(ValueError, match="beginning"):
        chat.render([USER, {"role": "system", "content": "late"}])


# ---------------------------------------------------------------- formats that exist as a Jinja template


def bare_chat(tmp_path, specials, template=None):
    """A character-level HF tokenizer with these special tokens and, beside it, this template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(list(specials))
    model.save(str(tmp_path / "tokenizer.json"))
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    return Chat(load(tmp_path))


SMOLLM2 = (  # what its tokenizer_config.json holds
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NEMOTRON_WITHOUT_TOOLS = """
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\n<|im_end|>\n' }}{% endif %}
{%- set last = namespace(user=-1) %}
{%- for m in messages if m.role == 'user' %}{% set last.user = messages.index(m) %}{% endfor %}
{%- for m in messages %}
  {{- '<|im_start|>' + m.role + '\n' }}
  {%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > last.user %}
    {{- '<think>\n' + m.reasoning_content + '\n</think>\n' }}
  {%- elif m.role == 'assistant' %}
    {{- '<think></think>\n' if m.reasoning_content else '<think></think>' }}
  {%- endif %}
  {{- m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n<think>' + ('\n' if enable_thinking else '</think>') }}
{%- endif %}"""


def test_chatml_is_what_transformers_renders(tmp_path):
    chat = bare_chat(tmp_path, ["<|im_start|>", "<|im_end|>"], SMOLLM2)
    for messages in (
        [USER],
        [{"role": "system", "content": "S"}, USER, assistant("A"), USER, assistant("B <|im_end|>")],
        [USER, USER],
    ):
        for prompt in (False, True):
            [wanted], _ = render_jinja_template([messages], chat_template=SMOLLM2, add_generation_prompt=prompt)
            ids, trained = chat.render(messages, generation_prompt=prompt)
            assert chat.tokenizer.decode(ids.tolist()) == wanted
            written = "".join(f"{m['content']}<|im_end|>" for m in messages if m["role"] == "assistant")
            assert chat.tokenizer.decode(ids[trained].tolist()) == written
            ends = len(messages) + (messages[0]["role"] != "system")
            assert (ids == chat.tokenizer.token_id("<|im_end|>")).sum() == ends
    assert chat.stop_ids == (chat.tokenizer.token_id("<|im_end|>"),)
    assert chat.parse(chat.tokenizer.encode("Yes.<|im_end|>no", specials=True)).content == "Yes."


def test_without_a_template(tmp_path):
    """Plain ChatML, and nothing that no one wrote; Nemotron-3's format where the vocabulary has all of its tokens."""
    (tmp_path / "chat_template.jinja").write_text("\n")
    plain, nemotron = (bare_chat(tmp_path, specials) for specials in (CHAT_SPECIALS[:2], CHAT_SPECIALS))
    turns, reply = [USER, assistant("Yes.")], plain.render([USER, assistant("Yes.")])
    assert plain.tokenizer.decode(reply.ids.tolist()) == user("Hi") + said("Yes.")
    assert plain.tokenizer.decode(reply.ids[reply.trained].tolist()) == "Yes.<|im_end|>"
    text = nemotron.tokenizer.decode(nemotron.render(turns).ids.tolist())
    assert text == GOLDEN["no thought"][1]


LLAMA3 = (
    "{{ bos_token }}{%- for m in messages %}"
    "{{ '<|start|>' + m['role'] + '<|stop|>\n\n' }}"
    "{%- if m.role == 'assistant' %}{% generation %}{{ m['content'] | trim }}<|eot|>{% endgeneration %}"
    "{%- else %}{{ m['content'] | trim + '<|eot|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|stop|>\n\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}\n{% if m.role not in ['user', 'system', 'assistant'] %}{% continue %}{% endif %}"
    "{{ '<|' + m.role + '|>\n' + m.content + eos_token }}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)


def added(text):
    """A token as tokenizer_config.json has it in long form."""
    return {"__type": "AddedToken", "content": text, "lstrip": False, "rstrip": False, "normalized": False}


@pytest.mark.parametrize(
    ("template", "specials", "tokens", "end"),
    [
        (LLAMA3, ["<|begin|>", "<|eot|>", "<|start|>", "<|stop|>"], ("<|begin|>", "<|eot|>"), "<|eot|>"),
        (ZEPHYR, ["<s>", "</s>"], (added("<s>"), added("</s>")), "</s>"),
    ],
)
def test_templates_get_the_named_tokens_that_transformers_gives(tmp_path, template, specials, tokens, end):
    named = dict(zip(("bos_token", "eos_token"), tokens, strict=True), pad_token=None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    chat = bare_chat(tmp_path, specials, template)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    messages = [{"role": "system", "content": "S"}, USER, assistant("A"), USER, assistant("B b")]
    for given, prompt in ((messages, False), (messages[:2], True), ([USER], True)):
        ids, trained = chat.render(given, generation_prompt=prompt)
        wanted = theirs.apply_chat_template(given, add_generation_prompt=prompt, tokenize=False)
        assert chat.tokenizer.decode(ids.tolist()) == wanted
        written = "".join(f"{m['content']}{end}" for m in given if m["role"] == "assistant")
        assert chat.tokenizer.decode(ids[trained].tolist()) == written
    assert chat.tokenizer.token_id(end) in chat.stop_ids


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for x in %}", "Expected an expression"),
        ("{% for i in range(1000000) %}x{% endfor %}", "Range too big"),
        ("{{ messages[0].foo.bar }}", "has no attribute 'foo'"),
        ("{{ 1 // 0 }}", "division"),
        ("{{ 'a' + 1 }}", "concatenate"),
        ("{{ raise_exception('no way') }}", "no way"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_fails_is_named(tmp_path, template, reason):
    with pytest.raises(ValueError, match=reason) as raised:
        bare_chat(tmp_path, CHAT_SPECIALS[:2], template)
    assert str(tmp_path / "chat_template.jinja") in str(raised.value) and "\n" not in str(raised.value)


def test_auto_finds_the_format_that_the_template_writes(tmp_path):
    found = bare_chat(tmp_path, CHAT_SPECIALS, NEMOTRON_WITHOUT_TOOLS)
    messages, text = GOLDEN["history loses its thoughts"]
    assert found.tokenizer.decode(found.render(messages).ids.tolist()) == text
    # the typed renderer knows tool calls, which this template does not
    messages, text = GOLDEN["a new user turn drops the thoughts of a tool loop"]
    assert found.tokenizer.decode(found.render(messages).ids.tolist()) == text


def test_a_template_that_rewrites_history_is_refused_for_conversations(tmp_path):
    last_only = "{{ messages[-1].content }}<|im_end|>{% if add_generation_prompt %}>{% endif %}"
    chat = bare_chat(tmp_path, ["<|im_start|>", "<|im_end|>"], last_only)
    with pytest.raises(ValueError, match="rewrites earlier turns"):
        chat.render([USER, assistant("A")])


def test_the_nemotron_template_needs_its_tokens(tmp_path):
    chat = bare_chat(tmp_path, ["<|im_start|>", "<|im_end|>"], CHATML)
    with pytest.raises(ValueError, match="lacks <think>"):
        Chat(chat.tokenizer, template="nemotron3")
