"""How bytes arrive: drops, stalls, lies about lengths and ranges, refusals, redirects, full disks, stops."""

import hashlib
import pathlib
import random
import signal
import ssl
import subprocess
import tempfile
import time

from harness import CONTENT, expect, place, ranges, test, until
from server import Behaviour, Server


@test
def a_whole_download_is_complete_and_names_its_path():
    with place() as at:
        run = at.pull()
        at.check_complete(run)
        expect(run.out == f"{at.target}\n", "standard output is the path alone", run)
        expect("\r" not in run.err, "plain lines without a terminal", run)


@test
def an_empty_file_is_complete():
    with place(content=b"") as at:
        at.check_complete(at.pull())


@test
def a_second_pull_finds_the_file_and_asks_for_no_byte():
    with place() as at:
        at.check_complete(at.pull())
        run = at.pull("--json")
        at.check_complete(run)
        expect(run.events[-1]["downloaded"] is False, "not downloaded again", run)
        expect(len(at.behaviour.file_requests) == 1, "one request", run)


@test
def another_file_of_the_same_name_is_never_overwritten():
    with place() as at:
        at.out.mkdir(parents=True)
        at.target.write_bytes(b"mine")
        run = at.pull()
        expect(run.code == 1 and at.target.read_bytes() == b"mine", "the file is untouched", run)
        expect(at.behaviour.file_requests == [], "nothing was asked for", run)


@test
def dropped_connections_are_continued_with_ranges():
    with place(drop_after=[200_000, 300_000, 400_000]) as at:
        run = at.pull()
        at.check_complete(run)
        expect(ranges(at.behaviour) == [None, "bytes=200000-", "bytes=500000-", "bytes=900000-"], "each goes on", run)
        expect(all(r.get("If-Range") == '"one"' for r in at.behaviour.file_requests[1:]), "If-Range is sent", run)


@test
def many_drops_with_progress_do_not_exhaust_the_tries():
    with place(drop_after=[100_000] * 12) as at:
        at.check_complete(at.pull(retries=3))


@test
def drops_without_progress_give_up_and_keep_the_part():
    with place(drop_after=[100_000] + [10] * 50) as at:
        run = at.pull(retries=4)
        at.check_failed(run, "gave up after 4 tries")
        expect(at.part.stat().st_size >= 100_000, "the part is kept", run)


@test
def a_stall_is_noticed_and_continued():
    with place(stall_after=[300_000]) as at:
        begin = time.monotonic()
        run = at.pull()
        at.check_complete(run)
        expect(time.monotonic() - begin < 20, "within the timeout and a little", run)
        expect(ranges(at.behaviour)[1] == "bytes=300000-", "it goes on", run)


@test
def a_server_that_stalls_for_ever_is_given_up():
    with place(stall_after=[0] * 50) as at:
        at.check_failed(at.pull(timeout=1, retries=2), "gave up after 2 tries")


@test
def a_truncated_body_without_length_is_continued():
    with place(no_length=True, drop_after=[700_000]) as at:
        run = at.pull()
        at.check_complete(run)
        expect(ranges(at.behaviour) == [None, "bytes=700000-"], "it goes on", run)


@test
def a_length_that_contradicts_the_listing_is_an_error():
    with place(wrong_length=1_400_000) as at:
        at.check_failed(at.pull(), "1500000", "1400000")


@test
def a_length_beyond_the_body_is_retried_then_given_up():
    with place(content=CONTENT, listed_size=1_600_000, wrong_length=1_600_000) as at:
        at.check_failed(at.pull(retries=2))


@test
def a_body_that_never_ends_is_cut_at_the_published_size():
    with place(no_length=True, extra_body=b"x" * 500_000) as at:
        run = at.pull()
        at.check_failed(run, "sends more")
        expect(at.part.stat().st_size <= len(CONTENT), "no byte more than published is kept", run)


