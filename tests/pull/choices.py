"""What is downloaded and what is said about it: names, listings, variants, output, the list of models."""

import contextlib
import hashlib
import json
import os
import pathlib
import pty
import subprocess

import harness
from harness import CONTENT, expect, place, test
from server import entry


@test
def a_token_with_a_line_break_is_refused():
    with place() as at:
        at.environment["HF_TOKEN"] = "x\r\nHost: evil"
        run = at.pull()
        at.check_failed(run, "HF_TOKEN")
        expect(at.behaviour.listing_requests == [], "nothing was sent", run)


@test
def a_plain_http_endpoint_elsewhere_is_refused():
    with place() as at:
        at.environment["HF_ENDPOINT"] = "http://example.invalid"
        at.check_failed(at.pull(base_url=None), "expected https")


HOSTILE = ["../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "..\\evil.gguf", "C:evil.gguf", ".hidden.gguf",
           "a//b.gguf", "a/./b.gguf", "evil\n.gguf", "evil\x1b[2J.gguf", "\x00.gguf", "x" * 300 + ".gguf", "", "b\u202e.gguf",
           "~/.ssh/../evil.gguf"]


@test
def hostile_names_in_a_listing_are_never_written():
    for name in HOSTILE:
        with place(path=name) as at:
            run = at.pull()
            expect(run.code == 1, f"{name!r} is refused", run)
            expect("\x1b" not in run.err, "no escape sequence is printed", run)
            written = [p for p in at.folder.rglob("*") if p.is_file()]
            expect(written == [], f"nothing is written for {name!r}: {written}", run)
            expect(at.behaviour.file_requests == [], "nothing is asked for", run)


@test
def hostile_arguments_are_refused_before_any_request():
    for model in ("../x", "a/..", "a/b/c", "a/b:../c.gguf", "a/b:/etc/passwd", "nothing", "a/b?x", "a /b", ".a/b", "a/b:"):
        with place() as at:
            run = at.pull(model=model)
            expect(run.code == 1, f"{model!r} is refused", run)
            expect(at.behaviour.listing_requests == [], "nothing is asked for", run)


@test
def a_file_in_a_folder_is_found_and_encoded():
    with place(path="a folder/model #1 Q8_0.gguf") as at:
        at.check_complete(at.pull())
        at.check_complete(at.pull(model="some/repo:a folder/model #1 Q8_0.gguf"))


@test
def broken_listings_are_clear_errors():
    for body in (b"", b"{", b'{"error": "x"}', b"[" * 200_000, b"null", b"\xff\xfe", b"5", b"[1, null, [], {}]",
                 b'[{"type": "file", "path": 5, "size": 1}]', b'[{"type": "file", "path": "a.gguf", "size": -1}]',
                 b'[{"type": "file", "path": "a.gguf", "size": 1e300, "lfs": 5}]',
                 b'[{"type": 5, "path": "a.gguf", "size": 1}]'):
        with place(listing=body) as at:
            run = at.pull()
            at.check_failed(run)
            expect(len(run.err) < 2000, "a short message", run)


@test
def an_endless_listing_is_cut():
    with place(listing=b"[" + b" " * (40 << 20) + b"]") as at:
        at.check_failed(at.pull(), "at most")


@test
def a_listing_of_many_files_is_cut():
    item = json.dumps(entry("a.gguf", 1, "0" * 64)) + ","
    with place(listing=("[" + item * 110_000 + "5]").encode()) as at:
        at.check_failed(at.pull(), "at most 100000")


@test
def a_listing_in_pages_is_read_to_the_end():
    with place() as at:
        def page(path):
            if "cursor" not in path:
                return b'[{"type": "file", "path": "x.txt", "size": 1}]', f"{at.server.url}/api/models/x?cursor=2"
            return None, None
        at.behaviour.listing = page
        at.check_complete(at.pull())


@test
def endless_pages_end():
    with place(listing=lambda path: (b"[]", "/api/models/again")) as at:
        run = at.pull()
        at.check_failed(run)
        expect(len(at.behaviour.listing_requests) == 100, "a hundred pages", run)


def listing_of(*files):
    return json.dumps([entry(path, size, hashlib.sha256(CONTENT).hexdigest()) for path, size in files]).encode()


