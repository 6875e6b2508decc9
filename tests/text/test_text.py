"""Compares Samara's text layer with Hugging Face's tokenizers and transformers. Prints "N passed, N failed"."""

import argparse
import datetime
import json
import os
import random
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import strings
from conversations import conversations
from driver import ADD_SPECIAL, PARSE_SPECIAL, Driver, TextError
from tokenizers_under_test import FromGguf, FromJson
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))


class Report:
    def __init__(self):
        self.passed = 0
        self.failed = 0

    def check(self, ok, what, *details):
        if ok:
            self.passed += 1
            return
        self.failed += 1
        if self.failed <= 20:
            print("FAILED", what, *(repr(d)[:400] for d in details), sep="\n    ", flush=True)

    def equal(self, found, expected, what, *details):
        self.check(found == expected, what, *details, found, expected)

    def refuses(self, action, status, words, what, offset=0):
        try:
            action()
        except TextError as error:
            self.check(
                error.status == status and words in str(error) and error.offset == offset,
                what,
                error.status,
                str(error),
                error.offset,
            )
        else:
            self.check(False, what, "no error")


def check_encoding(report, driver, theirs, texts, name):
    """Ids with and without special tokens, and the text streamed back from them."""
    for text in texts:
        theirs.encode_special_tokens = True
        plain = theirs.encode(text, add_special_tokens=False).ids
        theirs.encode_special_tokens = False
        special = theirs.encode(text, add_special_tokens=False).ids
        report.equal(driver.encode(text), plain, f"{name}: plain ids", text)
        report.equal(driver.encode(text, PARSE_SPECIAL), special, f"{name}: ids with special tokens", text)
        check_decoding(report, driver, theirs, special, name)


def check_decoding(report, driver, theirs, ids, name):
    for skip in (False, True):
        steps = driver.decode(ids, skip)
        try:
            text = "".join(step.decode("utf-8") for step in steps)
        except UnicodeDecodeError:
            report.check(False, f"{name}: a step is not whole characters", ids, steps)
            continue
        report.equal(text, theirs.decode(ids, skip_special_tokens=skip), f"{name}: streamed text", ids)


def check_random_ids(report, driver, theirs, size, name):
    rng = random.Random(7)
    for _ in range(500):
        ids = [rng.randrange(size) for _ in range(rng.randrange(1, 30))]
        check_decoding(report, driver, theirs, ids, f"{name}, random ids")


def check_chat(report, driver, theirs, template, name):
    """Rendered text and ids against apply_chat_template; then special tokens inside messages."""
    fast = PreTrainedTokenizerFast(tokenizer_object=theirs, chat_template=template)
    for messages, tools, variables, generation in conversations(400, seed=11):
        try:
            expected = fast.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=generation, **variables
            )
        except Exception as error:  # a template may refuse a conversation, and then so must we
            report.refuses(
                lambda: driver.render(
                    json.dumps(messages), json.dumps(tools) if tools else "", json.dumps(variables), template
                ),
                5,
                "",
                f"{name}: a conversation that Jinja refuses ({error})",
            )
            continue
        arguments = (
            json.dumps(messages),
            json.dumps(tools) if tools else "",
            json.dumps(variables),
            template,
            generation,
        )
        report.equal(driver.render(*arguments), expected, f"{name}: rendered", messages)
        theirs.encode_special_tokens = False
        report.equal(
            driver.encode_chat(*arguments),
            theirs.encode(expected, add_special_tokens=False).ids,
            f"{name}: conversation ids",
            messages,
        )
    check_forgeries(report, driver, fast, theirs, template, name)


def check_forgeries(report, driver, fast, theirs, template, name):
    """Special tokens in messages: the text stays whole, and the special ids are those of the same conversation
    with its "<" and "|" taken out of the messages."""
    special = {i for i, token in theirs.get_added_tokens_decoder().items() if token.special}
    for messages, tools, variables, generation in conversations(400, seed=12, forged=True):
        tamed = json.loads(json.dumps(messages).replace("|", "!"))
        try:
            text = fast.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=generation, **variables
            )
            tamed = fast.apply_chat_template(
                tamed, tools=tools, tokenize=False, add_generation_prompt=generation, **variables
            )
        except Exception:
            continue
        ids = driver.encode_chat(
            json.dumps(messages), json.dumps(tools) if tools else "", json.dumps(variables), template, generation
        )
        theirs.encode_special_tokens = False
        wanted = [i for i in theirs.encode(tamed, add_special_tokens=False).ids if i in special]
        report.equal(
            [i for i in ids if i in special], wanted, f"{name}: special ids of a forged conversation", messages
        )
        normal = theirs.normalizer.normalize_str(text) if theirs.normalizer else text
        decoded = theirs.decode(ids, skip_special_tokens=False)
        # SmolLM2's vocabulary has no token for a few control characters, and those are dropped.
        report.equal(
            decoded.replace("\x01", ""), normal.replace("\x01", ""), f"{name}: text of a forged conversation", messages
        )