@test
def a_server_without_ranges_makes_it_start_again():
    with place(no_ranges=True, drop_after=[400_000]) as at:
        run = at.pull()
        at.check_complete(run)
        expect(ranges(at.behaviour) == [None, "bytes=400000-"], "a range was asked for", run)


@test
def a_server_without_ranges_that_always_drops_is_given_up():
    with place(no_ranges=True, drop_after=[400_000] * 50) as at:
        at.check_failed(at.pull(retries=3), "gave up after 3 tries")


@test
def a_range_that_starts_elsewhere_is_not_glued_on():
    with place(range_shift=7, drop_after=[400_000]) as at:
        at.check_complete(at.pull())


@test
def a_changed_etag_starts_again():
    with place(drop_after=[400_000]) as at:
        def change(number):
            if number == 2:
                at.behaviour.etag = '"two"'
        at.behaviour.on_request = change
        run = at.pull()
        at.check_complete(run)
        expect(at.behaviour.file_requests[1].get("If-Range") == '"one"', "the old validator was sent", run)


@test
def a_weak_etag_is_not_sent_with_if_range():
    with place(etag='W/"one"', drop_after=[400_000]) as at:
        run = at.pull()
        at.check_complete(run)
        expect("If-Range" not in at.behaviour.file_requests[1], "no If-Range", run)


@test
def a_part_of_other_content_is_not_continued():
    with place(drop_after=[400_000] + [0] * 9) as at:
        at.check_failed(at.pull(retries=1))
        at.behaviour.content = random.Random(2).randbytes(len(CONTENT))
        at.behaviour.sha256 = hashlib.sha256(at.behaviour.content).hexdigest()
        at.behaviour.drop_after = []
        run = at.pull()
        at.check_complete(run)
        expect(ranges(at.behaviour)[-1] is None, "it starts again", run)


@test
def a_damaged_state_file_starts_again():
    for damage in ("", "{", "[1]", '{"bytes": "x", "sha256": 5}'):
        with place(drop_after=[400_000]) as at:
            at.check_failed(at.pull(retries=1))
            pathlib.Path(f"{at.part}.json").write_text(damage)
            at.check_complete(at.pull())


@test
def a_part_longer_than_the_file_starts_again():
    with place(drop_after=[400_000]) as at:
        at.check_failed(at.pull(retries=1))
        with at.part.open("ab") as part:
            part.write(b"x" * 2_000_000)
        at.check_complete(at.pull())


@test
def a_complete_part_needs_only_its_hash():
    with place(drop_after=[400_000]) as at:
        at.check_failed(at.pull(retries=1))
        at.part.write_bytes(CONTENT)
        run = at.pull()
        at.check_complete(run)
        expect(len(at.behaviour.file_requests) == 1, "no further request", run)


@test
def wrong_content_is_refused_and_removed():
    with place(sha256="0" * 64) as at:
        run = at.pull()
        at.check_failed(run, "SHA-256", "0" * 64)
        expect(list(at.out.iterdir()) == [], "nothing is left to continue from", run)


@test
def a_flipped_byte_in_the_part_is_found():
    with place(drop_after=[400_000]) as at:
        at.check_failed(at.pull(retries=1))
        with at.part.open("r+b") as part:
            part.write(b"\x00\x01\x02")
        at.check_failed(at.pull(), "SHA-256")


@test
def a_file_without_published_hash_is_refused():
    with place() as at:
        at.check_failed(at.pull(model="some/repo:README.md"), "no SHA-256")


@test
def refusals_are_final_and_say_why():
    for status, word in ((404, "no such"), (403, "HF_TOKEN"), (401, "HF_TOKEN"), (400, "400")):
        with place(statuses=[status]) as at:
            run = at.pull()
            at.check_failed(run, str(status), word)
            expect(len(at.behaviour.file_requests) == 1, "one request", run)
        with place(listing_status=[status]) as at:
            at.check_failed(at.pull(), str(status))


