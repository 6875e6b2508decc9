"""What the commands promise: equal hashes, measured numbers, examples that run."""

import hashlib
import pathlib
import shlex

from files import ids
from harness import expect, folder, model, refused, samara, succeeds, test

COMMANDS = ("run", "chat", "bench", "logits", "perplexity", "tokenize", "inspect", "verify", "plan", "pack", "synth", "pull",
            "models")


@test
def logits_and_experts_do_not_depend_on_how_they_are_computed():
    sets = ["scalar"]
    for isa in ("avx2", "avx512"):
        if samara("tokenize", "-m", model(), "-p", "x").code == 0 and \
           samara("run", "-m", model(), "-p", "x", "-n", "1", "--isa", isa).code == 0:
            sets.append(isa)
    ways = [[], ["--chunk", "1"], ["--chunk", "7"], ["--chunk", "512"], ["--threads", "1"], ["--threads", "2"]]
    ways += [["--isa", isa] for isa in sets]
    found = set()
    with folder() as place:
        tokens = ids(place, 200)
        for name in ("tiny.gguf", "packed.gguf"):
            for way in ways:
                out, experts = place / "l.f32", place / "e.bin"
                run = succeeds("logits", "-m", model(name), "--tokens", tokens, "--out", str(out), "--experts",
                               str(experts), *way)
                digest = hashlib.sha256(out.read_bytes()).hexdigest()
                expect(run.out.split()[0].decode() == digest, "the printed hash is the file's", run)
                found.add((digest, hashlib.sha256(experts.read_bytes()).hexdigest()))
        expect(len(found) == 1, f"one result, found {found}")
        expect(out.stat().st_size == 200 * 2048 * 4, "float32 [tokens, vocabulary]")


@test
def a_dense_file_gives_the_same_logits_and_is_refused_where_it_would_be_slow():
    with folder() as place:
        dense, tokens = str(place / "dense.gguf"), ids(place, 40)
        succeeds("pack", "-m", model(), "-o", dense, "--layout", "dense", "--head-layout", "split")
        expected = succeeds("logits", "-m", model(), "--tokens", tokens, "--out", "/dev/null", "--json").json["sha256"]
        forced = succeeds("logits", "-m", dense, "--tokens", tokens, "--out", "/dev/null", "--isa",
                          "scalar", "--json").json["sha256"]
        expect(forced == expected, "equal logits by name of the set")
        fast = "avx512vbmi" in pathlib.Path("/proc/cpuinfo").read_text().split()
        if fast:
            found = succeeds("logits", "-m", dense, "--tokens", tokens, "--out", "/dev/null", "--json").json["sha256"]
            expect(found == expected, "equal logits")
        else:
            refused("run", "-m", dense, "-p", "hi", "-n", "1", code=1, says=["dense.gguf", "VBMI", "--layout 2bit"])
        layouts = {l["kind"]: l for l in succeeds("inspect", dense, "--json").json["layouts"]}
        for kind in ("attention", "experts"):
            expect(layouts[kind]["layout"] == "ternary dense", "dense", layouts)
            expect(layouts[kind]["bits_per_weight"] < 2 and layouts[kind]["slow_on_this_cpu"] != fast, kind, layouts)
        expect(layouts["head"]["layout"] == "nibble K split", "a split head", layouts)
        text = succeeds("inspect", dense).out
        expect(b"ternary dense" in text and (b"slow on this CPU" in text) != fast, "the same in words", text)
        expect("layouts" not in succeeds("inspect", model(), "--json").json, "a plain file has types only")


@test
def greedy_tokens_follow_the_logits():
    with folder() as place:
        run = succeeds("logits", "-m", model(), "--tokens", ids(place), "--greedy", "5", "--json")
        expect(len(run.json["tokens"]) == 5, "five tokens", run)
        refused("logits", "-m", model(), "--tokens", ids(place), code=2, says=["--greedy"])


