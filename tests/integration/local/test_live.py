import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import raydpzv
import scenarios
from raydpzv.compare.live import LivePage, serve
from tests.helpers import small_horizontal
from tests.helpers.browser import CHROMIUM, tab
from tests.helpers.commands import call, complaint
from tests.helpers.programs import Forked

CHANGES = ("budget.updates=1000000", "evaluate.every=50", "record.flush=1000")
"""No parts of rows are written: the page follows the checkpoints."""

EARLY_CLICK = """new MutationObserver((_, parsed) => {
  if (document.getElementById("logy")) { parsed.disconnect(); logy.click(); }
}).observe(document, { childList: true, subtree: true });"""


@contextmanager
def at_work(folder, scenario="digits_dpzv"):
    """A run in another process that goes on while the block runs, or until it gets a signal."""
    settings = [word for change in CHANGES for word in ("--set", change)]
    process = Forked(["-m", "raydpzv", "run", scenario, "--quiet", "--out", str(folder), *settings])
    try:
        until(
            lambda: (
                any(folder.glob("rows.tail/*.rows")) or any(folder.glob("rows/service/*.parquet"))
            )
        )
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate()


def until(holds):
    """Wait until something holds."""
    while not holds():
        time.sleep(0.05)


def value(page, script):
    """A script's value, or "" while the page loads."""
    try:
        return page.run(script)
    except AssertionError:  # its context is gone
        return ""


def updates_on(page):
    """How many updates a page says were made, 0 if it says nothing."""
    found = re.search(r"([\d,]+) of 1,000,000 updates so far", page)
    return int(found[1].replace(",", "")) if found else 0


@contextmanager
def served(live, port=0):
    """The URL of a page that is served while the block runs."""
    stop, found = threading.Event(), list[tuple[str, int]]()
    thread = threading.Thread(target=serve, args=(live, port, lambda *at: found.append(at), stop))
    thread.start()
    try:
        until(lambda: found)
        yield found[0]
    finally:
        stop.set()
        thread.join()


def asked(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        return answer.read().decode()


def refused(url, **headers):
    """The status of an answer that is an error."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc, timeout=60)
    try:
        connection.request("GET", where.path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_page_follows_a_run_to_its_end(tmp_path):
    folder = tmp_path / "run"
    with at_work(folder) as process:
        live = LivePage(folder)
        first = updates_on(live.page())
        until(lambda: updates_on(live.page()) > first)
        assert '"name":"dpzv"' in live.page(), "its curve has a name in the legend"
        process.send_signal(signal.SIGINT)
        until(lambda: process.poll() is not None)
        assert process.returncode == 130
    assert "updates so far" not in live.page()
    assert "stopped" in live.page()


def test_the_page_of_a_private_run_at_work_says_what_is_spent_and_that_it_stays(tmp_path):
    with at_work(tmp_path / "run", "digits_private"):
        live = LivePage(tmp_path / "run")
        spent = r"<dt>ε so far</dt><dd>(.*), proved against a client that knows its batches</dd>"
        until(lambda: re.search(spent, live.page()))
        page = live.page()
    assert "<strong>As planned: PRIVATE" in page
    assert "As planned for the whole run:</p>" in page
    assert 0 < float(re.search(spent, page)[1]) < 0.1
    assert "<dt>ε planned</dt><dd>1, against all clients" in page
    assert "Not covered by ε: keep this page." in page


def test_the_page_of_private_runs_side_by_side_says_that_it_stays(tmp_path):
    short = ["budget.updates=60", "evaluate.every=20", "data.train_rows=150", "data.test_rows=40"]
    raydpzv.compare(
        [raydpzv.load("digits_private", short)], tmp_path / "all", seeds=1, epsilons=[1.0]
    )
    page = LivePage(tmp_path / "all").page()
    assert "PRIVATE" in page
    assert "Not covered by ε: keep this page." in page


def test_only_this_machine_and_who_has_the_token_gets_the_page(tmp_path):
    scenarios.run(small_horizontal.small("decomfl"), tmp_path / "run")
    live = LivePage(tmp_path / "run")
    with served(live) as (url, port):
        assert url.startswith("http://127.0.0.1:")
        assert asked(url) == live.page() is live.page()  # made once for each version
        assert f'<meta name="version" content="{asked(url + "version")}">' in live.page()
        assert refused(f"http://127.0.0.1:{port}/") == 404
        assert refused(url.replace(url.split("/")[3], "guess")) == 404
        assert refused(f"{url}../scenario.toml") == 404
        # a name that an attacker's page resolves to this machine
        assert refused(url, Host=f"attacker.example:{port}") == 404
        with served(live, port) as (_, other):
            assert other == port + 1 or other > port
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass


def test_a_page_follows_a_comparison(tmp_path):
    short = ["budget.updates=60", "evaluate.every=20", "data.train_rows=150"]
    raydpzv.compare(["vafl"], tmp_path / "all", seeds=2, overrides=short)
    live, last = (
        LivePage(tmp_path / "all"),
        sorted((tmp_path / "all" / "runs").glob("*/summary.json"))[-1],
    )
    whole, summary = live.page(), last.read_bytes()
    last.unlink()  # as it is while the second run is at work
    assert "1 not made to the end" in live.page()
    last.write_bytes(summary)
    assert "not made to the end" not in live.page() + whole


def test_watch_ends_with_ctrl_c_and_says_what_is_wrong(tmp_path):
    scenarios.run(small_horizontal.small("decomfl"), tmp_path / "run")
    command = [sys.executable, "-m", "raydpzv", "watch", str(tmp_path / "run")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().strip()
        assert "<!DOCTYPE html>" in asked(url)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert "not a run folder" in complaint(call("watch", tmp_path / "nothing"))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_an_open_page_follows_the_record(tmp_path):
    folder = tmp_path / "run"
    with at_work(folder), served(LivePage(folder)) as (url, _), tab() as page:
        page.call("Page.navigate", url=url)
        text, seen = "document.documentElement.outerHTML", {0}
        until(lambda: seen.add(updates_on(value(page, text))) or len(seen) > 2)
        assert page.logged == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_page_that_loads_itself_again_and_has_grown_looks_as_it_did(tmp_path):
    scenarios.run(small_horizontal.small("decomfl"), tmp_path / "run")
    live, more = LivePage(tmp_path / "run"), "<details><summary>More</summary></details><main"
    first, grown = (live.page().replace(live.version, version) for version in "12")
    shown = SimpleNamespace(version="1", page=lambda: first)
    with served(shown) as (url, _), tab() as page:
        page.call("Page.navigate", url=url)
        loaded = (
            "document.readyState === 'complete' && "
            "document.querySelector('meta[name=version]').content"
        )
        until(lambda: value(page, loaded) == "1")
        page.run("logx.click(); document.querySelector('main details').open = true")
        page.call("Page.addScriptToEvaluateOnNewDocument", source=EARLY_CLICK)
        shown.page, shown.version = lambda: grown.replace("<main", more), "2"
        until(lambda: value(page, loaded) == "2")
        looks = "[logx.checked, logy.checked, document.querySelector('main details').open]"
        assert page.run(looks) == [True, True, True]