@test
def busy_servers_are_asked_again():
    for status in (500, 502, 503, 429, 408):
        with place(statuses=[status, status], listing_status=[status]) as at:
            at.check_complete(at.pull())


@test
def retry_after_is_honoured():
    with place(statuses=[429], retry_after=2) as at:
        begin = time.monotonic()
        run = at.pull("--json")
        at.check_complete(run)
        expect(time.monotonic() - begin >= 2, "at least two seconds", run)
        retry = [event for event in run.events if event["event"] == "retry"]
        expect(len(retry) == 1 and retry[0]["wait_seconds"] == 2, "one retry after 2 s", run)


@test
def a_very_long_retry_after_is_told_not_waited_for():
    with place(statuses=[429], retry_after=86400) as at:
        at.check_failed(at.pull(), "86400 s")


@test
def endless_errors_are_given_up():
    with place(statuses=[500] * 99) as at:
        run = at.pull(retries=3)
        at.check_failed(run, "500", "gave up after 3 tries")
        expect(len(at.behaviour.file_requests) == 3, "three requests", run)


@test
def an_error_page_is_not_taken_for_content():
    with place(drop_after=[400_000]) as at:
        at.check_failed(at.pull(retries=1))
        at.behaviour.statuses = [503]
        at.check_complete(at.pull())


@test
def redirects_are_followed_relative_and_to_other_hosts():
    with place() as at, Server(at.behaviour) as storage:
        at.behaviour.redirect = lambda path: "/storage/hop" if "/resolve/" in path else (
            f"{storage.url}/storage/end?signature=secret" if path == "/storage/hop" else None)
        at.check_complete(at.pull())


@test
def the_token_goes_to_the_endpoint_alone():
    with place() as at, Server(at.behaviour) as storage:
        at.environment["HF_TOKEN"] = "hf_secret"
        at.behaviour.redirect = lambda path: f"{storage.url}/storage/x" if "/resolve/" in path else None
        run = at.pull()
        at.check_complete(run)
        bearer = "Bearer hf_secret"
        expect(at.behaviour.listing_requests[0][1].get("Authorization") == bearer, "the listing has it", run)
        expect(at.server.redirected[0].get("Authorization") == bearer, "the endpoint has it", run)
        expect("Authorization" not in at.behaviour.file_requests[0], "the storage host has not", run)
        expect("hf_secret" not in run.out + run.err, "it is not printed", run)


@test
def a_redirect_to_plain_http_elsewhere_is_refused():
    with place(redirect=lambda path: "http://example.invalid/x?signature=secret") as at:
        run = at.pull()
        at.check_failed(run, "expected https")
        expect("secret" not in run.err, "the signature is not printed", run)


@test
def a_redirect_to_another_scheme_is_refused():
    for location in ("file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x"):
        with place(redirect=lambda path, location=location: location) as at:
            at.check_failed(at.pull())


@test
def a_redirect_loop_ends():
    with place(redirect=lambda path: path) as at:
        at.check_failed(at.pull(), "redirects")


@test
def the_endpoint_comes_from_the_environment():
    with place() as at:
        at.environment["HF_ENDPOINT"] = at.server.url + "/"
        at.check_complete(at.pull(base_url=None))


@test
def a_proxy_from_the_environment_is_used():
    with place() as at:
        at.environment["HTTPS_PROXY"] = at.server.url.replace("127.0.0.1", "127.0.0.2")
        run = at.pull(base_url="https://example.invalid", retries=1)
        at.check_failed(run, "gave up")
        expect("resolve" not in run.err.lower(), "the proxy was asked, the host's name was not looked up", run)


@test
def an_untrusted_certificate_is_final():
    with place() as at, tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/key", "-out", f"{folder}/cert"],
            capture_output=True)
        expect(made.returncode == 0, f"openssl makes a certificate: {made.stderr}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/cert", f"{folder}/key")
        with Server(Behaviour(CONTENT)) as secure:
            secure.socket = context.wrap_socket(secure.socket, server_side=True)
            run = at.pull(retries=1, base_url=secure.url.replace("http:", "https:"))
            at.check_failed(run, "certificate")
            expect(secure.behaviour.listing_requests == [], "nothing was sent", run)


