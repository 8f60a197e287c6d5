"""The page in Debian's Chromium, as a user sees it.

STAGECRAFT_BIN names the command; the page is the one that it finds. A test opens a page, uses its controls, and at the end nothing may have
been written to the console and nothing may have been asked of a network.
"""

import base64
import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

BIN = os.path.abspath(os.environ["STAGECRAFT_BIN"])
ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 60  # seconds until something that must happen has happened


def command(*args, text=None):
    """What the command writes to standard output, as bytes."""
    done = subprocess.run([BIN, *map(str, args)], input=text.encode() if text is not None else b"", capture_output=True,
                          check=False, timeout=PATIENCE)
    if done.returncode != 0:
        raise AssertionError(f"{args}: {done.stderr.decode()}")
    return done.stdout


def start_browser(width=1440, height=1000, dark=False, downloads=None):
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={width},{height}",
                     "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-background-networking"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    if downloads:
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    browser = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    browser.set_script_timeout(PATIENCE)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                            {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    return browser


class PageCase(unittest.TestCase):
    """One browser for all tests of a class."""

    width, height, dark = 1440, 1000, False

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.downloads = cls.folder / "downloads"
        cls.downloads.mkdir()
        cls.page = cls.folder / "page.html"
        command("page", "-o", cls.page)
        cls.browser = start_browser(cls.width, cls.height, cls.dark, cls.downloads)
        cls.addClassCleanup(cls.browser.quit)

    def setUp(self):
        self.browser.get("about:blank")  # nothing of the test before goes on
        self.browser.get_log("browser")
        self.browser.get_log("performance")
        self.allowed = ("file:", "blob:", "data:", "about:", "chrome")

    def tearDown(self):
        said = [entry["message"] for entry in self.browser.get_log("browser")]
        self.assertEqual(said, [], "the console must stay empty")
        for entry in self.browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] != "Network.requestWillBeSent":
                continue
            self.assertTrue(message["params"]["request"]["url"].startswith(self.allowed), message["params"]["request"]["url"])

    # --- opening ---

    def open(self, hash_text="", path=None):
        self.browser.get("about:blank")
        self.browser.get(f"file://{path or self.page}" + (f"#{hash_text}" if hash_text else ""))
        self.until(lambda: self.js("return document.documentElement.dataset.ready"))

    def until(self, happened, message="it did not happen in time"):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            value = happened()
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(message)

    # --- using ---

    def js(self, script, *args):
        return self.browser.execute_script(script, *args)

    def find(self, name):
        return self.browser.find_element(By.ID, name)

    def type(self, name, value):
        """Types a value into an input, as a user would."""
        field = self.find(name)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(str(value))
        field.send_keys(Keys.TAB)

    def choose(self, name, value):
        self.js("const s = document.getElementById(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('change'))", name, value)
        self.assertEqual(self.js("return document.getElementById(arguments[0]).value", name), value)

    def slide(self, name, value):
        self.js("const s = document.getElementById(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('input'))", name, value)

    def click(self, name):
        self.js("arguments[0].scrollIntoView({block: 'center'})", self.find(name))
        self.find(name).click()

    def drop(self, name, text):
        """Drops a file on the page."""
        self.js("""const data = new DataTransfer();
                   data.items.add(new File([arguments[1]], arguments[0]));
                   for (const kind of ['dragenter', 'dragover', 'drop']) {
                     document.body.dispatchEvent(new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
                   }""", name, text)

    def engine(self, name, request):
        """What the engine answers, without its numbers."""
        return self.js("""try { const reply = stagecraft.engine.call(arguments[0], arguments[1]);
                          for (const key of Object.keys(reply)) if (reply[key] instanceof Float64Array) reply[key] = reply[key].length;
                          return reply; } catch (error) { return {failed: error.message, details: error.details}; }""", name, request)

    def downloaded(self, name):
        path = self.downloads / name
        self.until(lambda: path.exists() and path.stat().st_size > 0, f"{name} was not downloaded")
        time.sleep(0.1)
        data = path.read_bytes()
        path.unlink()
        return data

    # --- looking ---

    def figure(self, name):
        return self.js("const f = document.querySelector(`[data-figure=\"${arguments[0]}\"]`); return f && f.firstChild.textContent", name)

    def messages(self):
        return self.js("return [...document.querySelectorAll('.message p')].map((e) => e.textContent)")

    def settings(self):
        return self.js("return stagecraft.settings")

    def center(self, index):
        """Where an action is on the screen."""
        return self.js("""const c = stagecraft.chart; c.canvas.scrollIntoView({block: 'center'}); const b = c.box(arguments[0]); const r = c.canvas.getBoundingClientRect();
                          return [r.left + (b.from + b.to) / 2, r.top + b.middle]""", index)

    def action(self, text):
        """The number of the action with this text in the chart."""
        return self.js("const a = stagecraft.chart.actions; for (let i = 0; i < a.count; ++i) if (a.text(i) === arguments[0]) return i; return -1", text)

    def mouse(self, kind, x, y, buttons=0):
        self.browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left" if buttons or kind == "mouseReleased" else "none",
                                                                  "buttons": buttons, "clickCount": 1})

    def picture(self, path, whole=False):
        """Saves what is on the screen, or the whole page."""
        shot = self.browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))
