"""Strings that are hard on a tokenizer, the same ones in every run."""

import random

SCRIPTS = [
    "The quick brown fox jumps over the lazy dog, isn't it? I'VE they'll WE'RE 'tis",
    "Größe, naïve façade, Übermäßig, coöperate, ŒUVRE, ﬁne ligatures ﬀ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "敏捷的棕色狐狸跳過懶狗。你好,世界!「引號」〈書名〉",
    "素早い茶色の狐がのろまな犬を飛び越える。カタカナ ﾊﾝｶｸ ㍿ 々〆",
    "다람쥐 헌 쳇바퀴에 타고파 한글 ㅋㅋㅋ 각",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ١٢٣٤٥",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה שָׁלוֹם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण १२३",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๐๑๒",
    "আমি বাংলায় গান গাই ১২৩ যাহা চাই",
    "தமிழ் மொழி மிகவும் பழமையானது",
    "ქართული ენა Հայերեն አማርኛ ᏣᎳᎩ ភាសាខ្មែរ မြန်မာ ລາວ",
    "𐌰𐌱𐌲 𝕳𝖊𝖑𝖑𝖔 𝟘𝟙𝟚 𓀀𓁀 𠜎𠜱 ⠓⠑⠇⠇⠕",
    "Tiếng Việt: Trăm năm trong cõi người ta, chữ tài chữ mệnh",
]
EMOJI = [
    "👨‍👩‍👧‍👦",
    "🏳️‍🌈",
    "👩🏽‍🚀",
    "🇩🇪🇫🇷",
    "✊🏿",
    "🦊",
    "☕️",
    "1️⃣",
    "❤️‍🔥",
    "🧑‍🤝‍🧑",
    "🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "😀😀😀",
]
CODE = [
    "def f(x: int) -> int:\n    return x ** 2  # carré\n",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] += b[i] * 0x1F;\n}\n",
    "SELECT * FROM t WHERE a >= 10 AND b != 'x''y';",
    "<div class=\"a b\">&amp;&#x27;</div><!-- c -->",
    "{\"key\": [1, 2.5e-3, null, true], \"κ\": \"\\u00e9\"}",
    "https://example.org/a/b?c=d&e=%20#f  user@example.org  C:\\dir\\file.txt",
    "git commit -m \"x\" && ls | grep -v '^#' > /dev/null 2>&1; echo $?",
    "\\begin{align}\\sum_{i=0}^{\\infty} x_i &= \\frac{1}{1-x}\\end{align}",
    "#!/bin/sh\r\nset -e\r\n\r\n\r\nexit 0\r\n",
]
WHITESPACE = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\x0b",
    "\x0c",
    "\x85",
    "\xa0",
    "\u1680",
    "\u2003",
    "\u2028",
    "\u3000",
    "\u200b",
    "\ufeff",
    " " * 17,
    "\n" * 9,
    "\t" * 5,
    " \n \n",
    "\n  ",
]
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<repo_name>",
    "<file_sep>",
    "<|im_start",
    "|im_end|>",
    "<|",
    "|>",
    "<|im_end|",
    "<|IM_END|>",
    "< |im_end|>",
    "<|fim_prefix|>",
    "<empty_output>",
    "<s>",
    "[INST]",
]
COMBINING = [
    "e\u0301",
    "A\u030a",
    "o\u0302\u0323",
    "\u1100\u1161\u11a8",
    "\u0958",
    "ﷺ",
    "\u0344",
    "\u212b",
    "n\u0303\u0303\u0303",
    "\u0301",
    "x" + "\u0300" * 30,
    "ක්‍ය",
    "\u1e9b\u0323",
]
DIGITS = [
    "0",
    "7",
    "42",
    "123",
    "1234",
    "3.14159",
    "1,234,567.89",
    "2026-12-01",
    "٣٤٥",
    "¼½Ⅷ",
    "x2y33z444",
    "0xdeadBEEF",
    "①②③",
    "1" * 40,
]


def _any_character(rng):
    kind = rng.random()
    if kind < 0.2:
        return chr(rng.randrange(0x80))
    if kind < 0.7:
        code = rng.randrange(0x10000)
    else:
        code = rng.randrange(0x110000)
    return " " if 0xD800 <= code < 0xE000 else chr(code)


def _fragment(rng):
    kind = rng.randrange(9)
    if kind == 0:
        text = rng.choice(SCRIPTS)
        start = rng.randrange(len(text))
        return text[start : start + rng.randrange(1, 40)]
    if kind == 1:
        return rng.choice(EMOJI)
    if kind == 2:
        text = rng.choice(CODE)
        start = rng.randrange(len(text))
        return text[start : start + rng.randrange(1, 40)]
    if kind == 3:
        return rng.choice(WHITESPACE)
    if kind == 4:
        return rng.choice(SPECIAL)
    if kind == 5:
        return rng.choice(COMBINING)
    if kind == 6:
        return rng.choice(DIGITS)
    if kind == 7:
        return "".join(_any_character(rng) for _ in range(rng.randrange(1, 8)))
    return "".join(chr(rng.randrange(0x20)) for _ in range(rng.randrange(1, 4)))


def all_strings():
    """Every fragment alone, every assigned-or-not character in short runs, and mixtures: over 12,000 strings."""
    strings = ["", *SCRIPTS, *EMOJI, *CODE, *WHITESPACE, *SPECIAL, *COMBINING, *DIGITS]
    strings += [chr(code) for code in range(0x180)]
    # Every character of Unicode once, between letters and spaces so that its class decides where words end.
    codes = [
        code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and code < 0x32000 or 0xE0000 <= code < 0xE0200
    ]
    strings += ["a" + "b ".join(map(chr, codes[start : start + 64])) + "7" for start in range(0, len(codes), 64)]
    strings += [
        " " * 3000 + "x",
        "\n" * 2000,
        "a" * 3000,
        "9" * 1000,
        "ab " * 1000,
        "\t \n" * 500,
        "…" * 500,
        " " * 499_999 + "\tx",
    ]
    rng = random.Random(20260801)
    strings += ["".join(_fragment(rng) for _ in range(rng.randrange(1, 9))) for _ in range(9500)]
    return strings
