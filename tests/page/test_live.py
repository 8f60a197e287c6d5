"""A run while it trains, in the browser; and clients that vanish, never read, or come without the token."""

import os
import pathlib
import re
import socket
import subprocess
import threading
import time
import unittest
import urllib.error
import urllib.request

from browser import BIN, PATIENCE, ROOT, PageCase
from selenium.webdriver.common.by import By

PYTHON = os.environ.get("STAGECRAFT_PYTHON", str(ROOT / ".venv/bin/python"))
TRAINER = pathlib.Path(BIN).with_name("stagecraft-train")
PICTURES = os.environ.get("STAGECRAFT_PAGE_PICTURES")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@unittest.skipUnless(TRAINER.exists(), "no stagecraft-train: `make build` builds it")
class Live(PageCase):
    height = 1100

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        subprocess.run([PYTHON, str(ROOT / "tests/page/export_model.py"), str(cls.folder)], check=True, timeout=300)

    def setUp(self):
        super().setUp()
        self.allowed = (*self.allowed, "http://127.0.0.1:")

    def train(self, *options, steps, page=None):
        """Starts a run; returns it and the lines it has printed so far, which grow."""
        words = [BIN, "train", self.folder / "language.pt2", "--data", self.folder / "text.npy", "--ranks", 4, "--schedule", "1F1B", "--microbatches", 8, "--batch", 32, "--threads", 1,
                 "--steps", steps, "--report", 100, "--losses", self.folder / "losses.csv", *options]
        if page:
            words += ["--page", page]
        run = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(iter(run.stdout.readline, "")), daemon=True)
        reader.start()

        def clean_up():
            run.kill()
            run.wait()
            reader.join(5)
            run.stdout.close()

        self.addCleanup(clean_up)
        return run, lines

    def url(self, run, lines):
        def found():
            text = "".join(lines)
            if run.poll() is not None and "page: " not in text:
                raise AssertionError(text)
            return re.search(r"page: (http://\S+)\n", text)
        return self.until(found)[1]

    def test_run_is_shown_until_it_ends(self):
        run, lines = self.train(steps=100000, page=free_port())
        self.browser.get(self.url(run, lines))
        self.until(lambda: self.js("return document.documentElement.dataset.ready"))
        live = lambda name: self.js("const f = document.querySelector(`[data-live='${arguments[0]}']`); return f && f.textContent", name)
        first = int(self.until(lambda: live("Step")))
        self.until(lambda: int(live("Step")) > first + 5)
        for name in ("Loss", "Tokens / s", "Idle", "Memory of the process", "Recorded step"):
            self.assertTrue(self.until(lambda name=name: live(name)), name)
        self.assertEqual(len(self.browser.find_elements(By.CSS_SELECTOR, "#live-idle > div")), 4)
        self.until(lambda: self.js("return stagecraft.live.chart.actions && stagecraft.live.chart.actions.count") == 4 * 16)
        self.assertEqual(self.js("return stagecraft.live.chart.actions.ranks"), 4)
        frames = self.js("return stagecraft.live.trace")
        self.until(lambda: self.js("return stagecraft.live.trace") != frames, "the chart must follow the run")
        if PICTURES:
            for shade in ("light", "dark"):
                self.js("document.documentElement.dataset.shade = arguments[0]; stagecraft.repaint(); scrollTo(0, 0)", shade)
                time.sleep(1.2)
                self.picture(pathlib.Path(PICTURES) / f"page-live-{shade}.png")
        self.click("live-explore")
        self.until(lambda: self.find("measured").is_displayed())
        run.terminate()
        run.wait(PATIENCE)
        self.browser.get("about:blank")
        self.browser.get_log("browser")  # a page whose server was killed may say so

    def test_page_says_that_the_run_has_ended(self):
        run, lines = self.train(steps=400, page=free_port())
        self.browser.get(self.url(run, lines))
        self.until(lambda: self.js("return document.getElementById('live').classList.contains('ended')"))
        self.assertIn("has ended", self.find("live-status").text)
        self.assertEqual(run.wait(PATIENCE), 0)
        self.assertTrue(self.js("return stagecraft.reply.span > 0"))  # the explorer stays

    def test_port_in_use_gives_the_next_and_says_so(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            run, lines = self.train(steps=20, page=port)
            url = self.url(run, lines)
            self.assertEqual(run.wait(PATIENCE), 0)
            self.assertIn(f"port {port} is in use; page: ", "".join(lines))
            self.assertNotIn(f":{port}/", url)

    def test_only_who_knows_the_token_and_only_here(self):
        run, lines = self.train(steps=100000, page=free_port())
        url = self.url(run, lines)
        for address in (url.split("?")[0], url[:-1] + ("0" if url[-1] != "0" else "1"), url.split("?")[0] + "events"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(address, timeout=PATIENCE)
            self.assertEqual(refused.exception.code, 403)
            refused.exception.close()
        port = int(re.search(r":(\d+)/", url)[1])
        listening = subprocess.run(["cat", "/proc/net/tcp"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(listening, f"0100007F:{port:04X} 00000000:0000 0A")
        self.assertNotRegex(listening, f"00000000:{port:04X} 00000000:0000 0A")

    def test_clients_that_vanish_or_never_read_change_nothing(self):
        steps = 400
        run, _ = self.train(steps=steps)
        self.assertEqual(run.wait(5 * PATIENCE), 0)
        alone = (self.folder / "losses.csv").read_text()
        run, lines = self.train(steps=steps, page=free_port())
        url = self.url(run, lines)
        port, token = int(re.search(r":(\d+)/", url)[1]), url.split("token=")[1]
        request = f"GET /events?token={token} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        deaf = socket.create_connection(("127.0.0.1", port))
        deaf.sendall(request)
        self.addCleanup(deaf.close)
        came = 0
        for number in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                    came += 1
                    if number % 3:
                        client.sendall(request[: 10 * number])
            except ConnectionError:
                break  # the run was faster than its visitors
        print(f"page: {came} clients came and vanished during the run", flush=True)
        self.assertGreater(came, 20)
        self.assertEqual(run.wait(5 * PATIENCE), 0, "".join(lines))
        self.assertEqual((self.folder / "losses.csv").read_text(), alone)

    def test_page_that_is_not_built_is_said_before_training(self):
        environment = {**os.environ, "STAGECRAFT_PAGE": "/nowhere/page.html"}
        done = subprocess.run([BIN, "train", self.folder / "language.pt2", "--data", self.folder / "text.npy", "--steps", "5", "--batch", "8", "--page", str(free_port())],
                              capture_output=True, text=True, env=environment, timeout=5 * PATIENCE, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("make page", done.stderr)


if __name__ == "__main__":
    unittest.main()