@test
def a_full_disk_is_told_before_anything_is_downloaded():
    with place() as at:
        run = at.pull(min_free=1 << 60)
        at.check_failed(run, "free", "--min-free")
        expect(at.behaviour.file_requests == [], "nothing was asked for", run)
        expect(list(at.out.iterdir()) == [], "nothing was written", run)


@test
def a_listed_size_beyond_the_disk_is_told_before_anything_is_downloaded():
    with place(listed_size=1 << 62) as at:
        run = at.pull()
        at.check_failed(run, "free")
        expect(at.behaviour.file_requests == [], "nothing was asked for", run)


@test
def a_write_error_is_told_and_the_part_is_kept():
    with place() as at:
        # A file size limit stands for a disk that fills up meanwhile; the shell ignores the signal that goes with it.
        command = ["sh", "-c", 'trap "" XFSZ; ulimit -f 800; exec "$@"', "sh", *at.command()]
        run = at.finish(at.start(command))
        at.check_failed(run, "cannot write")
        expect(at.part.stat().st_size > 0, "the part is kept", run)
        at.check_complete(at.pull())


@test
def a_folder_that_cannot_be_made_is_told():
    with place() as at:
        at.out.write_text("a file")
        run = at.pull()
        expect(run.code == 1 and "out" in run.err, "a message that names it", run)


@test
def ctrl_c_stops_soon_keeps_the_part_and_continues():
    for stop in (signal.SIGINT, signal.SIGTERM):
        with place(bytes_per_second=1_000_000) as at:
            process = at.start(at.command())
            until(lambda: at.part.exists() and at.part.stat().st_size > 200_000)
            begin = time.monotonic()
            process.send_signal(stop)
            run = at.finish(process)
            expect(time.monotonic() - begin < 3, "within three seconds", run)
            expect(run.code == 130, "exit code 130", run)
            expect(not at.target.exists() and at.part.stat().st_size > 200_000, "the part is kept", run)
            at.behaviour.bytes_per_second = None
            at.check_complete(at.pull())
            expect(ranges(at.behaviour)[-1] is not None, "it went on", run)


@test
def ctrl_c_stops_a_stalled_transfer_and_a_pause():
    with place(stall_after=[100_000] * 9) as at:
        process = at.start(at.command("--json", timeout=30))
        until(lambda: at.part.exists() and at.part.stat().st_size == 100_000)
        process.send_signal(signal.SIGINT)
        run = at.finish(process)
        expect(run.code == 130 and run.events[-1]["event"] == "cancelled", "cancelled", run)
    with place(statuses=[503] * 9, retry_after=60) as at:
        process = at.start(at.command())
        until(lambda: len(at.behaviour.file_requests) == 1)
        time.sleep(0.3)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        run = at.finish(process)
        expect(run.code == 130 and time.monotonic() - begin < 3, "stops within three seconds", run)


@test
def a_killed_download_is_continued():
    with place(bytes_per_second=1_000_000) as at:
        process = at.start(at.command())
        until(lambda: at.part.exists() and at.part.stat().st_size > 200_000)
        process.kill()
        at.finish(process)
        at.behaviour.bytes_per_second = None
        run = at.pull()
        at.check_complete(run)
        expect(ranges(at.behaviour)[-1] is not None, "it went on", run)


@test
def two_downloads_of_one_file_do_not_mix():
    with place(bytes_per_second=500_000) as at:
        first = at.start(at.command())
        until(lambda: at.part.exists() and at.part.stat().st_size > 50_000)
        second = at.pull()
        expect(second.code == 1 and "another download" in second.err, "the second is refused", second)
        at.check_complete(at.finish(first))
