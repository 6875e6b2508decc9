"""On a terminal: line editing, Ctrl-C, Ctrl-D, colours and bars. And conversations from a pipe."""

import json
import signal

from harness import Terminal, expect, folder, model, samara, succeeds, test


def chat(*words, **named):
    return Terminal("chat", "-m", model(), *words, **named)


@test
def ctrl_c_stops_the_answer_and_not_the_program():
    with chat("-n", "0") as t:
        t.until_line_editor()
        t.type(b"tell me a story\n")
        t.until(b"\x1b[2m")
        t.type(b"\x03")
        t.until(b"stopped")
        t.until_line_editor()
        t.type(b"/stats\n")
        t.until(b"answer")
        t.until_line_editor()
        t.type(b"\x04")
        expect(t.end().code == 0, "Ctrl-D leaves")


@test
def ctrl_c_at_the_prompt_drops_the_line():
    with chat() as t:
        t.until_line_editor()
        t.type(b"half a li\x03")
        t.until(b"Ctrl-D")
        t.until_line_editor()
        t.type(b"\x03\x03\x03")
        t.until(b"Ctrl-D")
        t.until_line_editor()
        t.type(b"/system\n")
        t.until(b"(no system message)")
        t.until_line_editor()
        t.type(b"/quit\n")
        expect(t.end().code == 0, "exit code 0")


@test
def lines_are_edited_by_character_and_remembered():
    with folder() as place, chat("-n", "1") as t:
        t.until_line_editor()
        t.type("/system h\u00e9\u4f60\u597d\x7f\U0001f600".encode() + b"\xff\x1b[D\x1b[D.\n")
        t.until(b"\n")
        t.until_line_editor()
        t.type(f"/save {place}/c.json\n".encode())
        t.until(b"written")
        t.until_line_editor()
        t.type(b"\x1b[A\x1b[A\n")
        t.until(b"system")
        t.until_line_editor()
        t.type(b"\x04")
        expect(t.end().code == 0, "exit code 0")
        saved = json.loads((place / "c.json").read_text())
        expect(saved == [{"role": "system", "content": "h\u00e9\u4f60.\U0001f600\ufffd"}], f"the line, found {saved}")


@test
def a_request_to_end_is_obeyed_at_the_prompt():
    with chat() as t:
        t.until_line_editor()
        t.signal(signal.SIGTERM)
        expect(t.end().code == 0, "the program ends")


@test
def failed_commands_do_not_end_the_conversation():
    run = succeeds("chat", "-m", model(), "-n", "2",
                   stdin=b"/save /nope/x\n/load /nope/x\n/load /dev/null\n/foo\n/save\n\xff\xfe\n/system S\n/system\n")
    for word in (b"/nope/x", b"/dev/null", b"/foo", b"expected a file name", b"valid UTF-8"):
        expect(word in run.err, f"{word} in the messages", run)
    expect(run.out == b"S\n", "the last command still works", run)


@test
def a_conversation_is_saved_and_loaded():
    with folder() as place:
        path = str(place / "c.json").encode()
        succeeds("chat", "-m", model(), "-n", "2", "--no-think", stdin=b"hi\\\nthere\n/save " + path + b"\n")
        saved = json.loads((place / "c.json").read_text())
        expect([m["role"] for m in saved] == ["user", "assistant"] and saved[0]["content"] == "hi\nthere", str(saved))
        run = succeeds("chat", "-m", model(), stdin=b"/load " + path + b"\n/reset\n/save " + path + b"\n")
        expect(b"2 messages read" in run.out and b"0 messages written" in run.out, "loaded, then reset", run)


@test
def a_full_conversation_says_how_to_go_on():
    run = succeeds("chat", "-m", model(), "--context", "16", stdin=b"hi\nagain\n")
    expect(b"context of 16 tokens is full" in run.err and b"/reset" in run.err, "both notes", run)


@test
def reasoning_is_dimmed_on_a_terminal_that_can():
    for env, dimmed in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        with Terminal("run", "-m", model(), "-p", "hi", "-n", "5", env=env) as t:
            out = t.end().out
            expect((b"\x1b[2m" in out) == dimmed and (b"<think>" in out) != dimmed, f"dimmed: {dimmed}", out)
            expect(not dimmed or out.rindex(b"\x1b[0m") > out.rindex(b"\x1b[2m"), "not left dimmed", out)


@test
def an_interrupted_run_ends_with_130():
    for times in (1, 2):
        with Terminal("run", "-m", model(), "-p", "hi", "-n", "0") as t:
            t.until(b"\x1b[2m")
            t.type(b"\x03" * times)
            run = t.end()
            expect(run.code == 130, "exit code 130", run)


@test
def one_ctrl_d_ends_a_typed_prompt():
    with Terminal("run", "-m", model(), "-f", "-", "-n", "1") as t:
        t.type(b"hello\n\x04")
        expect(t.end().code == 0, "exit code 0")


@test
def a_bar_never_takes_more_than_its_line():
    with folder() as place:
        (place / "long").write_text("The ship sailed over the sea and into the night. " * 200)
        for columns in (3, 20, 80):
            with Terminal("perplexity", "-m", model(), "-f", str(place / "long"), columns=columns) as t:
                run = t.end()
            expect(run.code == 0, "exit code 0", run)
            for line in run.out.split(b"\r\x1b[K")[1:]:  # none where the machine is faster than the bar
                expect(len(line.split(b"perplexity")[0]) < columns, f"less than {columns} columns", line)


@test
def nothing_is_said_on_standard_error_when_nothing_is_wrong():
    for words in (["run", "-p", "hi", "-n", "3"], ["tokenize", "-p", "hi"], ["bench", "--prompt-tokens", "8",
                                                                             "--gen-tokens", "2"]):
        run = samara(words[0], "-m", model(), *words[1:])
        expect(run.code == 0 and run.err == b"", "silence", run)
