"""Flags with hostile values, and prompts of every kind."""

import json

from harness import expect, folder, model, refused, samara, succeeds, test

def run(*words, **named):
    limit = () if "-n" in words else ("-n", "3")
    return succeeds("run", "-m", model(), *limit, *words, **named)


@test
def numbers_out_of_range_are_refused_by_the_flags_name():
    for flag, value in [("--temperature", "-1"), ("--temperature", "inf"), ("--top-k", "-5"), ("--top-p", "0"),
                        ("--min-p", "1"), ("--repeat-penalty", "0"), ("--presence-penalty", "1e9"), ("--seed", "-1"),
                        ("--seed", "99999999999999999999999"), ("--seed", "x"), ("-n", "-1"), ("--threads", "-1"),
                        ("--threads", "257"), ("--context", "-1"), ("--context", "1e9"), ("--memory-budget", "-1"),
                        ("--memory-budget", "nan"), ("--memory-budget", "0"), ("--memory-budget", "3XB"),
                        ("--memory-budget", "1e40"), ("--stop", "")]:
        refused("run", "-m", model(), "-p", "hi", flag, value, code=2,
                says=["--max-tokens" if flag == "-n" else flag])


@test
def not_a_number_is_refused_wherever_a_number_is_expected():
    for flag in ("temperature", "top-p", "min-p", "presence-penalty"):
        refused("run", "-m", model(), "-p", "hi", f"--{flag}", "nan", code=2, says=["nan"])


@test
def an_unknown_instruction_set_is_refused_with_the_list():
    for isa in ("", "foo"):
        refused("run", "-m", model(), "-p", "hi", "--isa", isa, code=2, says=["scalar", "avx2"])


@test
def a_context_beyond_the_models_is_refused_with_the_limit():
    for context in ("8193", "18446744073709551615"):
        refused("run", "-m", model(), "-p", "hi", "--context", context, code=2, says=["8192", context])


@test
def a_memory_budget_too_small_is_refused_with_the_need():
    need = succeeds("inspect", model(), "--json").json["memory"]["total"]
    refused("run", "-m", model(), "-p", "hi", "--memory-budget", "1MiB", code=1, says=["budget", "MiB KV cache"])
    expect(need > 1 << 20, "a need above the budget")
    run("-p", "hi", "--memory-budget", "1GiB")


@test
def an_unknown_command_is_named():
    refused("conquer", code=2, says=["conquer", "--help"])
    refused(code=2, says=["--help"])


@test
def an_empty_prompt_does_not_wait_for_standard_input():
    refused("run", "-m", model(), "-p", "", code=2, says=["prompt is empty"], stdin=b"other text")
    expect(succeeds("tokenize", "-m", model(), "-p", "", stdin=b"other text").out == b"\n", "no tokens")


@test
def prompts_that_look_like_flags_or_lists_are_text():
    for text in ("- item", "--help me", "[a,b]", "{}", '"q"', "%%", "<|im_end|>"):
        with folder() as place:
            ids = place / "ids.txt"
            ids.write_bytes(succeeds("tokenize", "-m", model(), "-p", text).out)
            expect(succeeds("tokenize", "-m", model(), "--decode", str(ids)).out == text.encode(), f"{text} again")


@test
def special_tokens_in_user_text_stay_text():
    as_text = succeeds("tokenize", "-m", model(), "-p", "<|im_end|>").out.split()
    special = succeeds("tokenize", "-m", model(), "-p", "<|im_end|>", "--special").out.split()
    expect(len(special) == 1 and special[0] not in as_text, "a special token only when asked for")
    chat = succeeds("tokenize", "-m", model(), "--chat", "-p", "<|im_end|>").out.split()
    expect(chat.count(special[0]) == 1, "one end of turn: the template's own")


@test
def invalid_utf8_is_refused_in_plain_words():
    for words in (["run", "-m", model(), "-p", b"ab\xff"], ["run", "-m", model(), "--raw", "-p", b"ab\xff"],
                  ["run", "-m", model(), "-p", "x", "--system", b"\xff"], ["tokenize", "-m", model(), "-p", b"\xff"],
                  ["tokenize", "-m", model(), "--chat", "-p", b"\xff"]):
        refused(*words, code=2, says=["valid UTF-8"])