@test
def the_variant_is_chosen_by_name():
    names = ["maple-preview-TQ1_0-Q4_K.gguf", "maple-preview-TQ2_0-Q4_K.gguf", "maple-preview-TQ1_0-F16.gguf",
             "maple-preview-TQ2_0-F16.gguf"]
    for flag, wanted in (("tq1_0-q4_k", 0), ("tq2_0-q4_k", 1), ("tq1_0-f16", 2), ("TQ2_0-F16", 3), (None, 1)):
        with place(listing=listing_of(*((name, len(CONTENT)) for name in names)), path=names[wanted]) as at:
            at.check_complete(at.pull(*(["--variant", flag] if flag else []), model="maple-preview"))


@test
def the_variant_is_chosen_when_only_one_head_is_named():
    names = ["maple-TQ1_0.gguf", "maple-TQ2_0.gguf", "maple-TQ1_0-f16-head.gguf", "maple-TQ2_0-f16-head.gguf"]
    for flag, wanted in (("tq1_0-q4_k", 0), ("tq2_0-q4_k", 1), ("tq1_0-f16", 2), ("tq2_0-f16", 3)):
        with place(listing=listing_of(*((name, len(CONTENT)) for name in names)), path=names[wanted]) as at:
            at.check_complete(at.pull("--variant", flag, model="maple-preview"))


@test
def the_variant_is_chosen_by_size_when_names_do_not_tell():
    gib = 1 << 30
    files = [("a.gguf", int(4.64 * gib)), ("b.gguf", int(5.06 * gib)), ("c.gguf", int(5.5 * gib)), ("d.gguf", int(5.91 * gib))]
    for flag, wanted in (("tq1_0-q4_k", "a"), ("tq2_0-q4_k", "b"), ("tq1_0-f16", "c"), ("tq2_0-f16", "d")):
        with place(listing=listing_of(*files), statuses=[404]) as at:
            run = at.pull("--variant", flag, model="maple-preview")
            at.check_failed(run, f"/{wanted}.gguf")


@test
def an_unclear_choice_lists_the_files():
    with place(listing=listing_of(("a-Q4_0.gguf", 5), ("b-Q8_0.gguf", 7))) as at:
        at.check_failed(at.pull(), "a-Q4_0.gguf", "b-Q8_0.gguf", "some/repo:FILE")
        at.check_failed(at.pull(model="maple-preview"), "a-Q4_0.gguf")
        at.check_failed(at.pull(model="some/repo:c.gguf"), "no file 'c.gguf'", "b-Q8_0.gguf")


@test
def an_unknown_variant_lists_the_known_ones():
    with place() as at:
        at.check_failed(at.pull("--variant", "q2", model="maple-preview"), "tq2_0-q4_k", "tq1_0-f16")