@test
def perplexity_of_a_text_and_of_its_tokens_are_equal():
    with folder() as place:
        (place / "t").write_text("The ship sailed over the sea and into the night. " * 20)
        (place / "ids").write_bytes(succeeds("tokenize", "-m", model(), "-f", str(place / "t")).out)
        results = [succeeds("perplexity", "-m", model(), flag, str(place / name), "--window", "64", "--json").json
                   for flag, name in (("-f", "t"), ("--tokens", "ids"))]
        expect(results[0] == results[1] and results[0]["perplexity"] > 1, f"equal results, found {results}")
        windows = -(-results[0]["tokens"] // 64)
        expect(results[0]["scored"] == results[0]["tokens"] - windows, "all but the first token of each window")
    refused("perplexity", "-m", model(), "-f", "/dev/null", code=2, says=["two tokens"])


@test
def bench_prints_every_number_it_promises():
    r = succeeds("bench", "-m", model("packed.gguf"), "--prompt-tokens", "32", "--gen-tokens", "8", "--json").json
    for key in ("prefill_tps", "decode_tps", "ttft_ms", "load_ms", "peak_rss_bytes", "bandwidth_gbps",
                "cpu_seconds_per_token", "roofline_fraction"):
        expect(isinstance(r[key], (int, float)) and r[key] >= 0, f"a number for {key}", r)
    parts = {k: v for k, v in r["bytes_per_token"].items() if k != "total"}
    expect(sum(parts.values()) == r["bytes_per_token"]["total"], "the parts add up", r)
    expect(r["cpu"] != "", "the CPU's name")


@test
def bench_compares_steps_with_drafts_of_every_length():
    r = succeeds("bench", "-m", model(), "--prompt-tokens", "16", "--gen-tokens", "12", "--force-draft", "3", "--json").json
    expect([d["draft"] for d in r["forced_drafts"]] == [0, 1, 2, 3], "drafts of 0 to 3 tokens", r)
    expect(r["forced_drafts"][0]["ratio"] == 1 and r["forced_drafts"][0]["experts_per_layer"] == 8, "plain steps", r)
    for before, after in zip(r["forced_drafts"], r["forced_drafts"][1:]):
        expect(8 <= before["experts_per_layer"] < after["experts_per_layer"] <= 64, "more experts for more tokens", r)
        expect(before["bytes_per_token"] > after["bytes_per_token"] > 0, "fewer bytes a token", r)
    expect(b"experts a layer" in succeeds("bench", "-m", model(), "--prompt-tokens", "16", "--gen-tokens", "8",
                                          "--force-draft", "1").out, "a table")
    refused("bench", "-m", model(), "--prompt-tokens", "16", "--gen-tokens", "4", "--force-draft", "8", code=2,
            says=["--force-draft", "--gen-tokens"])
    refused("bench", "-m", model(), "--force-draft", "16", code=2, says=["--force-draft"])


@test
def speculation_changes_the_counters_and_not_the_answer():
    # Favoured instead of penalised, recent tokens return: the text repeats.
    words = ("run", "-m", model(), "-p", "Once upon a time", "-n", "60", "--repeat-penalty", "0.6", "--json")
    for sampling in (("--temperature", "0"), ("--temperature", "0.5", "--seed", "3")):
        runs = {mode: succeeds(*words, *sampling, "--speculation", mode).json for mode in ("off", "auto", "always")}
        expect(len({(r["text"], r["reasoning"], r["tokens"]) for r in runs.values()}) == 1, "one answer", runs)
        expect(runs["off"]["drafted"] == 0 and runs["off"]["steps"] == runs["off"]["tokens"], "plain decoding", runs)
        always = runs["always"]
        expect(0 < always["accepted"] <= always["drafted"], "drafts", runs)
        expect(always["steps"] + always["accepted"] == always["tokens"], "fewer steps", runs)
    refused("run", "-m", model(), "-p", "x", "--speculation", "maybe", code=2, says=["--speculation", "auto"])
    refused("run", "-m", model(), "-p", "x", "--max-draft", "16", code=2, says=["--max-draft"])


@test
def verify_reports_the_same_on_any_file_set_and_threads_and_what_rounding_changes():
    reports = [succeeds("verify", "-m", model(name), *way, "--json").json for name, way in
               (("tiny.gguf", []), ("packed.gguf", ["--threads", "1"]), ("packed.gguf", ["--isa", "scalar"]))]
    for r in reports:
        expect(r["text"] == reports[0]["text"], "one result of the text", reports)
        structure, text, speed = r["structure"], r["text"], r["speed"]
        expect(structure["projections"] == {"ternary_one_scale_a_row": 8 * (4 + 3 * 64), "other": 0,
                                            "ternary_several_scales_a_row": 0}, "one scale a row", structure)
        expect("layers 8 instead of 24" in structure["differs_from_maple_preview"], "another shape", structure)
        expect(text["expert_choices"] == text["tokens"] * 8 * 8 and text["tokens"] > 300, "all choices", text)
        changed = [text["rounded"][kind]["changed_choices"] for kind in ("f16", "int8")]
        expect(0 <= changed[0] < changed[1] < text["expert_choices"] / 2, f"8 bits change more, found {changed}")
        expect(text["perplexity"] > 1000, "random weights do not predict text", text)
        for key in ("prefill_tps", "decode_tps", "bandwidth_gbps", "share_of_bandwidth", "peak_rss_bytes"):
            expect(speed[key] > 0, f"a number for {key}", speed)
        expect(speed["planned_bytes"] > speed["peak_rss_bytes"] / 2, "a plan", speed)
    expect(reports[0]["structure"]["checksums"] is None and reports[1]["structure"]["checksums"] == "right", "checksums")
    expect(reports[2]["isa"] == "scalar" and reports[1]["threads"] == 1, "as asked", reports[1:])


@test
def verify_says_in_words_what_it_found_and_where_there_are_no_experts():
    out = succeeds("verify", "-m", model()).out.decode()
    for words in ("one scale a row", "expert choices change", "perplexity", "tokens/s", "planned", "8-bit"):
        expect(words in out, f"'{words}'", out)
    with folder() as place:
        succeeds("synth", "--preset", "llama-tiny", "--type", "q8_0", "-o", str(place / "l.gguf"))
        out = succeeds("verify", "-m", str(place / "l.gguf")).out.decode()
        expect(out.count("no experts to choose") == 2 and "28 others" in out, "no experts, none ternary", out)


@test
def verify_refuses_damage_and_small_budgets():
    with folder() as place:
        bytes_ = bytearray(pathlib.Path(model("packed.gguf")).read_bytes())
        bytes_[-20000] ^= 1
        (place / "bad.gguf").write_bytes(bytes_)
        refused("verify", "-m", str(place / "bad.gguf"), code=1, says=["bad.gguf", "experts", "checksums do not match"])
    refused("verify", "-m", model(), "--memory-budget", "1MiB", code=1, says=["budget"])
    refused("verify", "-m", model(), "--threads", "-1", code=2, says=["--threads"])
    refused("verify", "-m", "/nope", code=2, says=["/nope"])


def plan(*words):
    return succeeds("plan", *words, "--json").json


@test
def plan_counts_the_bytes_that_bench_counts():
    for name in ("tiny.gguf", "packed.gguf"):
        counted = succeeds("bench", "-m", model(name), "--prompt-tokens", "100", "--gen-tokens", "2", "--json").json
        planned = plan("--device", "this", "-m", model(name), "--context", "102")
        expect(planned["bytes_per_token"] == counted["bytes_per_token"], "equal bytes", (planned, counted))
        expect(planned["memory_bytes"] == counted["planned_bytes"], "equal memory", (planned, counted))
        expect(planned["prediction"] and planned["fits"] == "yes", "a prediction", planned)
        expect(planned["first_token_seconds"] is None, "no guess of this processor's speed", planned)
        expect(planned["bandwidth_bytes_per_second"]["low"] > 1e8, "a measured bandwidth", planned)


@test
def plan_of_a_preset_is_the_plan_of_its_packed_file():
    with folder() as place:
        dense = str(place / "dense.gguf")
        succeeds("pack", "-m", model(), "-o", dense, "--layout", "dense")
        for path, layout in ((model("packed.gguf"), "2bit"), (dense, "dense")):
            shape = plan("--device", "galaxy-s25", "--preset", "maple-tiny", "--layout", layout, "--context", "1000")
            of_file = plan("--device", "galaxy-s25", "-m", path, "--context", "1000")
            expect(shape["bytes_per_token"] == of_file["bytes_per_token"], "equal bytes", (shape, of_file))
            expect(shape["decode_tps"] == of_file["decode_tps"], "equal speed", (shape, of_file))
            expect(abs(shape["memory_bytes"] / of_file["memory_bytes"] - 1) < 0.15, "about the memory", (shape, of_file))


@test
def plan_says_what_a_phone_could_do_and_where_its_figures_come_from():
    for device in ("iphone-17-pro", "iphone-16-pro", "pixel-10-pro", "galaxy-s25"):
        r = plan("--device", device, "--preset", "maple-20b")
        expect(0 < r["decode_tps"]["low"] < r["decode_tps"]["high"] < 300, "a range", r)
        expect(0 < r["first_token_seconds"]["low"] < r["first_token_seconds"]["high"] < 60, "a range", r)
        expect(r["bandwidth_source"] and r["ram_source"] and r["cpu_source"], "sources", r)
        expect(5.0e9 < r["memory_bytes"] < 6.0e9, "five gigabytes", r)
        longer = plan("--device", device, "--preset", "maple-20b", "--context", "32768")
        expect(longer["decode_tps"]["high"] < r["decode_tps"]["high"], "a longer context is slower", longer)
        out = succeeds("plan", "--device", device, "--preset", "maple-20b").out
        for words in (b"prediction, not a measurement", b"LPDDR5X", b"tokens/s", b"assumption", b"Phones slow down"):
            expect(words in out, f"'{words.decode()}'", out)


@test
def plan_refuses_what_it_does_not_know():
    preset = ("--preset", "maple-20b")
    refused("plan", "--device", "nokia-3310", *preset, code=2, says=["--device", "iphone-17-pro", "nokia-3310"])
    refused("plan", "--device", "", *preset, code=2, says=["--device"])
    refused("plan", "--preset", "gpt-5", code=2, says=["maple-20b"])
    refused("plan", "--preset", "llama-tiny", code=2, says=["--preset", "llama-tiny"])
    refused("plan", "--device", "galaxy-s25", code=2, says=["--preset"])
    refused("plan", *preset, "-m", model(), code=2, says=["--preset"])
    refused("plan", "-m", "/nope", code=2, says=["/nope"])
    for flag, value in (("--context", "-1"), ("--context", "131073"), ("--context", "99999999999999999999"),
                        ("--prompt-tokens", "0"), ("--prompt-tokens", "-5"), ("--prompt-tokens", "1e9"),
                        ("--threads", "257"), ("--layout", "3bit")):
        refused("plan", "--device", "galaxy-s25", *preset, flag, value, code=2, says=[flag])


@test
def every_help_has_an_example_and_every_example_parses():
    for command in COMMANDS:
        text = succeeds(command, "--help").out.decode()
        examples = [line.strip() for line in text.splitlines() if line.startswith("  ") and f"samara {command}" in line]
        expect(examples, f"an example of {command}")
        for line in examples:
            line = line[line.index(f"samara {command}"):].split("    ")[0]  # without pipes and remarks
            words = shlex.split(line.split(" > ")[0])
            for name in ("model.gguf", "maple.gguf", "M", "smollm2", "maple-preview"):
                words = ["/nope" if w == name else w for w in words]
            if command in ("pull", "models", "synth"):
                continue
            run = samara(*words[1:])
            expect(b"--help" not in run.err, f"flags that exist in: {line}", run)


@test
def synthetic_models_have_a_type_that_fits_when_none_is_given():
    with folder() as place:
        succeeds("synth", "--preset", "llama-tiny", "-o", str(place / "l.gguf"))
        succeeds("run", "-m", str(place / "l.gguf"), "--raw", "-p", "hi", "-n", "2")
        refused("synth", "--preset", "nope", "-o", str(place / "x"), code=2, says=["maple-tiny"])
        refused("synth", "--preset", "maple-tiny", "-o", str(place / "x"), "--type", "q9", code=2, says=["tq2_0"])
        for flag in ("--threads", "--seed", "--outliers"):
            refused("synth", "--preset", "maple-tiny", "-o", str(place / "x"), flag, "-1", code=2, says=[flag])
        refused("synth", "--preset", "maple-tiny", "-o", str(place / "x"), "--threads", "100000", code=2, says=["256"])