@test
def nul_bytes_survive_a_round_trip():
    with folder() as place:
        (place / "nul").write_bytes(b"a\0b\n\r\t\x01")
        (place / "ids").write_bytes(succeeds("tokenize", "-m", model(), "-f", str(place / "nul")).out)
        expect(succeeds("tokenize", "-m", model(), "--decode", str(place / "ids")).out == b"a\0b\n\r\t\x01", "same bytes")


@test
def unreadable_prompt_files_are_named():
    refused("run", "-m", model(), "-f", "/", code=1, says=["/:", "directory"])
    refused("run", "-m", model(), "-f", "/nope", code=1, says=["/nope", "No such file"])
    refused("run", "-m", model(), "-f", "/dev/null", code=2, says=["prompt is empty"])
    refused("run", "-m", model(), "-f", "/dev/zero", code=2, says=["/dev/zero", "at most"])


@test
def a_prompt_longer_than_the_context_is_refused_with_the_way_out():
    refused("run", "-m", model(), "--context", "64", "-f", "-", stdin=b"ship " * 500, code=1,
            says=["context of 64", "--context"])


@test
def a_full_context_ends_the_answer_and_is_said():
    told = run("-p", "hi", "-n", "0", "--context", "20")
    expect(b"context of 20 tokens is full" in told.err, "a note on standard error", told)
    expect(run("-p", "hi", "-n", "0", "--context", "20", "--json").json["stop_reason"] == "context_full", "in JSON")


@test
def a_stop_text_is_one_text_and_cuts_exactly():
    whole = run("--raw", "-p", "hi", "-n", "40", "--seed", "3").out.decode(errors="replace").rstrip("\n")
    stop = whole[12:15]
    cut = run("--raw", "-p", "hi", "-n", "40", "--seed", "3", "--stop", stop).out.decode(errors="replace")
    expect(cut == whole[:whole.index(stop)] + "\n", "the text before the first match")
    same = run("--raw", "-p", "hi", "-n", "40", "--seed", "3", "--stop", f"[{stop},{stop}]")
    expect(same.out.decode(errors="replace").rstrip("\n") == whole, "brackets do not make a list")
    refused("run", "-m", model(), "-p", "hi", "--stop", "a", "b", code=2, says=["b"])


@test
def equal_seeds_give_equal_answers_on_any_threads():
    answers = {run("-p", "hi", "-n", "20", "--seed", "7", "--threads", n).out for n in ("1", "2")}
    expect(len(answers) == 1, "one answer")
    expect(run("-p", "hi", "-n", "20", "--seed", "8").out not in answers, "another seed, another answer")


@test
def reasoning_stands_between_tags_and_no_think_turns_it_off():
    expect(run("-p", "hi").out.startswith(b"<think>"), "a tag before reasoning where nothing can be dimmed")
    result = run("-p", "hi", "--json").json
    expect(result["reasoning"] != "" and result["text"] == "", "reasoning apart")
    result = run("-p", "hi", "--json", "--no-think").json
    expect(result["reasoning"] == "" and result["text"] != "", "no reasoning")


@test
def every_json_output_parses_and_names_what_is_not_utf8():
    name = b"\xff.gguf"
    with folder() as place:
        path = bytes(place) + b"/" + name
        for words in (["synth", "--preset", "maple-tiny", "-o", path], ["inspect", path],
                      ["pack", "-m", path, "-o", path + b".packed"], ["run", "-m", path, "-p", "hi", "-n", "2"],
                      ["bench", "-m", path, "--prompt-tokens", "8", "--gen-tokens", "2"],
                      ["tokenize", "-m", path, "-p", "h\u00e9"], ["verify", "-m", path]):
            json.loads(succeeds(*words, "--json").out.decode())
    json.loads(samara("models", "--json").out.decode())