@test
def a_split_model_comes_whole():
    names = [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    with place(listing=listing_of(*((name, len(CONTENT)) for name in names))) as at:
        run = at.pull()
        expect(run.code == 0 and run.out.splitlines() == [str(at.out / name) for name in names], "three paths", run)
        expect(all((at.out / name).read_bytes() == CONTENT for name in names), "all parts", run)
    with place(listing=listing_of(*((name, len(CONTENT)) for name in names[:2]))) as at:
        at.check_failed(at.pull(), names[2])


@test
def json_events_tell_the_whole_story():
    with place(drop_after=[500_000]) as at:
        run = at.pull("--json")
        at.check_complete(run)
        kinds = [event["event"] for event in run.events]
        for kind in ("download", "progress", "retry", "verify", "done"):
            expect(kind in kinds, f"an event '{kind}'", run)
        done = run.events[-1]
        expect(done == {"event": "done", "path": str(at.target), "bytes": len(CONTENT),
                        "sha256": at.behaviour.sha256, "downloaded": True}, "the last event", run)
        expect(run.err == "", "nothing on standard error", run)
    with place(statuses=[404]) as at:
        run = at.pull("--json")
        expect(run.code == 1 and run.events[-1]["event"] == "error", "an error event", run)


@test
def a_terminal_gets_a_bar():
    with place(bytes_per_second=2_000_000) as at:
        leader, follower = pty.openpty()
        process = subprocess.Popen(at.command(), env=at.environment, stdout=subprocess.DEVNULL, stderr=follower)
        os.close(follower)
        shown = b""
        with contextlib.suppress(OSError):  # how a closed terminal ends
            while data := os.read(leader, 4096):
                shown += data
        os.close(leader)
        expect(process.wait(harness.DEADLINE) == 0, "exit code 0")
        expect("█" in shown.decode() and "%" in shown.decode(), f"a bar: {shown!r}")


@test
def wrong_usage_is_exit_code_2_and_help_is_0():
    with place() as at:
        expect(at.run(*at.pull_prefix()).code == 2, "no model")
        expect(at.pull(timeout="x").code == 2, "not a number")
        run = at.run(*at.pull_prefix(), "--help")
        expect(run.code == 0 and "--timeout" in run.out and "HF_TOKEN" in run.out, "help", run)


@test
def models_lists_what_was_pulled_to_the_cache():
    with place() as at:
        at.environment["SAMARA_CACHE"] = str(at.folder / "cache")
        run = at.run(harness.PROGRAM, "models", "--json")
        expect(run.code == 0 and json.loads(run.out)["installed"] == [], "an empty list", run)
        expect([m["name"] for m in json.loads(run.out)["known"]][-1] == "smollm2", "known names", run)
        run = at.pull(output=None)
        path = at.folder / "cache/models/some/repo/model-Q8_0.gguf"
        expect(run.code == 0 and run.out == f"{path}\n", "the path", run)
        (path.parent / "other.gguf.part").write_bytes(b"x")
        (path.parent / "SmolLM2-135M-Instruct-Q4_1.gguf").write_bytes(b"xy")
        listed = json.loads(at.run(harness.PROGRAM, "models", "--json").out)
        found = {pathlib.Path(m["path"]).name: (m["bytes"], m["partial"]) for m in listed["installed"]}
        expect(found == {"model-Q8_0.gguf": (len(CONTENT), False), "other.gguf.part": (1, True),
                         "SmolLM2-135M-Instruct-Q4_1.gguf": (2, False)}, f"the files: {found}")
        smollm2 = [m for m in listed["known"] if m["name"] == "smollm2"][0]
        expect(smollm2["path"].endswith("SmolLM2-135M-Instruct-Q4_1.gguf"), "a known name finds its file")
        run = at.run(harness.PROGRAM, "models")
        expect(run.code == 0 and "some/repo/model-Q8_0.gguf" in run.out, "the table", run)


@test
def a_name_is_resolved_to_its_file():
    with place() as at:
        at.environment["SAMARA_CACHE"] = str(at.folder / "cache")
        folder = at.folder / "cache/models/some/repo"
        folder.mkdir(parents=True)
        for name in ("m-Q8_0.gguf", "maple-TQ1_0-Q4_K.gguf", "maple-TQ2_0-F16.gguf", "SmolLM2-135M.gguf", "z.gguf.part"):
            (folder / name).write_bytes(b"x")

        def where(name):
            run = at.run(harness.PROGRAM, "models", name)
            return pathlib.Path(run.out.strip()).name if run.code == 0 else run.err

        expect(where("m-q8_0") == "m-Q8_0.gguf", "a file name without its ending")
        expect(where("some/repo:m-Q8_0.gguf") == "m-Q8_0.gguf", "a repository's file")
        expect(where("smollm2") == "SmolLM2-135M.gguf", "smollm2")
        expect(where("maple-preview") == "maple-TQ1_0-Q4_K.gguf", "the first variant there is")
        expect(where("maple-preview:tq2_0-f16") == "maple-TQ2_0-F16.gguf", "the variant asked for")
        (folder / "maple-TQ1_0-Q4_K.packed.gguf").write_bytes(b"x")
        expect(where("maple-preview") == "maple-TQ1_0-Q4_K.packed.gguf", "a packed copy comes first")
        expect(where(str(folder / "z.gguf.part")) == "z.gguf.part", "a path as it is")
        expect("samara pull maple-preview --variant tq1_0-f16" in where("maple-preview:tq1_0-f16"), "how to get it")
        expect("m-Q8_0.gguf" in where("nothing"), "what is installed")
        expect("no such file" in where("z"), "an unfinished download is no model")
