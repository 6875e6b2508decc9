"""Files that commands read and write: broken, missing, in the way, too large, interrupted."""

import json
import os
import pathlib
import signal
import stat
import subprocess
import time

import harness
from harness import expect, folder, model, refused, samara, succeeds, test

MAKERS = (["synth", "--preset", "maple-tiny"], ["pack", "-m", "MODEL"])


def maker(words, out):
    return [model() if w == "MODEL" else w for w in words] + ["-o", str(out)]


def ids(place, count=20):
    path = place / "ids.txt"
    path.write_text(" ".join(str(5 + i * 7 % 1900) for i in range(count)))
    return str(path)


@test
def a_device_or_pipe_or_folder_is_never_replaced_by_a_file():
    with folder() as place:
        os.mkfifo(place / "pipe")
        (place / "sub").mkdir()
        for words in MAKERS:
            refused(*maker(words, place / "pipe"), code=2, says=["pipe"])
            refused(*maker(words, place / "sub"), code=2, says=["folder"])
            refused(*maker(words, ""), code=2, says=["name of a file"])
        expect(stat.S_ISFIFO(os.stat(place / "pipe").st_mode), "the pipe is still one")
        expect(sorted(os.listdir(place)) == ["pipe", "sub"], "nothing else")


@test
def a_flash_head_needs_its_index_and_says_how_often_it_agrees():
    with folder() as place:
        packed, answer = str(place / "packed.gguf"), ["-p", "Hello", "-n", "20", "--temperature", "0", "--json"]
        succeeds("pack", "-m", model(), "-o", packed, "--flash-index")
        expect(b"flash index" in succeeds("inspect", packed).out, "inspect shows the index")
        found = json.loads(succeeds("run", "-m", packed, "--head", "flash-checked", *answer).out)["flash_agreement"]
        expect(found["compared"] > 0 and 0 <= found["top20"] <= 1, f"an agreement, found {found}")
        expect(json.loads(succeeds("run", "-m", packed, "--head", "flash", *answer).out)["flash_agreement"] is None,
               "nothing is compared")
        refused("run", "-m", model(), "--head", "flash", *answer, code=2, says=["flash index", "--flash-index"])
        refused("pack", "-m", packed, "-o", str(place / "again"), "--flash-index", code=2, says=["packed file already"])
        expect(os.listdir(place) == ["packed.gguf"], "nothing left")


@test
def keys_and_values_in_bytes_halve_the_cache_and_change_the_logits():
    with folder() as place:
        out = str(place / "l.f32")
        hashes = {kv: succeeds("logits", "-m", model(), "--tokens", ids(place), "--out", out, "--kv", kv).out.split()[0]
                  for kv in ("int16", "int8")}
        expect(hashes["int16"] != hashes["int8"], "other logits")
        bench = ["bench", "-m", model(), "--prompt-tokens", "20", "--gen-tokens", "2", "--json", "--kv"]
        cache = {kv: json.loads(succeeds(*bench, kv).out)["bytes_per_token"]["kv"] for kv in ("int16", "int8")}
        expect(0.5 < cache["int8"] / cache["int16"] < 0.55, f"half of the bytes: {cache}")
        refused("logits", "-m", model(), "--tokens", ids(place), "--out", out, "--kv", "int4", code=2, says=["--kv"])


@test
def logits_go_into_a_device_as_it_is():
    with folder() as place:
        os.symlink("/dev/null", place / "null")  # a rename would replace the link
        run = succeeds("logits", "-m", model(), "--tokens", ids(place), "--out", str(place / "null"))
        expect(len(run.out.split()[0]) == 64, "a SHA-256", run)
        expect((place / "null").is_symlink(), "the link is still one")


@test
def a_file_too_large_fails_and_leaves_nothing():
    with folder() as place:
        for words in MAKERS:
            refused(*maker(words, place / "out"), code=1, says=["out", "File too large"], file_limit=10 << 20)
        refused("logits", "-m", model(), "--tokens", ids(place), "--out", str(place / "out"), code=1,
                says=["out", "File too large"], file_limit=20000)
        expect(os.listdir(place) == ["ids.txt"], "nothing left")


@test
def an_interrupt_cancels_and_leaves_nothing():
    with folder() as place:
        for number in (signal.SIGINT, signal.SIGTERM):
            for words in (["synth", "--preset", "maple-tiny", "--type", "f32"], ["pack", "-m", "MODEL"]):
                process = subprocess.Popen([harness.PROGRAM, *maker(words, place / "out")], stderr=subprocess.PIPE,
                                           stdout=subprocess.PIPE)
                while not os.listdir(place) and process.poll() is None:
                    time.sleep(0.001)
                process.send_signal(number)
                _, err = process.communicate(timeout=harness.DEADLINE)
                expect(process.returncode == 130 and b"stopped" in err, f"130 of {words}", (process.returncode, err))
                expect(os.listdir(place) == [], "nothing left")


