"""The tokenizers that are compared: each as the driver's input and as Hugging Face's own object."""

import json

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def words(kind):
    """Hugging Face's pre-tokenizer for a kind of GGUF tokenizer, as the model's own tokenizer.json has it."""
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return {
        "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        "gpt-2": lambda: gpt2,
        "llama-bpe": lambda: pre_tokenizers.Sequence([split(LLAMA3_WORDS), bytes_only]),
        "default": lambda: pre_tokenizers.Sequence(
            [split(r"[\p{P}\$\+<=>\^~\|]+"), split(GPT2_WORDS), split(r"\p{N}+"), split("[0-9][0-9][0-9]"), bytes_only]
        ),
    }[kind]()


class FromGguf:
    """A GGUF file's metadata, read by the `gguf` package."""

    def __init__(self, path):
        from gguf import GGUFReader

        fields = GGUFReader(path).fields
        get = lambda key: fields["tokenizer." + key].contents()
        self.tokens = get("ggml.tokens")
        self.types = get("ggml.token_type")
        self.merges = get("ggml.merges")
        self.pre = get("ggml.pre")
        self.bos = get("ggml.bos_token_id")
        self.eos = get("ggml.eos_token_id")
        self.template = get("chat_template")

    def load(self, driver, pre=None):
        driver.from_gguf(
            self.tokens,
            self.types,
            self.merges,
            pre=pre or self.pre,
            bos=self.bos,
            eos=self.eos,
            add_bos=0,
            template=self.template,
        )

    def hugging_face(self, pre=None):
        pre = pre or self.pre
        vocab = {text: i for i, text in enumerate(self.tokens)}
        merges = [tuple(merge.split(" ")) for merge in self.merges]
        tokenizer = tokenizers.Tokenizer(BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
        tokenizer.pre_tokenizer = words(pre)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([t for t, kind in zip(self.tokens, self.types) if kind == CONTROL])
        return tokenizer


class FromJson:
    """A tokenizer.json, given to the driver as it is or as the GGUF metadata that a converter would write."""

    def __init__(self, tokenizer_path, config_path=None):
        self.text = open(tokenizer_path, encoding="utf-8").read()
        self.config = open(config_path, encoding="utf-8").read() if config_path else ""
        self.template = json.loads(self.config).get("chat_template") if self.config else None

    def load(self, driver):
        driver.from_json(self.text, self.config)

    def load_as_gguf(self, driver, pre, padded_size):
        data = json.loads(self.text)
        names = {i: text for text, i in data["model"]["vocab"].items()}
        types = dict.fromkeys(names, NORMAL)
        for token in data["added_tokens"]:
            names[token["id"]] = token["content"]
            types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
        tokens = [names.get(i, f"[PAD{i}]") for i in range(padded_size)]
        kinds = [types.get(i, UNUSED) for i in range(padded_size)]
        merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
        config = json.loads(self.config)
        text_of = lambda key: config[key] if isinstance(config[key], str) else config[key]["content"]
        driver.from_gguf(
            tokens, kinds, merges, pre=pre, eos=tokens.index(text_of("eos_token")), template=config["chat_template"]
        )

    def hugging_face(self):
        return tokenizers.Tokenizer.from_str(self.text)