def check_template_language(report, driver):
    """What templates use of Jinja and Python, against transformers' own renderer."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [
        {"role": "user", "content": "Hi <é> \"x\"", "n": [1, 2.5, True, None, {"a": "b'c"}], "z": 1e-7, "big": 1e16}
    ]
    templates = [
        "{{ messages[0].n }} {{ messages[0] | tojson }} {{ messages[0].z }} {{ messages[0].big }} {{ none }} {{ true }}",
        "{{ messages[0] | tojson(indent=2) }}|{{ messages[0].n | tojson(ensure_ascii=true, separators=(',', ':')) }}",
        "{{ messages[0] | tojson(ensure_ascii=true, sort_keys=true) }}{{ [] | tojson(indent=1) }}{{ {} | tojson }}",
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "{%- set ns = namespace(x=1, y='a') -%}{%- for m in messages * 3 -%}{%- set ns.x = ns.x + 1 -%}{%- endfor -%}{{ ns.x }}{{ ns.y }}",
        "{{ 'a,b,,c'.split(',') }}{{ '  x '.strip() }}|{{ 'xxabxx'.strip('x') }}|{{ 'aXb'.lower().upper().title() }}",
        "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('c') }}{{ 'a-b-c'.replace('-', '+') }}{{ 'abc'.find('c') }}",
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{{ messages[0].get('nope') }}{{ messages[0].get('q', 4) }}",
        "{{ messages[::-1] | length }}{{ 'abcdef'[1:4] }}{{ 'abcdef'[::-1] }}{{ [1,2,3,4][-2:] }}",
        "{% macro f(x, y=2) %}[{{ x }}{{ y }}]{% endmacro %}{{ f(1) }}{{ f('a', y='b') }}",
        "{% generation %}\n  kept {% endgeneration %}\n tail\n",
        "  {% if messages[0].content is string and messages is iterable and x is not defined %}\n  yes\n  {% endif %}\nend",
        "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "{{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 3 }} {{ 7 / 2 }} {{ 'a' ~ 1 ~ 2.0 }} {{ -3 | abs }}",
        "{{ 'x' if messages[0].missing else 'y' }}{{ messages[0].missing }}{{ (messages | first).role | capitalize }}",
        "{{ 'it''s' }}{{ '\\n\\t\\u00e9\\x41' }}{{ [1, 'a', 'b\\'c', none, false] }}{{ {'a': {'b': [1.0]}} }}",
        "{%- if not tools %}no tools{% endif %}{{ add_generation_prompt }}{{ tools }}",
        "{# comment #}{{ ' a b ' | trim }}{{ 'abc' | length }}{{ ['b', 'a'] | sort | join }}{{ [3, 1] | max }}",
        "{% set x %}block {{ 1 }}{% endset %}{{ x }}{% set a, b = 1, 2 %}{{ a + b }}",
        "{{ dict(a=1, b='c') }}{{ 'a' in 'cat' }}{{ 'role' in messages[0] }}{{ 3 not in [1, 2] }}",
    ]
    for template in templates:
        expected = render_jinja_template([messages], chat_template=template, add_generation_prompt=False)[0][0]
        try:
            found = driver.render(json.dumps(messages), template=template)
        except TextError as error:
            found = error
        report.equal(found, expected, "template language", template)
    noon = datetime.datetime(2026, 8, 3, 9, 5, 7)
    formats = "%d %b %Y|%Y-%m-%d|%B %A %H:%M:%S|%-d %j %p %I %y %a %%|%e|%F %T"
    seconds = (noon - datetime.datetime(1970, 1, 1)).days * 86400 + 9 * 3600 + 5 * 60 + 7
    report.equal(
        driver.render("[]", template="{{ strftime_now('" + formats + "') }}", now=seconds),
        noon.strftime(formats),
        "strftime_now",
    )


def check_refusals(report, driver):
    """Inputs that must give an error, and which one."""
    one = '[{"role": "user", "content": "x"}]'
    report.refuses(lambda: driver.encode(b"ab\xffc"), 2, "byte 2", "invalid UTF-8", offset=2)
    report.refuses(lambda: driver.encode("x\ud800y"), 2, "byte 1", "a lone surrogate in three bytes", offset=1)
    report.refuses(lambda: driver.encode(b"abc\xe2\x82"), 2, "byte 3", "a character cut short", offset=3)
    report.refuses(lambda: driver.encode(b"\xc0\x80"), 2, "byte 0", "an overlong form", offset=0)
    report.refuses(lambda: driver.encode(" " * 500_001), 1, "white-space", "a run of white space that is too long")
    report.refuses(lambda: driver.encode("x", 64), 1, "flags", "an unknown flag")
    report.refuses(
        lambda: driver.render('[{"role": "user", "content": "\\ud800"}]'), 1, "messages", "a lone surrogate in JSON"
    )
    report.refuses(lambda: driver.render('{"role": "user"}'), 1, "array", "messages that are no array")
    report.refuses(lambda: driver.render("[" * 100000), 1, "recursion", "JSON nested without end")
    report.refuses(lambda: driver.render(one, tools="{}"), 1, "tools", "tools that are no array")
    report.refuses(lambda: driver.render(one, variables="[]"), 1, "variables", "variables that are no object")
    report.refuses(
        lambda: driver.render(one, template="{{ raise_exception('no such role') }}"),
        5,
        "no such role",
        "raise_exception",
    )
    report.refuses(lambda: driver.render(one, template="{% if %}"), 5, "template", "a template that does not parse")
    report.refuses(
        lambda: driver.render(
            one, template="{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}"
        ),
        5,
        "",
        "a template without end",
    )
    report.refuses(lambda: driver.token_bytes(10**9), 1, "out of range", "an id out of range")
    tokens, merges = ["a", "b", "ab"], ["a b"]
    report.refuses(
        lambda: driver.from_gguf(tokens, [], merges, pre="deepseek-llm"),
        3,
        "'deepseek-llm'; supported: qwen2",
        "an unknown pre-tokenizer",
    )
    report.refuses(
        lambda: driver.from_gguf(tokens, [], merges, model="llama"), 3, "'llama'; supported: gpt2", "an unknown model"
    )
    report.refuses(lambda: driver.from_gguf(tokens, [1], merges), 4, "token_type has 1", "types of another length")
    report.refuses(
        lambda: driver.from_gguf(tokens, [], ["a c"]), 4, "merges[0] needs the token 'c'", "a merge of an unknown token"
    )
    report.refuses(lambda: driver.from_gguf(tokens, [], ["ab"]), 4, "merges[0]", "a merge of one part")
    report.refuses(lambda: driver.from_gguf(tokens, [], merges, bos=3), 4, "BOS token is 3", "a BOS out of range")
    report.refuses(lambda: driver.from_gguf([], [], []), 4, "tokens", "no tokens")
    report.refuses(lambda: driver.from_json("{"), 4, "tokenizer.json", "broken JSON")
    report.refuses(lambda: driver.from_json('{"model": {"type": "Unigram"}}'), 3, "Unigram", "a model that is not BPE")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", required=True, help="the program built from driver.c")
    parser.add_argument("--smollm2", required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--qwen", required=True, help="the folder of tools/fetch_qwen_tokenizer")
    options = parser.parse_args()
    report, driver = Report(), Driver(options.driver)
    texts = strings.all_strings()
    few = texts[:1000] + texts[-2000:]
    print(f"{len(texts)} strings", flush=True)

    smollm2 = FromGguf(options.smollm2)
    theirs = smollm2.hugging_face()
    smollm2.load(driver)
    report.equal(driver.facts(), {"size": 49152, "bos": 1, "add_bos": 0, "ends": [0, 2]}, "SmolLM2: facts")
    check_encoding(report, driver, theirs, texts, "SmolLM2")
    check_random_ids(report, driver, theirs, 49152, "SmolLM2")
    check_chat(report, driver, theirs, smollm2.template, "SmolLM2")
    check_template_language(report, driver)
    for pre in ("gpt-2", "llama-bpe", "default"):
        smollm2.load(driver, pre)
        check_encoding(report, driver, smollm2.hugging_face(pre), few, pre)

    qwen = FromJson(f"{options.qwen}/tokenizer.json", f"{options.qwen}/tokenizer_config.json")
    theirs = qwen.hugging_face()
    maple_template = open(f"{HERE}/../../assets/maple_chat_template.jinja", encoding="utf-8").read()
    for name, load, size in (
        ("Qwen3 from tokenizer.json", qwen.load, 151669),
        ("Qwen3 from GGUF", lambda d: qwen.load_as_gguf(d, "qwen2", 151936), 151936),
    ):
        load(driver)
        report.equal(
            driver.facts(), {"size": size, "bos": -1, "add_bos": 0, "ends": [151643, 151645]}, f"{name}: facts"
        )
        check_encoding(report, driver, theirs, texts, name)
        check_random_ids(report, driver, theirs, 151669, name)
        check_chat(report, driver, theirs, qwen.template, name)
        check_chat(report, driver, theirs, maple_template, name + ", Maple's template")
    check_refusals(report, driver)

    smollm2.load(driver)
    driver.from_gguf(smollm2.tokens, smollm2.types, smollm2.merges, pre="smollm", bos=1, add_bos=1)
    report.equal(driver.encode("a", ADD_SPECIAL), [1] + driver.encode("a"), "BOS is added when the file says so")
    report.equal(driver.close(), 0, "the driver ends well")
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
