"""Speaks with driver.c, so that the tests go through the C header as every program does."""

import struct
import subprocess

PARSE_SPECIAL = 1
ADD_SPECIAL = 2


class TextError(Exception):
    def __init__(self, status, message, offset):
        super().__init__(message)
        self.status = status
        self.offset = offset


def _i64(value):
    return struct.pack("<q", value)


def _text(value):
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return _i64(len(data)) + data


def _texts(values):
    return _i64(len(values)) + b"".join(map(_text, values))


class Driver:
    def __init__(self, program):
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self):
        self._process.stdin.close()
        return self._process.wait()

    def _send(self, *parts):
        self._process.stdin.write(b"".join(parts))
        self._process.stdin.flush()

    def _get(self, size):
        data = self._process.stdout.read(size)
        if len(data) != size:
            raise RuntimeError(f"the driver ended with status {self._process.wait()}")
        return data

    def _get_i64(self):
        return struct.unpack("<q", self._get(8))[0]

    def _get_text(self):
        return self._get(self._get_i64())

    def _get_ids(self):
        count = self._get_i64()
        return list(struct.unpack(f"<{count}I", self._get(4 * count)))

    def _check(self):
        status = self._get_i64()
        if status != 0:
            message = self._get_text().decode()
            raise TextError(status, message, self._get_i64())

    def from_gguf(
        self, tokens, types, merges, *, model="gpt2", pre="default", bos=-1, eos=-1, eot=-1, add_bos=-1, template=""
    ):
        self._send(
            b"G",
            _text(model),
            _text(pre),
            _texts(tokens),
            _i64(len(types)),
            struct.pack(f"<{len(types)}i", *types),
            _texts(merges),
            _i64(bos),
            _i64(eos),
            _i64(eot),
            _i64(add_bos),
            _text(template),
        )
        self._check()

    def from_json(self, tokenizer_json, config_json=""):
        self._send(b"J", _text(tokenizer_json), _text(config_json))
        self._check()

    def encode(self, text, flags=0):
        self._send(b"E", _i64(flags), _text(text))
        self._check()
        return self._get_ids()

    def decode(self, ids, skip_special=False):
        """The text of each push and of the flush, as bytes."""
        self._send(b"D", _i64(skip_special), _i64(len(ids)), struct.pack(f"<{len(ids)}I", *ids))
        self._check()
        steps = []
        for _ in range(len(ids) + 1):
            self._check()
            steps.append(self._get_text())
        return steps

    def token_bytes(self, token):
        self._send(b"B", _i64(token))
        self._check()
        return self._get_text()

    def _chat(self, command, messages, tools, variables, template, generation, now):
        self._send(
            command, _i64(generation), _i64(now), _text(messages), _text(tools), _text(variables), _text(template)
        )
        self._check()

    def render(self, messages, tools="", variables="", template="", generation=False, now=0):
        self._chat(b"R", messages, tools, variables, template, generation, now)
        return self._get_text().decode()

    def encode_chat(self, messages, tools="", variables="", template="", generation=False, now=0):
        self._chat(b"C", messages, tools, variables, template, generation, now)
        return self._get_ids()

    def facts(self):
        self._send(b"V")
        return {"size": self._get_i64(), "bos": self._get_i64(), "add_bos": self._get_i64(), "ends": self._get_ids()}