@test
def input_is_never_overwritten():
    with folder() as place:
        tokens = ids(place)
        os.link(model(), place / "hard.gguf") if os.stat(place).st_dev == os.stat(model()).st_dev else None
        os.symlink(model(), place / "soft.gguf")
        for name in ("soft.gguf", "hard.gguf"):
            if (place / name).exists():
                refused("pack", "-m", model(), "-o", str(place / name), code=2, says=["is the model being packed"])
        refused("logits", "-m", model(), "--tokens", tokens, "--out", tokens, code=2, says=["--out"])
        refused("logits", "-m", model(), "--tokens", tokens, "--out", model(), code=2, says=["--out"])
        refused("logits", "-m", model(), "--tokens", tokens, "--out", str(place / "a"), "--experts", str(place / "a"),
                code=2, says=["--experts"])


@test
def a_packed_file_is_packed_anew_into_other_layouts_only():
    with folder() as place:
        dense, again = place / "dense.gguf", place / "again.gguf"
        refused("pack", "-m", model("packed.gguf"), "-o", str(dense), code=2, says=["packed file already"])
        refused("pack", "-m", model("packed.gguf"), "-o", str(dense), "--layout", "dense", "--ternarise", code=2,
                says=["packed file already"])
        refused("pack", "-m", model("packed.gguf"), "-o", str(dense), "--layout", "3bit", code=2, says=["--layout"])
        refused("pack", "-m", model("packed.gguf"), "-o", str(dense), "--head-layout", "cut", code=2,
                says=["--head-layout"])
        expect(os.listdir(place) == [], "nothing left")
        report = succeeds("pack", "-m", model("packed.gguf"), "-o", str(dense), "--layout", "dense", "--head-layout",
                          "split", "--json").json
        expect(report["output_bytes"] == dense.stat().st_size < report["input_bytes"], "a smaller file", report)
        succeeds("pack", "-m", str(dense), "-o", str(again))
        expect(again.read_bytes() == pathlib.Path(model("packed.gguf")).read_bytes(), "the two-bit file again")


@test
def models_that_are_no_models_are_refused():
    with folder() as place:
        os.mkfifo(place / "pipe")
        (place / "text").write_text("hello")
        for command in (["inspect"], ["run", "-p", "x", "-m"], ["pack", "-o", str(place / "out"), "-m"]):
            refused(*command, str(place / "pipe"), code=1, says=["not a regular file"])
            refused(*command, "/dev/zero", code=1, says=["not a regular file"])
            refused(*command, str(place / "text"), code=1, says=["GGUF"])
            refused(*command, str(place), code=1, says=["config.json"])
            refused(*command, str(place / "nope"), code=2, says=["no such file"])


@test
def a_truncated_model_is_refused_with_the_tensor():
    with folder() as place:
        for source in ("tiny.gguf", "packed.gguf"):
            (place / "cut.gguf").write_bytes(open(model(source), "rb").read(30_000_000))
            refused("inspect", str(place / "cut.gguf"), code=1, says=["cut.gguf", "tensor"])


@test
def verify_finds_one_flipped_bit():
    succeeds("inspect", model("packed.gguf"), "--verify")
    refused("inspect", model(), "--verify", code=1, says=["packed"])
    with folder() as place:
        data = bytearray(open(model("packed.gguf"), "rb").read())
        data[40_000_000] ^= 16
        (place / "flip.gguf").write_bytes(data)
        run = refused("inspect", str(place / "flip.gguf"), "--verify", "--json", code=1, says=["experts", "CRC32C"])
        expect(run.json["layers"] == 8, "JSON all the same")


@test
def output_that_cannot_be_written_is_a_failure():
    for words in (["run", "-m", model(), "-p", "hi", "-n", "3"], ["tokenize", "-m", model(), "-p", "hi"],
                  ["inspect", model()], ["models"], ["--help"], ["run", "--help"]):
        with open("/dev/full", "wb") as full:
            refused(*words, code=1, says=["standard output"], stdout=full)


@test
def bad_token_files_are_refused_with_the_word():
    with folder() as place:
        path = place / "t"
        for text, says in (("1 2 foo", "word 3"), ("1 -2", "word 2"), ("", "found none"), ("1 99999999999", "word 2")):
            path.write_text(text)
            refused("logits", "-m", model(), "--tokens", str(path), "--out", str(place / "l"), code=1, says=[says])
        path.write_text("1 2 2048")
        refused("logits", "-m", model(), "--tokens", str(path), "--out", str(place / "l"), code=2, says=["2048"])
        refused("tokenize", "-m", model(), "--decode", str(path), code=2, says=["2048"])
        expect(os.listdir(place) == ["t"], "no output file")


@test
def names_find_models_in_the_cache_and_packed_ones_first():
    with folder() as place:
        (place / "models").mkdir()
        env = {"SAMARA_CACHE": str(place)}
        refused("run", "-m", "smollm2", "-p", "x", code=2, says=["quickstart"], env=env)
        os.symlink(model(), place / "models" / "SmolLM2-x.gguf")
        expect(succeeds("models", "smollm2", env=env).out.endswith(b"SmolLM2-x.gguf\n"), "the file")
        os.symlink(model("packed.gguf"), place / "models" / "smollm2.packed.gguf")
        expect(succeeds("models", "smollm2", env=env).out.endswith(b"packed.gguf\n"), "the packed file")
        succeeds("run", "-m", "smollm2", "-p", "x", "-n", "1", env=env)
        expect(samara("run", "-m", "SmolLM2-x", "-p", "x", "-n", "1", env=env).code == 0, "by its file name")
